"""Features of events: from columns of the log, and from files about its users or items.

The database holds the features of an event as one text, all values with a separator
between. Few of these texts are different, so they get codes as ids do, and each is
taken apart once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import SourceError
from streamer.event import Features
from streamer.event.fields import normal_features
from streamer.replay.datasets.base import (
    SEPARATOR,
    FeatureColumn,
    first_match,
    number_sql,
)
from streamer.replay.datasets.database import Database, reading
from streamer.replay.datasets.delimited import DelimitedTable
from streamer.replay.datasets.files import LogFile, LogFiles, bare_name

MAX_SHARED = 1_000_000
"""Up to this number of different features are kept taken apart, and shared by the
events.
"""
MAX_IN_SMALL_FILE = 10
"""A column with no more different values than this holds features, however few lines
there are.
"""
LONGEST_FEATURE = 256
"""Characters; a longer value is cut."""

EventFeatures = list[Features | None]
"""The features of each of some events."""
_decode_json = msgspec.json.Decoder().decode


class FeatureReader:
    """Reads features of items, or of users. Events share the features that it returns:
    treat them as read-only.

    `texts` are all different features in the log, joined, by their codes; those `by_id`
    are from other files.
    """

    def __init__(
        self,
        columns: Sequence[FeatureColumn],
        texts: NDArray[Any],
        by_id: Mapping[str, Features],
    ) -> None:
        self._columns = columns
        self._texts = texts
        self._by_id = by_id
        self._split = self._split_values
        if any(column.kind == "object" for column in columns):
            self._split = _from_json
        self._shared: NDArray[Any] | None = None
        if len(texts) <= MAX_SHARED:
            self._shared = np.empty(len(texts), object)
            self._shared[:] = [self._split(text) for text in texts]

    def read(
        self, ids: Sequence[str], codes: NDArray[np.integer[Any]] | None
    ) -> EventFeatures | None:
        """The features of some events, by the ids of their items or users and the codes
        of their texts.

        None if none of them has any.
        """
        found: EventFeatures = [self._by_id.get(id_) for id_ in ids]
        if codes is not None:
            for place, own in enumerate(self._own(codes)):
                others = found[place]
                found[place] = others | own if others and own else others or own
        return found if any(features is not None for features in found) else None

    def _own(self, codes: NDArray[np.integer[Any]]) -> EventFeatures:
        """The features that are columns of the log."""
        if self._shared is None:
            return [self._split(text) for text in self._texts[codes]]
        own: EventFeatures = self._shared[codes].tolist()
        return own

    def _split_values(self, text: str) -> Features | None:
        """One text taken apart."""
        values = zip(
            self._columns, text.split(SEPARATOR, len(self._columns) - 1), strict=True
        )
        found = {
            c.name: float(v) if c.kind == "number" else _trimmed(v)
            for c, v in values
            if v.strip('" ')
        }
        return found or None


def _from_json(text: str) -> Features | None:
    """The features in a JSON object, as in events; what is not a feature is left out."""
    value = _decode_json(text) if text else None
    if type(value) is not dict:
        return None
    plain = {
        _cut(name): v
        for name, v in value.items()
        if name and type(v) not in (list, dict)
    }
    return normal_features(
        {name: _cut(v) for name, v in plain.items()}, LONGEST_FEATURE
    )


def _trimmed(text: str) -> str:
    """A category without spaces around it, and without quotes if it begins with one;
    not too long.
    """
    text = text.strip()
    return (text.strip('" ') if text.startswith('"') else text)[:LONGEST_FEATURE]


def _cut(value: Any) -> Any:
    return value[:LONGEST_FEATURE] if isinstance(value, str) else value


def read_feature_file(
    database: Database,
    file: LogFile,
    table: DelimitedTable,
    id_names: Sequence[str],
    asked: tuple[str, ...] | None,
    numbers: Sequence[str] = (),
) -> dict[str, Features]:
    """Features by id, from a file with a line for each user or item; damaged lines are
    left out.

    Args:
        id_names: what the column with the id may be called.
        asked: the columns to take; None: all but those with a different value in more
            than half of the lines, which are names or titles rather than features.
        numbers: columns that hold numbers; so does `price:float` among those asked for.
    """

    def column(candidates: Sequence[str]) -> str:
        if found := first_match(candidates, table.names):
            return found
        raise SourceError(
            f"{file.name}: there is no column {' or '.join(map(repr, candidates[:3]))}; "
            f"the columns are {', '.join(table.names)}: name one of them"
        )

    # 1. which columns
    key = column(id_names)
    plain = [name.removesuffix(":float") for name in asked or ()]
    names = (
        [name for name in table.names if name != key]
        if asked is None
        else [column([name]) for name in plain]
    )
    floats = {
        *numbers,
        *(
            name.removesuffix(":float")
            for name in asked or ()
            if name.endswith(":float")
        ),
    }
    # 2. their values
    values = [
        number_sql(table.trimmed(name)) if name in floats else table.trimmed(name)
        for name in names
    ]
    columns = ", ".join([table.trimmed(key), *values])
    rows = list[tuple[Any, ...]]()

    def read(file: LogFile, table: DelimitedTable) -> None:
        database.drop_rejects()
        undamaged = f"WHERE {table.problem} IS NULL" if table.by_line else ""
        rows[:] = database.rows(f"SELECT {columns} FROM {table.scan(file)} {undamaged}")

    with reading(file.name):
        if table.damage(database, partial(read, file, table)) is not None:
            read(
                file.with_mixed_line_ends(database, table.encoding),
                replace(table, by_line=True),
            )
        database.drop_rejects()
    # 3. those that are features
    most = max(MAX_IN_SMALL_FILE, len(rows) // 2)
    used = [
        (number, name)
        for number, name in enumerate(names, 1)
        if asked is not None
        or name in floats
        or len({row[number] for row in rows}) <= most
    ]
    found = {
        row[0]: {
            name: _cut(row[number]) for number, name in used if row[number] is not None
        }
        for row in rows
    }
    return {id_: features for id_, features in found.items() if id_ and features}


def titles_in(features: Mapping[str, Features]) -> dict[str, str]:
    """Titles by id, where that is the only feature."""
    return {
        id_: str(title)
        for id_, (title,) in ((id_, found.values()) for id_, found in features.items())
    }


def file_beside(
    log: LogFiles, names: Sequence[str], asked: tuple[str, ...] | None
) -> tuple[str, LogFile] | None:
    """The first of these names with a file beside the log, and that file; None if there
    is none, or none is wanted.
    """
    there = {bare_name(name): name for name in reversed(log.location.names)}
    there = {
        name.lower(): file for name, file in there.items()
    } | there  # the case counts only if both exist
    found = next(
        (name for name in names if name in there or name.lower() in there), None
    )
    if found is None and asked:
        raise SourceError(
            f"{log.where}: there is no column {asked[0]!r}, and no {' or '.join(names)} beside it that might have it; "
            "put that file beside the log, or leave the feature out"
        )
    if found is None or asked == ():
        return None
    return found, log.location.open(there.get(found) or there[found.lower()])
