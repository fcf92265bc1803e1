"""Counts of pairs (row, key) in one pool of memory: which items were seen together.

Each row has a small hash table of its own, twice as large whenever it is four fifths
full, so that a pair is found at once and a row's pairs lie side by side. No Python
object is kept for any row or pair.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamer.model.batch import Floats, Ints, Rows
from streamer.model.jit import inlined, njit_borrowing
from streamer.model.rows.blocks import (
    Blocks,
    block_size,
    free_block,
    leave_block,
    take_block,
)
from streamer.model.rows.growing import grown
from streamer.model.rows.retired import Flags, is_retired

EMPTY = -1
"""The key of a slot without a pair."""
_SMALLEST_BITS = 2


class Pool(NamedTuple):
    """What the compiled loops work on.

    Args:
        keys: [P] the key of each slot, -1 if it is empty.
        counts: [P] the count of each slot; infinite if it is empty.
        blocks: the slots of each row's table.
        used: [R] pairs of each row.
        most: pairs that are kept of a row.
    """

    keys: Ints
    counts: Floats
    blocks: Blocks
    used: Ints
    most: int


class PairCounts:
    """A sparse matrix of counts that grows by additions (`add_one`).

    Args:
        most: pairs that are kept of a row; beyond them a new one takes the place of the
            one with the lowest count.

    Examples:
        >>> pairs = PairCounts()
        >>> pairs.reserve(rows=4)
        >>> add_one(pairs.pool, 3, 7, 2.0)
        False
        >>> pairs.extend()
        >>> add_one(pairs.pool, 3, 7, 2.0), pairs.of(3), pairs.of(9)
        (True, {7: 2.0}, {})
    """

    def __init__(self, most: int = 1 << 30) -> None:
        self.pool = Pool(
            np.empty(0, np.int32),
            np.empty(0, np.float32),
            Blocks.empty(),
            np.empty(0, np.int32),
            most,
        )

    def drop(self, rows: Rows) -> None:
        """Forget the pairs of rows; the memory of their tables is used again."""
        _drop(self.pool, self._known(rows))

    def reserve(self, rows: int) -> None:
        """Make room for this many rows."""
        blocks = self.pool.blocks.reserve(rows)
        used = grown(self.pool.used, rows)
        self.pool = self.pool._replace(blocks=blocks, used=used)

    def extend(self) -> None:
        """Make room for the table that the last addition found no room for."""
        blocks = self.pool.blocks
        most_bits = int(blocks.bits.max(initial=0))
        slots = 2 << max(most_bits, _SMALLEST_BITS)
        keys = grown(self.pool.keys, int(blocks.end[0]) + slots)
        counts = grown(self.pool.counts, len(keys))
        self.pool = self.pool._replace(keys=keys, counts=counts)

    def remove_keys(self, rows: Rows, gone: Flags) -> None:
        """Forget the pairs of rows with marked keys."""
        _remove(self.pool, self._known(rows), gone)

    def of(self, row: int) -> dict[int, float]:
        """The pairs of a row."""
        if row >= len(self.pool.used):
            return {}
        start = self.pool.blocks.start[row]
        slots = np.arange(start, start + block_size(self.pool.blocks, row))
        taken = slots[self.pool.keys[slots] != EMPTY]
        keys = self.pool.keys[taken].tolist()
        counts = self.pool.counts[taken].tolist()
        return dict(zip(keys, counts, strict=True))

    def _known(self, rows: Rows) -> Rows:
        return rows[rows < len(self.pool.used)]


@njit_borrowing
def slots_of(pool: Pool, row: int) -> range:
    """The slots of a row's table."""
    if row >= len(pool.used):
        return range(0)
    start = np.int64(pool.blocks.start[row])
    return range(start, start + block_size(pool.blocks, row))


@inlined
def _home(key: int, mask: int) -> int:
    """The place in a table where a key belongs if it is free."""
    return ((key * 0x9E3779B1) >> 7) & mask


@njit_borrowing
def slot_of(pool: Pool, row: int, key: int) -> int:
    """The slot where a row's table has this key, or the empty one where it belongs; the
    row has a table.
    """
    mask = (1 << pool.blocks.bits[row]) - 1
    place = _home(key, mask)
    first = pool.blocks.start[row]
    while pool.keys[first + place] != key and pool.keys[first + place] != EMPTY:
        place = (place + 1) & mask
    return int(first + place)


@njit_borrowing
def add_one(
    pool: Pool,
    row: int,
    key: int,
    count: float,
) -> bool:
    """Count a pair; False if the pool has no room for the table that this needs, and
    nothing was changed.
    """
    bits = pool.blocks.bits[row]
    if bits == 0 and not _move(pool, row, _SMALLEST_BITS):
        return False

    slot = slot_of(pool, row, key)
    if pool.keys[slot] == EMPTY:
        bits = pool.blocks.bits[row]
        is_crowded = 5 * (pool.used[row] + 1) > 4 << bits
        if pool.used[row] >= pool.most:
            _drop_lowest(pool, row)
        elif is_crowded and not _move(pool, row, bits + 1):
            return False
        slot = slot_of(pool, row, key)  # the others may have moved
        pool.keys[slot] = key
        pool.used[row] += 1
        pool.counts[slot] = 0.0
    pool.counts[slot] += count
    return True


@njit_borrowing
def _drop_lowest(pool: Pool, row: int) -> None:
    """Take the pair with the lowest count out of a row's table."""
    first = pool.blocks.start[row]
    size = 1 << pool.blocks.bits[row]
    # floats that are not negative are ordered as their bits are, and integers compare
    # several at once
    bits = pool.counts[first : first + size].view(np.int32)
    lowest = bits[0]
    for place in range(size):
        lowest = min(lowest, bits[place])
    gap = 0
    while bits[gap] != lowest:
        gap += 1
    _take_out(pool, row, gap)


@njit_borrowing
def _take_out(pool: Pool, row: int, gap: int) -> None:
    """Empty a place of a row's table, and close the gap for those that were pushed on."""
    first = pool.blocks.start[row]
    mask = (1 << pool.blocks.bits[row]) - 1
    place = (gap + 1) & mask
    while pool.keys[first + place] != EMPTY:
        pushed = (place - _home(pool.keys[first + place], mask)) & mask
        if pushed >= ((place - gap) & mask):
            _copy_slot(pool, first + place, first + gap)
            gap = place
        place = (place + 1) & mask
    pool.keys[first + gap] = EMPTY
    pool.counts[first + gap] = np.inf
    pool.used[row] -= 1


@inlined
def _copy_slot(pool: Pool, slot: int, to: int) -> None:
    pool.keys[to] = pool.keys[slot]
    pool.counts[to] = pool.counts[slot]


@njit_borrowing
def _remove(pool: Pool, rows: Rows, gone: Flags) -> None:
    """Take marked keys out of the tables of rows."""
    for row in rows:
        place = 0
        while place < block_size(pool.blocks, row):
            key = pool.keys[pool.blocks.start[row] + place]
            if key != EMPTY and is_retired(gone, key):
                _take_out(pool, row, place)  # another may have moved to this place
            else:
                place += 1


@njit_borrowing
def _move(pool: Pool, row: int, bits: int) -> bool:
    """Give a row a table of another size, with what its old one holds; False if the
    pool has no room.
    """
    blocks = pool.blocks
    size = 1 << bits
    if blocks.free[bits] < 0 and blocks.end[0] + size > len(pool.keys):
        return False
    old = slots_of(pool, row)
    first = take_block(blocks, pool.keys, bits)
    pool.keys[first : first + size] = EMPTY
    pool.counts[first : first + size] = np.inf

    old_bits = blocks.bits[row]
    old_start = blocks.start[row]
    blocks.start[row] = first
    blocks.bits[row] = bits
    for slot in old:
        if pool.keys[slot] != EMPTY:
            _copy_slot(pool, slot, slot_of(pool, row, pool.keys[slot]))

    free_block(blocks, pool.keys, old_start, old_bits)  # overwrites its first key
    return True


@njit_borrowing
def _drop(pool: Pool, rows: Rows) -> None:
    for row in rows:
        leave_block(pool.blocks, pool.keys, row)
        pool.used[row] = 0
