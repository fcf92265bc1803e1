"""A snapshot: how a learner was at one step, as a run of frames in a file or a topic.

    base    every row, end
    delta   the rows that changed since the snapshot that it names as `previous`, end

A state is read from the snapshot that its last one names as `first`: that is a base, or
one of many deltas which have every row together.

The end frame holds everything that is not rows (dense parameters, windows and the cache
are small, so each snapshot has them whole) and a `SnapshotEnd`, which seals the run: it
names the CRC-32 over the headers of all frames before it, which hold the CRC-32 of each.
So the CRC-32 of the end frame stands for the whole snapshot, and with `previous` for
the whole chain before it. CRC-32 because checksums are there to find accidents: a
cryptographic hash takes 3 to 5 times as long.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from streamer.errors import CorruptCheckpoint, IncompatibleCheckpoint
from streamer.snapshot.frames import (
    HEADER,
    NO_ROWS,
    Arrays,
    RowChunk,
    check_payload,
    frame_header,
    pack_chunk,
    unpack_payload,
)
from streamer.sources.base import Partition, Position

FORMAT = 9
END = "end"
READ_AHEAD = 4
"""Frames that are read and checked while the one before them is used."""

T = TypeVar("T")


class Link(NamedTuple):
    """The state after a snapshot: its number, and its checksum."""

    number: int
    checksum: int


class SnapshotEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What the end frame says beside the dense arrays.

    Args:
        generation: which start of the trainer; each is one.
        number: higher than that of all snapshots before.
        first: number of the snapshot from which on every row is there, up to this one;
            0: some rows are still to come.
        previous: the state that it changes; None if nothing leads to it.
        meta: settings, positions, step and time; of a checkpoint also its accounting.
        format: of the frames and of what they hold, filled in when it is packed.
        frames: CRC-32 over the headers of all frames before, as well.
        checksum: CRC-32 of the end frame, filled in when it is read.
    """

    generation: int
    number: int
    first: int
    previous: Link | None
    meta: dict[str, Any]
    format: int = 0
    frames: int = 0
    checksum: int = 0

    @property
    def is_base(self) -> bool:
        """Whether every row is there."""
        return self.first == self.number

    def __str__(self) -> str:
        kind = "base" if self.is_base else "delta"
        return f"{kind} {self.number} of generation {self.generation}"

    @property
    def link(self) -> Link:
        """The state after it, which the next delta names as its previous one."""
        return Link(self.number, self.checksum)

    @property
    def step(self) -> int:
        """Training steps until then."""
        return int(self.meta["step"])

    @property
    def time_s(self) -> float:
        """When its rows were copied, in seconds since the epoch."""
        return float(self.meta["saved_at"])

    @property
    def offsets(self) -> dict[Partition, int]:
        """The next offset of each partition: all events before it are in the rows."""
        positions = positions_from_json(self.meta["positions"])
        return {partition: int(at) for partition, at in positions.items()}


class Packing:
    """Packs the frames of one snapshot.

    Args:
        compress: whether rows are compressed: smaller, and slower.
    """

    def __init__(self, *, compress: bool = False) -> None:
        self.size_bytes = 0
        self.checksum = 0
        """Of the last frame."""
        self._compress = compress
        self._headers = 0

    def frames(
        self, chunks: Iterable[RowChunk], end: SnapshotEnd, arrays: Arrays
    ) -> Iterator[bytes]:
        """All frames; what `end.meta` says is read when all chunks are packed."""
        for chunk in chunks:
            yield self._add(pack_chunk(*chunk, compress=self._compress))
        sealed = msgspec.structs.replace(end, format=FORMAT, frames=self._headers)
        yield self._add(pack_chunk(END, NO_ROWS, arrays, msgspec.to_builtins(sealed)))

    def _add(self, frame: bytes) -> bytes:
        header = frame[: HEADER.size]
        self.checksum, _ = frame_header(header)
        self._headers = zlib.crc32(header, self._headers)
        self.size_bytes += len(frame)
        return frame


class Snapshot:
    """A snapshot that was opened: its end is read and checked, its rows are not yet.

    Args:
        name: of the file or record, for errors.
        size_bytes: of all frames.
        read: returns the bytes at a place, of some length.

    Raises:
        CorruptCheckpoint: with the name and what is wrong with it.
        IncompatibleCheckpoint: another version of Streamer wrote it.
    """

    def __init__(
        self, name: str, size_bytes: int, read: Callable[[int, int], bytes]
    ) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self._read = read
        try:
            self._frames, headers = self._find_frames()
            self._end_frame = self._frames.pop()
            self.end = self._read_end(headers)
        except (OSError, KeyError, TypeError, CorruptCheckpoint) as error:
            what = f"{type(error).__name__}: {error}"
            if isinstance(error, CorruptCheckpoint):
                what = str(error)
            raise CorruptCheckpoint(f"{name}: {what}") from error

    @classmethod
    def of_bytes(cls, name: str, content: bytes) -> Snapshot:
        """A snapshot whose frames are these bytes."""
        return cls(name, len(content), lambda at, size: content[at : at + size])

    @property
    def meta(self) -> dict[str, Any]:
        """What it says beside rows and arrays."""
        return self.end.meta

    def arrays(self) -> Arrays:
        """What is not rows."""
        return dict(self._chunk(*self._end_frame).arrays)

    def check(self) -> None:
        """See that every bit is as it was written.

        Raises:
            CorruptCheckpoint: with the name and what is wrong with it.
        """
        for _ in self._ahead(self._check):
            pass

    def chunks(self) -> Iterator[RowChunk]:
        """The rows, as they were written.

        Raises:
            CorruptCheckpoint: with the name and what is wrong with it.
        """
        return self._ahead(self._chunk)

    def _find_frames(self) -> tuple[list[tuple[int, int, int]], int]:
        """Where the payloads are, with length and CRC-32; and the CRC-32 over all
        headers but the last.
        """
        found = []
        at = 0
        all_headers = 0
        headers_before = 0
        while at < self.size_bytes:
            header = self._read(at, HEADER.size)
            crc32, length = frame_header(header)
            found.append((at + HEADER.size, length, crc32))
            at += HEADER.size + length
            headers_before = all_headers
            all_headers = zlib.crc32(header, all_headers)
        if not found or at != self.size_bytes:
            raise CorruptCheckpoint(
                f"it has {self.size_bytes} bytes, its frames say {at}"
            )
        return found, headers_before

    def _read_end(self, headers: int) -> SnapshotEnd:
        chunk = self._chunk(*self._end_frame)
        if chunk.kind != END:
            raise CorruptCheckpoint("its last frame is missing")
        if (written := chunk.values["format"]) != FORMAT:
            raise IncompatibleCheckpoint(
                f"{self.name} has format {written}, this version of Streamer reads "
                f"{FORMAT}: use the version that wrote it, or another directory"
            )
        try:
            end = msgspec.convert(chunk.values, SnapshotEnd)
        except msgspec.ValidationError as error:
            raise CorruptCheckpoint(f"its end cannot be read: {error}") from error
        if end.frames != headers:
            raise CorruptCheckpoint("its frames are not those that were written")
        return msgspec.structs.replace(end, checksum=self._end_frame[2])

    def _payload(self, at: int, length: int) -> bytes:
        payload = self._read(at, length)
        if len(payload) != length:
            raise CorruptCheckpoint("it was cut while it was read")
        return payload

    def _check(self, at: int, length: int, crc32: int) -> None:
        check_payload(self._payload(at, length), crc32)

    def _chunk(self, at: int, length: int, crc32: int) -> RowChunk:
        return unpack_payload(self._payload(at, length), crc32)

    def _ahead(self, read: Callable[[int, int, int], T]) -> Iterator[T]:
        """Read all frames, some of them ahead on other threads: reading and checking
        need no interpreter lock.
        """
        with ThreadPoolExecutor(READ_AHEAD) as threads:
            waiting = []
            try:
                for frame in self._frames:
                    waiting.append(threads.submit(read, *frame))
                    if len(waiting) > READ_AHEAD:
                        yield waiting.pop(0).result()
                while waiting:
                    yield waiting.pop(0).result()
            except (OSError, CorruptCheckpoint) as error:
                raise CorruptCheckpoint(f"{self.name}: {error}") from error
            finally:
                for future in waiting:
                    future.cancel()


class SnapshotFile(Snapshot):
    """A snapshot in a file; until it is closed, it can be read even if somebody removes
    it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._opening = threading.Lock()  # several threads read
        try:
            size_bytes = path.stat().st_size
        except OSError as error:
            raise CorruptCheckpoint(f"{path}: {error}") from error
        super().__init__(str(path), size_bytes, self.read_at)

    def read_at(self, at: int, size: int) -> bytes:
        """The bytes at a place, up to this many."""
        with self._opening:
            if self._descriptor < 0:
                self._descriptor = os.open(self.path, os.O_RDONLY)
        # a length that was damaged may be any number
        return os.pread(self._descriptor, min(size, self.size_bytes), at)

    def close(self) -> None:
        """Let go of the file until it is read again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def positions_to_json(positions: Mapping[Partition, int]) -> list[list[Any]]:
    """Positions as a snapshot holds them; those of Kafka with the log they are of."""
    listed = []
    for partition, at in sorted(positions.items()):
        log: list[Any] = []
        if isinstance(at, Position) and at.topic_id:
            log = [at.topic_id, at.leader_epoch, at.resets]
        listed.append([*partition, int(at), *log])
    return listed


def positions_from_json(listed: Iterable[Iterable[Any]]) -> dict[Partition, Position]:
    """What `positions_to_json` was given."""
    found = {}
    for topic, number, *position in listed:
        found[Partition(topic, number)] = Position(*position)
    return found
