"""Finding the files of a log: a file, several by a pattern, a directory, an archive; plain or compressed."""

from __future__ import annotations

import bz2
import difflib
import glob
import lzma
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO, Any

import duckdb

from streamer.errors import SourceError
from streamer.replay.datasets.database import Connection, quoted, reading

MOST_LISTED = 12
"""Names in a message."""
PEEKED_LINES = 1000
LONGEST_LINE = 16_000_000
"""Bytes."""
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_UNPACKERS: dict[bytes, Callable[[Path], IO[bytes]]] = {b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_SUFFIXES = (".gz", ".zst", ".bz2", ".xz")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file that the database can read."""

    name: str
    """What messages call it."""
    path: Path
    compression: str
    """none, gzip or zstd: by its first bytes, whatever its name."""
    new_line: str | None = None
    """How its lines end, as the database writes it; None: all as the first one."""

    def lines_sql(self, encoding: str, max_line: int = LONGEST_LINE, rejects: str = "reject") -> str:
        """SQL of its lines, one row each in their order; an empty line is null.

        A line that is not of the encoding is left out, and kept in the table `<rejects>_errors`.
        """
        buffer = max(4_000_000, 2 * max_line)
        new_line = "" if self.new_line is None else f" new_line={quoted(self.new_line)},"
        return (
            f"read_csv({quoted(self.path)}, compression={quoted(self.compression)}, header=false, auto_detect=false,"
            f" delim='\x1f', quote='', escape='', columns={{'line': 'VARCHAR'}}, strict_mode=false,{new_line}"
            f" encoding={quoted(encoding)}, max_line_size={max_line}, buffer_size={buffer}, store_rejects=true,"
            f" rejects_table='{rejects}_errors', rejects_scan='{rejects}_scans', rejects_line_size_limit=1000)"
        )

    def with_any_ends(self, connection: Connection, encoding: str) -> LogFile:
        """The same file, for lines that end in different ways. Reads it twice.

        The database has two ways to take such lines. In the first, CR LF is one end, but a CR alone takes the character
        after it away. In the second, CR and LF are two ends: texts are right, but there are more empty lines.
        """
        one, two = replace(self, new_line=r"\r\n"), replace(self, new_line=r"\n")
        lengths = []
        for file in (one, two):
            sql = f"SELECT sum(length(line)) FROM {file.lines_sql(encoding, rejects='ends')}"
            lengths.append(connection.execute(sql).fetchall()[0][0])
            connection.execute("DROP TABLE IF EXISTS ends_errors; DROP TABLE IF EXISTS ends_scans")
        return one if lengths[0] == lengths[1] else two

    def peek(self, connection: Connection) -> Peek:
        """Its first lines.

        Raises:
            SourceError: it cannot be read.
        """
        with reading(self.name):
            lines, bad = self._first_lines(connection, "utf-8")
        if not _is_other_encoding(lines, bad):
            return Peek(lines, "utf-8")
        try:
            return Peek(self._first_lines(connection, "latin-1")[0], "latin-1")
        except duckdb.Error:
            return Peek(lines, "utf-8")

    def _first_lines(self, connection: Connection, encoding: str) -> tuple[tuple[str, ...], list[int]]:
        """The first lines that are of an encoding, and the numbers of others."""
        sql = f"SELECT line FROM {self.lines_sql(encoding, 2_000_000, 'peek')} LIMIT {PEEKED_LINES}"
        try:
            lines = tuple(line or "" for (line,) in connection.execute(sql).fetchall())
            bad = connection.execute(f"SELECT line FROM peek_errors WHERE line <= {PEEKED_LINES}").fetchall()
        finally:
            connection.execute("DROP TABLE IF EXISTS peek_errors; DROP TABLE IF EXISTS peek_scans")
        return lines, [number for (number,) in bad]


def _is_other_encoding(lines: Sequence[str], bad: Sequence[int]) -> bool:
    """Whether lines that are not UTF-8 are the rule, or the header is one, rather than lines that were damaged."""
    beyond_ascii = sum(not line.isascii() for line in lines)
    return len(bad) > beyond_ascii and (1 in bad or 10 * len(bad) >= len(lines))


@dataclass(frozen=True, slots=True)
class Peek:
    """The first lines of a file, without a byte order mark."""

    lines: tuple[str, ...]
    encoding: str
    """utf-8 if they are that, else latin-1."""

    @property
    def first(self) -> str:
        """The first line that is not empty."""
        return next((line for line in self.lines if line.strip()), "")

    @property
    def empty_before_first(self) -> int:
        """Lines before that."""
        return next((number for number, line in enumerate(self.lines) if line.strip()), 0)


NO_LINES = Peek((), "utf-8")


class Origin:
    """Where a log lies: a file and its neighbours, files by a pattern, a directory, or a zip archive.

    Args:
        path: what the user named.
        scratch: a directory to unpack into.

    Raises:
        SourceError: there is nothing.
    """

    def __init__(self, path: str | Path, scratch: Path) -> None:
        self.path, self._scratch = Path(path), scratch
        self._archive: zipfile.ZipFile | None = None
        self.given: tuple[str, ...] = ()
        """Names of the files that were named; none, if a directory or an archive was."""
        self._files: dict[str, Any] = {}
        self._opened: dict[str, LogFile] = {}
        if self.path.is_dir():
            self._files = _files_of(self.path)
        elif self.path.is_file():
            self._take_file()
        else:
            self._take_pattern(str(path))

    @property
    def names(self) -> list[str]:
        """All files that are there."""
        return list(self._files)

    def choose(self, groups: Iterable[Sequence[str]]) -> list[str]:
        """The files of the log: those that were named, or of a directory or archive the first group that is there.

        Args:
            groups: patterns of names; those of a group belong together.

        Raises:
            SourceError: nothing fits.
        """
        if self.given:
            return list(self.given)
        wanted = [list(group) for group in groups]
        for group in wanted:
            if found := [name for pattern in group for name in self.names if matches(name, pattern)]:
                return list(dict.fromkeys(found))
        if len(self.names) == 1:
            return self.names
        expected = " or ".join(" and ".join(group) for group in wanted)
        raise SourceError(f"{self.path}: no file in it is named {expected or 'as a log'}; {_listed(self.names)}")

    @property
    def opened(self) -> list[Path]:
        """The files that were opened, or the archive that they are in."""
        return self.paths(self._opened)

    def paths(self, names: Iterable[str]) -> list[Path]:
        """Where some of its files lie; those of an archive all in the archive."""
        return [self.path] if self._archive is not None else [self._files[name] for name in names]

    def open(self, name: str) -> LogFile:
        """A file of this place, unpacked if the database cannot do that.

        Raises:
            SourceError: it cannot be read.
        """
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name]

    def _open(self, name: str) -> LogFile:
        path = self._files[name]
        try:
            if self._archive is not None:
                path = self._extract(name)
            with path.open("rb") as file:
                start = file.read(8)
            for magic, unpacker in _UNPACKERS.items():
                if start.startswith(magic):
                    path, start = self._unpack(path, unpacker(path)), b""
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError) as error:
            raise SourceError(f"{self.path}: {name} cannot be read: {error}") from error
        compression = next((c for magic, c in _COMPRESSIONS.items() if start.startswith(magic)), "none")
        return LogFile(name, path, compression)

    def close(self) -> None:
        """Let go of the archive."""
        if self._archive is not None:
            self._archive.close()

    def _take_file(self) -> None:
        try:
            is_archive = zipfile.is_zipfile(self.path)
            if is_archive:
                self._archive = zipfile.ZipFile(self.path)
        except (OSError, zipfile.BadZipFile) as error:
            raise SourceError(f"{self.path} cannot be read: {error}") from error
        if self._archive is None:
            self._files = _files_of(self.path.parent) | {self.path.name: self.path}
            self.given = (self.path.name,)
            return
        members = [info.filename for info in self._archive.infolist() if not info.is_dir()]
        self._files = {name: None for name in members if not _is_clutter(name)}
        if len(self._files) == 1:
            self.given = tuple(self._files)

    def _take_pattern(self, pattern: str) -> None:
        found = [Path(name) for name in sorted(glob.glob(pattern))]  # noqa: PTH207  (also absolute ones)
        above = _fixed_part(Path(pattern))
        self._files = {path.relative_to(above).as_posix(): path for path in found if path.is_file()}
        if not self._files:
            raise SourceError(_nothing_at(self.path))
        self.given = tuple(self._files)

    def _extract(self, name: str) -> Path:
        assert self._archive is not None
        return self._unpack(Path(PurePosixPath(name).name), self._archive.open(name))

    def _unpack(self, path: Path, packed: IO[bytes]) -> Path:
        """Write a member of an archive, or what a compressed file holds, to a file of our own."""
        directory = self._scratch / f"unpacked-{len(list(self._scratch.iterdir()))}"
        directory.mkdir()
        target = directory / path.name
        with packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
        return target


def matches(name: str, pattern: str) -> bool:
    """Whether a file is named so, compressed or not, in any directory of an archive and in any case."""
    base = bare_name(name).lower()
    return fnmatch(base, pattern.lower())


def bare_name(name: str) -> str:
    """The name of a file without directories and endings of compression."""
    base = PurePosixPath(name).name
    while base.lower().endswith(_SUFFIXES):
        base = base[: base.rindex(".")]
    return base


def _fixed_part(pattern: Path) -> Path:
    """The directory that all files of a pattern lie in."""
    return next((above for above in pattern.parents if not glob.has_magic(str(above))), Path())


def _files_of(directory: Path) -> dict[str, Any]:
    try:
        return {path.name: path for path in sorted(directory.iterdir()) if path.is_file()}
    except OSError as error:
        raise SourceError(f"{directory} cannot be read: {error}") from error


def _is_clutter(name: str) -> bool:
    return name.startswith("__MACOSX/") or PurePosixPath(name).name.startswith(".")


def _nothing_at(path: Path) -> str:
    """Why there is no log, with what might have been meant."""
    if not path.parent.is_dir():
        return f"{path} does not exist: there is no directory {path.parent}"
    names = [entry.name for entry in path.parent.iterdir()]
    near = difflib.get_close_matches(path.name, names, 3, 0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else _listed(sorted(names))
    return f"{path} does not exist; {hint}"


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "there is no file"
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return f"there is {', '.join(names[:MOST_LISTED])}{more}"
