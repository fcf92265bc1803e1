"""Each item's neighbours: what users had shortly before or after it.

Vectors of a few dozen numbers cannot hold which of ten thousand items go together with
which; a list of each item's neighbours can, from the first time that a user has both.
An event of item i adds 1 / (r + 1) to the pair of i and each of its user's last ten
items, in the lists of both; r is the recency rank, and items of one second share the
rank of the first. Beside it stands a second weight, the same times exp(-gap / 0.3
days).

Lists take the memory that they need: they lie in one pool, in blocks of powers of two,
and what a list leaves when it grows is given to the next of that size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Floats, Recent, Rows
from streamer.model.jit import inlined, njit_borrowing
from streamer.model.rows.by_rows import Arrays, ByRows, held
from streamer.model.rows.growing import grown
from streamer.model.rows.recent_items import Seconds
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
_FIRST_BITS = 1
_CLASSES = 24
_POOL = ("items", "weights", "timed")


class Lists(NamedTuple):
    """What the compiled loops work on.

    Args:
        items: [P] the pool: neighbours.
        weights: [P] their weights.
        timed: [P] their timed weights.
        start: [N] where each item's list begins.
        length: [N] neighbours in it.
        bits: [N] log2 of the size of its block; 0 if it has none.
        total: [N] weight of all pairs that an item was ever part of, those that no list
            holds any more too.
        timed_total: [N] the same of the timed weights.
        free: [24] by log2 of its size, a block that was left: its first neighbour leads
            to the next; -1 if none.
        end: [1] the first place of the pool that was never part of a block.
        retired: items that are passed over; they leave lists that are full, or when
            these are swept.
    """

    items: NDArray[np.int32]
    weights: Floats
    timed: Floats
    start: NDArray[np.int32]
    length: NDArray[np.uint16]
    bits: NDArray[np.int8]
    total: Floats
    timed_total: Floats
    free: Rows
    end: Rows
    retired: Flags


class CoOccurrence(ByRows):
    """The heaviest neighbours of each item, at most `length`; where a list is full, the
    lightest gives way.

    Args:
        length: neighbours kept of each item.
        retired: items that are no neighbours any more.

    Examples:
        >>> co_occurrence = CoOccurrence(length=4)
        >>> recent, times_s = np.array([[5, 6], [7, 5]], np.int32), np.array([[9, 8], [10, 9]], np.int32)
        >>> co_occurrence.observe(np.array([7, 8]), np.array([10, 11]), recent, times_s)
        >>> co_occurrence.of(7)
        {5: 1.0, 6: 0.5, 8: 1.0}
    """

    def __init__(self, length: int, retired: RetiredItems | None = None) -> None:
        self.length = length
        self.retired = retired or RetiredItems()
        self.clear()

    def clear(self) -> None:
        self.size = 0
        self.lists = Lists(
            np.empty(0, np.int32),
            np.empty(0, np.float32),
            np.empty(0, np.float32),
            np.empty(0, np.int32),
            np.empty(0, np.uint16),
            np.empty(0, np.int8),
            np.empty(0, np.float32),
            np.empty(0, np.float32),
            np.full(_CLASSES, -1),
            np.zeros(1, np.int64),
            self.retired.flags,
        )

    def observe(
        self, items: Rows, times_s: Rows, recent: Recent, recent_s: Seconds
    ) -> None:
        """Take in events.

        Args:
            items: [B] item rows.
            times_s: [B] when.
            recent: [B, L] recent items of each event's user, as of the event.
            recent_s: [B, L] when the user had them.
        """
        self.reserve(int(max(items.max(initial=-1), recent.max(initial=-1))) + 1)
        done = 0
        when_s = times_s.astype(np.int32)
        while (
            done := _observe(
                self.lists, self.length, items, when_s, recent, recent_s, done
            )
        ) < len(items):
            self.extend()

    def of(self, item: int) -> dict[int, float]:
        """An item's neighbours and their weights."""
        if item >= self.size:
            return {}
        here = slice(
            self.lists.start[item], self.lists.start[item] + self.lists.length[item]
        )
        found = zip(
            self.lists.items[here].tolist(),
            self.lists.weights[here].tolist(),
            strict=True,
        )
        return {
            other: weight
            for other, weight in found
            if not is_retired(self.retired.flags, other)
        }

    def total(self, item: int) -> float:
        """The weight of all pairs that an item was ever part of."""
        return float(self.lists.total[item]) if item < self.size else 0.0

    def reserve(self, items: int) -> None:
        """Make room for this many items."""
        self.size = max(self.size, items)
        names = ("start", "length", "bits", "total", "timed_total")
        larger = {name: grown(getattr(self.lists, name), items) for name in names}
        self.lists = self.lists._replace(**larger, retired=self.retired.flags)

    def extend(self, places: int | None = None) -> None:
        """Make the pool longer, at least by what an event may need; or see that it has
        places.
        """
        pool = self.lists._asdict()
        end = int(self.lists.end[0])
        if places is not None and end + places <= len(self.lists.items):
            return
        size = end + max(places or 0, room_for_event(self.length))
        self.lists = self.lists._replace(
            **{name: grown(pool[name], size) for name in _POOL}
        )

    @property
    def nbytes(self) -> int:
        return 12 * int(self.lists.end[0]) + 15 * self.size

    def forget(self, items: Rows) -> None:
        """Retire items: they have no neighbours any more. They are in `retired`
        already, and so none themselves.
        """
        _leave_all(self.lists, items[items < self.size])

    def with_retired(self, items: Rows) -> Rows:
        """Those of some items whose lists hold a retired one."""
        lists = self.lists
        return rows_with_retired(
            self.retired.flags,
            items[items < self.size],
            lists.start,
            lists.length,
            lists.items,
        )

    def sweep(self, items: Rows) -> None:
        """Take retired items out of the lists of others."""
        self.reserve(self.size)
        _sweep(self.lists, items[items < self.size])

    def take(self, rows: Rows) -> Arrays:
        """The lists of these items, one after the other without gaps."""
        lists = self.lists
        length = held(self.lists.length, rows)
        places = int(length.sum(dtype=np.int64))
        pool = {name: np.empty(places, getattr(lists, name).dtype) for name in _POOL}
        _take(lists, rows, length, *pool.values())
        totals = {
            name: held(getattr(lists, name), rows) for name in ("total", "timed_total")
        }
        return {**pool, "length": length, **totals}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self.reserve(int(rows.max(initial=-1)) + 1)
        length = arrays["length"].astype(np.int64)
        self.extend(int((2 * np.maximum(length, 1 << _FIRST_BITS)).sum()))
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
def room_for_event(longest: int) -> int:
    """Places of the pool that an event may need: its own list and those of its user's
    items may all move.
    """
    block = 1
    while block < longest:
        block *= 2
    return (MAX_PAIR_DISTANCE + 2) * max(block, 1 << _FIRST_BITS)


@njit_borrowing
def _observe(
    lists: Lists,
    longest: int,
    items: Rows,
    times_s: Seconds,
    recent: Recent,
    recent_s: Seconds,
    done: int,
) -> int:
    """Take in events from `done` on, as long as there is room; returns how many are
    done.
    """
    room = room_for_event(longest)
    while done < len(items) and lists.end[0] + room <= len(lists.items):
        pair_up(
            lists, longest, items[done], times_s[done], recent[done], recent_s[done]
        )
        done += 1
    return done


@njit_borrowing
def pair_up(
    lists: Lists,
    longest: int,
    item: int,
    time_s: int,
    recent: Recent,
    recent_s: Seconds,
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
        _add(lists, longest, other, item, weight, timed)
        _add(lists, longest, item, other, weight, timed)
        lists.total[other] += weight
        lists.total[item] += weight
        lists.timed_total[other] += timed
        lists.timed_total[item] += timed


@njit_borrowing
def _add(
    lists: Lists,
    longest: int,
    item: int,
    other: int,
    weight: np.float32,
    timed: np.float32,
) -> None:
    """More weight for a neighbour; a new one takes the next place, or that of the
    lightest if the list is full.
    """
    start = lists.start[item]
    length = lists.length[item]
    for m in range(start, start + length):
        if lists.items[m] == other:
            lists.weights[m] += weight
            lists.timed[m] += timed
            return
    if len(lists.retired) and (length == longest or length & (length - 1) == 0):
        _sweep_one(
            lists, item
        )  # where the smallest block for it would be full: a copy may have a smaller one
        length = lists.length[item]
    if length < longest:
        if length == _room(lists.bits[item]):
            start = _move(lists, item)
        place = start + length
        lists.length[item] += 1
    else:
        place = start
        for m in range(start, start + length):
            if lists.weights[m] < lists.weights[place]:
                place = m
    if longest > 0:
        lists.items[place] = other
        lists.weights[place] = weight
        lists.timed[place] = timed


@inlined
def _room(bits: int) -> int:
    return (1 << bits) if bits > 0 else 0


@njit_borrowing
def _move(lists: Lists, item: int) -> int:
    """Give a list a block twice as large; returns its start."""
    bits = lists.bits[item]
    start = lists.start[item]
    larger = bits + 1 if bits > 0 else _FIRST_BITS
    to = _take_block(lists, larger)
    for m in range(lists.length[item]):
        lists.items[to + m] = lists.items[start + m]
        lists.weights[to + m] = lists.weights[start + m]
        lists.timed[to + m] = lists.timed[start + m]
    _leave_block(lists, item)
    lists.start[item] = to
    lists.bits[item] = larger
    return int(to)


@njit_borrowing
def _take_block(lists: Lists, bits: int) -> int:
    to = lists.free[bits]
    if to >= 0:
        lists.free[bits] = lists.items[to]
    else:
        to = lists.end[0]
        lists.end[0] += 1 << bits
    return int(to)


@njit_borrowing
def _leave_block(lists: Lists, item: int) -> None:
    bits = lists.bits[item]
    start = lists.start[item]
    if bits > 0:
        lists.items[start] = lists.free[bits]
        lists.free[bits] = start


@njit_borrowing
def _take(
    lists: Lists,
    rows: Rows,
    length: NDArray[np.uint16],
    items: NDArray[np.int32],
    weights: Floats,
    timed: Floats,
) -> None:
    """Copy lists, one after the other without gaps."""
    at = 0
    for k in range(len(rows)):
        if length[k]:
            start = lists.start[rows[k]]
            for m in range(start, start + np.int64(length[k])):
                items[at] = lists.items[m]
                weights[at] = lists.weights[m]
                timed[at] = lists.timed[m]
                at += 1


@njit_borrowing
def _put(
    lists: Lists,
    rows: Rows,
    length: Rows,
    items: NDArray[np.int32],
    weights: Floats,
    timed: Floats,
) -> None:
    """Replace lists; the pool has room for all of them."""
    at = 0
    for k in range(len(rows)):
        item = rows[k]
        if length[k] > _room(lists.bits[item]):
            bits = _FIRST_BITS
            while (1 << bits) < length[k]:
                bits += 1
            _leave_block(lists, item)
            lists.start[item] = _take_block(lists, bits)
            lists.bits[item] = bits
        to = lists.start[item]
        for m in range(length[k]):
            lists.items[to + m] = items[at]
            lists.weights[to + m] = weights[at]
            lists.timed[to + m] = timed[at]
            at += 1
        lists.length[item] = length[k]


@njit_borrowing
def _leave_all(lists: Lists, items: Rows) -> None:
    for item in items:
        _leave_block(lists, item)
        lists.bits[item] = 0
        lists.length[item] = 0
        lists.total[item] = 0
        lists.timed_total[item] = 0


@njit_borrowing
def _sweep(lists: Lists, items: Rows) -> None:
    for item in items:
        _sweep_one(lists, item)


@njit_borrowing
def _sweep_one(lists: Lists, item: int) -> None:
    """Take retired items out of a list; the others move up in their order."""
    start = lists.start[item]
    left = lists.start[item]
    for m in range(start, start + lists.length[item]):
        if is_retired(lists.retired, lists.items[m]):
            continue
        lists.items[left] = lists.items[m]
        lists.weights[left] = lists.weights[m]
        lists.timed[left] = lists.timed[m]
        left += 1
    lists.length[item] = left - start
