"""Items that were retired, and whose rows something may still refer to.

Other items' neighbours, users' recent items and what users had hold rows of items. To
take a retired item out of all of them at once would mean to look at everything. Instead
a retired item is passed over wherever it is met, and each eviction cleans a few lists.
Its row is used again when a sweep that began after
it was retired has come to its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Ints, Rows
from streamer.model.jit import inlined, njit_allocating
from streamer.model.rows.by_rows import Arrays, ByRows, take_or_fill
from streamer.model.rows.growing import grown

Flags = NDArray[np.uint8]

BEFORE = 1
SINCE = 2
"""Retired before the sweep that is under way began, or since."""
LISTS_PER_EVICTION = 32
"""Each eviction cleans this many neighbour lists, and as large a share of the users'
lists.
"""
_NONE = np.empty(0, np.uint8)


class RetiredItems(ByRows):
    """Which rows are retired, and how far the sweep is.

    Args:
        pace: neighbour lists that each eviction cleans.
    """

    def __init__(self, pace: int = LISTS_PER_EVICTION) -> None:
        self.pace = pace
        self.clear()

    def clear(self) -> None:
        self.size = self.count = 0
        self._flags = np.zeros(0, np.uint8)
        self.swept = 0
        """Items that were retired since the sweep began: what it may cost so far."""
        self.at = np.zeros(2, np.int64)
        """Up to which item and user lists are swept."""

    @property
    def flags(self) -> Flags:
        """Not zero where a row is retired; empty if none is."""
        return self._flags if self.count else _NONE

    def forget(self, rows: Rows) -> None:
        """Retire rows, each given once."""
        self._grow(int(rows.max(initial=-1)) + 1)
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
        self._flags >>= 1
        self.count = int(np.count_nonzero(self._flags))
        self.swept = 0
        self.at = np.zeros(2, np.int64)

    def rows(self) -> Rows:
        """Rows that are retired, ascending."""
        return np.flatnonzero(self._flags)

    def _grow(self, size: int) -> None:
        self._flags = grown(self._flags, size)
        self.size = max(self.size, size)

    @property
    def nbytes(self) -> int:
        return self.size

    def take(self, rows: Rows) -> Arrays:
        return {"flags": take_or_fill(self._flags, rows)}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self._grow(int(rows.max(initial=-1)) + 1)
        self.count += int(np.count_nonzero(arrays["flags"])) - int(
            np.count_nonzero(self._flags[rows])
        )
        self._flags[rows] = arrays["flags"]

    def dense(self) -> Arrays:
        return super().dense() | {"sweep": np.array([self.swept, *self.at])}

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self._grow(self.size)
        self.swept = int(arrays["sweep"][0])
        self.at = arrays["sweep"][1:].copy()


@inlined
def is_retired(flags: Flags, item: int) -> bool:
    """Whether an item's row waits to be used again."""
    return item < len(flags) and flags[item] > 0


@njit_allocating
def rows_with_retired(
    flags: Flags,
    rows: Rows,
    start: Ints,
    length: NDArray[Any],
    items: Ints,
) -> Rows:
    """Those of some rows whose lists hold a retired item."""
    found = np.empty(len(rows), np.int64)
    count = 0
    for row in rows:
        for m in range(start[row], start[row] + length[row]):
            if is_retired(flags, items[m]):
                found[count] = row
                count += 1
                break
    return found[:count]
