"""The floor of neighbourhood: what was seen together with what the user had last.

    s(u, j) = sum over r = 1..10 of  c(l_r, j) / r        l_r: the user's r-th last distinct item

c(i, j) counts how often j came when i was among the last ten of its user, or i when j was; an item that comes again
while it is among the last ten counts as seen together with itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Recent, Rows
from streamer.model.growing import grown
from streamer.model.jit import compiled
from streamer.model.ranking.pair_counts import PairCounts, Pool, add_one
from streamer.prequential.floors.base import RECENT, Ranks, Stretch

Doubles = NDArray[np.float64]


class CoVisitation:
    """Recommends what was seen together with the user's last ten items; of equal scores the newer item comes first."""

    name = "co-visitation"

    def __init__(self) -> None:
        self._pairs = PairCounts()
        self._scores = np.zeros(0)  # of one event at a time; zero in between

    def walk(self, stretch: Stretch) -> Ranks:
        """Rank and learn, event by event; stops wherever the pool must grow."""
        size = int(stretch.items.max(initial=-1)) + 1
        self._pairs.reserve(size)
        self._scores = grown(self._scores, size)
        touched = np.empty(len(self._scores), np.int64)
        ranks = Ranks.missed(len(stretch.ranked))
        events = (stretch.items, stretch.recent, stretch.ranked, stretch.due, stretch.end)
        state = np.zeros(3, np.int64)  # learned events, ranked events, pairs learned of the event that is underway
        while not _walk(self._pairs.pool, self._scores, touched, *events, *stretch.seen, *ranks, state):
            self._pairs.extend()
        return ranks


@compiled
def _walk(
    pool: Pool,
    scores: Doubles,
    touched: Rows,
    items: Rows,
    recent: Recent,
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
        if not _learn(pool, items, recent, due[k], state):
            return False
        event = ranked[k]
        count = _score(pool, scores, touched, recent[event])
        among_all[k], among_new[k] = _ranks(
            scores, touched[:count], items[event], fresh[k], seen[seen_first[k] : seen_first[k + 1]]
        )
        for t in range(count):
            scores[touched[t]] = 0.0
        state[1] += 1
    return _learn(pool, items, recent, end, state)


@compiled
def _learn(pool: Pool, items: Rows, recent: Recent, until: int, state: Rows) -> bool:
    """Learn from events up to `until`; False if the pool has no room."""
    while state[0] < until:
        event = state[0]
        item = items[event]
        while state[2] < 2 * RECENT:
            other = recent[event, state[2] // 2]
            if other < 0:
                break
            one, two = (item, other) if state[2] % 2 else (other, item)
            if (item != other or state[2] % 2) and not add_one(pool, one, two, 1.0):
                return False
            state[2] += 1
        state[0] += 1
        state[2] = 0
    return True


@compiled
def _score(pool: Pool, scores: Doubles, touched: Rows, recent: Recent) -> int:
    """Add up scores; returns how many items have one."""
    count = 0
    for rank in range(RECENT):
        row = recent[rank]
        if row < 0:
            break
        if row >= len(pool.start) or pool.start[row] < 0:
            continue
        weight = 1.0 / (rank + 1)
        for slot in range(pool.start[row], pool.start[row] + (1 << pool.bits[row])):
            item = pool.keys[slot]
            if item >= 0:
                if scores[item] == 0.0:
                    touched[count] = item
                    count += 1
                scores[item] += weight * pool.counts[slot]
    return count


@compiled
def _ranks(scores: Doubles, touched: Rows, target: int, fresh: bool, seen: NDArray[np.int32]) -> tuple[int, int]:
    """The target's rank among all items and among those that the user did not have."""
    miss = np.iinfo(np.int64).max
    own = scores[target]
    if own == 0.0:
        return miss, miss
    ahead = 0
    for item in touched:
        ahead += scores[item] > own or (scores[item] == own and item > target)
    if not fresh:
        return ahead + 1, miss
    known = 0
    for item in seen:
        known += scores[item] > own or (scores[item] == own and item > target)
    return ahead + 1, ahead + 1 - known
