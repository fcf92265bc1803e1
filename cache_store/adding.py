"""Increments added up without sorting: what is sent is added up at every exchange, on a thread beside the trainer's.

The loop is compiled and runs without the interpreter lock, so that training does not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from cache_store.base import NOTHING, Counts, Increments, Rows


class Adder:
    """Adds up increments, like `cache_store.codec.summed`, but for the order of the rows. Not for several threads.

    Keeps a counter for every row, which is zero between two sums.

    Examples:
        >>> part = Increments(np.array([7, 3, 7]), np.array([1, 1, 1]))
        >>> Adder().summed([part])
        Increments(rows=array([7, 3]), counts=array([2, 1]))
    """

    def __init__(self) -> None:
        self._totals = np.zeros(0, np.int64)

    def summed(self, parts: Sequence[Increments]) -> Increments:
        """Increments with distinct rows, in the order in which they first appear: the sum of all of them."""
        rows = np.concatenate([NOTHING.rows, *(part.rows for part in parts)])
        counts = np.concatenate([NOTHING.counts, *(part.counts for part in parts)])
        size = int(rows.max(initial=-1)) + 1
        if size > len(self._totals):
            self._totals = np.zeros(max(size, 2 * len(self._totals)), np.int64)
        distinct, total = np.empty_like(rows), np.empty_like(counts)
        found = _add_up(rows, counts, self._totals, distinct, total)
        return Increments(distinct[:found], total[:found])


@njit(nogil=True, cache=True)
def _add_up(rows: Rows, counts: Counts, totals: Counts, distinct: Rows, total: Counts) -> int:  # type: ignore[no-untyped-def,unused-ignore]
    """Fill in rows with what there is of each, and answer how many they are; leaves zeros in `totals`."""
    found = 0
    for k in range(len(rows)):
        if counts[k] > 0:
            if totals[rows[k]] == 0:
                distinct[found] = rows[k]
                found += 1
            totals[rows[k]] += counts[k]
    for k in range(found):
        total[k] = totals[distinct[k]]
        totals[distinct[k]] = 0
    return found
