"""Names of items that are the same in every trainer: 64-bit hashes of their ids."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streamer.cache_store.change import Hashes, Rows

F = TypeVar("F")

FIRST_SLOTS = 1024
EMPTY = -1


def compiled(function: F) -> F:
    """Compile a loop over arrays; it runs without the interpreter lock."""
    return cast(F, njit(cache=True, nogil=True)(function))


def with_size(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array, or a copy with more zeros behind it if it is smaller."""
    if size <= len(array):
        return array
    larger = np.zeros(max(size, 2 * len(array), FIRST_SLOTS), array.dtype)
    larger[: len(array)] = array
    return larger


def at_rows(array: NDArray[Any], rows: Rows) -> NDArray[Any]:
    """The numbers of rows, 0 beyond the end."""
    return with_size(array, int(rows.max(initial=-1)) + 1)[rows]


@compiled
def hash_ids(utf8: NDArray[np.uint8], lengths: NDArray[np.int32]) -> Hashes:
    """The hash of each id, given one after the other; never 0.

    Eight bytes at a time go through the permutation of splitmix64.
    """
    found = np.empty(len(lengths), np.uint64)
    start = 0
    for i in range(len(lengths)):
        stop = start + lengths[i]
        h = np.uint64(lengths[i]) + np.uint64(0x9E3779B97F4A7C15)
        while start < stop:
            word = np.uint64(0)
            for k in range(start, min(start + 8, stop)):
                word = (word << np.uint64(8)) | np.uint64(utf8[k])
            start = min(start + 8, stop)
            h ^= word
            h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            h ^= h >> np.uint64(31)
        found[i] = max(h, np.uint64(1))
    return found


class Names:
    """The name of each row, and the row of each name. Not for several threads at once.

    Examples:
        >>> names = Names()
        >>> names.add(np.array([5, 7]), np.array([11, 13], np.uint64))
        >>> names.rows_of(np.array([13, 12], np.uint64))
        array([ 7, -1])
    """

    def __init__(self) -> None:
        self.of_row: Hashes = np.zeros(FIRST_SLOTS, np.uint64)
        """0 where a row has no name."""
        self._slots = np.full(FIRST_SLOTS, EMPTY, np.int32)
        self._filled = 0

    def add(self, rows: Rows, hashes: Hashes) -> None:
        """Give rows names, but for those whose name another row has."""
        self.of_row = with_size(self.of_row, int(rows.max(initial=-1)) + 1)
        if 2 * (self._filled + len(rows)) > len(self._slots):
            self._rebuild(len(rows))
        self._filled += _add(self._slots, self.of_row, rows, hashes)

    def _rebuild(self, more: int) -> None:
        """A larger hash table, without the rows that have lost their names."""
        rows = np.flatnonzero(self.of_row)
        size = FIRST_SLOTS
        while size < 4 * (len(rows) + more):
            size *= 2
        self._slots = np.full(size, EMPTY, np.int32)
        self._filled = _add(self._slots, self.of_row, rows, self.of_row[rows])

    def remove(self, rows: Rows) -> None:
        """Take the names of rows away. Their slots stay until the table is rebuilt."""
        self.of_row[rows[rows < len(self.of_row)]] = 0

    def of(self, rows: Rows) -> Hashes:
        """The name of each row, 0 if it has none."""
        return at_rows(self.of_row, rows)

    def rows_of(self, hashes: Hashes) -> Rows:
        """The row of each name, -1 if it has none."""
        found = np.empty(len(hashes), np.int64)
        _find(self._slots, self.of_row, hashes, found)
        return found

    def verified(self, rows: Rows, hashes: Hashes) -> Rows:
        """The row of each name, given where it was a moment ago."""
        wrong = np.flatnonzero((rows < 0) | (self.of(rows) != hashes))
        if len(wrong):
            rows = rows.copy()
            rows[wrong] = self.rows_of(hashes[wrong])
        return rows

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return self.of_row.nbytes + self._slots.nbytes


@compiled
def _slot(slots: NDArray[np.int32], of_row: Hashes, h: np.uint64) -> np.uint64:
    """The slot that holds the row of a name, or the empty one where it belongs."""
    last = np.uint64(len(slots) - 1)
    slot = h & last
    while slots[slot] != EMPTY and of_row[slots[slot]] != h:
        slot = (slot + np.uint64(1)) & last
    return slot


@compiled
def _add(slots: NDArray[np.int32], of_row: Hashes, rows: Rows, hashes: Hashes) -> int:
    """Returns how many slots were filled."""
    filled = 0
    for i in range(len(rows)):
        slot = _slot(slots, of_row, hashes[i])
        if slots[slot] == EMPTY:
            slots[slot] = rows[i]
            of_row[rows[i]] = hashes[i]
            filled += 1
    return filled


@compiled
def _find(
    slots: NDArray[np.int32], of_row: Hashes, hashes: Hashes, found: Rows
) -> None:
    for i in range(len(hashes)):
        found[i] = slots[_slot(slots, of_row, hashes[i])]
