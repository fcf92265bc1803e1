"""Each item's neighbours: what users had shortly before or after it.

Vectors of a few dozen numbers cannot hold which of ten thousand items go together with
which; a list of each item's neighbours can, from the first time that a user has both.
An event of item i adds its weight / (r + 1) to the pair of i and each of its user's last ten
items, in the lists of both; r is the recency rank, and items of one second share the
rank of the first. Beside it stands a second weight, the same times exp(-gap / 0.3
days), and what came next: each event counts as one that followed its user's last item,
of whose earlier followers each counts a hundredth less then.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from streamer.model.batch import Floats, Ints, Recent, Rows
from streamer.model.jit import njit_borrowing
from streamer.model.rows.blocks import bits_for
from streamer.model.rows.by_rows import Arrays, take_or_fill
from streamer.model.rows.growing import grown
from streamer.model.rows.lists import (
    SMALLEST_BITS,
    ItemLists,
    Lists,
    make_room,
    sweep_list,
)
from streamer.model.rows.retired import Flags, RetiredItems

MAX_PAIR_DISTANCE = 10
"""An event is paired with this many of its user's recent items."""
GAP_S = np.float32(0.3 * 86_400)
"""After this time the timed weight of a pair is 1/e."""
NEXT_KEPT = np.float32(0.99)
"""What is left of an item's followers when another one comes."""
_ONE = np.float32(1)


class Weight(IntEnum):
    """Columns of a neighbour's weights."""

    PLAIN = 0
    TIMED = 1


class NeighbourPool(NamedTuple):
    """Columns of the lists of all items."""

    items: Ints
    weights: Floats  # [P, Weight]
    next: Floats  # how often it came next after the item, lately


class Neighbours(NamedTuple):
    """What the compiled loops work on.

    Args:
        lists: neighbours of each item, with their weights.
        total: [N] weight of all pairs that an item was ever part of, those that no list
            holds any more too.
        timed_total: [N] the same of the timed weights.
        retired: items that are passed over; they leave lists that are full, or when
            these are swept.
        max_length: neighbours that are kept of an item.
    """

    lists: Lists
    total: Floats
    timed_total: Floats
    retired: Flags
    max_length: int


class CoOccurrence(ItemLists):
    """The heaviest neighbours of each item; where a list is full, the lightest gives
    way.

    Args:
        length: neighbours kept of each item.
        retired: items that are no neighbours any more.
    """

    def __init__(self, length: int, retired: RetiredItems | None = None) -> None:
        pool = NeighbourPool(
            np.empty(0, np.int32),
            np.empty((0, len(Weight)), np.float32),
            np.empty(0, np.float32),
        )
        super().__init__(length, pool, np.empty(0, np.uint16), retired)

    def clear(self) -> None:
        super().clear()
        self._total = np.empty(0, np.float32)
        self._timed_total = np.empty(0, np.float32)

    @property
    def neighbours(self) -> Neighbours:
        """Everything, as it is now."""
        totals = (self._total, self._timed_total)
        return Neighbours(self.lists, *totals, self.retired.flags, self.length)

    def of(self, item: int) -> dict[int, float]:
        """An item's neighbours and their weights."""
        lists = self.take(np.array([item]))
        kept = take_or_fill(self.retired.flags, lists["items"]) == 0
        weights = lists["weights"][kept, Weight.PLAIN]
        found = zip(lists["items"][kept], weights, strict=True)
        return {int(neighbour): float(weight) for neighbour, weight in found}

    def total(self, item: int) -> float:
        """The weight of all pairs that an item was ever part of."""
        return float(self._total[item]) if item < self.size else 0.0

    def reserve(self, rows: int) -> None:
        """Make room for this many items."""
        super().reserve(rows)
        self._total = grown(self._total, rows)
        self._timed_total = grown(self._timed_total, rows)

    def extend(self, places: int = 0) -> None:
        """Make room in the pool for so many places, and for what an event may need."""
        super().extend(max(places, room_for_event(self.length)))

    def make_room_for_copies(self, lists: int) -> None:
        """Make room behind the pool's end for copies of so many lists."""
        self.extend(lists << max_block_bits(self.length))

    @property
    def nbytes(self) -> int:
        return super().nbytes + 2 * self._total.itemsize * self.size

    def forget(self, rows: Rows) -> None:
        """Retire items: they have no neighbours any more. They are in `retired`
        already, and so none themselves.
        """
        super().forget(rows)
        self._total[self._known(rows)] = 0
        self._timed_total[self._known(rows)] = 0

    def take(self, rows: Rows) -> Arrays:
        """The lists of these items, one after the other without gaps."""
        return {
            **super().take(rows),
            "total": take_or_fill(self._total, rows),
            "timed_total": take_or_fill(self._timed_total, rows),
        }

    def put(self, rows: Rows, arrays: Arrays) -> None:
        super().put(rows, arrays)
        self._total[rows] = arrays["total"]
        self._timed_total[rows] = arrays["timed_total"]


@njit_borrowing
def max_block_bits(max_length: int) -> int:
    """log2 of the places that a list needs, at most."""
    return bits_for(max_length, SMALLEST_BITS)


@njit_borrowing
def room_for_event(max_length: int) -> int:
    """Places of the pool that an event may need: its own list and those of its user's
    items may all move.
    """
    return (MAX_PAIR_DISTANCE + 2) << max_block_bits(max_length)


@njit_borrowing
def is_full(neighbours: Neighbours) -> bool:
    """Whether the pool may have no room for the pairs of another event."""
    lists = neighbours.lists
    end = lists.blocks.end[0] + room_for_event(neighbours.max_length)
    return bool(end > len(lists.pool.items))


@njit_borrowing
def pair_up(
    neighbours: Neighbours,
    item: int,
    time_s: int,
    recent: Recent,
    recent_s: Ints,
    event_weight: np.float32 = _ONE,
) -> None:
    """An event is paired with its user's recent items, and counts by its weight."""
    if event_weight == 0:
        return
    if len(recent) > 0 and recent[0] >= 0:
        _fade_followers(neighbours.lists, recent[0])
    rank = 0
    for k in range(min(len(recent), MAX_PAIR_DISTANCE)):
        other = recent[k]
        if other < 0:
            break
        if k > 0 and recent_s[k] != recent_s[k - 1]:
            rank = k
        if other == item:
            continue
        weight = event_weight / np.float32(rank + 1)
        timed = weight * np.exp(-np.float32(max(time_s - recent_s[k], 0)) / GAP_S)
        _add(neighbours, other, item, weight, timed, event_weight * np.float32(k == 0))
        _add(neighbours, item, other, weight, timed, np.float32(0))


@njit_borrowing
def _fade_followers(lists: Lists, item: int) -> None:
    """What came next after an item before counts less."""
    start = lists.blocks.start[item]
    for m in range(start, start + lists.length[item]):
        lists.pool.next[m] *= NEXT_KEPT


@njit_borrowing
def _add(
    neighbours: Neighbours,
    item: int,
    other: int,
    weight: np.float32,
    timed: np.float32,
    came_next: np.float32,
) -> None:
    """More weight for a neighbour; a new one takes the next place, or that of the
    lightest if the list is full.
    """
    neighbours.total[item] += weight
    neighbours.timed_total[item] += timed
    lists = neighbours.lists
    pool = lists.pool
    start = lists.blocks.start[item]
    length = lists.length[item]
    for m in range(start, start + length):
        if pool.items[m] == other:
            pool.weights[m, Weight.PLAIN] += weight
            pool.weights[m, Weight.TIMED] += timed
            pool.next[m] += came_next
            return

    # sweep where the smallest block for the list would be full: what was restored may
    # have a smaller block than what grew, and both must hold the same
    if len(neighbours.retired) and (
        length == neighbours.max_length or length & (length - 1) == 0
    ):
        sweep_list(lists, item, neighbours.retired)
        length = lists.length[item]

    if length < neighbours.max_length:
        place = make_room(lists, item, length + 1) + length
        lists.length[item] += 1
    else:
        place = start
        lightest = np.float32(np.inf)
        for m in range(start, start + length):
            if pool.weights[m, Weight.PLAIN] < lightest:
                lightest = pool.weights[m, Weight.PLAIN]
                place = m
    if neighbours.max_length > 0:
        pool.items[place] = other
        pool.weights[place, Weight.PLAIN] = weight
        pool.weights[place, Weight.TIMED] = timed
        pool.next[place] = came_next
