"""Counts of pairs (row, key), in one pool of memory: which items a user had, which
items were seen together.

Each row has a small hash table of its own, twice as large whenever it is four fifths
full, so that a pair is found at once and a row's pairs lie side by side. Tables lie in
one pool; what a table leaves when it moves is given to the next one of that size. No
Python object is kept for any row or pair.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows
from streamer.model.jit import inlined, njit_allocating, njit_borrowing
from streamer.model.rows.growing import grown
from streamer.model.rows.retired import Flags, is_retired

_FIRST_BITS = 2
_CLASSES = 40
_EMPTY = -1


class Pool(NamedTuple):
    """What the compiled loops work on.

    Args:
        keys: [P] the pool: key of each slot, -1 if it is empty.
        counts: [P] count of each slot; infinite if it is empty. Of no length if only
            the pairs matter.
        start: [R] where each row's table begins; -1 if it has none yet.
        bits: [R] log2 of the size of each row's table.
        used: [R] pairs of each row.
        free: [40] for each log2 of a size, a table that was left: its first key leads
            to the next; -1 if there is none.
        end: [1] the first slot of the pool that was never given to a table.
        most: pairs that are kept of a row.
    """

    keys: NDArray[np.int32]
    counts: NDArray[np.float32]
    start: NDArray[np.int32]
    bits: NDArray[np.int8]
    used: NDArray[np.int32]
    free: Rows
    end: Rows
    most: int


class PairCounts:
    """A sparse matrix of counts that grows by additions.

    Args:
        most: pairs that are kept of a row; beyond them a new one takes the place of the
            one with the lowest count.
        counted: whether they are counted; else only which there are is known.

    Examples:
        >>> pairs = PairCounts()
        >>> pairs.add(np.array([3, 3, 0]), np.array([7, 7, 1]))
        >>> sorted(pairs.of(3).items()), pairs.of(9)
        ([(7, 2.0)], {})
    """

    def __init__(self, most: int = 1 << 30, *, counted: bool = True) -> None:
        self.counted = counted
        self.pool = Pool(
            np.empty(0, np.int32),
            np.empty(0, np.float32),
            np.empty(0, np.int32),
            np.empty(0, np.int8),
            np.empty(0, np.int32),
            np.full(_CLASSES, -1),
            np.zeros(1, np.int64),
            most,
        )

    def add(self, rows: Rows, keys: Rows) -> None:
        """Count one more of each pair."""
        self.reserve(int(rows.max(initial=-1)) + 1)
        done = 0
        while (done := _add_all(self.pool, rows, keys, done)) < len(rows):
            self.extend()

    def put(self, rows: Rows, used: NDArray[np.int32], keys: NDArray[np.int32]) -> None:
        """Make rows, each given once, have these keys, counted once: `used` of each
        row, one after the other.
        """
        self.drop(rows)
        self.reserve(int(rows.max(initial=-1)) + 1)
        self.extend(
            (1 << _FIRST_BITS) * len(rows) + 5 * int(used.sum(dtype=np.int64)) // 2
        )
        _put_all(self.pool, rows, used, keys)

    def drop(self, rows: Rows) -> None:
        """Forget the pairs of rows; the memory of their tables is used again."""
        _drop(self.pool, rows[rows < len(self.pool.start)])

    def reserve(self, rows: int) -> None:
        """Make room for this many rows."""
        pool = self.pool
        self.pool = pool._replace(
            start=grown(pool.start, rows, fill=-1),
            bits=grown(pool.bits, rows),
            used=grown(pool.used, rows),
        )

    def extend(self, room: int | None = None) -> None:
        """Make the pool larger: an addition found no room for its table; or see that it
        has room for others.
        """
        size = int(self.pool.end[0]) + (
            room_for_one(self.pool) if room is None else room
        )
        keys = grown(
            self.pool.keys, size
        )  # a table is emptied when it is given to a row
        self.pool = self.pool._replace(
            keys=keys, counts=grown(self.pool.counts, len(keys) if self.counted else 0)
        )

    def with_keys(self, rows: Rows, gone: Flags) -> Rows:
        """Those of some rows that have a pair with a marked key."""
        return _rows_with(self.pool, rows[rows < len(self.pool.start)], gone)

    def remove_keys(self, rows: Rows, gone: Flags) -> None:
        """Forget the pairs of rows with marked keys."""
        _remove(self.pool, rows[rows < len(self.pool.start)], gone)

    def of(self, row: int) -> dict[int, float]:
        """The pairs of a row."""
        if row >= len(self.pool.start) or self.pool.start[row] < 0:
            return {}
        table = slice(
            self.pool.start[row], self.pool.start[row] + (1 << int(self.pool.bits[row]))
        )
        keys = self.pool.keys[table]
        counts = self.pool.counts[table] if self.counted else np.ones(len(keys))
        return {
            key: count
            for key, count in zip(keys.tolist(), counts.tolist(), strict=True)
            if key != _EMPTY
        }

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        slot = self.pool.keys.itemsize + self.counted * self.pool.counts.itemsize
        return int(self.pool.end[0]) * slot + 9 * len(
            np.trim_zeros(self.pool.used, "b")
        )


def room_for_one(pool: Pool) -> int:
    """Slots that the largest table needs to grow."""
    return 2 << max(int(pool.bits.max(initial=0)), _FIRST_BITS)


@inlined
def _home(key: int, mask: int) -> int:
    """The place in a table where a key belongs if it is free."""
    return ((key * 0x9E3779B1) >> 7) & mask


@njit_borrowing
def slot_of(pool: Pool, row: int, key: int) -> int:
    """The slot where a row's table has this key, or the empty one where it belongs; the
    row has a table.
    """
    mask = (1 << pool.bits[row]) - 1
    place = _home(key, mask)
    first = pool.start[row]
    while pool.keys[first + place] != key and pool.keys[first + place] != _EMPTY:
        place = (place + 1) & mask
    return int(first + place)


@njit_borrowing
def has(pool: Pool, row: int, key: int) -> bool:
    """Whether the pair was ever counted."""
    if row >= len(pool.start) or pool.start[row] < 0:
        return False
    return bool(pool.keys[slot_of(pool, row, key)] == key)


@njit_borrowing
def add_one(pool: Pool, row: int, key: int, count: float) -> bool:
    """Count a pair; False if the pool has no room for the table that this needs, and
    nothing was changed.
    """
    if pool.start[row] < 0 and not _move(pool, row, _FIRST_BITS):
        return False
    slot = slot_of(pool, row, key)
    if pool.keys[slot] == _EMPTY:
        if pool.used[row] >= pool.most:
            _drop_lowest(pool, row)
        elif 5 * (pool.used[row] + 1) > 4 << pool.bits[row] and not _move(
            pool, row, pool.bits[row] + 1
        ):
            return False
        slot = slot_of(pool, row, key)
        pool.keys[slot] = key
        pool.used[row] += 1
        if len(pool.counts):
            pool.counts[slot] = 0.0
    if len(pool.counts):
        pool.counts[slot] += count
    return True


@njit_borrowing
def _drop_lowest(pool: Pool, row: int) -> None:
    """Take the pair with the lowest count out of a row's table, and close the gap for
    those that were pushed on.
    """
    first = pool.start[row]
    mask = (1 << pool.bits[row]) - 1
    bits = pool.counts[first : first + mask + 1].view(
        np.int32
    )  # in the order of the counts, as none is negative
    lowest = bits[0]
    for place in range(mask + 1):
        lowest = min(lowest, bits[place])
    gap = 0
    while bits[gap] != lowest:
        gap += 1
    _take_out(pool, row, gap)


@njit_borrowing
def _take_out(pool: Pool, row: int, gap: int) -> None:
    """Empty a place of a row's table, and close the gap for those that were pushed on."""
    first = pool.start[row]
    mask = (1 << pool.bits[row]) - 1
    place = (gap + 1) & mask
    while pool.keys[first + place] != _EMPTY:
        if ((place - _home(pool.keys[first + place], mask)) & mask) >= (
            (place - gap) & mask
        ):
            pool.keys[first + gap] = pool.keys[first + place]
            if len(pool.counts):
                pool.counts[first + gap] = pool.counts[first + place]
            gap = place
        place = (place + 1) & mask
    pool.keys[first + gap] = _EMPTY
    if len(pool.counts):
        pool.counts[first + gap] = np.inf
    pool.used[row] -= 1


@njit_borrowing
def _remove(pool: Pool, rows: Rows, gone: Flags) -> None:
    """Take marked keys out of the tables of rows."""
    for row in rows:
        place = 0
        while pool.start[row] >= 0 and place < 1 << pool.bits[row]:
            key = pool.keys[pool.start[row] + place]
            if key != _EMPTY and is_retired(gone, key):
                _take_out(pool, row, place)  # another may have moved to this place
            else:
                place += 1


@njit_allocating
def _rows_with(pool: Pool, rows: Rows, gone: Flags) -> Rows:
    found = np.empty(len(rows), np.int64)
    count = 0
    for row in rows:
        if pool.start[row] < 0:
            continue
        for slot in range(pool.start[row], pool.start[row] + (1 << pool.bits[row])):
            if pool.keys[slot] != _EMPTY and is_retired(gone, pool.keys[slot]):
                found[count] = row
                count += 1
                break
    return found[:count]


@njit_borrowing
def _move(pool: Pool, row: int, bits: int) -> bool:
    """Give a row a table of another size, with what its old one holds; False if the
    pool has no room.
    """
    size = 1 << bits
    first = pool.free[bits]
    if first >= 0:
        pool.free[bits] = pool.keys[first]
    elif pool.end[0] + size <= len(pool.keys):
        first = pool.end[0]
        pool.end[0] += size
    else:
        return False
    pool.keys[first : first + size] = _EMPTY
    if len(pool.counts):
        pool.counts[first : first + size] = np.inf
    old = pool.start[row]
    old_bits = pool.bits[row]
    pool.start[row] = first
    pool.bits[row] = bits
    if old >= 0:
        for slot in range(old, old + (1 << old_bits)):
            if pool.keys[slot] != _EMPTY:
                to = slot_of(pool, row, pool.keys[slot])
                pool.keys[to] = pool.keys[slot]
                if len(pool.counts):
                    pool.counts[to] = pool.counts[slot]
        pool.keys[old] = pool.free[old_bits]
        pool.free[old_bits] = old
    return True


@njit_borrowing
def _drop(pool: Pool, rows: Rows) -> None:
    for row in rows:
        if pool.start[row] >= 0:
            pool.keys[pool.start[row]] = pool.free[pool.bits[row]]
            pool.free[pool.bits[row]] = pool.start[row]
            pool.start[row] = -1
            pool.bits[row] = 0
            pool.used[row] = 0


@njit_borrowing
def _put_all(
    pool: Pool, rows: Rows, used: NDArray[np.int32], keys: NDArray[np.int32]
) -> None:
    """Fill tables of rows that have none, each as large as if its keys had come one by
    one; the pool has room.
    """
    at = 0
    for k in range(len(rows)):
        bits = _FIRST_BITS
        while 5 * used[k] > 4 << bits:
            bits += 1
        if used[k] > 0:
            _move(pool, rows[k], bits)
            pool.used[rows[k]] = used[k]
        for place in range(at, at + used[k]):
            slot = slot_of(pool, rows[k], keys[place])
            pool.keys[slot] = keys[place]
            if len(pool.counts):
                pool.counts[slot] = 1.0
        at += used[k]


@njit_borrowing
def _add_all(pool: Pool, rows: Rows, keys: Rows, done: int) -> int:
    for k in range(done, len(rows)):
        if not add_one(pool, rows[k], keys[k], 1.0):
            return k
    return len(rows)
