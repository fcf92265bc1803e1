"""Opening a log: which format it is of, and where its files are."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from pathlib import Path

from streamer.errors import SettingsError, SourceError
from streamer.replay.datasets.amazon import AMAZON
from streamer.replay.datasets.base import DatasetFormat, Opened
from streamer.replay.datasets.database import Connection, connect
from streamer.replay.datasets.delimited import guess_delimiter, names_parts
from streamer.replay.datasets.echonest import ECHONEST
from streamer.replay.datasets.files import NO_LINES, Origin, Peek, matches
from streamer.replay.datasets.generic import CSV, JSONL, KNOWN, PARQUET, TSV
from streamer.replay.datasets.gowalla import GOWALLA
from streamer.replay.datasets.layout import check_filters
from streamer.replay.datasets.lightgcn import LIGHTGCN
from streamer.replay.datasets.log import Log
from streamer.replay.datasets.movielens import MOVIELENS
from streamer.replay.datasets.options import LogOptions
from streamer.replay.datasets.recbole import RECBOLE
from streamer.replay.datasets.scratch import Scratch
from streamer.replay.datasets.ta_feng import TA_FENG
from streamer.replay.datasets.tmall import TMALL

logger = logging.getLogger(__name__)

SPECIAL = (GOWALLA, TMALL, TA_FENG, AMAZON, ECHONEST, RECBOLE, LIGHTGCN, MOVIELENS)
GENERIC = (CSV, TSV, JSONL, PARQUET)
DATASETS: dict[str, DatasetFormat] = {format.name: format for format in (*SPECIAL, *GENERIC)}
"""All formats by their names; of several that fit a file, the first is meant."""


def open_log(path: str | Path, name: str | None = None, options: LogOptions | None = None) -> Log:
    """Read a log, filter it and put it in order.

    Args:
        path: a file, plain or compressed; a pattern or a directory for several; a zip archive.
        name: one of `DATASETS`; None: guessed from the first lines, and the names of the files where those fit.
        options: what of it, and in which order.

    Raises:
        SettingsError: with every wrong option.
        SourceError: it is not there, cannot be read, or holds no event.
    """
    options = options or LogOptions()
    problems = options.problems()
    if name is not None and name not in DATASETS:
        near = difflib.get_close_matches(name.lower(), DATASETS, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        problems.append(f"there is no format {name!r}; {hint}there are {', '.join(sorted(DATASETS))}")
    if problems:
        raise SettingsError(problems)
    scratch = _scratch(options)
    try:
        return _open(path, name, options, scratch)
    except BaseException:
        scratch.close()
        raise


def _scratch(options: LogOptions) -> Scratch:
    try:
        return Scratch(options.temp_dir)
    except OSError as error:
        raise SettingsError([f"temp_dir {options.temp_dir} cannot be used: {error}"]) from error


def _open(path: str | Path, name: str | None, options: LogOptions, scratch: Scratch) -> Log:
    connection = connect(options, scratch.path)
    try:
        # 1. where it is, and of which format
        origin = Origin(path, scratch.path)
        format = DATASETS[name] if name is not None else _guess(origin, connection)
        # 2. its files
        files = tuple(origin.open(name) for name in origin.choose(format.groups))
        peek = files[0].peek(connection) if format.is_text else NO_LINES
        log = Opened(connection, origin, files, peek, options)
        if format.is_text and not peek.first:
            raise SourceError(f"{log.where} is empty, or of another format: no line in it has a text")
        # 3. its columns, and the events
        return _read(format, log, scratch)
    except BaseException:
        connection.close()
        raise


def _read(format: DatasetFormat, log: Opened, scratch: Scratch) -> Log:
    layout = format.layout(log)
    check_filters(layout, log.options)
    return Log(format.name, log, layout, scratch)


def _guess(origin: Origin, connection: Connection) -> DatasetFormat:
    """The format that the first lines tell, or the names of the files where the first lines fit. Says which.

    Raises:
        SourceError: nothing does.
    """
    found = _of_files(origin, connection) if origin.given else _of_directory(origin, connection)
    found = found or _by_name(origin.given or origin.names, GENERIC)
    if found is None:
        raise SourceError(f"{origin.path}: its format cannot be guessed; name it: {', '.join(sorted(DATASETS))}")
    logger.info("reading %s as %s", origin.path, found.name)
    return found


def _of_files(origin: Origin, connection: Connection) -> DatasetFormat | None:
    """The format of files that were named."""
    if _by_name(origin.given[:1], (PARQUET,)):
        return None
    return _by_first_lines(origin.given, origin.open(origin.given[0]).peek(connection))


def _of_directory(origin: Origin, connection: Connection) -> DatasetFormat | None:
    """The first format with files in a directory or an archive that are named, and begin, as its own."""
    for format in SPECIAL:
        if _by_name(origin.names, (format,)):
            chosen = origin.choose(format.groups)
            if _by_first_lines(chosen, origin.open(chosen[0]).peek(connection)) is format:
                return format
    return None


def _by_first_lines(names: Sequence[str], peek: Peek) -> DatasetFormat | None:
    """The format that the first lines tell: alone, by a header that names user and item, or together with the names."""
    if not peek.first:
        return None
    # 1. lines that only one format has
    if alone := next((format for format in SPECIAL if format.recognises(peek)), None):
        return alone
    # 2. a header, whatever the file is called
    if names_parts(peek, KNOWN):
        return _by_name(names, (CSV, TSV)) or (TSV if guess_delimiter(peek) == "\t" else CSV)
    # 3. a name, if the lines are as it says
    fitting = [format for format in SPECIAL if format.fits(peek)]
    return _by_name(names, fitting) or (JSONL if JSONL.recognises(peek) else None)


def _by_name(names: Sequence[str], formats: Sequence[DatasetFormat]) -> DatasetFormat | None:
    for format in formats:
        if any(matches(name, pattern) for group in format.groups for pattern in group for name in names):
            return format
    return None
