"""A point: one file of frames, which says how a learner was at one step.

    ckpt-00000000000000000042.base    every row
    ckpt-00000000000000000043.delta   the rows that changed since the point before

Frames of a delta are compressed; those of a base are not, so that it is written and
read as fast as the disk can. The last frame holds everything that is not rows, and
seals the file:

    arrays          dense parameters, windows, cache: small, so each point has them whole
    values.meta     settings, offsets, accounting
    values.format   FORMAT
    values.frames   CRC-32 over the headers of all frames before it, which hold the CRC-32 of each
    values.previous number and CRC-32 of the point that a delta changes; null in a base

So the CRC-32 of the last frame stands for the whole file, and with `previous` for the
whole chain before it. CRC-32 because checksums are there to find accidents: a
cryptographic hash takes 3 to 5 times as long.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.errors import CheckpointError, CorruptCheckpoint, IncompatibleCheckpoint
from streamer.snapshot.frames import (
    HEADER,
    NO_ROWS,
    Arrays,
    Chunk,
    frame_header,
    pack_chunk,
    unpack_payload,
)

FORMAT = 5
READABLE = (4, 5)
"""Of files and of what they hold, as they are written; and those that can be read: 4
has no compressed frames.
"""
END = "end"
SYNC_EVERY_BYTES = 64 << 20
"""A large file goes to the disk piece by piece, not all at its end."""
READ_AHEAD = 4
"""Frames that are read and checked while the one before them is put into the learner."""


class Link(NamedTuple):
    """What identifies a point: its number, and the CRC-32 of its last frame."""

    number: int
    crc32: int


def write_point(
    path: Path,
    chunks: Iterable[Chunk],
    arrays: Arrays,
    meta: Mapping[str, Any],
    previous: Link | None,
) -> int:
    """Write a point and sync it; returns its CRC-32.

    Raises:
        CheckpointError: a number is not finite, or something cannot be stored.
    """
    frames = 0
    unsynced = 0
    with path.open("xb", buffering=0) as file:
        for chunk in chunks:
            _check_finite(chunk.arrays, f"{chunk.kind}/")
            frame = pack_chunk(*chunk, compress=previous is not None)
            frames = zlib.crc32(frame[: HEADER.size], frames)
            _write(file.fileno(), frame)
            unsynced += len(frame)
            if unsynced >= SYNC_EVERY_BYTES:
                os.fdatasync(file.fileno())
                unsynced = 0
        _check_finite(arrays, "")
        values = {
            "format": FORMAT,
            "frames": frames,
            "previous": previous,
            "meta": dict(meta),
        }
        end = pack_chunk(END, NO_ROWS, arrays, values)
        _write(file.fileno(), end)
        os.fsync(file.fileno())
    return frame_header(end[: HEADER.size])[0]


class Point:
    """A point that was opened; it can be read to its end even if somebody removes it
    meanwhile.

    Opening reads the last frame only; `check` reads all of them.

    Raises:
        CorruptCheckpoint: with the file and what is wrong with it.
        IncompatibleCheckpoint: another version of Streamer wrote it.
    """

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
            self.size_bytes = os.fstat(self._descriptor).st_size
            self._frames, self._headers = self._find_frames()
            self._end = self._frames.pop()
            end = self._read(*self._end)
            if end.kind != END:
                raise CorruptCheckpoint("its last frame is missing")
            if end.values["format"] not in READABLE:
                raise IncompatibleCheckpoint(
                    f"{path} has format {end.values['format']}, this version of Streamer reads {FORMAT}: "
                    "use the version that wrote it, or another checkpoint directory"
                )
            if end.values["frames"] != self._headers:
                raise CorruptCheckpoint("its frames are not those that were written")
            self.link = Link(number, self._end[2])
            self.previous = (
                Link(*end.values["previous"]) if end.values["previous"] else None
            )
            self.meta: dict[str, Any] = end.values["meta"]
        except (OSError, KeyError, TypeError, CorruptCheckpoint) as error:
            what = (
                str(error)
                if isinstance(error, CorruptCheckpoint)
                else f"{type(error).__name__}: {error}"
            )
            raise CorruptCheckpoint(f"{path}: {what}") from error

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is not rows."""
        return dict(self._read(*self._end).arrays)

    def check(self) -> None:
        """See that every bit is as it was written.

        Raises:
            CorruptCheckpoint: with the file and what is wrong with it.
        """
        for _ in self._ahead(self._payload):
            pass

    def chunks(self) -> Iterator[Chunk]:
        """The rows of the point, as they were written.

        Raises:
            CorruptCheckpoint: with the file and what is wrong with it.
        """
        return self._ahead(self._read)

    def copy_to(self, path: Path) -> None:
        """Make a file of the same content there, safe on disk: the same file, if the
        disk is the same.
        """
        try:
            os.link(self.path, path)
        except OSError:  # another disk, or the point was removed meanwhile
            with path.open("xb") as file:
                at = 0
                while at < self.size_bytes:
                    at += os.sendfile(
                        file.fileno(), self._descriptor, at, self.size_bytes - at
                    )
                os.fsync(file.fileno())

    def _find_frames(self) -> tuple[list[tuple[int, int, int]], int]:
        """Where the payloads are, with length and CRC-32; and the CRC-32 over all
        headers but the last.
        """
        found = []
        at = 0
        headers = 0
        before = 0
        while at < self.size_bytes:
            header = os.pread(self._descriptor, HEADER.size, at)
            crc32, length = frame_header(header)
            found.append((at + HEADER.size, length, crc32))
            at += HEADER.size + length
            headers, before = zlib.crc32(header, headers), headers
        if not found or at != self.size_bytes:
            raise CorruptCheckpoint(
                f"it has {self.size_bytes} bytes"
                + (f" instead of {at}" if found else "")
            )
        return found, before

    def _payload(self, at: int, length: int, crc32: int) -> bytearray:
        payload = bytearray(length)
        if os.preadv(self._descriptor, [payload], at) != length:
            raise CorruptCheckpoint("it was cut while it was read")
        if zlib.crc32(payload) != crc32:
            raise CorruptCheckpoint("a frame does not match its checksum")
        return payload

    def _read(self, at: int, length: int, crc32: int) -> Chunk:
        return unpack_payload(self._payload(at, length, crc32))

    def _ahead(self, read: Any) -> Iterator[Any]:
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
                raise CorruptCheckpoint(f"{self.path}: {error}") from error
            finally:
                for future in waiting:
                    future.cancel()


def sync(path: Path) -> None:
    """Sync a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, frame: bytes) -> None:
    left = memoryview(frame)
    while left:
        left = left[os.write(descriptor, left) :]


def _check_finite(arrays: Arrays, prefix: str) -> None:
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(array.sum()):
                continue
        if count := int((~np.isfinite(array)).sum()):
            raise CheckpointError(
                f"{count:,} of {array.size:,} numbers in {prefix}{name} are not finite: nothing is saved. "
                "Start the run again: it resumes from the checkpoint before"
            )
