"""Items that were retired, and whose rows something may still refer to.

Other items' neighbours, users' recent items and what users had hold rows of items. To
take a retired item out of all of them at once would mean to look at everything. Instead
a retired item is passed over wherever it is met, and each eviction cleans a few lists.
Its row is used again when a sweep that began after
it was retired has come to its end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows
from streamer.model.jit import inlined
from streamer.model.rows.by_rows import Arrays, Columns

Flags = NDArray[np.uint8]

BEFORE = 1
SINCE = 2
"""Retired before the sweep that is under way began, or since."""
LISTS_PER_EVICTION = 32
"""Each eviction cleans this many neighbour lists, and as large a share of the users'
lists.
"""
_NONE = np.empty(0, np.uint8)


class RetiredItems(Columns):
    """Which rows are retired, and how far the sweep is.

    Args:
        pace: neighbour lists that each eviction cleans.
    """

    def __init__(self, pace: int = LISTS_PER_EVICTION) -> None:
        super().__init__({}, flags=np.zeros(0, np.uint8))
        self.pace = pace
        self.clear()

    def clear(self) -> None:
        super().clear()
        self.count = 0
        self.swept = 0
        """Items that were retired since the sweep began: what it may cost so far."""
        self.at = np.zeros(2, np.int64)
        """Up to which item and user lists are swept."""

    @property
    def flags(self) -> Flags:
        """Not zero where a row is retired; empty if none is."""
        return self._flags if self.count else _NONE

    @property
    def _flags(self) -> Flags:
        return self.columns["flags"]

    def forget(self, rows: Rows) -> None:
        """Retire rows, each given once."""
        self.grow(int(rows.max(initial=-1)) + 1)
        self._flags[rows] = SINCE if self.swept else BEFORE
        self.count += len(rows)

    def share(self, retired: int, items: int, users: int) -> tuple[Rows, Rows]:
        """The lists of items and of users to be swept, when this many further items
        were retired.
        """
        self.swept += retired
        done = min(self.swept * self.pace / max(items, 1), 1.0)
        before = self.at
        self.at = np.maximum(
            self.at, np.ceil(np.multiply(done, (items, users))).astype(np.int64)
        )
        return np.arange(before[0], self.at[0]), np.arange(before[1], self.at[1])

    def is_swept(self, items: int) -> bool:
        """Whether all lists are swept."""
        return self.count > 0 and self.swept * self.pace >= items

    def unreferenced(self) -> Rows:
        """When all lists are swept: rows that none of them holds any more, ascending."""
        return np.flatnonzero(self._flags == BEFORE)

    def begin_sweep(self) -> None:
        """The rows that are not referenced may be used again; the next sweep begins."""
        np.right_shift(self._flags, 1, out=self._flags)
        self.count = int(np.count_nonzero(self._flags))
        self.swept = 0
        self.at = np.zeros(2, np.int64)

    def rows(self) -> Rows:
        """Rows that are retired, ascending."""
        return np.flatnonzero(self._flags)

    def put(self, rows: Rows, arrays: Arrays) -> None:
        super().put(rows, arrays)
        self.count = int(np.count_nonzero(self._flags))

    def dense(self) -> Arrays:
        return super().dense() | {"sweep": np.array([self.swept, *self.at])}

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self.swept = int(arrays["sweep"][0])
        self.at = arrays["sweep"][1:].copy()


@inlined
def is_retired(flags: Flags, item: int) -> bool:
    """Whether an item's row waits to be used again."""
    return item < len(flags) and flags[item] > 0
