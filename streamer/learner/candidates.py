"""Candidates of events and of users, described for the ranker."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.learner.filters import Matching
from streamer.learner.state import State, are_among
from streamer.model.batch import Batch, Recent, Rows
from streamer.model.ranking.candidates import Candidates
from streamer.model.ranking.features import TOWERS
from streamer.model.ranking.uncounted import UserEvents
from streamer.model.rows.recent_items import UserHistory

MAX_COLD_ITEMS = 4096
"""Cold items that a step looks at."""
NEAREST_COLD_ITEMS = 10
"""Cold items that are candidates of an event."""


class ObservedCandidates(NamedTuple):
    """Candidates of the events of a step."""

    to_evaluate: Candidates | None
    to_learn: list[Candidates]
    """One of each group of events that the ranker learns from."""


class CandidateGenerator:
    """Finds candidates by co-occurrence, popularity and the towers.

    Args:
        state: what is learned.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.evaluation_s = 0.0
        """Seconds that the latest `observe` took for the events to be evaluated."""

    def observe(
        self,
        batch: Batch,
        history: UserHistory,
        evaluated: Rows,
        learned: Sequence[Rows],
    ) -> ObservedCandidates:
        """Candidates of the events to be evaluated and of those to learn from, as of
        each event; all events are counted.

        Of the former, as of users who are served, the items nearest by the towers are
        candidates too. That is a search among all items; the ranker learns with cold
        items alone, of which nothing else would make candidates. So what is learned
        does not depend on what is evaluated.

        Args:
            batch: all events of the step.
            history: of their users.
            evaluated: events to be evaluated, ascending.
            learned: groups of events that the ranker learns from, each ascending.
        """
        state = self._state
        to_learn = np.sort(np.concatenate([np.empty(0, np.int64), *learned]))
        both = np.concatenate([evaluated, to_learn])
        order = np.argsort(both, kind="stable")
        wanted = both[order]
        is_evaluated = order < len(evaluated)
        nearest = np.full((len(wanted), state.settings.retrieved_items), -1)
        started = time.perf_counter()
        nearest[is_evaluated] = self._nearest(batch.only(evaluated), nearest.shape[1])
        self.evaluation_s = time.perf_counter() - started
        cold_items = self._some_cold_items()
        if len(cold_items) and len(to_learn):
            asked = batch.only(to_learn)
            count = min(NEAREST_COLD_ITEMS, nearest.shape[1])
            near = state.retriever.nearest_among(
                cold_items, asked.users, asked.recent, count
            )
            nearest[~is_evaluated, : near.shape[1]] = near

        assert batch.times_s is not None
        found = state.candidate_features.observe(
            batch.items,
            batch.times_s,
            history,
            wanted,
            nearest,
            learned=~is_evaluated,
            weights=batch.weights,
        )
        found.mark_seen(
            state.seen.contains(
                batch.users, batch.items, wanted, found.first, found.items
            )
        )

        def some(chosen: NDArray[np.bool_]) -> Candidates:
            candidates = found.only(np.flatnonzero(chosen))
            events = batch.only(wanted[chosen])
            self._add_towers(candidates, events)
            return dataclasses.replace(candidates, weights=events.weights)

        started = time.perf_counter()
        to_evaluate = some(is_evaluated)
        self.evaluation_s += time.perf_counter() - started
        return ObservedCandidates(
            to_evaluate,
            [some(~is_evaluated & are_among(events, wanted)) for events in learned],
        )

    def generate(
        self,
        batch: Batch,
        history: UserHistory,
        extra: Rows | None = None,
        least: int | Rows = 0,
        seen: Sequence[Rows] | None = None,
        uncounted: Sequence[UserEvents] | None = None,
        matching: Matching | None = None,
    ) -> Candidates:
        """Candidates of some users, described by what was learned so far; nothing is
        counted.

        Args:
            batch: users, targets (-1 for none), and times (None: that of the latest
                event).
            history: of the users.
            extra: [n, x] further candidates of each, -1 for none.
            least: how many candidates each must have, if there are as many items; [n]
                or the same for all.
            seen: [n] the items that each user had, ascending; None: as they were
                learned.
            uncounted: [n] events of each user that are part of the history and were
                not learned; None if there are none.
            matching: items of which those nearest by the towers are candidates; None:
                those that can be recommended.
        """
        state = self._state
        batch = dataclasses.replace(batch, recent=self.recent_items(history))
        count = np.maximum(least, state.settings.retrieved_items)
        nearest = self._nearest(batch, count, matching)
        extra = nearest if extra is None else np.concatenate([nearest, extra], axis=1)
        found = state.candidate_features.candidates(
            history, extra, batch.items, batch.times_s, uncounted
        )
        if seen is None:
            seen = [state.seen.of(user) for user in batch.users.tolist()]
        found.mark_seen(_among(found, seen))
        self._add_towers(found, batch)
        return found

    def recent_items(self, history: UserHistory) -> Recent | None:
        """What the user tower reads of it."""
        length = self._state.settings.recent_items
        return np.ascontiguousarray(history.items[:, :length]) if length else None

    def _nearest(
        self, batch: Batch, count: int | Rows, matching: Matching | None = None
    ) -> Rows:
        """[n, most] the items nearest to the users by the towers, `count` of each; -1
        where one cannot be recommended.
        """
        if matching is not None:
            return self._nearest_matching(batch, count, matching)
        state = self._state
        most = int(np.max(count, initial=0))
        reachable = state.reachable_items
        found = np.full((len(batch), most), -1)
        if len(batch) and reachable and most:
            items = state.retriever.items(reachable)
            best, _ = state.retriever.top(items, batch.users, most, batch.recent)
            width = best.shape[1]
            wanted = np.arange(width) < np.reshape(count, (-1, 1))
            found[:, :width] = np.where(wanted & state.are_reachable(best), best, -1)
        return found

    def _nearest_matching(
        self, batch: Batch, count: int | Rows, matching: Matching
    ) -> Rows:
        """[n, most] as `_nearest`, of some items; and those that are candidates in any
        case.
        """
        retriever = self._state.retriever
        counts = np.maximum(np.reshape(count, (-1, 1)), matching.nearest)
        most = int(counts.max(initial=0))
        if matching.few is not None:
            found = retriever.nearest_among(
                matching.few, batch.users, batch.recent, most
            )
        else:
            items = retriever.items(len(matching.mask))
            items = dataclasses.replace(items, allowed=matching.mask)
            best, scores = retriever.top(items, batch.users, most, batch.recent)
            found = np.where(np.isfinite(scores), best, -1)
        wanted = np.arange(found.shape[1]) < counts
        further = np.tile(matching.further, (len(batch), 1))
        return np.concatenate([np.where(wanted, found, -1), further], axis=1)

    def _some_cold_items(self) -> Rows:
        """The cold items, or a sample of them."""
        state = self._state
        count = len(state.cold_items)
        if count <= MAX_COLD_ITEMS:
            return state.cold_items
        chosen = state.draws.choice(count, MAX_COLD_ITEMS, replace=False, shuffle=False)
        return state.cold_items[chosen]

    def _add_towers(self, candidates: Candidates, batch: Batch) -> None:
        if len(batch):
            found = self._state.retriever.similarities(
                batch.users, batch.recent, candidates.first, candidates.items
            )
            candidates.features[:, TOWERS] = found


def _among(candidates: Candidates, items: Sequence[Rows]) -> NDArray[np.bool_]:
    """[c] whether candidates are among their user's items, which ascend."""
    found = np.zeros(len(candidates.items), np.bool_)
    bounds = itertools.pairwise(candidates.first.tolist())
    for of_user, (begin, end) in zip(items, bounds, strict=True):
        found[begin:end] = are_among(of_user, candidates.items[begin:end])
    return found
