"""Events from a file of JSON lines, or from standard input: for a quick look, without a
log.

The file is one partition, `Partition(<its name>, 0)`; an offset is a line number,
counted from 0. Blank lines are left out but counted, so offsets stay line numbers.
Reading goes on at a position by skipping that many lines.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import select
import stat
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from streamer.errors import SourceError, UnknownTopic
from streamer.sources.base import Chunk, Partition, Positions, RebalanceListener

logger = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 16 << 20
IDLE_SLEEP_S = 0.02


class FileSource:
    """Reads lines of a file, of a gzip file (`.gz`), or of standard input (`-`) and
    other pipes.

    Args:
        path: the file; "-" for standard input.
        follow: at the end of the file, wait for more, as `tail -f` does; a last line
            without its newline is not taken for complete. Without it the source ends:
            see `at_end`.
        stdin: what "-" means; the process's standard input if not given.
        clock: seconds since the epoch; the timestamp of lines from a pipe. A file's
            lines have its time of change.
        max_line_bytes: the rest of a longer line is dropped, so that memory stays
            bounded; far above any event.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        follow: bool = False,
        stdin: BinaryIO | None = None,
        clock: Callable[[], float] = time.time,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self._path = Path(path)
        self._is_stdin = str(path) == "-"
        self._follow = follow
        self._stdin = stdin
        self._clock = clock
        self._input: _Input | None = None
        self._counter: _EndCounter | None = None
        self._lines = _Lines(max_line_bytes)
        self._ended = False
        self._position = 0
        self.partition = Partition("stdin" if self._is_stdin else self._path.name, 0)

    def open(self, listener: RebalanceListener) -> None:
        """See `Source.open`."""
        self._input = self._open_input()
        if isinstance(self._input, _Pipe):
            self._follow = False  # a pipe's end is final
        else:
            self._counter = _EndCounter(self._path, self._follow)
        self._position = listener.on_assigned([self.partition]).get(self.partition, 0)
        self._lines.start_at(self._position)

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`."""
        assert self._input is not None, "open comes first"
        deadline = time.monotonic() + timeout_s
        while max_records > 0 and not self._lines.ready and not self._ended:
            block = self._input.read(max(0.0, deadline - time.monotonic()))
            if block:
                self._lines.feed(block)
            elif block is not None and not self._follow:
                self._finish()
            else:
                self._wait_to_grow(deadline)
            if time.monotonic() >= deadline:
                break
        return self._take(max_records)

    all_assigned = True
    problem = None

    @property
    def at_end(self) -> bool:
        """True when the last record was returned; with `follow`, never."""
        return self._ended and not self._lines.ready

    def positions(self) -> Positions:
        """See `Source.positions`."""
        return {self.partition: self._position}

    def commit(self, positions: Positions) -> None:
        """A file keeps no positions."""

    def end_offsets(self) -> Positions:
        """The position after the last line that is not blank; a pipe's end is not known
        before it comes.

        The first call on a large file takes the time of reading it.
        """
        counter = self._counter
        if counter is not None:
            return {self.partition: max(self._lines.end, counter.count())}
        return {self.partition: self._lines.end} if self._ended else {}

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        if self._input is not None:
            self._input.close()
        if self._counter is not None:
            self._counter.close()

    def _open_input(self) -> _Input:
        if self._is_stdin:
            return _Pipe((self._stdin or sys.stdin.buffer).fileno(), owned=False)
        file = _open_raw(self._path)
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):  # a named pipe, or the shell's <(...)
            pipe = _Pipe(os.dup(file.fileno()), owned=True)
            file.close()
            return pipe
        if not _is_gzip(self._path):
            return _PlainFile(file, self._path)
        file.close()
        if self._follow:
            raise SourceError(
                f"cannot follow {self._path}: a gzip file is not written line by line. Unpack it first"
            )
        return _GzipFile(self._path)

    def _finish(self) -> None:
        """The input ended: its last line may lack a newline; it must be long enough to
        hold our position.
        """
        self._lines.finish()
        self._ended = True
        self._check_long_enough()

    def _check_long_enough(self) -> None:
        if self._lines.seen < self._lines.start:
            raise SourceError(
                f"{self.partition.topic} has {self._lines.seen} lines, but reading should resume at line "
                f"{self._lines.start}: it is not the input that position was recorded from. "
                "Give the same input, or start with another checkpoint directory"
            )

    def _wait_to_grow(self, deadline: float) -> None:
        """Wait a little, not beyond the deadline."""
        if self._follow:
            self._check_long_enough()
        time.sleep(min(IDLE_SLEEP_S, max(0.0, deadline - time.monotonic())))

    def _take(self, max_records: int) -> list[Chunk]:
        assert self._input is not None
        offsets, values = self._lines.take(max_records)
        if not offsets:
            return []
        self._position = offsets[-1] + 1
        timestamp_ms = int((self._input.changed_at_s() or self._clock()) * 1000)
        return [
            Chunk(
                self.partition,
                offsets,
                [timestamp_ms] * len(offsets),
                [None] * len(offsets),
                values,
            )
        ]


class _Lines:
    """Cuts blocks of bytes into numbered lines, leaving out blank ones and those before
    `start`.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self.start = 0
        self.seen = 0
        """How many lines came, an unfinished one included."""
        self.end = 0
        """The number after the last line that is not blank."""
        self._max_line_bytes = max_line_bytes
        self._number = 0  # of the line that `_partial` begins
        self._partial = b""
        self._cut = (
            False  # `_partial` is as long as allowed: drop bytes up to the next newline
        )
        self._offsets: list[int] = []
        self._values: list[bytes] = []
        self._taken = 0

    def start_at(self, number: int) -> None:
        self.start = self.end = number

    @property
    def ready(self) -> bool:
        return self._taken < len(self._values)

    def feed(self, block: bytes) -> None:
        if self._cut:
            block = block[block.find(b"\n") :] if b"\n" in block else b""
            self._cut = not block
        count = block.count(b"\n")
        if self._number + count <= self.start:
            self._skip(block, count)
        else:
            self._keep((self._partial + block).split(b"\n"))
        self._cut_long_line()
        self.seen = self._number + bool(self._partial)

    def finish(self) -> None:
        if self._partial:
            self._keep([self._partial, b""])

    def take(self, max_records: int) -> tuple[list[int], list[bytes]]:
        until = self._taken + max_records
        offsets = self._offsets[self._taken : until]
        values = self._values[self._taken : until]
        self._taken += len(values)
        if not self.ready:
            self._offsets = []
            self._values = []
            self._taken = 0
        return offsets, values

    def _skip(self, block: bytes, count: int) -> None:
        """The fast path before `start`: lines are counted, not cut out."""
        if count:
            self._partial = b""
            self._number += count
        self._partial += block[block.rfind(b"\n") + 1 :]

    def _keep(self, lines: list[bytes]) -> None:
        self._partial = lines.pop()
        for number, line in enumerate(lines, self._number):
            if number >= self.start and line and not line.isspace():
                self._offsets.append(number)
                self._values.append(line)
        self._number += len(lines)
        self.end = self._offsets[-1] + 1 if self._offsets else self.end

    def _cut_long_line(self) -> None:
        if len(self._partial) > self._max_line_bytes:
            logger.warning(
                "line %d is longer than %d bytes; the rest is dropped",
                self._number,
                self._max_line_bytes,
            )
            self._partial = self._partial[: self._max_line_bytes]
            self._cut = True


class _Input(Protocol):
    """Where bytes come from."""

    def read(self, timeout_s: float) -> bytes | None:
        """The next bytes; b"" at the end (for now, if a file may grow); None if none
        came in time.
        """
        ...

    def changed_at_s(self) -> float | None:
        """When the content was written, in seconds since the epoch; None if the input
        does not know.
        """
        ...

    def close(self) -> None: ...


class _PlainFile:
    def __init__(self, file: io.FileIO, path: Path) -> None:
        self._file = file
        self._path = path

    def read(self, timeout_s: float) -> bytes | None:
        block = self._file.read(BLOCK_BYTES)
        if not block and os.fstat(self._file.fileno()).st_size < self._file.tell():
            raise SourceError(
                f"{self._path} became shorter while it was read: it was truncated or rewritten"
            )
        return block

    def changed_at_s(self) -> float | None:
        return os.fstat(self._file.fileno()).st_mtime

    def close(self) -> None:
        self._file.close()


class _GzipFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _open_gzip(path)

    def read(self, timeout_s: float) -> bytes | None:
        try:
            return self._file.read(BLOCK_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise SourceError(
                f"cannot unpack {self._path}: {error}. Is it complete?"
            ) from error

    def changed_at_s(self) -> float | None:
        return self._path.stat().st_mtime

    def close(self) -> None:
        self._file.close()


class _Pipe:
    """A file descriptor that may let us wait: asked first whether it has something."""

    def __init__(self, descriptor: int, *, owned: bool) -> None:
        self._descriptor = descriptor
        self._owned = owned

    def read(self, timeout_s: float) -> bytes | None:
        readable, _, _ = select.select([self._descriptor], [], [], timeout_s)
        return os.read(self._descriptor, BLOCK_BYTES) if readable else None

    def changed_at_s(self) -> float | None:
        return None

    def close(self) -> None:
        if self._owned:
            os.close(self._descriptor)
            self._owned = False


class _EndCounter:
    """Counts a file's lines, going on where it stopped; from any thread."""

    def __init__(self, path: Path, follow: bool) -> None:
        self._file = _open_gzip(path) if _is_gzip(path) else _open_raw(path)
        self._follow = follow
        self._lock = threading.Lock()
        self._lines = 0
        self._end = 0  # after the last finished line that is not blank
        self._unfinished = False  # bytes that are not blank came after the last newline

    def count(self) -> int:
        """The position after the last line that is not blank, as far as can be read."""
        with self._lock:
            try:
                while not self._file.closed and (block := self._file.read(BLOCK_BYTES)):
                    self._add(block)
            except (OSError, EOFError, zlib.error) as error:  # poll will say so
                logger.debug("cannot count lines: %s", error)
            return (
                self._lines + 1 if self._unfinished and not self._follow else self._end
            )

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _add(self, block: bytes) -> None:
        finished, newline, rest = block.rpartition(b"\n")
        if not newline:
            self._unfinished = self._unfinished or bool(rest.strip())
            return
        text = finished.rstrip()
        if text or self._unfinished:
            self._end = self._lines + text.count(b"\n") + 1
        self._lines += finished.count(b"\n") + 1
        self._unfinished = bool(rest.strip())


def _is_gzip(path: Path) -> bool:
    return path.suffix == ".gz"


def _open_gzip(path: Path) -> io.BufferedReader:
    return io.BufferedReader(gzip.GzipFile(path), BLOCK_BYTES)


def _open_raw(path: Path) -> io.FileIO:
    try:
        return io.FileIO(path)
    except FileNotFoundError as error:
        raise UnknownTopic(f"there is no file {path}: check the name") from error
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
