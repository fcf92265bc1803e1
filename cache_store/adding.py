"""Increments added up without sorting, at every exchange, on a thread beside the trainer's.

Loops are compiled and run without the interpreter lock, so that training does not wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streamer.cache_store.base import Counts, Increments, Rows

Words = NDArray[np.uint64]

_BITS = 6
_ONE, _LAST = np.uint64(1), np.uint64(63)
_DE_BRUIJN, _SHIFT = np.uint64(0x03F79D71B4CB0A89), np.uint64(58)
_BIT_OF = np.empty(64, np.int64)
_BIT_OF[[(0x03F79D71B4CB0A89 << k & 2**64 - 1) >> 58 for k in range(64)]] = np.arange(64)
"""Which bit is the lowest of a word: for the topmost bits of that bit alone times a de Bruijn sequence."""


class Adder:
    """Adds up increments, like `streamer.cache_store.codec.summed`. Not for several threads.

    Keeps a counter and a bit for every row, which are zero between two sums. Rows come out in ascending order, as bits
    are looked through word by word.

    Examples:
        >>> part = Increments(np.array([7, 3, 7]), np.array([1, 1, 1]))
        >>> Adder().summed([part])
        Increments(rows=array([3, 7]), counts=array([1, 2]))
    """

    def __init__(self) -> None:
        self._totals = np.zeros(0, np.int64)
        self._bits = np.zeros(0, np.uint64)

    def summed(self, parts: Sequence[Increments]) -> Increments:
        """Increments with distinct rows, in ascending order: the sum of all of them."""
        size = 1 + max((int(part.rows.max(initial=-1)) for part in parts), default=-1)
        if size > len(self._totals):
            words = (max(size, 2 * len(self._totals)) >> _BITS) + 1
            self._totals, self._bits = np.zeros(words << _BITS, np.int64), np.zeros(words, np.uint64)
        found = 0
        for rows, counts in parts:
            found += _add_up(rows, counts, self._totals, self._bits)
        distinct, total = np.empty(found, np.int64), np.empty(found, np.int64)
        _take_out(self._totals, self._bits, distinct, total)
        return Increments(distinct, total)


@njit(nogil=True, cache=True)
def _add_up(rows: Rows, counts: Counts, totals: Counts, bits: Words) -> int:  # type: ignore[no-untyped-def,unused-ignore]
    """Add counts to the totals, and set the bits of their rows; answers how many were not set before."""
    found = 0
    for k in range(len(rows)):
        if counts[k] > 0:
            row = rows[k]
            bit = _ONE << (np.uint64(row) & _LAST)
            if bits[row >> _BITS] & bit == 0:
                bits[row >> _BITS] |= bit
                found += 1
            totals[row] += counts[k]
    return found


@njit(nogil=True, cache=True)
def _take_out(totals: Counts, bits: Words, rows: Rows, counts: Counts) -> None:  # type: ignore[no-untyped-def,unused-ignore]
    """Fill in the rows whose bits are set with their totals; leaves zeros there."""
    found = 0
    for word in range(len(bits)):
        left = bits[word]
        while left != 0:
            lowest = left & (~left + _ONE)
            row = (word << _BITS) + _BIT_OF[(lowest * _DE_BRUIJN) >> _SHIFT]
            rows[found], counts[found] = row, totals[row]
            totals[row] = 0
            left ^= lowest
            found += 1
        bits[word] = 0


@njit(nogil=True, cache=True)
def add_to(totals: Counts, rows: Rows, counts: Counts) -> None:  # type: ignore[no-untyped-def,unused-ignore]
    """totals[rows] += counts; rows may repeat, and must be below the length of `totals`."""
    for k in range(len(rows)):
        totals[rows[k]] += counts[k]
