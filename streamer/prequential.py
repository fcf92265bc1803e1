"""Test, then train: how well events are foretold by the model that has not seen them yet.

Before a micro-batch is trained, some of its events are ranked against all items known so far, with their users' recent
items as of each event. It looks at the learner and changes nothing in it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from model.batch import Batch, Rows
from model.ranking import Items
from streamer.learner import Learner


class HitRate:
    """Share of events whose item was among the first k, over all events and over a window of the last ones.

    Args:
        window: events of the window.
    """

    def __init__(self, window: int) -> None:
        self.window, self.events, self.hits = window, 0, 0
        self._recent: deque[tuple[int, int]] = deque()
        self._recent_events = self._recent_hits = 0

    def add(self, hit: NDArray[np.bool_]) -> None:
        """Count some events."""
        events, hits = len(hit), int(hit.sum())
        self.events, self.hits = self.events + events, self.hits + hits
        self._recent.append((events, hits))
        self._recent_events, self._recent_hits = self._recent_events + events, self._recent_hits + hits
        while self._recent_events - self._recent[0][0] >= self.window:
            old_events, old_hits = self._recent.popleft()
            self._recent_events, self._recent_hits = self._recent_events - old_events, self._recent_hits - old_hits

    @property
    def overall(self) -> float | None:
        """Over all events; None before the first."""
        return self.hits / self.events if self.events else None

    @property
    def recent(self) -> float | None:
        """Over the last events; None before the first."""
        return self._recent_hits / self._recent_events if self._recent_events else None


class Prequential:
    """Ranks a share of the events before they are trained.

    Args:
        learner: whose model ranks.
        k: an event is a hit if its item is among the first k.
        time_share: how much of the time ranking may take; batches are passed over to keep to it. None ranks all.
        sample: at most so many events of a batch are ranked.
        window: events of the windowed figures.
        new_only: whether to rank events that are new to their user too, known items left out; keeps every user's
            items in memory.
        clock: seconds.
    """

    def __init__(
        self,
        learner: Learner,
        k: int = 10,
        time_share: float | None = 0.05,
        sample: int | None = 64,
        window: int = 5000,
        new_only: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.learner, self.k, self.time_share, self.sample = learner, k, time_share, sample
        self.model, self.most_popular, self.new = HitRate(window), HitRate(window), HitRate(window)
        self._clock, self._not_before, self._spent = clock, clock(), 0.0
        self._rng = np.random.default_rng(0)
        self._had: dict[int, set[int]] | None = {} if new_only else None

    def __call__(self, batch: Batch) -> None:
        """Rank what time allows. The learner calls this before it trains a batch."""
        known = self.learner.exact.size  # items before this batch: rows are given in order of appearance
        started = self._clock()
        if known and started >= self._not_before:
            self._rank(batch, known)
            self._pause(started)
        if self._had is not None:
            for user, item in zip(batch.users.tolist(), batch.items.tolist(), strict=True):
                self._had.setdefault(user, set()).add(item)

    def _pause(self, started: float) -> None:
        """Keep to the share of the time; a quiet stream saves nothing up for later."""
        took = self._clock() - started
        self._spent += took
        if self.time_share is not None:
            self._not_before = started + took / self.time_share

    def _rank(self, batch: Batch, known: int) -> None:
        ranker = self.learner.ranker()
        items = ranker.items(known)
        chosen = np.arange(len(batch))
        if self.sample is not None and len(batch) > self.sample:
            chosen = np.sort(self._rng.choice(len(batch), self.sample, replace=False))
        users, targets = batch.users[chosen], batch.items[chosen]
        recent = batch.recent[chosen] if batch.recent is not None else None
        self.model.add(self._hits(ranker.ranks(items, users, targets, recent), targets, known))
        self.most_popular.add(np.isin(targets, self._popular(known)))
        if self._had is not None:
            self._rank_new(chosen, batch, items)

    def _hits(self, ranks: Rows, targets: Rows, known: int) -> NDArray[np.bool_]:
        """An item that is not known yet has the rank after the last; it is no hit, however few there are."""
        return (ranks <= self.k) & (targets < known)

    def _rank_new(self, chosen: Rows, batch: Batch, items: Items) -> None:
        assert self._had is not None
        had = self._had_before(batch)
        fresh = np.array([k for k in chosen if batch.items[k] not in had[k]], np.int64)
        if not len(fresh):
            return
        recent = batch.recent[fresh] if batch.recent is not None else None
        excluded = [np.fromiter(had[k], np.int64, len(had[k])) for k in fresh]
        targets = batch.items[fresh]
        ranks = self.learner.ranker().ranks(items, batch.users[fresh], targets, recent, excluded)
        self.new.add(self._hits(ranks, targets, len(items)))

    def _had_before(self, batch: Batch) -> list[set[int]]:
        """What each event's user had before it, earlier events of the batch included."""
        assert self._had is not None
        inside: dict[int, set[int]] = {}
        found = []
        for user, item in zip(batch.users.tolist(), batch.items.tolist(), strict=True):
            if user not in inside:
                inside[user] = set(self._had.get(user, ()))
            found.append(set(inside[user]))
            inside[user].add(item)
        return found

    def _popular(self, known: int) -> Rows:
        counts = self.learner.exact.counts(np.arange(known))
        if known <= self.k:
            return np.arange(known)
        return np.argpartition(-counts, self.k)[: self.k]
