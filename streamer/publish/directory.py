"""Points as files of a directory, on a disk or a volume that trainer and servers share.

    DIR/00000007/              a generation
    DIR/00000007/base-12       the state after delta 12
    DIR/00000007/delta-13      what changed then

A file appears whole, by a rename, under its last name. Readers look for the next name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from streamer.errors import CorruptCheckpoint, SourceUnavailable
from streamer.publish.points import Point, PointId
from streamer.snapshot.frames import HEADER, frame_header

LOOK_S = 0.02
"""How often a reader looks for the next delta."""
LOOK_AROUND_S = 0.5
"""How often it looks whether there is a higher generation, or whether the next delta
will never come.
"""


class DirectoryWriter:
    """Writes points into a directory, which is created if it is missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._base_before: int | None = None

    def begin(self) -> int:
        """See `Writer.begin`."""
        with _explained(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            number = max(_generations(self._directory), default=0) + 1
            while True:
                try:
                    _path(self._directory, number).mkdir()
                    return number
                except FileExistsError:  # another trainer begins at this moment
                    number += 1

    def write(self, point: PointId, frames: Iterable[bytes]) -> None:
        """See `Writer.write`."""
        path = _file(self._directory, point)
        temporary = path.with_name(f".{path.name}.tmp")
        with _explained(self._directory):
            path.parent.mkdir(exist_ok=True)  # somebody may have emptied the directory
            with temporary.open("wb") as file:
                for frame in frames:
                    file.write(frame)
            temporary.rename(path)

    def prune(self, base: PointId) -> None:
        """See `Writer.prune`."""
        with _explained(self._directory):
            keep = self._base_before
            self._base_before = base.sequence
            for generation in _generations(self._directory):
                if generation < base.generation:
                    shutil.rmtree(
                        _path(self._directory, generation), ignore_errors=True
                    )
            for old in _points(self._directory, base.generation):
                if keep is not None and old.sequence < keep + (not old.base):
                    _file(self._directory, old).unlink(missing_ok=True)

    def close(self) -> None:
        """See `Writer.close`."""


class DirectoryReader:
    """Follows the points of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._at: PointId | None = None  # the last one that was used
        self._returned: PointId | None = None
        self._refused: set[PointId] = set()
        self._looked_around = 0.0

    def poll(self, timeout_s: float) -> Point | None:
        """See `Reader.poll`."""
        deadline = time.monotonic() + timeout_s
        if self._returned is not None:
            self._at = self._returned
            self._returned = None
        with _explained(self._directory):
            while True:
                if (found := self._find()) is not None:
                    self._returned = found
                    return Point(found, _frames(_file(self._directory, found)))
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    self._directory.stat()  # a volume that is away is not the same as a trainer that is silent
                    return None
                time.sleep(min(LOOK_S, left_s))

    def _find(self) -> PointId | None:
        """The next delta; a base, if there is one of a higher generation, or if the
        next delta is gone or refused.
        """
        now = time.monotonic()
        at = self._at
        delta = (
            PointId(at.generation, False, at.sequence + 1) if at is not None else None
        )
        has_delta = (
            delta is not None
            and delta not in self._refused
            and _file(self._directory, delta).exists()
        )
        if at is not None and now - self._looked_around < LOOK_AROUND_S:
            return delta if has_delta else None
        self._looked_around = now
        higher = [
            g for g in _generations(self._directory) if at is None or g > at.generation
        ]
        for generation in sorted(higher, reverse=True):
            if bases := self._bases(generation):
                return max(bases)
        if at is None or has_delta:
            return delta
        return max(
            (
                base
                for base in self._bases(at.generation)
                if base.sequence > at.sequence
            ),
            default=None,
        )

    def _bases(self, generation: int) -> list[PointId]:
        with contextlib.suppress(FileNotFoundError):
            found = _points(self._directory, generation)
            return [
                point for point in found if point.base and point not in self._refused
            ]
        return []

    def refuse(self, point: PointId) -> None:
        """See `Reader.refuse`."""
        self._refused.add(point)
        self._returned = None

    def close(self) -> None:
        """See `Reader.close`."""


def _path(directory: Path, generation: int) -> Path:
    return directory / f"{generation:08d}"


def _file(directory: Path, point: PointId) -> Path:
    return (
        _path(directory, point.generation)
        / f"{'base' if point.base else 'delta'}-{point.sequence}"
    )


def _generations(directory: Path) -> list[int]:
    return [int(entry.name) for entry in directory.iterdir() if entry.name.isdecimal()]


def _points(directory: Path, generation: int) -> Iterator[PointId]:
    for entry in os.scandir(_path(directory, generation)):
        kind, _, number = entry.name.partition("-")
        if kind in ("base", "delta") and number.isdecimal():
            yield PointId(generation, kind == "base", int(number))


def _frames(path: Path) -> Iterator[bytearray]:
    """The frames of a file, read one by one.

    Raises:
        CorruptCheckpoint: the file ends early, or is gone.
    """
    try:
        with path.open("rb") as file:
            while header := file.read(HEADER.size):
                _, length = frame_header(header)
                if length > os.fstat(file.fileno()).st_size:
                    raise CorruptCheckpoint(f"{path} ends inside a frame")
                frame = bytearray(header)
                frame += file.read(length)
                yield frame
    except OSError as error:
        raise CorruptCheckpoint(
            f"cannot read {path}: {error.strerror or error}"
        ) from error
    except CorruptCheckpoint as error:
        raise CorruptCheckpoint(f"{path}: {error}") from error


@contextlib.contextmanager
def _explained(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceUnavailable(
            f"cannot use {directory}: {error.strerror or error}. Check its mount, permissions and free space"
        ) from error
