"""Candidates of an event or a user, each with its features.

Candidates are the user's recent items, their neighbours, items that are popular in the
latest events, and whatever the caller adds. Events are walked through one by one: the
features of an event's candidates have counted all events before it, and not itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Bools, Floats, Ints, Rows
from streamer.model.ranking.co_occurrence import CoOccurrence, is_full
from streamer.model.ranking.features import FEATURES, Feature, Near
from streamer.model.ranking.uncounted import Notes, QueryEvents, UserEvents
from streamer.model.ranking.walk import (
    Counted,
    Memory,
    Walked,
    describe_events,
    describe_queries,
)
from streamer.model.ranking.windows import Windows
from streamer.model.rows.growing import grown
from streamer.model.rows.recent_items import UserHistory
from streamer.model.rows.retired import RetiredItems

LEARNED_CANDIDATES = 64
"""About how many candidates of an event the ranker learns from."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of some events or users, one after the other. The memory is used again
    by the next call.

    Args:
        first: [n + 1] those of k are `first[k]` to `first[k + 1]`.
        items: [c] item rows, each once an event.
        features: [c, FEATURES].
        target: [n] the place of each event's own item among all, -1 if it is no
            candidate.
        bucket: [n] place in `BUCKETS`.
        seen: [c] whether the user has seen the item before.
        weights: [n] how much each event counts for the ranker; None: 1 each.
    """

    first: Rows
    items: Ints
    features: Floats
    target: Rows
    bucket: Rows
    seen: Bools
    weights: Floats | None = None

    def __len__(self) -> int:
        return len(self.target)

    def only(self, events: Rows) -> Candidates:
        """Those of some events; a copy."""
        if len(events) == len(self):
            return self
        sizes = np.diff(self.first)[events]
        first = np.concatenate([[0], np.cumsum(sizes)])
        moved = self.first[events] - first[:-1]
        at = np.arange(first[-1]) + np.repeat(moved, sizes)
        target = self.target[events]
        return Candidates(
            first,
            self.items[at],
            self.features[at],
            np.where(target >= 0, target - moved, -1),
            self.bucket[events],
            self.seen[at],
            None if self.weights is None else self.weights[events],
        )

    def discoveries(self) -> Candidates:
        """Those of events whose own item is a candidate, and new to its user."""
        events = np.flatnonzero(self.target >= 0)
        return self.only(events[~self.seen[self.target[events]]])

    def mark_seen(self, seen: Bools) -> None:
        """Note which candidates their users have seen before, beside recent items, of
        which it is known.
        """
        np.logical_or(self.seen, seen, out=self.seen)
        is_recent = self.features[:, Feature.IS_RECENT] > 0
        self.features[:, Feature.SEEN_BEFORE] = self.seen & ~is_recent


class CandidateFeatures:
    """Counts the stream, and describes candidates by what it has counted.

    Args:
        neighbours: kept of each item, at most.
        retired: items that are no candidates any more.
    """

    def __init__(self, neighbours: int, retired: RetiredItems | None = None) -> None:
        self.co_occurrence = CoOccurrence(neighbours, retired)
        self.windows = Windows()
        none = np.empty(0, np.int64)
        self._memory = Memory(
            first=none,
            items=np.empty(0, np.int32),
            features=np.empty((0, len(FEATURES)), np.float32),
            target=none,
            bucket=none,
            place=np.empty(0, np.int32),
            sums=np.empty((0, len(Near)), np.float32),
        )

    def observe(
        self,
        items: Rows,
        times_s: Rows,
        history: UserHistory,
        wanted: Rows,
        extra: Rows | None = None,
        learned: Bools | None = None,
        weights: Floats | None = None,
    ) -> Candidates:
        """Take in events, and describe the candidates of some of them as of the event.

        Args:
            items: [B] item rows.
            times_s: [B] seconds since the epoch.
            history: of each event's user, as of the event.
            wanted: [n] which events, ascending; one that is wanted twice has two lists.
            extra: [n, x] further candidates of each, -1 for none.
            learned: [n] which of them the ranker learns from: of its candidates about
                `LEARNED_CANDIDATES` are drawn evenly, its own item among them; if that
                is no candidate, none. By default all have all.
            weights: [B] how much each event counts; None: 1 each.
        """
        drawn = np.zeros(len(wanted), np.int64)
        if learned is not None:
            drawn[learned] = LEARNED_CANDIDATES
        seconds = _seconds(times_s)
        walked = self._walked(items, seconds, history, wanted, extra, drawn)
        if weights is not None:
            walked = walked._replace(weights=weights)
        found = self._walk(walked, None)
        if len(items):
            self.windows.advance(len(items), int(seconds.max()))
        return found

    def candidates(
        self,
        history: UserHistory,
        extra: Rows | None = None,
        items: Rows | None = None,
        times_s: Rows | None = None,
        uncounted: Sequence[UserEvents] | None = None,
    ) -> Candidates:
        """Candidates of some users, described as of the latest event, or as of
        `times_s`.

        Each user's uncounted events are counted for as long as it takes to describe the
        user's candidates; the items that are popular with everybody are those of what
        was observed.

        Args:
            history: [n, L] of each user.
            extra: [n, x] further candidates of each, -1 for none.
            items: [n] targets, if there are any.
            times_s: [n] seconds since the epoch.
            uncounted: [n] events of each user that are part of the history and were
                never observed; None if there are none.
        """
        users = np.arange(len(history.items))
        if items is None:
            items = np.full(len(users), -1)
        if times_s is None:
            times_s = np.full(len(users), self.windows.now_s)
        if uncounted is None:
            uncounted = [UserEvents.none(history.items.shape[1])] * len(users)
        drawn = np.zeros(len(users), np.int64)
        seconds = _seconds(times_s)
        walked = self._walked(items, seconds, history, users, extra, drawn)
        return self._walk(walked, QueryEvents.of(uncounted) if len(users) else None)

    def _walked(
        self,
        items: Rows,
        seconds: Ints,
        history: UserHistory,
        wanted: Rows,
        extra: Rows | None,
        drawn: Rows,
    ) -> Walked:
        if extra is None:
            extra = np.empty((len(wanted), 0), np.int64)
        popular = self.windows.popular() if len(wanted) else np.empty(0, np.int32)
        weights = np.ones(len(items), np.float32)
        return Walked(items, seconds, history, wanted, extra, drawn, popular, weights)

    def _walk(self, walked: Walked, queries: QueryEvents | None) -> Candidates:
        """Describe what is wanted. Events are counted, unless they are queries."""
        self._reserve(walked)
        if queries is not None:
            self._reserve_rows(queries.items)
            self.co_occurrence.make_room_for_copies(queries.max_lists)
            notes = Notes.reserve(queries)
        at = np.zeros(3, np.int64)  # events, wanted events and candidates so far
        while True:
            counted = Counted(
                self.co_occurrence.neighbours,
                self.windows.counts,
                self.windows.latest,
                self.windows.events,
            )
            if queries is None:
                describe_events(counted, walked, self._memory, at)
            else:
                describe_queries(counted, walked, queries, notes, self._memory, at)
            if at[0] == len(walked.items):
                break
            self._make_room(int(at[2]), len(walked.wanted) - int(at[1]))

        memory = self._memory
        features = memory.features[: at[2]]
        return Candidates(
            memory.first,
            memory.items[: at[2]],
            features,
            memory.target,
            memory.bucket,
            features[:, Feature.IS_RECENT] > 0,
        )

    def _reserve(self, walked: Walked) -> None:
        """Make room for the items and results of a walk."""
        self._reserve_rows(walked.items, walked.history.items, walked.extra)
        of_history = walked.history.items.shape[1] * (1 + self.co_occurrence.length)
        most = of_history + len(walked.popular) + walked.extra.shape[1]
        wanted = len(walked.wanted)
        self._memory = self._memory._replace(
            first=np.zeros(wanted + 1, np.int64),
            target=np.full(wanted, -1),
            bucket=np.zeros(wanted, np.int64),
            sums=np.empty((most, len(Near)), np.float32),
        )

    def _reserve_rows(self, *items: NDArray[np.integer[Any]]) -> None:
        """Make room for the rows of items."""
        size = 1 + max(int(some.max(initial=-1)) for some in items)
        self.windows.grow(size)
        self.co_occurrence.reserve(size)
        place = grown(self._memory.place, self.windows.size, fill=-1)
        self._memory = self._memory._replace(place=place)

    def _make_room(self, filled: int, left: int) -> None:
        """For the pairs of further events, and for the candidates of those wanted."""
        if is_full(self.co_occurrence.neighbours):
            self.co_occurrence.extend()
        memory = self._memory
        most = len(memory.sums)
        if filled + most > len(memory.items):
            size = filled + most * (2 + left // 8)
            items = np.empty(size, np.int32)
            features = np.empty((size, len(FEATURES)), np.float32)
            items[:filled] = memory.items[:filled]
            features[:filled] = memory.features[:filled]
            self._memory = memory._replace(items=items, features=features)


def _seconds(times_s: Rows) -> Ints:
    return np.clip(times_s, 0, 2**31 - 1).astype(np.int32)
