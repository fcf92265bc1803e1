"""Published snapshots in memory: the twin of a directory."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from streamer.snapshot.chain import Checkpoint
from streamer.snapshot.places import Found
from streamer.snapshot.snapshot import Snapshot, SnapshotEnd


class MemoryPlace:
    """Writes and reads one list of snapshots, which anybody may change."""

    def __init__(self) -> None:
        self.snapshots: list[tuple[SnapshotEnd, bytes]] = []
        self.changed = threading.Condition()
        self._generation = 0
        self._read = 0

    def begin(self) -> tuple[int, int]:
        """See `Place.begin`."""
        self._generation += 1
        return self._generation, 0

    def write(self, end: SnapshotEnd, frames: Iterable[bytes]) -> None:
        """See `Place.write`."""
        content = b"".join(frames)
        with self.changed:
            self.snapshots.append((end, content))
            self.changed.notify_all()

    def prune(self, number: int) -> None:
        """See `Place.prune`: memory keeps everything."""

    def base_wanted(self) -> bool:
        """See `Place.base_wanted`: nobody asks."""
        return False

    def poll(self, served: SnapshotEnd | None, timeout_s: float) -> Found:
        """See `SnapshotReader.poll`: what is not newer is left out."""
        with self.changed:
            while self.changed.wait_for(lambda: self._read < len(self.snapshots), timeout_s):
                end, content = self.snapshots[self._read]
                self._read += 1
                is_newer = served is None or (end.generation, end.number) > (served.generation, served.number)
                if is_newer and (end.is_base or served is not None):
                    snapshot = Snapshot.of_bytes(str(end), content)
                    return Checkpoint([snapshot]) if end.is_base else snapshot
        return None

    def refuse(self) -> None:
        """See `SnapshotReader.refuse`: what comes next is read anyway, a newer base among it."""

    def close(self) -> None:
        """See `Place.close`."""
