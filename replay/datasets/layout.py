"""Which columns of a table are the parts of an event."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streamer.errors import SettingsError, SourceError
from streamer.event import Features
from streamer.replay.datasets.options import LogOptions
from streamer.replay.datasets.tables import Table
from streamer.replay.datasets.times import ReadTime, Time, any_time

LONGEST_FEATURE = 256
"""Characters; a longer one is cut."""


class FeatureColumn(NamedTuple):
    """A feature of each event, as SQL."""

    name: str
    sql: str
    kind: str = "category"
    """category, number, or object: several as JSON."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a table become events, as SQL.

    Of what is not there the SQL is None; of a value that is no good it is null.
    """

    table: Table
    user: str
    item: str
    time: Time | None = None
    rating: str | None = None
    event_type: str | None = None
    problem: str | None = None
    """The reason why a row is no event at all, or null."""
    item_features: tuple[FeatureColumn, ...] = ()
    user_features: tuple[FeatureColumn, ...] = ()
    about_items: Mapping[str, Features] = field(default_factory=dict)
    """What other files say of the items."""
    about_users: Mapping[str, Features] = field(default_factory=dict)
    above_average: bool = False
    """Only ratings above the user's average count, unless a threshold is given."""
    type_names: Mapping[str, str] = field(default_factory=dict)
    """Names of event types -> what stands in the file."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a format calls the parts of an event: names to look for, the first that is there counts."""

    user_id: tuple[str, ...]
    item_id: tuple[str, ...]
    timestamp: tuple[str, ...] = ()
    rating: tuple[str, ...] = ()
    event_type: tuple[str, ...] = ()
    item_features: tuple[str, ...] = ()
    user_features: tuple[str, ...] = ()
    required: tuple[str, ...] = ("user_id", "item_id")


def layout_of(table: Table, known: Known, options: LogOptions, where: str, read_time: ReadTime = any_time) -> Layout:
    """The layout of a table with named columns.

    Args:
        table: the table.
        known: what its columns may be called.
        options: what the user says that they are called.
        where: the file, for messages.
        read_time: the steps from SQL of the text in the time column to seconds.

    Raises:
        SourceError: a column is not there.
        SettingsError: an option needs a column that is not there.
    """
    columns = Columns(table, known, options, where)
    user, item, time = (columns.find(part) for part in ("user_id", "item_id", "timestamp"))
    rating, event_type = columns.find("rating"), columns.find("event_type")
    assert user is not None
    assert item is not None
    return Layout(
        table,
        table.column(user),
        table.column(item),
        None if time is None else read_time(table.column(time)),
        None if rating is None else f"TRY_CAST({table.column(rating)} AS DOUBLE)",
        None if event_type is None else table.column(event_type),
        item_features=columns.features(options.item_features, known.item_features),
        user_features=columns.features(options.user_features, known.user_features),
    )


class Columns:
    """Looks up columns by what the user, or the format, calls them."""

    def __init__(self, table: Table, known: Known, options: LogOptions, where: str) -> None:
        self._table, self._known, self._options, self._where = table, known, options, where

    def find(self, part: str) -> str | None:
        """The column that holds a part of an event; None if there is none and none is needed.

        Raises:
            SourceError: it is needed, or asked for, and not there.
        """
        asked = self._options.columns.get(part)
        if asked is not None:
            return self._named(asked, part)
        names: Sequence[str] = getattr(self._known, part)
        for name in names:
            if (found := same_name(name, self._table.names)) is not None:
                return found
        if part in self._known.required:
            raise self._missing(part, names[0] if names else part)
        return None

    def features(self, asked: tuple[str, ...] | None, usual: tuple[str, ...]) -> tuple[FeatureColumn, ...]:
        """The columns that say something of an item or a user: those asked for, or the usual ones that are there."""
        if asked is None:
            there = (name for name in usual if same_name(name.removesuffix(":float"), self._table.names))
            return tuple(self._feature(name) for name in there)
        return tuple(self._feature(name) for name in asked)

    def _feature(self, name: str) -> FeatureColumn:
        bare = name.removesuffix(":float")
        column = self._named(bare, "a feature")
        if bare != name:
            return FeatureColumn(bare, number(self._table.column(column)), "number")
        return FeatureColumn(bare, self._table.text(column))

    def _named(self, name: str, part: str) -> str:
        names = self._table.names
        if (found := same_name(name, names)) is not None:
            return found
        if name.isdecimal() and 1 <= int(name) <= len(names):
            return names[int(name) - 1]
        raise self._missing(part, name)

    def _missing(self, part: str, name: str) -> SourceError:
        there = list(self._table.names)
        near = difflib.get_close_matches(name.lower(), [n.lower() for n in there], 1, 0.6)
        meant = next((n for n in there if near and n.lower() == near[0]), None)
        hint = f"did you mean {meant}? " if meant else ""
        what = f"column {name!r}" if part == "a feature" else f"column {name!r} for {part}"
        return SourceError(
            f"{self._where}: there is no {what}; {hint}"
            f"the columns are {', '.join(there)}: name it, e.g. {part if part != 'a feature' else 'user_id'}=COLUMN"
        )


def same_name(name: str, names: Sequence[str]) -> str | None:
    """The column of this name, or else of this name in another case."""
    if name in names:
        return name
    return next((other for other in names if other.lower() == name.lower()), None)


def number(text: str) -> str:
    """SQL of a finite number; null for what is none."""
    value = f"TRY_CAST({text} AS DOUBLE)"
    return f"CASE WHEN isfinite({value}) THEN {value} END"


def check_filters(layout: Layout, options: LogOptions) -> None:
    """See that the options can be followed.

    Raises:
        SettingsError: with every filter that needs a column that is not there.
    """
    needs = {
        "event_types": (options.event_types, layout.event_type, "event_type"),
        "min_rating": (options.min_rating is not None, layout.rating, "rating"),
        "since": (options.since, layout.time, "timestamp"),
        "until": (options.until, layout.time, "timestamp"),
    }
    columns = ", ".join(layout.table.names)
    problems = [
        f"{name} needs a column for {part}: the log has {columns}"
        for name, (asked, sql, part) in needs.items()
        if asked and sql is None
    ]
    actions = layout.type_names
    unknown = [t for t in options.event_types if actions and t.lower() not in actions and t not in actions.values()]
    problems += [f"event_types: there is no {t!r}, only {', '.join(actions)}" for t in unknown]
    if problems:
        raise SettingsError(problems)
