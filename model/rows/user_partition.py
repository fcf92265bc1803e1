"""Which partition each user's events came from last: where the user's state belongs
when trainers share partitions.
"""

from __future__ import annotations

import numpy as np

from streamer.model.batch import Ints, Rows
from streamer.model.rows.by_rows import Arrays, ByRows, take_or_fill
from streamer.model.rows.growing import grown

UNKNOWN = -1


class UserPartitions(ByRows):
    """The partition of each user row, -1 if it is not known."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.size = 0
        self._partition = np.full(0, UNKNOWN, np.int32)

    def of(self, users: Rows) -> Ints:
        """The partition of each."""
        return take_or_fill(self._partition, users, UNKNOWN)

    def observe(self, users: Rows, partition: int) -> None:
        """Events of these users came from a partition."""
        self._grow(int(users.max(initial=-1)) + 1)
        self._partition[users] = partition

    def forget(self, rows: Rows) -> None:
        """Retire users."""
        self._partition[rows[rows < self.size]] = UNKNOWN

    def _grow(self, size: int) -> None:
        self._partition = grown(self._partition, size, fill=UNKNOWN)
        self.size = max(self.size, size)

    @property
    def nbytes(self) -> int:
        return self._partition.itemsize * self.size

    def take(self, rows: Rows) -> Arrays:
        return {"partition": take_or_fill(self._partition, rows, UNKNOWN)}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self._grow(int(rows.max(initial=-1)) + 1)
        self._partition[rows] = arrays["partition"]
