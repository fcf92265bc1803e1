"""Events from a file of JSON lines, or from standard input: for a quick look, without a
log.

The file is one partition, `Partition(<its name>, 0)`; an offset is a line number,
counted from 0. Blank lines are left out but counted, so offsets stay line numbers.
Reading goes on at a position by skipping that many lines. An input is known by its
first line: it may grow.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import time
import zlib
from pathlib import Path

from streamer.errors import SourceError, UnknownTopic
from streamer.sources.base import (
    Chunk,
    Partition,
    Position,
    Positions,
    RebalanceListener,
    check_log,
)

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 16 << 20
"""How much is kept of the beginning of a line, so that memory stays bounded; far above
any event.
"""


class FileSource:
    """Reads lines of a file, or of standard input (`-`) and other pipes.

    Records of a file have its time of change, those of a pipe the time when they came.

    Args:
        path: the file; "-" for standard input.
    """

    all_assigned = True
    is_member = True
    problem = None

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._is_stdin = str(path) == "-"
        self._file: io.FileIO | None = None
        self._is_pipe = False
        self._number = 0  # of the line that `_partial` begins
        self._partial = b""
        self._lines: list[tuple[int, bytes]] = []  # read, not returned yet
        self._trained: int | None = None
        self._start = 0
        self._position = Position(0)
        self._ended = False
        self.partition = Partition("stdin" if self._is_stdin else self._path.name, 0)

    def open(self, listener: RebalanceListener) -> None:
        """See `Source.open`."""
        try:
            name = sys.stdin.fileno() if self._is_stdin else self._path
            self._file = io.FileIO(name, closefd=not self._is_stdin)
        except FileNotFoundError as error:
            raise UnknownTopic(
                f"there is no file {self._path}: check the name"
            ) from error
        except OSError as error:
            raise SourceError(f"cannot read {self._path}: {error.strerror}") from error
        self._is_pipe = not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        self._trained = listener.on_assigned([self.partition]).get(self.partition)
        starts = listener.on_start({self.partition: self._trained or 0})
        self._start = starts[self.partition]
        self._position = Position(self._start, getattr(self._trained, "topic_id", ""))

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`."""
        assert self._file is not None, "open comes first"
        deadline = time.monotonic() + timeout_s
        while max_records > 0 and not self._lines and not self._ended:
            left_s = max(0.0, deadline - time.monotonic())
            if self._is_pipe and not select.select([self._file], [], [], left_s)[0]:
                break
            self._feed(self._read(self._file))
            if time.monotonic() >= deadline:
                break
        taken = self._lines[:max_records]
        self._lines = self._lines[max_records:]
        return [self._chunk(self._file, taken)] if taken else []

    def _read(self, file: io.FileIO) -> bytes:
        try:
            return file.read(BLOCK_BYTES)
        except OSError as error:
            raise SourceError(f"cannot read {self._path}: {error.strerror}") from error

    def _feed(self, block: bytes) -> None:
        """Cut a block into lines; at the end, a last line may lack its newline."""
        self._ended = not block
        if self._ended and self._partial:
            block = b"\n"
        lines = (self._partial + block).split(b"\n")
        self._partial = lines.pop()[:MAX_LINE_BYTES]
        if lines and not self._number and not self._ended:
            self._recognise(lines[0])
        for number, line in enumerate(lines, self._number):
            if number >= self._start and line and not line.isspace():
                self._lines.append((number, line))
        self._number += len(lines)
        if self._ended and self._number < self._start:
            raise SourceError(
                f"{self.partition.topic} has {self._number} lines, but reading should resume at line "
                f"{self._start}: it is not the input that position was recorded from. "
                "Give the same input, or start with another checkpoint directory"
            )

    def _recognise(self, first_line: bytes) -> None:
        """See that this is the input that was trained, if one was."""
        name = f"{zlib.crc32(first_line):08x}"
        check_log(self.partition, self._trained, name)
        self._position = Position(self._position, name)

    def _chunk(self, file: io.FileIO, lines: list[tuple[int, bytes]]) -> Chunk:
        written_s = time.time()
        if not self._is_pipe:
            written_s = os.fstat(file.fileno()).st_mtime
        self._position = self._position.at(lines[-1][0] + 1)
        return Chunk(
            self.partition,
            [number for number, _ in lines],
            [int(written_s * 1000)] * len(lines),
            [None] * len(lines),
            [line for _, line in lines],
        )

    @property
    def at_end(self) -> bool:
        """True when the last record was returned."""
        return self._ended and not self._lines

    def positions(self) -> Positions:
        """See `Source.positions`."""
        return {self.partition: self._position}

    def commit(self, positions: Positions) -> None:
        """A file keeps no positions."""

    def end_offsets(self) -> Positions:
        """The position after the last line that is not blank; not known before it is
        read.
        """
        if not self._ended:
            return {}
        last = self._lines[-1][0] + 1 if self._lines else self._position
        return {self.partition: last}

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        if self._file is not None:
            self._file.close()
