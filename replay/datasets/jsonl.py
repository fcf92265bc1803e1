"""JSON lines: an object a line.

    {"user_id": "ann", "item_id": 42, "timestamp": 1700000000, "item_features":
    {"genre": "jazz"}}

A column is a field, or the path to one with dots between, `user.country`. Only fields
of the first lines are columns. A line that is not an object is malformed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from streamer.errors import SourceError
from streamer.replay.datasets.base import (
    COMMON_NAMES,
    ColumnNames,
    DatasetFormat,
    EventColumns,
    FeatureColumn,
    LogTable,
    find_columns,
)
from streamer.replay.datasets.database import quoted
from streamer.replay.datasets.files import LogFile, LogFiles


class Jsonl(DatasetFormat):
    """A JSON object a line."""

    name = "jsonl"
    file_names = (("*.jsonl",), ("*.ndjson",), ("*.json",))

    def columns(self, log: LogFiles) -> EventColumns:
        return jsonl_columns(log, COMMON_NAMES)


def jsonl_columns(log: LogFiles, names: ColumnNames) -> EventColumns:
    """The columns of JSON lines.

    Features are the objects `item_features` and `user_features`, as in events, unless
    the settings name others.
    """
    paths: dict[str, tuple[str, ...]] = {}
    for line in log.first_lines.lines:
        with contextlib.suppress(msgspec.DecodeError):
            document = msgspec.json.decode(line)
            if isinstance(document, dict):
                paths = {".".join(path): path for path in _paths(document)} | paths
    if not paths:
        raise SourceError(
            f"{log.where}: none of its first lines is a JSON object: {log.first_lines.quoted_first}; "
            "choose another format"
        )
    table = JsonTable(
        names=tuple(sorted(paths, key=lambda name: len(paths[name]))), paths=paths
    )
    problem = "CASE WHEN document IS NULL THEN CASE WHEN json_valid(line) THEN 'not_an_event' ELSE 'not_json' END END"
    columns = replace(find_columns(log, table, names), problem=problem)
    for name in ("item_features", "user_features"):
        if name in paths and getattr(log.settings, name) is None:
            features = FeatureColumn(
                name,
                f"json_extract(document, {table.pointer(name)})::VARCHAR",
                "object",
            )
            columns = replace(columns, **{name: (features,)})  # type: ignore[arg-type]
    return columns


def _paths(
    document: dict[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """The path to each field of an object; outer ones come last, so that a field `a.b`
    counts more than `b` in `a`.
    """
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))
    yield from ((*above, key) for key in document)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonTable(LogTable):
    """A JSON object a line."""

    paths: Mapping[str, tuple[str, ...]]
    """The keys that lead to each field."""

    def scan(self, file: LogFile) -> str:
        document = "CASE WHEN json_valid(line) THEN CASE WHEN json_type(line) = 'OBJECT' THEN line END END"
        return f"(SELECT {document} AS document, line FROM {file.lines_sql('utf-8')} WHERE line IS NOT NULL)"

    def untrimmed(self, name: str) -> str:
        return f"json_extract_string(document, {self.pointer(name)})"

    def pointer(self, name: str) -> str:
        """SQL of the JSON pointer to a field."""
        return quoted(
            "".join(
                "/" + key.replace("~", "~0").replace("/", "~1")
                for key in self.paths[name]
            )
        )
