"""The files of a log: a file, several by a pattern, or a directory; plain, or
compressed by gzip or zstd.
"""

from __future__ import annotations

import csv
import glob
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from streamer.errors import SourceError
from streamer.replay.datasets.database import Database, quoted
from streamer.replay.settings import LogSettings

MAX_LISTED = 12
"""File names in a message."""
FIRST_LINES = 1000
EXAMINED = 20
"""Lines that show the delimiter."""
DELIMITERS = (",", "\t", ";", "|", "::")
LONGEST_LINE = 16_000_000
"""Bytes."""
LONGEST_CELL = 100_000
"""Characters of a line that are examined."""
BYTE_ORDER_MARK = "\ufeff"
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""By the first bytes of a file."""
_OPEN: dict[str, Callable[..., Any]] = {
    "gzip": gzip.open,
    "zstd": zstandard.open,
    "none": open,
}
_CONTROL = re.compile("[\x80-\x9f]")
"""Characters that no text in Latin-1 has."""


class FirstLines(NamedTuple):
    """The first lines of a file that are not empty, and what they show."""

    lines: Sequence[str] = ("",)
    skipped: int = 0
    """Empty lines before the first."""
    encoding: str = "utf-8"
    """utf-8 if they are that, else latin-1."""

    @property
    def first(self) -> str:
        """The first line."""
        return self.lines[0]

    @property
    def shown(self) -> str:
        """The beginning of the first line, for messages."""
        return repr(self.first[:60])

    @property
    def delimiter(self) -> str:
        """The delimiter that divides most of the lines into the same number of cells."""

        def evenness(delimiter: str) -> tuple[int, int]:
            lines = self.lines[:EXAMINED]
            counts = Counter(len(split_line(line, delimiter)) for line in lines)
            cells, agreeing = max(counts.items(), key=lambda item: (item[1], item[0]))
            return (agreeing if cells > 1 else 0, cells)

        return max(DELIMITERS, key=evenness)

    def cells(self, delimiter: str) -> list[str]:
        """The cells of the first line."""
        return split_line(self.first, delimiter)


def split_line(line: str, delimiter: str) -> list[str]:
    """The cells of a line, without spaces and quotes around them."""
    cells = line.split(delimiter)
    if len(delimiter) == 1:
        cells = next(csv.reader([line[:LONGEST_CELL]], delimiter=delimiter), [])
    return [cell.strip().strip('"') for cell in cells]


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file that the database can read."""

    name: str
    """For messages."""
    path: Path
    compression: str
    """none, gzip or zstd: as its first bytes show, whatever its name."""

    def lines_sql(self) -> str:
        """SQL of its lines, a row for each in their order; an empty line is null.

        A line that is not UTF-8 is left out, and kept in the table `reject_errors`.
        """
        return (
            f"read_csv({quoted(self.path)}, compression={quoted(self.compression)}, header=false, auto_detect=false,"
            f" delim='\x1f', quote='', escape='', columns={{'line': 'VARCHAR'}}, strict_mode=false,"
            f" max_line_size={LONGEST_LINE}, buffer_size={2 * LONGEST_LINE}, store_rejects=true,"
            f" rejects_line_size_limit=1000)"
        )

    def first_lines(self) -> FirstLines:
        """Its first lines, as UTF-8 or else as Latin-1; a single empty one if it has
        none.
        """
        open_text = _OPEN[self.compression]
        try:
            with open_text(self.path, "rt", encoding="latin-1") as file:
                latin = [line.rstrip("\n") for line in islice(file, FIRST_LINES)]
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            raise SourceError(
                f"{self.name}: it cannot be read, or is cut off: {error}"
            ) from error
        decoded = []
        damaged = []
        for line in latin:
            try:
                text = line.encode("latin-1").decode()
                decoded.append(text.removeprefix(BYTE_ORDER_MARK))
            except UnicodeError:
                damaged.append(line)
        # Latin-1 if more lines are that than are UTF-8 beyond ASCII
        encoding = "utf-8"
        beyond_ascii = sum(not line.isascii() for line in decoded)
        if len(damaged) > beyond_ascii and not any(map(_CONTROL.search, damaged)):
            encoding = "latin-1"
            decoded = latin
        used = [line for line in decoded if line.strip()] or [""]
        skipped = decoded.index(used[0]) if decoded else 0
        return FirstLines(used, skipped, encoding)


class Location:
    """Where a log lies: a file and its neighbours, files that match a pattern, or a
    directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._opened: dict[str, LogFile] = {}
        self.named: tuple[str, ...] = ()
        """The files that the user named; empty for a directory."""
        try:
            if self.path.is_dir():
                self._files = _files_in(self.path)
            elif self.path.is_file():
                self._files = _files_in(self.path.parent)
                self.named = (self.path.name,)
            else:
                self._files = _files_matching(str(path))
                self.named = tuple(self._files)
        except OSError as error:
            raise SourceError(f"{self.path} cannot be read: {error}") from error
        self.names = list(self._files)
        """All files that are there."""

    @property
    def opened(self) -> list[Path]:
        """The files that were opened."""
        return [file.path for file in self._opened.values()]

    def choose(self, patterns: Sequence[Sequence[str]]) -> list[str]:
        """The files of the log: those that the user named, or else all that match the
        first group with a match.
        """
        if self.named:
            return list(self.named)
        for group in patterns:
            if found := self.matching(group):
                return found
        if len(self.names) == 1:
            return self.names
        expected = " or ".join(" and ".join(group) for group in patterns)
        raise SourceError(
            f"{self.path}: no file in it is named {expected}; {_listed(self.names)}: name one"
        )

    def matching(self, patterns: Sequence[str]) -> list[str]:
        """The files that are named like one of the patterns, in the order of these."""
        found: dict[str, None] = {}
        for pattern in patterns:
            found |= dict.fromkeys(n for n in self.names if matches(n, pattern))
        return list(found)

    def path_of(self, name: str) -> Path:
        """Where a file of this place is."""
        return self._files[name]

    def open(self, name: str) -> LogFile:
        """A file of this place."""
        if name not in self._opened:
            path = self._files[name]
            try:
                with path.open("rb") as file:
                    start = file.read(4)
            except OSError as error:
                raise SourceError(f"{path} cannot be read: {error}") from error
            if start.startswith(b"PK\x03\x04"):
                raise SourceError(f"{path} is an archive: unpack it first")
            compression = _COMPRESSIONS.get(start[:2]) or _COMPRESSIONS.get(start)
            self._opened[name] = LogFile(name, path, compression or "none")
        return self._opened[name]


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


def periods(path: str) -> list[str]:
    """The files of a pattern or a directory in the order of the numbers in their
    names.
    """
    location = Location(path)
    names = location.named or tuple(location.names)
    paths = [str(location.path_of(name)) for name in names]
    if len(paths) < 2:
        raise SourceError(f"{path}: periods are several files, and this is one")

    def numbers(path: str) -> list[tuple[str, int]]:
        parts = re.findall(r"(\D*)(\d*)", Path(path).name)
        return [(text, int(digits or 0)) for text, digits in parts]

    return sorted(paths, key=numbers)


def matches(name: str, pattern: str) -> bool:
    """Whether a file is named so, compressed or not, in any case."""
    return fnmatch(bare_name(name).lower(), pattern.lower())


def bare_name(name: str) -> str:
    """The name of a file without its directories and without the suffix of compression."""
    return Path(name).name.removesuffix(".gz").removesuffix(".zst")


def _files_in(directory: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(directory.iterdir()) if path.is_file()}


def _files_matching(pattern: str) -> dict[str, Path]:
    """Files by their names; if there is none, what may be meant."""
    found = sorted(glob.glob(pattern))  # noqa: PTH207  (also absolute ones)
    if files := {name: Path(name) for name in found if Path(name).is_file()}:
        return files
    directory = Path(pattern).parent
    if not directory.is_dir():
        raise SourceError(
            f"{pattern} does not exist: there is no directory {directory}"
        )
    names = sorted(entry.name for entry in directory.iterdir())
    raise SourceError(f"{pattern} does not exist; {_listed(names)}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"there is {', '.join(names[:MAX_LISTED]) or 'no file'}{more}"
