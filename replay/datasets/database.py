"""The database that reads, filters and sorts: DuckDB, within a limit of memory, the rest in temporary files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from streamer.errors import SettingsError, SourceError
from streamer.replay.datasets.options import LogOptions

Connection = duckdb.DuckDBPyConnection


def connect(options: LogOptions, scratch: Path) -> Connection:
    """An empty database, that keeps what memory cannot hold in a directory.

    Raises:
        SettingsError: the limit of memory is none.
    """
    config = {"temp_directory": str(scratch / "spilled"), "autoinstall_known_extensions": "false"}
    if options.threads is not None:
        config["threads"] = str(options.threads)
    connection = duckdb.connect(":memory:", config=config)  # type: ignore[arg-type]
    try:
        connection.execute(f"SET memory_limit = {quoted(options.memory_limit)}")
    except duckdb.Error:
        connection.close()
        raise SettingsError([f"memory_limit is {options.memory_limit!r}: write it as 500MB or 4GB"]) from None
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@contextmanager
def reading(path: object) -> Iterator[None]:
    """What the database says of a file that it cannot read, in our words.

    Raises:
        SourceError: it cannot.
    """
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise SourceError(f"{path}: memory_limit is too small to read it: {first_line(error)}") from error
    except duckdb.Error as error:
        raise SourceError(f"{path}: {_said_of(error)}") from error


def _said_of(error: duckdb.Error) -> str:
    text = first_line(error)
    if "end of GZIP stream" in text or "zstd" in text.lower():
        return f"the compressed file is cut off or damaged ({text}): get it once more, or unpack what is there"
    return f"it cannot be read: {text}"


def first_line(error: Exception) -> str:
    """The first line of a message, without the kind of error."""
    return str(error).strip().split("\n")[0].split("Error: ", 1)[-1]


def quoted(text: object) -> str:
    """A text as SQL."""
    return "'" + str(text).replace("'", "''") + "'"
