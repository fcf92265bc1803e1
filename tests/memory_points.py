"""Published points in memory: the twin of a directory."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from streamer.publish.points import Point, PointId


class MemoryPoints:
    """Writer and reader of one list of points, which anybody may change."""

    def __init__(self) -> None:
        self.points: list[tuple[PointId, list[bytes]]] = []
        self.changed = threading.Condition()
        self._generation = 0
        self._read = 0

    def begin(self) -> int:
        """See `Writer.begin`."""
        self._generation += 1
        return self._generation

    def write(self, point: PointId, frames: Iterable[bytes]) -> None:
        """See `Writer.write`."""
        packed = list(frames)
        with self.changed:
            self.points.append((point, packed))
            self.changed.notify_all()

    def prune(self, base: PointId) -> None:
        """See `Writer.prune`: memory keeps everything."""

    def poll(self, timeout_s: float) -> Point | None:
        """See `Reader.poll`."""
        with self.changed:
            if not self.changed.wait_for(lambda: self._read < len(self.points), timeout_s):
                return None
            point, frames = self.points[self._read]
            self._read += 1
            return Point(point, [bytearray(frame) for frame in frames])

    def refuse(self, point: PointId) -> None:
        """See `Reader.refuse`: what comes next is read anyway, a newer base among it."""

    def close(self) -> None:
        """See `Writer.close`."""
