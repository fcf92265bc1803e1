"""Increments added up without sorting, at every exchange, on a thread beside the trainer's.

Loops are compiled and run without the interpreter lock, so that training does not wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from cache_store.base import Counts, Increments, Rows


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
        size = 1 + max((int(part.rows.max(initial=-1)) for part in parts), default=-1)
        if size > len(self._totals):
            self._totals = np.zeros(max(size, 2 * len(self._totals)), np.int64)
        distinct, found = np.empty(sum(len(part.rows) for part in parts), np.int64), 0
        for rows, counts in parts:
            found = _add_up(rows, counts, self._totals, distinct, found)
        return Increments(distinct[:found].copy(), _taken_out(self._totals, distinct[:found]))


@njit(nogil=True, cache=True)
def _add_up(rows: Rows, counts: Counts, totals: Counts, distinct: Rows, found: int) -> int:  # type: ignore[no-untyped-def,unused-ignore]
    """Add counts to the totals, and rows that had none to the `found` distinct ones; answers how many they are then."""
    for k in range(len(rows)):
        if counts[k] > 0:
            if totals[rows[k]] == 0:
                distinct[found] = rows[k]
                found += 1
            totals[rows[k]] += counts[k]
    return found


@njit(nogil=True, cache=True)
def _taken_out(totals: Counts, rows: Rows) -> Counts:  # type: ignore[no-untyped-def,unused-ignore]
    """The totals of these rows; leaves zeros there."""
    taken = np.empty(len(rows), np.int64)
    for k in range(len(rows)):
        taken[k] = totals[rows[k]]
        totals[rows[k]] = 0
    return taken


@njit(nogil=True, cache=True)
def add_to(totals: Counts, rows: Rows, counts: Counts) -> None:  # type: ignore[no-untyped-def,unused-ignore]
    """totals[rows] += counts; rows may repeat, and must be below the length of `totals`."""
    for k in range(len(rows)):
        totals[rows[k]] += counts[k]


def ascending(rows: Rows, counts: Counts) -> Increments:
    """By ascending rows: memory likes that order, and differences of rows are small."""
    order = np.argsort(rows)
    return Increments(rows[order], counts[order])
