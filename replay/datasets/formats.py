"""All formats of logs, how one is guessed, and `open_log`."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from streamer.errors import SettingsError, SourceError
from streamer.replay.datasets.base import COMMON_NAMES, DatasetFormat
from streamer.replay.datasets.database import Database
from streamer.replay.datasets.delimited import Csv, Tsv
from streamer.replay.datasets.files import Location, LogFiles, matches
from streamer.replay.datasets.first_lines import FirstLines
from streamer.replay.datasets.jsonl import Jsonl
from streamer.replay.datasets.lightgcn import LightGcn
from streamer.replay.datasets.log import Log
from streamer.replay.datasets.movielens import MovieLens
from streamer.replay.datasets.parquet import Parquet
from streamer.replay.datasets.published import Amazon, EchoNest, Gowalla, TaFeng, Tmall
from streamer.replay.datasets.recbole import RecBole
from streamer.replay.settings import LogSettings

logger = logging.getLogger(__name__)

CSV = Csv()
TSV = Tsv()
JSONL = Jsonl()
PARQUET = Parquet()
GENERIC = (CSV, TSV, JSONL, PARQUET)
SPECIAL = (
    Gowalla(),
    Tmall(),
    TaFeng(),
    Amazon(),
    EchoNest(),
    RecBole(),
    LightGcn(),
    MovieLens(),
)
DATASETS: dict[str, DatasetFormat] = {
    format.name: format for format in (*SPECIAL, *GENERIC)
}
"""All formats by their names; the first one that recognises a file counts."""


def open_log(
    path: str | Path, name: str | None = None, settings: LogSettings | None = None
) -> Log:
    """Read a log, filter it and put it in order.

    Args:
        path: a file, plain or compressed; a pattern or a directory for several; a zip
            archive.
        name: one of `DATASETS`; None: guessed from the first lines and the names of the
            files.
        settings: which of its events, and in which order.

    Raises:
        SettingsError: with every wrong option.
        SourceError: it is not there, cannot be read, or does not hold an event.
    """
    settings = settings or LogSettings()
    problems = settings.problems()
    if name is not None and name not in DATASETS:
        near = difflib.get_close_matches(name.lower(), DATASETS, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        problems.append(
            f"there is no format {name!r}; {hint}choose one of {', '.join(sorted(DATASETS))}"
        )
    if problems:
        raise SettingsError(problems)
    with ExitStack() as on_error:
        # 1. where it is, and of which format
        database = Database(settings)
        on_error.callback(database.close)
        location = Location(path, database.directory)
        on_error.callback(location.close)
        format = guess_format(location, database) if name is None else DATASETS[name]
        # 2. its files
        files = tuple(
            location.open(name) for name in location.choose(format.file_names)
        )
        first_lines = files[0].first_lines(database) if format.is_text else FirstLines()
        found = LogFiles(database, location, files, first_lines, settings)
        if format.is_text and not first_lines.first:
            raise SourceError(
                f"{found.where} is empty, or of another format: none of its lines has any text"
            )
        # 3. its columns, and the events
        columns = format.columns(found)
        columns.check_filters(settings)
        log = Log(format.name, found, columns)
        on_error.pop_all()
    return log


def guess_format(location: Location, database: Database) -> DatasetFormat:
    """The format that the first lines show, or the names of the files where the first
    lines agree. Logs which.
    """
    found = None
    if location.named:
        if not _by_name(location.named[:1], (PARQUET,)):
            first_lines = location.open(location.named[0]).first_lines(database)
            found = _by_first_lines(location.named, first_lines)
    else:  # the first format with files that are named, and begin, like its own
        for format in SPECIAL:
            if found is None and _by_name(location.names, (format,)):
                chosen = location.choose(format.file_names)
                shown = _by_first_lines(
                    chosen, location.open(chosen[0]).first_lines(database)
                )
                found = format if shown is format else None
    found = found or _by_name(location.named or location.names, GENERIC)
    if found is None:
        raise SourceError(
            f"{location.path}: its format cannot be guessed; name it: {', '.join(sorted(DATASETS))}"
        )
    logger.info(
        "%s is read as %s; name its format if that is wrong", location.path, found.name
    )
    return found


def _by_first_lines(
    names: Sequence[str], first_lines: FirstLines
) -> DatasetFormat | None:
    """The format that the first lines show, alone or together with the names of the
    files.
    """
    if not first_lines.first:
        return None
    # 1. lines that only one format has
    for format in SPECIAL:
        if format.recognises(first_lines):
            return format
    # 2. a header that names a user and an item, whatever the file is called
    delimiter = first_lines.delimiter
    if COMMON_NAMES.are_header(first_lines.cells(delimiter)):
        return _by_name(names, (CSV, TSV)) or (TSV if delimiter == "\t" else CSV)
    # 3. a name, if the lines are as it says
    fitting = [format for format in SPECIAL if format.accepts(first_lines)]
    return _by_name(names, fitting) or (JSONL if first_lines.is_json else None)


def _by_name(
    names: Sequence[str], formats: Sequence[DatasetFormat]
) -> DatasetFormat | None:
    for format in formats:
        if any(
            matches(name, pattern)
            for group in format.file_names
            for pattern in group
            for name in names
        ):
            return format
    return None
