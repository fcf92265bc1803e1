"""The files of a log: a file, several by a pattern, a directory, or a zip archive;
plain or compressed.
"""

from __future__ import annotations

import bz2
import difflib
import glob
import lzma
import shutil
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO, Any

import duckdb

from streamer.errors import SourceError
from streamer.replay.datasets.database import Database, quoted, reading
from streamer.replay.datasets.first_lines import FirstLines
from streamer.replay.settings import LogSettings

MAX_LISTED = 12
"""File names in a message."""
FIRST_LINES = 1000
LONGEST_LINE = 16_000_000
"""Bytes."""
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of files that the database decompresses."""
_DECOMPRESS: dict[bytes, Callable[[Path], IO[bytes]]] = {
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
"""First bytes of files that we decompress for it."""
_SUFFIXES = (".gz", ".zst", ".bz2", ".xz")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file that the database can read."""

    name: str
    """For messages."""
    path: Path
    compression: str
    """none, gzip or zstd: as its first bytes show, whatever its name."""
    new_line: str | None = None
    """How its lines end, as `read_csv` has it; None: all as the first one."""

    def lines_sql(
        self, encoding: str, max_line: int = LONGEST_LINE, rejects: str = "reject"
    ) -> str:
        """SQL of its lines, a row for each in their order; an empty line is null.

        A line that is not of the encoding is left out, and kept in the table
        `<rejects>_errors`.
        """
        new_line = (
            "" if self.new_line is None else f" new_line={quoted(self.new_line)},"
        )
        return (
            f"read_csv({quoted(self.path)}, compression={quoted(self.compression)}, header=false, auto_detect=false,"
            f" delim='\x1f', quote='', escape='', columns={{'line': 'VARCHAR'}}, strict_mode=false,{new_line}"
            f" encoding={quoted(encoding)}, max_line_size={max_line}, buffer_size={max(4_000_000, 2 * max_line)},"
            f" store_rejects=true, rejects_table='{rejects}_errors', rejects_scan='{rejects}_scans',"
            f" rejects_line_size_limit=1000)"
        )

    def with_mixed_line_ends(self, database: Database, encoding: str) -> LogFile:
        r"""The same file, for lines of which some end in CR LF and others in LF. Reads it twice.

        The database has two ways to read such lines. With `\r\n`, CR LF is one end, but a CR alone takes the character
        after it away. With `\n`, CR and LF are two ends: texts are right, but there are more empty lines.
        """
        lengths = []
        for new_line in (r"\r\n", r"\n"):
            lines = replace(self, new_line=new_line).lines_sql(encoding, rejects="ends")
            lengths.append(database.value(f"SELECT sum(length(line)) FROM {lines}"))
            database.drop_rejects("ends")
        return replace(self, new_line=r"\r\n" if lengths[0] == lengths[1] else r"\n")

    def first_lines(self, database: Database) -> FirstLines:
        """Its first lines, as UTF-8 or else as Latin-1."""
        with reading(self.name):
            lines, others = self._first_lines(database, "utf-8")
        # Latin-1 if lines that are not UTF-8 are the rule, or the header is one: not if
        # a few lines were damaged.
        beyond_ascii = sum(not line.isascii() for line in lines)
        if len(others) > beyond_ascii and (
            1 in others or 10 * len(others) >= len(lines)
        ):
            with suppress(duckdb.Error):
                return FirstLines(self._first_lines(database, "latin-1")[0], "latin-1")
        return FirstLines(lines, "utf-8")

    def _first_lines(
        self, database: Database, encoding: str
    ) -> tuple[tuple[str, ...], list[int]]:
        """The first lines that are of an encoding, and the numbers of those that are
        not.
        """
        try:
            sql = self.lines_sql(encoding, max_line=2_000_000, rejects="first")
            lines = database.rows(f"SELECT line FROM {sql} LIMIT {FIRST_LINES}")
            others = database.rows(
                f"SELECT line FROM first_errors WHERE line <= {FIRST_LINES}"
            )
        finally:
            database.drop_rejects("first")
        return tuple(line or "" for (line,) in lines), [number for (number,) in others]


class Location:
    """Where a log lies: a file and its neighbours, files that match a pattern, a
    directory, or a zip archive.

    What must be unpacked goes to `directory`.
    """

    def __init__(self, path: str | Path, directory: Path) -> None:
        self.path = Path(path)
        self._directory = directory
        self._archive: zipfile.ZipFile | None = None
        self._files: dict[str, Path] = {}
        self._opened: dict[str, LogFile] = {}
        self.named: tuple[str, ...] = ()
        """The files that the user named; empty for a directory, or an archive of
        several files.
        """
        try:
            if self.path.is_dir():
                self._files = _files_in(self.path)
            elif not self.path.is_file():
                self._files = _files_matching(str(path))
                self.named = tuple(self._files)
            elif zipfile.is_zipfile(self.path):
                self._archive = zipfile.ZipFile(self.path)
                for name in self._archive.namelist():
                    is_clutter = name.startswith("__MACOSX/") or PurePosixPath(
                        name
                    ).name.startswith(".")
                    if not name.endswith("/") and not is_clutter:
                        self._files[name] = self.path
                self.named = tuple(self._files) if len(self._files) == 1 else ()
            else:
                self._files = _files_in(self.path.parent) | {self.path.name: self.path}
                self.named = (self.path.name,)
        except (OSError, zipfile.BadZipFile) as error:
            raise SourceError(f"{self.path} cannot be read: {error}") from error
        self.names = list(self._files)
        """All files that are there."""

    @property
    def opened(self) -> list[Path]:
        """The files that were opened, or the archive that they are in."""
        if self._archive is not None:
            return [self.path]
        return [self._files[name] for name in self._opened]

    def choose(self, patterns: Sequence[Sequence[str]]) -> list[str]:
        """The files of the log: those that the user named, or else all that match the
        first group with a match.
        """
        if self.named:
            return list(self.named)
        for group in patterns:
            if found := [
                name
                for pattern in group
                for name in self.names
                if matches(name, pattern)
            ]:
                return list(dict.fromkeys(found))
        if len(self.names) == 1:
            return self.names
        expected = " or ".join(" and ".join(group) for group in patterns)
        raise SourceError(
            f"{self.path}: no file in it is named {expected}; {_listed(self.names)}: name one"
        )

    def open(self, name: str) -> LogFile:
        """A file of this place, unpacked if the database cannot do that."""
        if name in self._opened:
            return self._opened[name]
        path = self._files[name]
        try:
            if self._archive is not None:
                path = self._unpack(PurePosixPath(name).name, self._archive.open(name))
            with path.open("rb") as file:
                start = file.read(8)
            for magic, decompress in _DECOMPRESS.items():
                if start.startswith(magic):
                    path = self._unpack(path.name, decompress(path))
                    start = b""
        except (
            OSError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
            lzma.LZMAError,
            RuntimeError,
        ) as error:
            raise SourceError(f"{self.path}: {name} cannot be read: {error}") from error
        compression = next(
            (c for magic, c in _COMPRESSIONS.items() if start.startswith(magic)), "none"
        )
        self._opened[name] = LogFile(name, path, compression)
        return self._opened[name]

    def _unpack(self, name: str, packed: IO[bytes]) -> Path:
        """Write a member of an archive, or what a compressed file holds, to a file of
        our own.
        """
        directory = self._directory / f"unpacked-{len(list(self._directory.iterdir()))}"
        directory.mkdir()
        with packed, (directory / name).open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
        return directory / name

    def close(self) -> None:
        """Close the archive."""
        if self._archive is not None:
            self._archive.close()


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of a log, found and opened, and how to read them."""

    database: Database
    location: Location
    files: tuple[LogFile, ...]
    first_lines: FirstLines
    """Of the first file."""
    settings: LogSettings

    @property
    def where(self) -> str:
        """The log, for messages."""
        one = len(self.files) == 1 and self.location.named
        return self.files[0].name if one else str(self.location.path)

    def with_settings(self, **changes: Any) -> LogFiles:
        """The same files, read by other settings."""
        return replace(self, settings=replace(self.settings, **changes))

    def close(self) -> None:
        """Close the files and remove the temporary ones. May be called twice."""
        self.location.close()
        self.database.close()


def matches(name: str, pattern: str) -> bool:
    """Whether a file is named so, compressed or not, in any directory of an archive and
    in any case.
    """
    return fnmatch(bare_name(name).lower(), pattern.lower())


def bare_name(name: str) -> str:
    """The name of a file without its directories and without the suffixes of
    compression.
    """
    base = PurePosixPath(name).name
    while base.lower().endswith(_SUFFIXES):
        base = base[: base.rindex(".")]
    return base


def _files_in(directory: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(directory.iterdir()) if path.is_file()}


def _files_matching(pattern: str) -> dict[str, Path]:
    """Files by their names relative to the directory that all of them lie in; if there
    is none, what may be meant.
    """
    above = next(
        (parent for parent in Path(pattern).parents if not glob.has_magic(str(parent))),
        Path(),
    )
    found = [Path(name) for name in sorted(glob.glob(pattern))]  # noqa: PTH207  (also absolute ones)
    if files := {
        path.relative_to(above).as_posix(): path for path in found if path.is_file()
    }:
        return files
    directory = Path(pattern).parent
    name = Path(pattern).name
    if not directory.is_dir():
        raise SourceError(
            f"{pattern} does not exist: there is no directory {directory}"
        )
    names = sorted(entry.name for entry in directory.iterdir())
    near = difflib.get_close_matches(name, names, 3, 0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else _listed(names)
    raise SourceError(f"{pattern} does not exist; {hint}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"there is {', '.join(names[:MAX_LISTED]) or 'no file'}{more}"
