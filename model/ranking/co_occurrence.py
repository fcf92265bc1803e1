"""Each item's neighbours: what users had shortly before or after it.

Vectors of a few dozen numbers cannot hold which of ten thousand items go together with
which; a list of each item's neighbours can, from the first time that a user has both.
An event of item i adds 1 / (r + 1) to the pair of i and each of its user's last ten
items, in the lists of both; r is the recency rank, and items of one second share the
rank of the first. Beside it stands a second weight, the same times exp(-gap / 0.3
days).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Floats, Ints, Recent, Rows
from streamer.model.jit import inlined, njit_borrowing
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
from streamer.model.rows.retired import (
    Flags,
    RetiredItems,
    is_retired,
    rows_with_retired,
)

MAX_PAIR_DISTANCE = 10
"""An event is paired with this many of its user's recent items."""
GAP_S = np.float32(0.3 * 86_400)
"""After this time the timed weight of a pair is 1/e."""
_SMALLEST_BITS = 1


class NeighbourLists(NamedTuple):
    """What the compiled loops work on.

    Args:
        items: [P] the pool: neighbours.
        weights: [P] their weights.
        timed: [P] their timed weights.
        blocks: the places of each item's list in the pool.
        length: [N] neighbours in each item's list.
        total: [N] weight of all pairs that an item was ever part of, those that no list
            holds any more too.
        timed_total: [N] the same of the timed weights.
        retired: items that are passed over; they leave lists that are full, or when
            these are swept.
        max_length: neighbours that are kept of an item.
    """

    items: Ints
    weights: Floats
    timed: Floats
    blocks: Blocks
    length: NDArray[np.uint16]
    total: Floats
    timed_total: Floats
    retired: Flags
    max_length: int


class CoOccurrence(ByRows):
    """The heaviest neighbours of each item; where a list is full, the lightest gives
    way.

    Args:
        length: neighbours kept of each item.
        retired: items that are no neighbours any more.
    """

    def __init__(self, length: int, retired: RetiredItems | None = None) -> None:
        self.length = length
        self.retired = retired or RetiredItems()
        self.clear()

    def clear(self) -> None:
        self.size = 0
        none = np.empty(0, np.float32)
        self.lists = NeighbourLists(
            items=np.empty(0, np.int32),
            weights=none,
            timed=none,
            blocks=Blocks.empty(),
            length=np.empty(0, np.uint16),
            total=none,
            timed_total=none,
            retired=self.retired.flags,
            max_length=self.length,
        )

    def of(self, item: int) -> dict[int, float]:
        """An item's neighbours and their weights."""
        if item >= self.size:
            return {}
        start = int(self.lists.blocks.start[item])
        found = {}
        for place in range(start, start + int(self.lists.length[item])):
            neighbour = int(self.lists.items[place])
            if not is_retired(self.retired.flags, neighbour):
                found[neighbour] = float(self.lists.weights[place])
        return found

    def total(self, item: int) -> float:
        """The weight of all pairs that an item was ever part of."""
        return float(self.lists.total[item]) if item < self.size else 0.0

    def reserve(self, items: int) -> None:
        """Make room for this many items."""
        self.size = max(self.size, items)
        lists = self.lists
        self.lists = lists._replace(
            blocks=lists.blocks.reserve(items),
            length=grown(lists.length, items),
            total=grown(lists.total, items),
            timed_total=grown(lists.timed_total, items),
            retired=self.retired.flags,
        )

    def extend(self, places: int = 0) -> None:
        """Make room in the pool for so many places, and for what an event may need."""
        lists = self.lists
        size = int(lists.blocks.end[0]) + max(places, room_for_event(self.length))
        self.lists = lists._replace(
            items=grown(lists.items, size),
            weights=grown(lists.weights, size),
            timed=grown(lists.timed, size),
        )

    @property
    def nbytes(self) -> int:
        return 12 * int(self.lists.blocks.end[0]) + 15 * self.size

    def forget(self, items: Rows) -> None:
        """Retire items: they have no neighbours any more. They are in `retired`
        already, and so none themselves.
        """
        _forget(self.lists, items[items < self.size])

    def with_retired(self, items: Rows) -> Rows:
        """Those of some items whose lists hold a retired one."""
        return rows_with_retired(
            self.retired.flags,
            items[items < self.size],
            self.lists.blocks.start,
            self.lists.length,
            self.lists.items,
        )

    def sweep(self, items: Rows) -> None:
        """Take retired items out of the lists of others."""
        self.reserve(self.size)
        _sweep_all(self.lists, items[items < self.size])

    def take(self, rows: Rows) -> Arrays:
        """The lists of these items, one after the other without gaps."""
        length = take_or_fill(self.lists.length, rows)
        places = int(length.sum(dtype=np.int64))
        items = np.empty(places, np.int32)
        weights = np.empty(places, np.float32)
        timed = np.empty(places, np.float32)
        _take(self.lists, rows, length, items, weights, timed)
        return {
            "items": items,
            "weights": weights,
            "timed": timed,
            "length": length,
            "total": take_or_fill(self.lists.total, rows),
            "timed_total": take_or_fill(self.lists.timed_total, rows),
        }

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self.reserve(int(rows.max(initial=-1)) + 1)
        length = arrays["length"].astype(np.int64)
        self.extend(int((2 * np.maximum(length, 1 << _SMALLEST_BITS)).sum()))
        _put(
            self.lists,
            rows,
            length,
            arrays["items"],
            arrays["weights"],
            arrays["timed"],
        )
        self.lists.total[rows] = arrays["total"]
        self.lists.timed_total[rows] = arrays["timed_total"]

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self.reserve(self.size)


@njit_borrowing
def room_for_event(max_length: int) -> int:
    """Places of the pool that an event may need: its own list and those of its user's
    items may all move.
    """
    block = 1 << bits_for(max_length, _SMALLEST_BITS)
    return (MAX_PAIR_DISTANCE + 2) * block


@njit_borrowing
def pair_up(
    lists: NeighbourLists, item: int, time_s: int, recent: Recent, recent_s: Ints
) -> None:
    """An event is paired with its user's recent items."""
    rank = 0
    for k in range(min(len(recent), MAX_PAIR_DISTANCE)):
        other = recent[k]
        if other < 0:
            break
        if k > 0 and recent_s[k] != recent_s[k - 1]:
            rank = k
        if other == item:
            continue
        weight = np.float32(1) / np.float32(rank + 1)
        timed = weight * np.exp(-np.float32(max(time_s - recent_s[k], 0)) / GAP_S)
        _add(lists, other, item, weight, timed)
        _add(lists, item, other, weight, timed)


@njit_borrowing
def _add(
    lists: NeighbourLists, item: int, other: int, weight: np.float32, timed: np.float32
) -> None:
    """More weight for a neighbour; a new one takes the next place, or that of the
    lightest if the list is full.
    """
    lists.total[item] += weight
    lists.timed_total[item] += timed
    start = lists.blocks.start[item]
    length = lists.length[item]
    for m in range(start, start + length):
        if lists.items[m] == other:
            lists.weights[m] += weight
            lists.timed[m] += timed
            return

    # sweep where the smallest block for the list would be full: what was restored may
    # have a smaller block than what grew, and both must hold the same
    if len(lists.retired) and (
        length == lists.max_length or length & (length - 1) == 0
    ):
        _sweep(lists, item)
        length = lists.length[item]

    if length < lists.max_length:
        if length == block_size(lists.blocks, item):
            start = _move(lists, item)
        place = start + length
        lists.length[item] += 1
    else:
        place = start
        for m in range(start, start + length):
            if lists.weights[m] < lists.weights[place]:
                place = m
    if lists.max_length > 0:
        lists.items[place] = other
        lists.weights[place] = weight
        lists.timed[place] = timed


@inlined
def _copy_place(lists: NeighbourLists, place: int, to: int) -> None:
    lists.items[to] = lists.items[place]
    lists.weights[to] = lists.weights[place]
    lists.timed[to] = lists.timed[place]


@njit_borrowing
def _move(lists: NeighbourLists, item: int) -> int:
    """Give a list a block twice as large; returns its start."""
    blocks = lists.blocks
    bits = blocks.bits[item]
    start = blocks.start[item]
    larger = bits + 1 if bits > 0 else _SMALLEST_BITS
    to = take_block(blocks, lists.items, larger)
    for m in range(lists.length[item]):
        _copy_place(lists, start + m, to + m)
    free_block(blocks, lists.items, start, bits)
    blocks.start[item] = to
    blocks.bits[item] = larger
    return int(to)


@njit_borrowing
def _take(
    lists: NeighbourLists,
    rows: Rows,
    length: NDArray[np.uint16],
    items: Ints,
    weights: Floats,
    timed: Floats,
) -> None:
    """Copy lists, one after the other without gaps."""
    at = 0
    for k in range(len(rows)):
        if length[k]:
            start = lists.blocks.start[rows[k]]
            for m in range(start, start + np.int64(length[k])):
                items[at] = lists.items[m]
                weights[at] = lists.weights[m]
                timed[at] = lists.timed[m]
                at += 1


@njit_borrowing
def _put(
    lists: NeighbourLists,
    rows: Rows,
    length: Rows,
    items: Ints,
    weights: Floats,
    timed: Floats,
) -> None:
    """Replace lists; the pool has room for all of them."""
    at = 0
    for k in range(len(rows)):
        item = rows[k]
        if length[k] > block_size(lists.blocks, item):
            bits = bits_for(length[k], _SMALLEST_BITS)
            leave_block(lists.blocks, lists.items, item)
            lists.blocks.start[item] = take_block(lists.blocks, lists.items, bits)
            lists.blocks.bits[item] = bits
        to = lists.blocks.start[item]
        for m in range(length[k]):
            lists.items[to + m] = items[at]
            lists.weights[to + m] = weights[at]
            lists.timed[to + m] = timed[at]
            at += 1
        lists.length[item] = length[k]


@njit_borrowing
def _forget(lists: NeighbourLists, items: Rows) -> None:
    for item in items:
        leave_block(lists.blocks, lists.items, item)
        lists.length[item] = 0
        lists.total[item] = 0
        lists.timed_total[item] = 0


@njit_borrowing
def _sweep_all(lists: NeighbourLists, items: Rows) -> None:
    for item in items:
        _sweep(lists, item)


@njit_borrowing
def _sweep(lists: NeighbourLists, item: int) -> None:
    """Take retired items out of a list; the others move up in their order."""
    start = lists.blocks.start[item]
    left = start
    for m in range(start, start + lists.length[item]):
        if not is_retired(lists.retired, lists.items[m]):
            _copy_place(lists, m, left)
            left += 1
    lists.length[item] = left - start
