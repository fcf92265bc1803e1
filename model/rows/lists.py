"""A list of items for each row, all in one pool of memory; lists take the memory that
they need.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows
from streamer.model.jit import inlined, njit_allocating, njit_borrowing
from streamer.model.rows.blocks import (
    Blocks,
    bits_for,
    block_size,
    free_block,
    leave_block,
    take_block,
)
from streamer.model.rows.by_rows import Arrays, ByRows, take_or_fill
from streamer.model.rows.growing import grown
from streamer.model.rows.retired import Flags, RetiredItems, is_retired

SMALLEST_BITS = 1


class Lists(NamedTuple):
    """What the compiled loops work on.

    Args:
        pool: three columns [P], the first of them `items`: a named tuple. The second
            may have several values a place, [P, n]. Both others have no length where
            nothing is kept beside an item.
        blocks: the places of each row's list in the pool.
        length: [N] items in each row's list.
    """

    pool: Any
    blocks: Blocks
    length: NDArray[Any]


class ItemLists(ByRows):
    """A list of items for each row, from which retired items can be swept.

    Args:
        length: how many items are kept of each row.
        pool: columns of the lists, without rows.
        lengths: how long each list is, without rows.
        retired: items that are passed over.
    """

    def __init__(
        self,
        length: int,
        pool: Any,
        lengths: NDArray[Any],
        retired: RetiredItems | None,
    ) -> None:
        self.length = length
        self.retired = retired or RetiredItems()
        self.lists = Lists(pool, Blocks.empty(), lengths)
        self.clear()

    def clear(self) -> None:
        self.size = 0
        pool, _, lengths = self.lists
        self.lists = Lists(_columns(pool, 0), Blocks.empty(), lengths[:0])

    def reserve(self, rows: int) -> None:
        """Make room for this many rows."""
        self.size = max(self.size, rows)
        pool, blocks, length = self.lists
        self.lists = Lists(pool, blocks.reserve(rows), grown(length, rows))

    def extend(self, places: int) -> None:
        """See that the pool has places that were never used."""
        size = int(self.lists.blocks.end[0]) + places
        columns = [grown(column, size) for column in self.lists.pool]
        self.lists = self.lists._replace(pool=type(self.lists.pool)(*columns))

    @property
    def nbytes(self) -> int:
        place: int = sum(column[:1].nbytes for column in self.lists.pool)
        row = 5 + self.lists.length.itemsize
        return place * int(self.lists.blocks.end[0]) + row * self.size

    def forget(self, rows: Rows) -> None:
        """Retire rows; those never seen have nothing to forget."""
        _forget(self.lists, self._known(rows))

    def with_retired(self, rows: Rows) -> Rows:
        """Those of some rows whose lists hold a retired item."""
        return _rows_with(self.lists, self._known(rows), self.retired.flags)

    def sweep(self, rows: Rows) -> None:
        """Take retired items out of the lists of rows."""
        _sweep(self.lists, self._known(rows), self.retired.flags)

    def _known(self, rows: Rows) -> Rows:
        return rows[rows < self.size]

    def take(self, rows: Rows) -> Arrays:
        """The lists of rows, one after the other, and how long each is."""
        length = take_or_fill(self.lists.length, rows)
        places = int(length.sum(dtype=np.int64))
        out = _columns(self.lists.pool, places)
        _take(self.lists, rows, length, out)
        return {**out._asdict(), "length": length}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        """Lists that are longer than they may be here are cut off."""
        self.reserve(int(rows.max(initial=-1)) + 1)
        length = arrays["length"].astype(np.int64)
        places = 2 * np.maximum(length, 1 << SMALLEST_BITS)
        self.extend(int(places.sum()))
        pool = type(self.lists.pool)
        given = pool(*(arrays[name] for name in pool._fields))
        _put(self.lists, rows, length, self.length, given)

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self.reserve(self.size)


def _columns(pool: Any, places: int) -> Any:
    """New columns of the types of a pool's."""
    columns = []
    for column in pool:
        columns.append(np.empty((places, *column.shape[1:]), column.dtype))
    return type(pool)(*columns)


@njit_borrowing
def _copy_values(column: Any, place: int, to_column: Any, to: int) -> None:
    if column.ndim == 1:
        to_column[to] = column[place]
    else:
        for k in range(column.shape[1]):
            to_column[to, k] = column[place, k]


@inlined
def _copy_place(
    pool: Any,
    place: int,
    to_pool: Any,
    to: int,
) -> None:
    to_pool[0][to] = pool[0][place]
    if len(pool[1]) > 0:
        _copy_values(pool[1], place, to_pool[1], to)
        to_pool[2][to] = pool[2][place]


@njit_borrowing
def copy_within(pool: Any, place: int, to: int) -> None:
    """Copy a place of a pool to another."""
    _copy_place(pool, place, pool, to)


@njit_borrowing
def make_room(lists: Lists, row: int, places: int) -> int:
    """See that a row's block has this many places; its list moves with it. Returns
    where it begins.
    """
    blocks = lists.blocks
    start = blocks.start[row]
    if places <= block_size(blocks, row):
        return int(start)
    bits = bits_for(places, SMALLEST_BITS)
    to = take_block(blocks, lists.pool.items, bits)
    for k in range(lists.length[row]):
        _copy_place(lists.pool, start + k, lists.pool, to + k)
    free_block(blocks, lists.pool.items, start, blocks.bits[row])
    blocks.start[row] = to
    blocks.bits[row] = bits
    return int(to)


@njit_borrowing
def sweep_list(lists: Lists, row: int, retired: Flags) -> None:
    """Take retired items out of a list; the others move up in their order."""
    start = lists.blocks.start[row]
    left = start
    for place in range(start, start + lists.length[row]):
        if not is_retired(retired, lists.pool.items[place]):
            _copy_place(lists.pool, place, lists.pool, left)
            left += 1
    lists.length[row] = left - start


@njit_borrowing
def _sweep(lists: Lists, rows: Rows, retired: Flags) -> None:
    for row in rows:
        sweep_list(lists, row, retired)


@njit_allocating
def _rows_with(lists: Lists, rows: Rows, retired: Flags) -> Rows:
    found = np.empty(len(rows), np.int64)
    count = 0
    for row in rows:
        start = lists.blocks.start[row]
        for place in range(start, start + lists.length[row]):
            if is_retired(retired, lists.pool.items[place]):
                found[count] = row
                count += 1
                break
    return found[:count]


@njit_borrowing
def _forget(lists: Lists, rows: Rows) -> None:
    for row in rows:
        leave_block(lists.blocks, lists.pool.items, row)
        lists.length[row] = 0


@njit_borrowing
def _take(
    lists: Lists,
    rows: Rows,
    length: NDArray[Any],
    out: Any,
) -> None:
    """Copy lists, one after the other without gaps."""
    at = 0
    for k in range(len(rows)):
        for m in range(length[k]):
            _copy_place(lists.pool, lists.blocks.start[rows[k]] + m, out, at)
            at += 1


@njit_borrowing
def _put(
    lists: Lists,
    rows: Rows,
    length: Rows,
    longest: int,
    given: Any,
) -> None:
    """Replace lists; the pool has room for all of them."""
    at = 0
    for k in range(len(rows)):
        kept = min(length[k], longest)
        lists.length[rows[k]] = 0
        start = make_room(lists, rows[k], kept)
        for m in range(kept):
            _copy_place(given, at + m, lists.pool, start + m)
        lists.length[rows[k]] = kept
        at += length[k]
