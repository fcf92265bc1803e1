"""Which partition each user's events came from last: where the user's state belongs
when trainers share partitions.
"""

from __future__ import annotations

import numpy as np

from streamer.model.batch import Ints, Rows
from streamer.model.rows.by_rows import Columns

UNKNOWN = -1


class UserPartitions(Columns):
    """The partition of each user row, -1 if it is not known."""

    def __init__(self) -> None:
        super().__init__({"partition": UNKNOWN}, partition=np.empty(0, np.int32))

    def of(self, users: Rows) -> Ints:
        """The partition of each."""
        return self.take(users)["partition"]

    def observe(self, users: Rows, partition: int) -> None:
        """Events of these users came from a partition."""
        self.grow(int(users.max(initial=-1)) + 1)
        self.columns["partition"][users] = partition
