"""The baselines of popularity: all items by their number of events, of all events or of
the last ones.

Items stay sorted from event to event: those with equal counts are neighbours, so an
item whose count changes by one only changes places with the first or the last of its
neighbours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.evaluation.baselines.base import Stretch
from streamer.evaluation.tally import Ranks
from streamer.metrics.composition import HEAD, TORSO
from streamer.model.batch import Rows
from streamer.model.jit import njit_borrowing
from streamer.model.rows.growing import grown

LAST_EVENTS = 5000


class PopularityOrder(NamedTuple):
    """Items sorted by their counts, of all events or of the last ones.

    Args:
        items: [N] the most frequent first.
        place: [N] where each item is in `items`.
        counts: [N] events of each item.
        above: [C] how many items have more than c events: where those with exactly c
            begin.
        last: [W] the last events that count; empty if all do.
        learned: [1] how many events came.
    """

    items: Rows
    place: Rows
    counts: Rows
    above: Rows
    last: Rows
    learned: Rows


class MostPopular:
    """Recommends the items with the most events.

    Args:
        window: count only the last events, this many; None for all.
    """

    def __init__(self, window: int | None = None) -> None:
        self.name = "most-popular" if window is None else "recently-popular"
        self._window = np.full(window or 0, -1), np.zeros(1, np.int64)
        self.start_from(np.zeros(0, np.int64))

    def start_from(self, counts: Rows) -> None:
        """Begin with these numbers of events of each item."""
        self.size = len(counts)
        order = np.argsort(-counts, kind="stable")
        above = len(counts) - np.cumsum(np.bincount(counts, minlength=1))
        self._order = PopularityOrder(
            order, np.argsort(order), counts.copy(), above, *self._window
        )

    def walk(self, stretch: Stretch) -> Ranks:
        """Rank and learn, event by event."""
        size = int(stretch.items.max(initial=-1)) + 1
        order = self.reserve(size, len(stretch.items))
        ranks = Ranks.missed(len(stretch.ranked))
        seen = stretch.seen
        for_new = (seen.fresh, seen.first, seen.items)
        events = (stretch.items, stretch.ranked, stretch.due, stretch.end)
        _walk(order, *events, *for_new, ranks.among_all, ranks.among_new)
        return ranks

    def forget(self, items: Rows) -> None:
        """Retire items: as if they had had no events."""
        last = self._order.last
        last[np.isin(last, items)] = -1
        order = self._order._replace(items=self.items())
        _forget(order, items[items < self.size])

    def items(self) -> Rows:
        """All items, the most popular first; those without events behind."""
        return self._order.items[: self.size]

    def bands(self, items: Rows) -> Rows:
        """Popularity band of each item now: 0 the head, 1 the torso, 2 the tail and
        what was never seen.
        """
        counts = self._order.counts[self.items()]
        before = np.cumsum(counts) - counts
        share = before / max(counts.sum(), 1)
        begins = np.searchsorted(share, (HEAD, TORSO))
        known = items < self.size
        bands = np.full(len(items), 2)
        place = self._order.place[items[known]]
        bands[known] = np.searchsorted(begins, place, side="right")
        return bands

    def reserve(self, size: int, events: int) -> PopularityOrder:
        """Make room for N items, and for the counts after this many events; returns
        what these change.
        """
        order = self._order
        old = self.size
        self.size = max(size, old)
        largest = int(order.counts[order.items[0]]) if old else 0
        self._order = order._replace(
            items=grown(order.items, self.size),
            place=grown(order.place, self.size),
            counts=grown(order.counts, self.size),
            above=grown(order.above, largest + events + 2),
        )
        new = np.arange(old, self.size)
        self._order.items[new] = self._order.place[new] = new
        return self._order._replace(items=self.items())


@njit_borrowing
def _walk(
    order: PopularityOrder,
    items: Rows,
    ranked: Rows,
    due: Rows,
    end: int,
    fresh: NDArray[np.bool_],
    seen_first: Rows,
    seen: NDArray[np.int32],
    among_all: Rows,
    among_new: Rows,
) -> None:
    done = 0
    for k in range(len(ranked)):
        while done < due[k]:
            count_event(order, items[done])
            done += 1
        target = items[ranked[k]]
        if order.counts[target] == 0:
            continue
        place = order.place[target]
        among_all[k] = place + 1
        if fresh[k]:
            ahead = 0
            for h in range(seen_first[k], seen_first[k + 1]):
                ahead += order.place[seen[h]] < place
            among_new[k] = place + 1 - ahead
    while done < end:
        count_event(order, items[done])
        done += 1


@njit_borrowing
def _forget(order: PopularityOrder, items: Rows) -> None:
    for item in items:
        while order.counts[item] > 0:
            _one_less(order, item)


@njit_borrowing
def count_event(order: PopularityOrder, item: int) -> None:
    """One more event of an item; where only the last ones count, the oldest of these is
    forgotten.
    """
    last = order.last
    learned = order.learned
    _one_more(order, item)
    if len(last):
        slot = learned[0] % len(last)
        if last[slot] >= 0:
            _one_less(order, last[slot])
        last[slot] = item
        learned[0] += 1


@njit_borrowing
def _one_more(order: PopularityOrder, item: int) -> None:
    count = order.counts[item]
    _swap(order, order.place[item], order.above[count])
    order.above[count] += 1
    order.counts[item] = count + 1


@njit_borrowing
def _one_less(order: PopularityOrder, item: int) -> None:
    count = order.counts[item] - 1
    order.above[count] -= 1
    _swap(order, order.place[item], order.above[count])
    order.counts[item] = count


@njit_borrowing
def _swap(order: PopularityOrder, one: int, other: int) -> None:
    a = order.items[one]
    b = order.items[other]
    order.items[one] = b
    order.items[other] = a
    order.place[a] = other
    order.place[b] = one
