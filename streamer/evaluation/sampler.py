"""Which events are ranked, so that ranking keeps to a share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from streamer.model.batch import Rows


class EventSampler:
    """Chooses events of each batch.

    Args:
        time_share: how much of the time ranking may take; batches are passed over to
            keep to it. None passes over none.
        max_events: at most this many events of a batch are ranked, and none before
            anything is trained. None ranks all.
        clock: seconds.
    """

    def __init__(
        self,
        time_share: float | None = 0.05,
        max_events: int | None = 64,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.time_share = time_share
        self.clock = clock
        self._max_events = max_events
        self._not_before = clock()
        self._warm = False
        self._rng = np.random.default_rng(0)

    def choose(self, events: int, *, trained: bool) -> Rows:
        """Which events of the next batch to rank, ascending; none if time is up.

        Args:
            events: how many there are.
            trained: whether anything is trained yet.
        """
        if self.clock() < self._not_before:
            return np.empty(0, np.int64)
        if self._max_events is None:
            return np.arange(events)
        if not trained:
            return np.empty(0, np.int64)
        if events <= self._max_events:
            return np.arange(events)
        return np.sort(self._rng.choice(events, self._max_events, replace=False))

    def spent(self, seconds: float, *, ranked: bool) -> None:
        """Plan the next ranking after one that took some seconds; a quiet stream saves
        nothing up for later.

        The first ranking does not count: compiled loops are loaded then, once. Nor does
        a batch of which nothing was ranked.
        """
        if self.time_share is not None and self._warm and ranked:
            begun = self.clock() - seconds
            pause = seconds / self.time_share
            self._not_before = max(begun, self._not_before) + pause
        self._warm = self._warm or ranked
