"""How far each partition is read and committed, and where it ends: what all threads see
of a Kafka source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from streamer.sources.base import Partition, Positions

RETRY_COMMIT_S = 1.0


class Progress:
    """Tables of our partitions, behind one lock.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ends: dict[Partition, int] = {}
        self._next: dict[
            Partition, int
        ] = {}  # the position after the last record that was returned
        self._passed: dict[
            Partition, int
        ] = {}  # the client's position: nothing more comes from before it
        self._wanted: dict[Partition, int] = {}  # to be committed
        self._sent: dict[Partition, int] = {}  # committed, but not answered yet
        self._retry_at = 0.0
        self._changes = 0

    def begin(self, starts: Positions, ends: Positions) -> None:
        """These partitions are ours, read from `starts`."""
        with self._lock:
            self._changes += 1
            self._next.update(starts)
            self._ends.update(ends)

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These partitions are no longer ours, and what was to be committed of them is
        not ours to commit.
        """
        with self._lock:
            self._changes += 1
            for partition in partitions:
                for table in (
                    self._ends,
                    self._next,
                    self._passed,
                    self._wanted,
                    self._sent,
                ):
                    table.pop(partition, None)

    def returned(self, positions: Positions) -> None:
        """Records up to these positions were returned, so the partitions do not end
        before.
        """
        with self._lock:
            self._next.update(positions)
            for partition, position in positions.items():
                self._ends[partition] = max(self._ends[partition], position)

    def moved(self, partition: Partition, position: int) -> None:
        """Reading goes on further ahead."""
        with self._lock:
            self._next[partition] = position
            self._passed.pop(partition, None)

    def positions(self) -> dict[Partition, int]:
        """The next offset of each partition that may bring a record."""
        with self._lock:
            return {
                p: max(position, self._passed.get(p, 0))
                for p, position in self._next.items()
            }

    # ----------------------------------------------------------------------------------------- ends

    def ends(self) -> dict[Partition, int]:
        """The position after the last record of each partition.

        The last offsets of a partition may hold no record (marks of transactions,
        aborted records). Once they are passed, the end is the position after the last
        record that there was.
        """
        with self._lock:
            return {
                p: self._next[p] if self._is_passed(p, end) else end
                for p, end in self._ends.items()
            }

    def _is_passed(self, partition: Partition, end: int) -> bool:
        return self._next[partition] < end <= self._passed.get(partition, 0)

    def behind(self) -> list[Partition]:
        """The partitions of which not everything was returned, as far as is known."""
        with self._lock:
            return [
                partition
                for partition, end in self._ends.items()
                if self._next[partition] < end
            ]

    def pass_by(self, partition: Partition, position: int) -> None:
        """The client has come as far as this without finding records."""
        with self._lock:
            self._passed[partition] = position

    def passed_after(self, partition: Partition, position: int) -> int:
        """Up to where the client has found no record after a position; 0 if that is not
        known.
        """
        with self._lock:
            is_last = partition in self._next and position >= self._next[partition]
            return self._passed.get(partition, 0) if is_last else 0

    def known(self) -> tuple[list[Partition], int]:
        """Our partitions, and a number for `set_ends`."""
        with self._lock:
            return list(self._ends), self._changes

    def set_ends(self, ends: Positions, changes: int) -> None:
        """Ends that were looked up for the partitions of `known`; dropped if others are
        ours meanwhile.
        """
        with self._lock:
            if changes == self._changes:
                self._ends = {
                    partition: max(end, self._next[partition])
                    for partition, end in ends.items()
                }

    # ----------------------------------------------------------------------------------------- commits

    def want_commit(self, positions: Positions) -> None:
        """Remember what to commit. Partitions that are not ours are left out."""
        with self._lock:
            self._wanted.update(
                (p, position) for p, position in positions.items() if p in self._next
            )

    def take_commit(self) -> dict[Partition, int]:
        """What to send now; nothing while an answer is awaited, or shortly after a
        failure.
        """
        with self._lock:
            if self._sent or self._clock() < self._retry_at:
                return {}
            return self._take()

    def take_last_commit(self) -> dict[Partition, int]:
        """All that is not known to be committed."""
        with self._lock:
            return self._take()

    def _take(self) -> dict[Partition, int]:
        self._sent |= self._wanted
        self._wanted = {}
        return dict(self._sent)

    def committed(self) -> None:
        """What was sent has arrived."""
        with self._lock:
            self._sent = {}

    def not_committed(self, positions: Mapping[Partition, int]) -> None:
        """What was sent has failed: try later, unless there is something newer or it is
        no longer ours.
        """
        with self._lock:
            self._sent = {}
            self._retry_at = self._clock() + RETRY_COMMIT_S
            for partition, position in positions.items():
                if partition in self._next:
                    self._wanted.setdefault(partition, position)
