"""A snapshot: how a learner was at one step, as a run of frames in a file or a topic.

    base    every row, end
    delta   the rows that changed since the snapshot that it names as `previous`, end

The end frame holds everything that is not rows (dense parameters, windows and the cache
are small, so each snapshot has them whole) and a `SnapshotEnd`, which seals the run: it
names the CRC-32 over the headers of all frames before it, which hold the CRC-32 of each.
So the CRC-32 of the end frame stands for the whole snapshot, and with `previous` for
the whole chain before it. CRC-32 because checksums are there to find accidents: a
cryptographic hash takes 3 to 5 times as long.
"""

from __future__ import annotations

import os
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
    frame_header,
    pack_chunk,
    unpack_payload,
)
from streamer.sources.base import Partition, Position

FORMAT = 6
END = "end"
READ_AHEAD = 4
"""Frames that are read and checked while the one before them is used."""

T = TypeVar("T")


class SnapshotId(NamedTuple):
    """Which snapshot it is. Every start of a trainer is a generation."""

    generation: int
    number: int
    is_base: bool

    def __str__(self) -> str:
        kind = "base" if self.is_base else "delta"
        return f"{kind} {self.number} of generation {self.generation}"


class Link(NamedTuple):
    """The state after a snapshot: its number, and its checksum."""

    number: int
    checksum: int


class SnapshotEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What the end frame says beside the dense arrays.

    Args:
        generation: which start of the trainer.
        number: higher than that of all snapshots before.
        is_base: whether every row is there.
        previous: of a delta, the state that it changes. Of a base, the delta of the same
            number, if the base repeats its state: then deltas after that fit both.
        meta: settings, positions, step and time; of a checkpoint also its accounting.
        format: of the frames and of what they hold, filled in when it is packed.
        frames: CRC-32 over the headers of all frames before, as well.
        checksum: CRC-32 of the end frame, filled in when it is read.
    """

    generation: int
    number: int
    is_base: bool
    previous: Link | None
    meta: dict[str, Any]
    format: int = 0
    frames: int = 0
    checksum: int = 0

    @property
    def id(self) -> SnapshotId:
        """Which snapshot it is the end of."""
        return SnapshotId(self.generation, self.number, self.is_base)

    @property
    def link(self) -> Link:
        """The state after it, which the next delta names as its previous one."""
        if self.is_base and self.previous is not None:
            return self.previous
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
        self,
        chunks: Iterable[RowChunk],
        end: Callable[[], tuple[SnapshotEnd, Arrays]],
    ) -> Iterator[bytes]:
        """All frames; `end` is called when all chunks are packed."""
        for chunk in chunks:
            yield self._add(pack_chunk(*chunk, compress=self._compress))
        sealed, arrays = end()
        whole = msgspec.structs.replace(sealed, format=FORMAT, frames=self._headers)
        yield self._add(pack_chunk(END, NO_ROWS, arrays, msgspec.to_builtins(whole)))

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
        read: returns a writable copy of the bytes at a place, of some length.

    Raises:
        CorruptCheckpoint: with the name and what is wrong with it.
        IncompatibleCheckpoint: another version of Streamer wrote it.
    """

    def __init__(
        self, name: str, size_bytes: int, read: Callable[[int, int], bytearray]
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
        view = memoryview(content)
        return cls(name, len(view), lambda at, size: bytearray(view[at : at + size]))

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
        for _ in self._ahead(self._payload):
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

    def _payload(self, at: int, length: int, crc32: int) -> bytearray:
        payload = self._read(at, length)
        if len(payload) != length:
            raise CorruptCheckpoint("it was cut while it was read")
        if zlib.crc32(payload) != crc32:
            raise CorruptCheckpoint("a frame does not match its checksum")
        return payload

    def _chunk(self, at: int, length: int, crc32: int) -> RowChunk:
        return unpack_payload(self._payload(at, length, crc32))

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
    """A snapshot in a file; it can be read to its end even if somebody removes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise CorruptCheckpoint(f"{path}: {error}") from error
        size_bytes = os.fstat(self._descriptor).st_size
        super().__init__(str(path), size_bytes, self._read_at)

    def _read_at(self, at: int, size: int) -> bytearray:
        content = bytearray(min(size, max(self.size_bytes - at, 0)))
        del content[os.preadv(self._descriptor, [content], at) :]
        return content

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def copy_to(self, path: Path) -> None:
        """Make a file of the same content there, safe on disk: the same file, if the
        disk is the same.
        """
        try:
            os.link(self.path, path)
        except OSError:  # another disk, or the file was removed meanwhile
            with path.open("xb") as file:
                at = 0
                while at < self.size_bytes:
                    left = self.size_bytes - at
                    at += os.sendfile(file.fileno(), self._descriptor, at, left)
                os.fsync(file.fileno())


def positions_to_json(positions: Mapping[Partition, int]) -> list[list[Any]]:
    """Positions as a snapshot holds them; those of Kafka with the log they are of."""
    listed = []
    for partition, at in sorted(positions.items()):
        log: list[Any] = []
        if isinstance(at, Position) and at.topic_id:
            log = [at.topic_id, at.leader_epoch]
        listed.append([*partition, int(at), *log])
    return listed


def positions_from_json(listed: Iterable[Iterable[Any]]) -> dict[Partition, Position]:
    """What `positions_to_json` was given."""
    found = {}
    for topic, number, *position in listed:
        found[Partition(topic, number)] = Position(*position)
    return found
