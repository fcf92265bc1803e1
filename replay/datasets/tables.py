"""Tables of a log: delimited text, JSON lines, adjacency lists and Parquet, read by
DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from streamer.errors import SourceError
from streamer.event import Features
from streamer.event.fields import normal_features
from streamer.replay.datasets.database import quoted, reading
from streamer.replay.datasets.files import FirstLines, LogFile, LogFiles

NUMBER = ":float"
"""Ends the name of a feature that is a number."""
SESSIONS_START_S = 1_400_000_000
"""When the first event of a log of sessions is said to have happened."""
LONGEST_FEATURE = 256
"""Characters; a longer value is cut."""
FEATURES = ("item_features", "user_features")
_WORDS = r"string_split_regex(trim(line, chr(9) || ' '), '[ \t]+') AS words"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTable:
    """How the files of a log are read."""

    names: tuple[str, ...]
    """Its columns."""
    scan: Callable[[LogFile], str]
    """SQL of the rows of a file, in their order: its columns are texts c0, c1, ..."""
    encoding: str | None = "utf-8"
    """Of its lines; None if it does not consist of lines."""
    header: bool = False
    """Whether the first line names the columns."""
    problem: str = "NULL"
    """SQL of the reason why a row cannot be an event; null if it can."""
    text: str = ""
    """SQL of a row, for messages; empty: its cells."""
    numbers: tuple[str, ...] = ()
    """Columns that hold numbers."""
    objects: tuple[str, ...] = ()
    """Columns that hold features, as JSON objects."""

    def cell(self, name: str) -> str:
        """SQL of the text in a column without spaces around it; null where nothing is
        left.
        """
        return f"nullif(trim(c{self.names.index(name)}), '')"

    def features(self, asked: Iterable[str]) -> str | None:
        """SQL of some columns as one JSON object; None if there are none."""
        parts = []
        for name in asked:
            column = str(self.find(name.removesuffix(NUMBER)))
            value = f"left({self.cell(column)}, {LONGEST_FEATURE})"
            if name.endswith(NUMBER) or column in self.numbers:
                number = f"TRY_CAST({self.cell(column)} AS DOUBLE)"
                value = f"CASE WHEN isfinite({number}) THEN {number} END"
            parts.append(f"{quoted(name.removesuffix(NUMBER))}, {value}")
        return f"json_object({', '.join(parts)})::VARCHAR" if parts else None

    def find(self, name: str) -> str | None:
        """The column of a name, or of a number that counts from 1."""
        if found := first_match((name,), self.names):
            return found
        if name.isdecimal() and 1 <= int(name) <= len(self.names):
            return self.names[int(name) - 1]
        return None

    def split(self, features: Iterable[str]) -> tuple[list[str], list[str]]:
        """Features that are columns, and those that are not."""
        ours: list[str] = []
        others: list[str] = []
        for name in features:
            there = self.find(name.removesuffix(NUMBER)) is not None
            (ours if there else others).append(name)
        return ours, others


def first_match(candidates: Iterable[str], names: Sequence[str]) -> str | None:
    """The first candidate that is a column, spelled as the column is: upper and lower
    case count only if both exist.
    """
    for candidate in candidates:
        if candidate in names:
            return candidate
        for name in names:
            if name.lower() == candidate.lower():
                return name
    return None


def decode_features(text: str | None) -> Features | None:
    """The features in a JSON object; what is not a feature is left out, and a long
    text is cut. None if nothing is left.
    """
    value = msgspec.json.decode(text) if text else None
    if type(value) is not dict:
        return None
    plain = {}
    for name, feature in value.items():
        if isinstance(feature, str):
            feature = feature[:LONGEST_FEATURE]
        if name and type(feature) not in (list, dict):
            plain[name[:LONGEST_FEATURE]] = feature
    return normal_features(plain, LONGEST_FEATURE)


def delimited_table(
    names: Sequence[str],
    delimiter: str,
    start: FirstLines,
    *,
    header: bool = False,
    quotes: bool = False,
) -> LogTable:
    """Lines of cells with a delimiter between.

    With `quotes`, a quoted cell may hold delimiters and line ends. Without, quotes are
    characters like others.
    """
    quote = quoted('"' if quotes else "")
    columns = ", ".join(f"'c{number}': 'VARCHAR'" for number in range(len(names)))

    def scan(file: LogFile) -> str:
        return (
            f"read_csv({quoted(file.path)}, compression={quoted(file.compression)}, header={header},"
            f" auto_detect=false, delim={quoted(delimiter)}, quote={quote}, escape={quote}, skip={start.skipped},"
            f" columns={{{columns}}}, encoding={quoted(start.encoding)}, store_rejects=true,"
            f" rejects_line_size_limit=1000)"
        )

    return LogTable(
        names=tuple(names), scan=scan, encoding=start.encoding, header=header
    )


def json_table(log: LogFiles) -> LogTable:
    """A JSON object a line.

    A column is a field of the first lines, or the path to one with dots between,
    `user.country`.
    """
    start = log.first_lines
    paths: dict[str, tuple[str, ...]] = {}
    for line in start.lines:
        with suppress(msgspec.DecodeError):
            document = msgspec.json.decode(line)
            if isinstance(document, dict):
                paths = {".".join(path): path for path in _paths(document)} | paths
    if not paths:
        raise SourceError(
            f"{log.where}: none of its first lines is a JSON object: {start.shown}; choose another format"
        )
    names = sorted(paths, key=lambda name: len(paths[name]))
    cells = []
    for number, name in enumerate(names):
        keys = (key.replace("~", "~0").replace("/", "~1") for key in paths[name])
        pointer = quoted("".join(f"/{key}" for key in keys))
        cells.append(f"json_extract_string(document, {pointer}) AS c{number}")

    def scan(file: LogFile) -> str:
        document = "CASE WHEN json_valid(line) THEN CASE WHEN json_type(line) = 'OBJECT' THEN line END END"
        documents = f"SELECT {document} AS document, line FROM {file.lines_sql()} WHERE line IS NOT NULL"
        return f"(SELECT document, line, {', '.join(cells)} FROM ({documents}))"

    return LogTable(
        names=tuple(names),
        scan=scan,
        text="line",
        problem="CASE WHEN document IS NULL THEN if(json_valid(line), 'not_an_event', 'not_json') END",
        objects=tuple(name for name in FEATURES if name in names),
    )


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


def adjacency_table(log: LogFiles) -> LogTable:
    """A user and its items a line, a row for each item; a user alone has no events."""
    start = log.first_lines
    if not any(len(line.split()) > 1 for line in start.lines):
        raise SourceError(
            f"{log.where}: none of its first lines is a user and its items: {start.shown}; choose another format"
        )

    def scan(file: LogFile) -> str:
        lines = f"SELECT {_WORDS} FROM {file.lines_sql()} WHERE line IS NOT NULL"
        return f"(SELECT words[1] AS c0, unnest(words[2:]) AS c1 FROM ({lines}))"

    return LogTable(names=("user_id", "item_id"), scan=scan)


def sessions_table(log: LogFiles) -> LogTable:
    """A session a line, a row for each of its items. The session is called by the
    number of its line, and events are a second apart, one session after the other.
    """
    if len(log.files) > 1:
        raise SourceError(
            f"{log.where}: sessions are read from one file at a time, or by --protocol periods"
        )

    def scan(file: LogFile) -> str:
        lines = f"SELECT row_number() OVER () AS n, {_WORDS} FROM {file.lines_sql()} WHERE line IS NOT NULL"
        rows = f"SELECT n::VARCHAR AS c0, unnest(words) AS c1 FROM ({lines})"
        return f"(SELECT c0, c1, (row_number() OVER () + {SESSIONS_START_S})::VARCHAR AS c2 FROM ({rows}))"

    return LogTable(names=("user_id", "item_id", "timestamp"), scan=scan)


def parquet_table(log: LogFiles) -> LogTable:
    """Rows of any columns; those of floating-point numbers are features that are
    numbers, all others are texts.
    """
    with reading(log.where):
        sql = f"DESCRIBE SELECT * FROM read_parquet({quoted(log.files[0].path)})"
        types = {name: kind for name, kind, *_ in log.database.rows(sql)}
    cells = []
    for number, name in enumerate(types):
        column = '"' + name.replace('"', '""') + '"'
        cells.append(f"{column}::VARCHAR AS c{number}")

    def scan(file: LogFile) -> str:
        return f"(SELECT {', '.join(cells)} FROM read_parquet({quoted(file.path)}))"

    numbers = tuple(n for n, kind in types.items() if kind in ("DOUBLE", "FLOAT"))
    return LogTable(names=tuple(types), scan=scan, encoding=None, numbers=numbers)
