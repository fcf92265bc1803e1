"""All formats of logs, how one is guessed, and `open_log`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from streamer.errors import SettingsError, SourceError
from streamer.event.guess import COLUMN_NAMES
from streamer.replay.datasets.base import DatasetFormat
from streamer.replay.datasets.database import Database, reading
from streamer.replay.datasets.files import FirstLines, Location, LogFiles, matches
from streamer.replay.datasets.log import Log
from streamer.replay.datasets.published import (
    Amazon,
    EchoNest,
    Gowalla,
    LightGcn,
    MovieLens,
    RecBole,
    Sessions,
    TaFeng,
    Tmall,
)
from streamer.replay.datasets.tables import (
    LogTable,
    first_match,
    json_table,
    parquet_table,
)
from streamer.replay.settings import LogSettings


class Csv(DatasetFormat):
    """Any delimited text; name its columns unless they are user_id, item_id, timestamp."""

    name = "csv"
    file_names = (("*.csv",),)
    quotes = True


class Tsv(DatasetFormat):
    """Tab-separated text, in which quotes are plain characters; name its columns as for
    csv.
    """

    name = "tsv"
    file_names = (("*.tsv",),)
    delimiter = "\t"


class Jsonl(DatasetFormat):
    """A JSON object a line."""

    name = "jsonl"
    file_names = (("*.jsonl",), ("*.ndjson",), ("*.json",))

    def table(self, log: LogFiles) -> LogTable:
        return json_table(log)


class Parquet(DatasetFormat):
    """A Parquet file; name its columns."""

    name = "parquet"
    file_names = (("*.parquet",),)
    is_text: ClassVar[bool] = False

    def table(self, log: LogFiles) -> LogTable:
        return parquet_table(log)


CSV = Csv()
TSV = Tsv()
JSONL = Jsonl()
PARQUET = Parquet()
GENERIC = (CSV, TSV, JSONL, PARQUET)
PUBLISHED = (
    Gowalla(),
    Tmall(),
    TaFeng(),
    Amazon(),
    EchoNest(),
    RecBole(),
    LightGcn(),
    Sessions(),
    MovieLens(),
)
DATASETS: dict[str, DatasetFormat] = {
    format.name: format for format in (*PUBLISHED, *GENERIC)
}
"""All formats by their names."""
SAMPLED = 100
"""Rows of a sample."""


class LogSample(NamedTuple):
    """What the beginning of a log shows."""

    format: DatasetFormat
    columns: tuple[str, ...]
    rows: list[dict[str, str]]
    """The first ones, by column; without cells that are empty."""
    files: list[Path]


def open_log(
    path: str | Path, name: str | None = None, settings: LogSettings | None = None
) -> Log:
    """Read a log, filter it and put it in order.

    Args:
        path: a file, plain or compressed; a pattern or a directory for several.
        name: one of `DATASETS`; None: guessed from the first line and the names of the
            files.
        settings: which of its events, and in which order.

    Raises:
        SettingsError: with every wrong option.
        SourceError: it is not there, cannot be read, or does not hold an event.
    """
    format, found = _find_log(path, name, settings or LogSettings())
    try:
        columns = format.columns(found)
        columns.check_filters(found.settings)
        return Log(format.name, found, columns)
    except BaseException:
        found.database.close()
        raise


def sample_log(
    path: str | Path, name: str | None = None, settings: LogSettings | None = None
) -> LogSample:
    """Look at the first rows of a log; arguments and errors are those of `open_log`."""
    format, found = _find_log(path, name, settings or LogSettings())
    try:
        table = format.table(found)
        file = found.files[0]
        cells = ", ".join(table.cell(column) for column in table.names)
        sql = f"SELECT {cells} FROM {table.scan(file)} LIMIT {SAMPLED}"
        with reading(file.name):
            first = found.database.rows(sql)
    finally:
        found.database.close()
    rows = []
    for row in first:
        named = zip(table.names, row, strict=True)
        rows.append({column: cell for column, cell in named if cell is not None})
    return LogSample(format, table.names, rows, [file.path for file in found.files])


def _find_log(
    path: str | Path, name: str | None, settings: LogSettings
) -> tuple[DatasetFormat, LogFiles]:
    """The format of a log, and its files in a database that the caller closes."""
    problems = settings.problems()
    if name is not None and name not in DATASETS:
        problems.append(
            f"there is no format {name!r}; choose one of {', '.join(sorted(DATASETS))}"
        )
    if problems:
        raise SettingsError(problems)
    database = Database(settings)
    try:
        # 1. where it is, and of which format
        location = Location(path)
        format = guess_format(location) if name is None else DATASETS[name]
        # 2. its files
        chosen = location.choose(format.file_names)
        files = tuple(location.open(file) for file in chosen)
        first_lines = files[0].first_lines() if format.is_text else FirstLines()
        found = LogFiles(database, location, files, first_lines, settings)
        if format.is_text and not first_lines.first:
            raise SourceError(
                f"{found.where} is empty, or of another format: none of its lines has any text"
            )
    except BaseException:
        database.close()
        raise
    return format, found


def guess_format(location: Location) -> DatasetFormat:
    """A published format whose files are named and begin so, or else a generic one."""
    names = location.named or location.names
    found = _by_name(names, GENERIC)
    if location.named and found is not PARQUET:
        # whatever it is called, an object or a header shows what it is
        start = location.open(names[0]).first_lines()
        cells = start.cells(start.delimiter)
        if start.first.lstrip().startswith("{"):
            found = JSONL
        elif all(first_match(COLUMN_NAMES[n], cells) for n in ("user_id", "item_id")):
            found = _by_name(names, (CSV, TSV)) or (
                TSV if start.delimiter == "\t" else CSV
            )
    for format in PUBLISHED:
        if files := [name for name in names if _by_name([name], (format,))]:
            first = location.open(files[0]).first_lines().first
            if re.match(format.looks, first, re.IGNORECASE):
                found = format
    if found is None:
        raise SourceError(
            f"{location.path}: its format cannot be guessed; name it: {', '.join(sorted(DATASETS))}"
        )
    return found


def _by_name(
    names: Sequence[str], formats: Sequence[DatasetFormat]
) -> DatasetFormat | None:
    """The first format that a file is named like."""
    for format in formats:
        patterns = [pattern for group in format.file_names for pattern in group]
        if any(matches(name, pattern) for name in names for pattern in patterns):
            return format
    return None
