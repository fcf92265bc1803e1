"""The baseline of neighbourhood: which items users have one after another, counted.

    s(u, j) = sum over k = 1..10 of  q_k c(l_k, j) / n(l_k)        l_k: the user's k-th last distinct item

An event of item i adds w_k to c(l_k, i) and to c(i, l_k), once if they are the same
item. Counting keeps the 200 heaviest pairs of an item and has

    w_k = q_k = 1 / (rank of l_k) / (1 + age of l_k / 1 minute) ** 0.15,     n(i) = sqrt(all that i's pairs ever got)

where items that the user had at the same time share the rank of the first of them. It
adds a little popularity of the last 5,000 events, which serves users without history.
An exponential of the age would lose people who come back to a place after a week.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.evaluation.baselines.base import RECENT, Stretch
from streamer.evaluation.baselines.popular import (
    LAST_EVENTS,
    MostPopular,
    PopularityOrder,
    count_event,
)
from streamer.evaluation.tally import MISS, Doubles, Ranks
from streamer.model.batch import Recent, Rows
from streamer.model.jit import njit_borrowing
from streamer.model.rows.growing import grown
from streamer.model.rows.pair_counts import PairCounts, Pool, add_one, slots_of

NEIGHBOURS = 200
"""Pairs that are kept of an item."""
SOON_S = 60.0
FADING = 0.15


class Counting:
    """Recommends what users had soon before or after the user's last ten items; of
    equal scores the newer item comes first.

    Args:
        timed: weigh by the time between events too, not by their order alone.
    """

    normalised: ClassVar[bool] = True
    """Whether an item's pairs are divided by n."""
    directed: ClassVar[bool] = False
    """Whether only the earlier item of a pair gets the later one."""
    popular: ClassVar[float] = 1e-6
    """What one of the last 5,000 events adds to the score of its item."""

    def __init__(self, timed: bool = True) -> None:
        self.name = "counting" if timed else "counting-no-time"
        self.pairs = PairCounts(NEIGHBOURS)
        self._timed = timed
        self._popularity = MostPopular(LAST_EVENTS)
        self._totals = np.zeros(0)  # what each item's pairs ever got
        self._scores = np.zeros(0)  # of one event at a time; zero in between

    def weights(self, stretch: Stretch) -> tuple[Doubles, Doubles]:
        """[n, 10] what each recent item counts when its event is learned from, and when
        it is ranked.
        """
        ages_s = stretch.ages_s
        first = np.ones(ages_s.shape, np.bool_)
        first[:, 1:] = ages_s[:, 1:] != ages_s[:, :-1]
        ranks = np.where(first, np.arange(1, RECENT + 1), 0)
        weights = 1.0 / np.maximum.accumulate(ranks, axis=1)
        if self._timed:
            weights *= (1.0 + ages_s / SOON_S) ** -FADING
        return weights, weights

    def walk(self, stretch: Stretch) -> Ranks:
        """Rank and learn, event by event; stops wherever the pool must grow."""
        size = int(stretch.items.max(initial=-1)) + 1
        self.pairs.reserve(size)
        self._totals = grown(self._totals, size)
        self._scores = grown(self._scores, size)
        popularity = self._popularity.reserve(size, len(stretch.items))
        touched = np.empty(len(self._scores), np.int64)
        ranks = Ranks.missed(len(stretch.ranked))
        events = _WeightedEvents(stretch.items, stretch.recent, *self.weights(stretch))
        asked = (stretch.ranked, stretch.due, stretch.end, *stretch.seen)
        # learned events, ranked events, pairs learned of the event that is underway
        state = np.zeros(3, np.int64)
        done = False
        while not done:
            counts = _Counts(
                self.pairs.pool,
                self._totals,
                popularity,
                self.normalised,
                self.directed,
                self.popular,
            )
            done = _walk(counts, self._scores, touched, events, *asked, *ranks, state)
            if not done:
                self.pairs.extend()
        return ranks

    def forget(self, items: Rows) -> None:
        """Retire items: they have no neighbours, and are none."""
        items = items[items < len(self._totals)]
        gone = np.zeros(len(self._totals), np.uint8)
        gone[items] = 1
        self.pairs.drop(items)
        self.pairs.remove_keys(np.arange(len(self._totals)), gone)
        self._totals[items] = 0
        self._popularity.forget(items)


class _WeightedEvents(NamedTuple):
    """Items, the recent items before each, and the weights of these."""

    items: Rows
    recent: Recent
    learning: Doubles
    ranking: Doubles


class _Counts(NamedTuple):
    """What was learned, and how it becomes a score."""

    pairs: Pool
    totals: Doubles
    popularity: PopularityOrder
    normalised: bool
    directed: bool
    popular: float


@njit_borrowing
def _walk(
    counts: _Counts,
    scores: Doubles,
    touched: Rows,
    events: _WeightedEvents,
    ranked: Rows,
    due: Rows,
    end: int,
    fresh: NDArray[np.bool_],
    seen_first: Rows,
    seen: NDArray[np.int32],
    among_all: Rows,
    among_new: Rows,
    state: Rows,
) -> bool:
    """False if it stopped for want of memory; `state` says where to go on."""
    while state[1] < len(ranked):
        k = state[1]
        if not _learn(counts, events, due[k], state):
            return False
        event = ranked[k]
        found = _score(
            counts, scores, touched, events.recent[event], events.ranking[event]
        )
        scored = touched[:found]
        among_all[k], among_new[k] = _ranks(
            counts,
            scores,
            scored,
            events.items[event],
            fresh[k],
            seen[seen_first[k] : seen_first[k + 1]],
        )
        for item in scored:
            scores[item] = 0.0
        state[1] += 1
    return _learn(counts, events, end, state)


@njit_borrowing
def _learn(counts: _Counts, events: _WeightedEvents, until: int, state: Rows) -> bool:
    """Learn from events up to `until`; False if the pool has no room."""
    while state[0] < until:
        event = state[0]
        item = events.items[event]
        while state[2] < 2 * RECENT:
            other = events.recent[event, state[2] // 2]
            if other < 0:
                break
            back = bool(state[2] % 2)
            one = other
            two = item
            if back:
                one = item
                two = other
            once = back != counts.directed
            if once or (item != other and not back):
                weight = events.learning[event, state[2] // 2]
                if not add_one(counts.pairs, one, two, weight):
                    return False
                counts.totals[one] += weight
            state[2] += 1
        if counts.popular:
            count_event(counts.popularity, item)
        state[0] += 1
        state[2] = 0
    return True


@njit_borrowing
def _score(
    counts: _Counts, scores: Doubles, touched: Rows, recent: Recent, weights: Doubles
) -> int:
    """Add up scores; returns how many items are neighbours of the recent ones."""
    pairs = counts.pairs
    found = 0
    for k in range(RECENT):
        row = recent[k]
        if row < 0 or weights[k] == 0.0:
            break
        slots = slots_of(pairs, row)
        if len(slots) == 0:
            continue
        weight = weights[k]
        if counts.normalised:
            weight = weight / np.sqrt(counts.totals[row])
        for slot in slots:
            item = pairs.keys[slot]
            if item >= 0:
                if scores[item] == 0.0:
                    touched[found] = item
                    found += 1
                    scores[item] = counts.popular * counts.popularity.counts[item]
                scores[item] += weight * pairs.counts[slot]
    return found


@njit_borrowing
def _ranks(
    counts: _Counts,
    scores: Doubles,
    scored: Rows,
    target: int,
    fresh: bool,
    seen: NDArray[np.int32],
) -> tuple[int, int]:
    """The target's rank among all items and among those that the user did not have.

    Items that are popular and no neighbours have no score yet; few of them are ahead of
    one that has.
    """
    popular = counts.popular
    by_popularity = counts.popularity
    own = scores[target]
    if own == 0.0:
        own = popular * by_popularity.counts[target]
    if own == 0.0:
        return MISS, MISS
    ahead = 0
    for item in scored:
        ahead += scores[item] > own or (scores[item] == own and item > target)
    if popular:
        for item in by_popularity.items:
            score = popular * by_popularity.counts[item]
            if score < own:
                break
            ahead += scores[item] == 0.0 and (score > own or item > target)
    if not fresh:
        return ahead + 1, MISS
    known = 0
    for item in seen:
        score = scores[item]
        if score == 0.0:
            score = popular * by_popularity.counts[item]
        known += score > own or (score == own and item > target)
    return ahead + 1, ahead + 1 - known
