"""Feedback that comes late: an event is trained only after further seconds of the
stream have been ranked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.evaluation.baselines import Stretch
from streamer.evaluation.unlearned import UnlearnedEvents
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Evaluator, Learned, OnlineLearner
from streamer.model.batch import Rows
from streamer.model.settings import LearnerSettings


class Delay:
    """Says which events are due.

    Args:
        seconds: this many further seconds of the stream pass first, by its events'
            times.

    Examples:
        >>> Delay(10).due([100.0, 105.0, 110.0, 120.0])
        array([0, 0, 1, 3])
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._learned = 0
        self._latest = -np.inf
        # of events that are not due; the latest so far where times go back
        self._times = np.empty(0)

    def __bool__(self) -> bool:
        return bool(self.seconds)

    def due(self, times_s: Sequence[float]) -> Rows:
        """Take events in; returns how many of the stream are due as each of them comes."""
        now = np.maximum.accumulate([self._latest, *times_s])[1:]
        self._times = np.concatenate([self._times, now])
        old = np.searchsorted(self._times, now - self.seconds, "right")
        due: Rows = self._learned + old
        self._times = self._times[old[-1] :]
        self._learned = int(due[-1])
        self._latest = float(now[-1])
        return due


class DelayedLearner(OnlineLearner):
    """Learns from a micro-batch when all of its events are due; ranks it when it comes.

    What is not due at the end of the stream is never learned. Without a delay it is the
    plain learner.

    Args:
        settings: what is learned, and how.
        delay: when events are due.
    """

    def __init__(self, settings: LearnerSettings, delay: Delay) -> None:
        super().__init__(settings)
        self.delay = delay
        self.due: Rows | None = None
        """[B] of the latest batch, see `Delay.due`; None without a delay."""
        self._held: deque[tuple[MicroBatch, bool]] = deque()
        self._released = 0
        self._unlearned = UnlearnedEvents(self)

    def learn_batch(
        self,
        batch: MicroBatch,
        evaluator: Evaluator | None = None,
        counted: bool = True,
    ) -> Learned:
        """1. rank the batch as it comes; 2. hold it back; 3. learn from those that are
        due.
        """
        if not self.delay:
            return super().learn_batch(batch, evaluator, counted)
        # 1.
        self.due = self.delay.due(batch.timestamps_s)
        self._unlearned.rank(batch, evaluator)
        # 2.
        self._held.append((batch, counted))
        # 3.
        learned = Learned.nothing()
        while self._held:
            held, counts = self._held[0]
            if self._released + len(held) > self.due[-1]:
                break
            self._held.popleft()
            self._released += len(held)
            self._unlearned.release(held.users)
            learned = super().learn_batch(held, counted=counts)
        return learned


class PendingEvents:
    """Events that were ranked and that the baselines have not learned from yet."""

    def __init__(self) -> None:
        self._learned = 0
        self._waiting: list[NDArray[Any]] = []

    def delayed(self, batch: Stretch, due: Rows) -> Stretch:
        """What waits and a batch, as one stretch; what is due at its end waits no more."""
        columns: list[Any] = [batch.users, batch.items, batch.recent, batch.ages_s]
        if self._waiting:
            pairs = zip(self._waiting, columns, strict=True)
            columns = [np.concatenate(pair) for pair in pairs]
        users, items, recent, ages_s = columns
        before = len(users) - len(batch.users)
        end = int(due[-1]) - self._learned
        found = Stretch(
            users,
            items,
            recent,
            ages_s,
            batch.ranked + before,
            due[batch.ranked] - self._learned,
            end,
            batch.seen,
        )
        self._waiting = [column[end:] for column in columns]
        self._learned += end
        return found
