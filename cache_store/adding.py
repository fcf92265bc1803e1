"""Increments added up without sorting, at every exchange, on a thread beside the trainer's.

Loops are compiled and run without the interpreter lock, so that training does not wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from cache_store.base import Counts, Increments, Rows

_ROWS_A_WORD = 8


class Adder:
    """Adds up increments, like `cache_store.codec.summed`. Not for several threads.

    Keeps a counter and a mark for every row, which are zero between two sums. Rows come out in ascending order, as
    marks are looked through word by word.

    Examples:
        >>> part = Increments(np.array([7, 3, 7]), np.array([1, 1, 1]))
        >>> Adder().summed([part])
        Increments(rows=array([3, 7]), counts=array([1, 2]))
    """

    def __init__(self) -> None:
        self._totals = np.zeros(0, np.int64)
        self._marks = np.zeros(0, np.uint8)

    def summed(self, parts: Sequence[Increments]) -> Increments:
        """Increments with distinct rows, in ascending order: the sum of all of them."""
        size = 1 + max((int(part.rows.max(initial=-1)) for part in parts), default=-1)
        if size > len(self._totals):
            capacity = -(-max(size, 2 * len(self._totals)) // _ROWS_A_WORD) * _ROWS_A_WORD
            self._totals, self._marks = np.zeros(capacity, np.int64), np.zeros(capacity, np.uint8)
        found = 0
        for rows, counts in parts:
            found += _add_up(rows, counts, self._totals, self._marks)
        distinct, total = np.empty(found, np.int64), np.empty(found, np.int64)
        _take_out(self._totals, self._marks, self._marks.view(np.uint64), distinct, total)
        return Increments(distinct, total)


@njit(nogil=True, cache=True)
def _add_up(rows: Rows, counts: Counts, totals: Counts, marks: NDArray[np.uint8]) -> int:  # type: ignore[no-untyped-def,unused-ignore]
    """Add counts to the totals, and mark their rows; answers how many were not marked before."""
    found = 0
    for k in range(len(rows)):
        if counts[k] > 0:
            if marks[rows[k]] == 0:
                marks[rows[k]] = 1
                found += 1
            totals[rows[k]] += counts[k]
    return found


@njit(nogil=True, cache=True)
def _take_out(  # type: ignore[no-untyped-def,unused-ignore]
    totals: Counts, marks: NDArray[np.uint8], words: NDArray[np.uint64], rows: Rows, counts: Counts
) -> None:
    """Fill in the marked rows with their totals; leaves zeros there."""
    found = 0
    for word in range(len(words)):
        if words[word] != 0:
            for row in range(_ROWS_A_WORD * word, _ROWS_A_WORD * (word + 1)):
                if marks[row] != 0:
                    rows[found], counts[found] = row, totals[row]
                    marks[row], totals[row] = 0, 0
                    found += 1


@njit(nogil=True, cache=True)
def add_to(totals: Counts, rows: Rows, counts: Counts) -> None:  # type: ignore[no-untyped-def,unused-ignore]
    """totals[rows] += counts; rows may repeat, and must be below the length of `totals`."""
    for k in range(len(rows)):
        totals[rows[k]] += counts[k]
