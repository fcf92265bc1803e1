"""DuckDB, which reads, filters and sorts a log within a memory limit; what does not fit
goes to temporary files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
from numpy.typing import NDArray

from streamer.errors import SettingsError, SourceError
from streamer.replay.settings import LogSettings


class Database:
    """An empty database in memory, with a directory for temporary files; `close`
    removes both.

    Raises:
        SettingsError: the memory limit is none.
    """

    def __init__(self, settings: LogSettings) -> None:
        self._temporary = tempfile.TemporaryDirectory(
            prefix="streamer-log-", ignore_cleanup_errors=True
        )
        self._connection = duckdb.connect(":memory:")
        try:
            self.rows(
                f"""SET memory_limit = {quoted(settings.memory_limit)};
                    SET temp_directory = {quoted(self._temporary.name)};
                    SET autoinstall_known_extensions = false;
                    SET TimeZone = 'UTC'"""
            )
        except duckdb.Error:
            self.close()
            raise SettingsError(
                [f"memory-limit is {settings.memory_limit!r}: write it as 500MB or 4GB"]
            ) from None
        if settings.threads is not None:
            self.rows(f"SET threads = {settings.threads}")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run some SQL, and return the rows of its result."""
        return self._connection.execute(sql).fetchall()

    def value(self, sql: str) -> Any:
        """Run some SQL, and return the single value of its result."""
        return self.rows(sql)[0][0]

    def arrays(self, sql: str) -> dict[str, NDArray[Any]]:
        """Run some SQL, and return the columns of its result."""
        return self._connection.execute(sql).fetchnumpy()

    def drop_rejects(self) -> None:
        """Drop the tables in which `read_csv` keeps the lines that it could not read."""
        self.rows(
            "DROP TABLE IF EXISTS reject_errors; DROP TABLE IF EXISTS reject_scans"
        )

    def close(self) -> None:
        """Close it and remove its temporary files. May be called twice."""
        self._connection.close()
        self._temporary.cleanup()


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Turns an error of the database into a SourceError that names the file and what to
    try.
    """
    try:
        yield
    except duckdb.Error as error:
        text = str(error).strip().split("\n")[0].split("Error: ", 1)[-1]
        if isinstance(error, duckdb.OutOfMemoryException):
            problem = f"memory-limit is too small to read it ({text}): raise it"
        elif "end of GZIP stream" in text or "zstd" in text.lower():
            problem = f"the compressed file is cut off or damaged ({text}): get it once more, or unpack what is there"
        elif "state machine reached an invalid state" in text:
            problem = (
                "its lines end in different ways: make them alike, e.g. by dos2unix"
            )
        else:
            problem = f"it cannot be read: {text}"
        raise SourceError(f"{path}: {problem}") from error


def quoted(text: object) -> str:
    """A text as SQL."""
    return "'" + str(text).replace("'", "''") + "'"
