"""How the model ranks events that it has not been trained on."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamer.evaluation.tally import MISS, Ranks
from streamer.learner import OnlineLearner
from streamer.model.batch import Batch, Floats, Rows
from streamer.model.jit import njit_allocating
from streamer.model.ranking.candidates import Candidates
from streamer.model.ranking.features import BUCKETS, KINDS
from streamer.model.ranking.ranker import ALL, DISCOVERY
from streamer.model.rows.seen_items import SeenBefore

MODEL = "model"
"""The name of the model's own figures, beside those of the baselines."""
WITHOUT_TOWERS = "model-without-towers"
"""Figures of the model whose ranker reads zero for the towers' inner product."""
INFLUENCE_EVERY = 2000
"""Ranked events between two looks at what decides the ranking."""
COLD_BATCHES = 200
"""Batches in whose lists cold items are counted."""
_NOTHING_SEEN = (np.empty(0, np.int64), np.empty(0, np.int32))


class EventRanker:
    """Ranks events by a learner's model, and changes nothing in it."""

    def __init__(self, learner: OnlineLearner) -> None:
        self._learner = learner

    def by_ranker(
        self, candidates: Candidates, seen: SeenBefore, without: Sequence[int] = ()
    ) -> Ranks:
        """Ranks among the candidates, with the features `without` at zero; an item that
        is no candidate is missed.
        """
        ranks = Ranks.missed(len(candidates))
        for purpose, found in ((ALL, ranks.among_all), (DISCOVERY, ranks.among_new)):
            wanted = seen.fresh | (purpose == ALL)
            if not wanted.any():
                continue
            scores = self._learner.state.ranker.scores(candidates, purpose, without)
            left_out = _NOTHING_SEEN
            if purpose == DISCOVERY:
                left_out = (seen.first, seen.items)
            _ranks(
                candidates.first,
                candidates.items,
                candidates.target,
                scores,
                wanted,
                *left_out,
                found,
            )
        return ranks

    def by_towers(
        self, batch: Batch, chosen: Rows, seen: SeenBefore, some: Rows
    ) -> Ranks:
        """Ranks among all items that can be recommended, by inner product alone, of
        `some` of the chosen events.
        """
        ranks = Ranks.missed(len(some))
        size = self._learner.state.reachable_items
        known = np.flatnonzero(batch.items[chosen[some]] < size)
        if not len(known):
            return ranks
        retriever = self._learner.state.retriever
        asked = some[known]
        rows = batch.only(chosen[asked])
        of_events = np.split(seen.items, seen.first[1:-1])
        left_out = [of_events[k] for k in asked.tolist()]
        among_all, among_new = retriever.ranks_with_and_without(
            retriever.items(size), rows.users, rows.items, rows.recent, left_out
        )
        ranks.among_all[known] = among_all
        ranks.among_new[known] = np.where(seen.fresh[asked], among_new, MISS)
        return ranks


class RankerWatch:
    """Looks at what decides the ranking, and at cold items in the lists.

    Args:
        learner: whose ranker it is.
        k: length of the lists.
    """

    def __init__(self, learner: OnlineLearner, k: int) -> None:
        self._learner = learner
        self._k = k
        self._listed = deque[tuple[int, int]](maxlen=COLD_BATCHES)
        self._next_influence = 0
        self.influence = np.full((len(BUCKETS), len(KINDS)), np.nan)
        """[buckets, kinds] what decides the ranking, and for whom: see
        `Ranker.influence`.
        """

    @property
    def cold_share(self) -> float | None:
        """Share of cold items in the first k of the latest lists; None without any
        list.
        """
        if not self._listed:
            return None
        items, cold = np.sum(self._listed, axis=0)
        return float(cold / items)

    def observe(self, candidates: Candidates) -> None:
        """Look at the lists of a batch, and now and then at what decided them."""
        self._listed.append(self._count_cold(candidates))
        self._next_influence -= len(candidates)
        if self._next_influence <= 0:
            self._next_influence = INFLUENCE_EVERY
            found = self._learner.state.ranker.influence(candidates)
            # kinds of users that are not among these keep their figures
            self.influence = np.where(np.isnan(found), self.influence, found)

    def _count_cold(self, candidates: Candidates) -> tuple[int, int]:
        """The number of items in the first k of each list, and of cold ones."""
        state = self._learner.state
        if not len(state.cold_items):
            return self._k * len(candidates), 0
        scores = state.ranker.scores(candidates)
        best = []
        for start, end in itertools.pairwise(candidates.first.tolist()):
            order = np.argsort(-scores[start:end], kind="stable")
            best.append(start + order[: self._k])
        top = np.concatenate(best)
        cold = state.are_cold(candidates.items[top])
        return len(top), int(cold.sum())


@njit_allocating
def _ranks(
    first: Rows,
    items: NDArray[np.int32],
    target: Rows,
    scores: Floats,
    wanted: NDArray[np.bool_],
    seen_first: Rows,
    seen: NDArray[np.int32],
    found: Rows,
) -> None:
    """The target's rank among the candidates that the user has not seen; ties count
    against it.
    """
    size = 1
    if len(items):
        size = items.max() + 1
    if len(seen):
        size = max(size, seen.max() + 1)
    last = np.full(size, -1)
    for e in range(len(target)):
        if not wanted[e] or target[e] < 0:
            continue
        if len(seen_first):
            for s in range(seen_first[e], seen_first[e + 1]):
                last[seen[s]] = e
        rank = 0
        own = scores[target[e]]
        for c in range(first[e], first[e + 1]):
            rank += scores[c] >= own and last[items[c]] != e
        found[e] = rank
