"""Feedback that comes late: an event is trained only after further events, or seconds
of the stream, have been ranked.

What users did last is known at once, as it is to whoever serves them; only learning
waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamer.evaluation.baselines import RECENT, Stretch
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Evaluator, Learned, Learner
from streamer.model.batch import Batch, Recent, Rows
from streamer.model.rows.recent_items import RecentItems
from streamer.model.settings import LearnerSettings


class FeedbackDue(NamedTuple):
    """How many events of the stream may be learned from, as a batch comes.

    Args:
        before: [B] when each of its events is ranked; ascends.
        after: when all are.
    """

    before: Rows
    after: int


class Delay:
    """Says which events are due.

    Args:
        events: this many further events come first.
        seconds: this many further seconds of the stream pass first, by its events'
            times. With both, both must.

    Examples:
        >>> Delay(events=2).due([0.0, 0.0, 0.0, 0.0])
        FeedbackDue(before=array([0, 0, 0, 1]), after=2)
        >>> Delay(seconds=10).due([100.0, 105.0, 110.0, 120.0])
        FeedbackDue(before=array([0, 0, 1, 3]), after=3)
    """

    def __init__(self, events: int = 0, seconds: float = 0.0) -> None:
        self.events = events
        self.seconds = seconds
        self._came = 0
        self._learned = 0
        self._latest = -np.inf
        # of events that are not due; the latest so far where times go back
        self._times = np.empty(0)

    def __bool__(self) -> bool:
        return bool(self.events or self.seconds)

    def due(self, times_s: Sequence[float]) -> FeedbackDue:
        """Take events in; returns how many are due before each of them and after all."""
        now = np.maximum.accumulate(np.concatenate([[self._latest], times_s]))[1:]
        self._times = np.concatenate([self._times, now])
        came = self._came + np.arange(len(now) + 1)
        limits = [*(now - self.seconds), now[-1] - self.seconds]
        old = self._learned + np.searchsorted(self._times, limits, "right")
        due = np.minimum(np.maximum(came - self.events, 0), np.minimum(old, came))
        self._times = self._times[due[-1] - self._learned :]
        self._came = int(came[-1])
        self._learned = int(due[-1])
        self._latest = float(now[-1])
        return FeedbackDue(due[:-1], int(due[-1]))


class DelayedLearner(Learner):
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
        self.due: FeedbackDue | None = None
        """Of the latest batch; None without a delay."""
        self._held: deque[tuple[MicroBatch, bool]] = deque()
        self._released = 0
        self._live = RecentItems(self.state.recent.length, self.state.retired)
        self.eviction.on_reuse.append(self._forget_live)

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
        times_s = self.state.event_times(batch.timestamps_s, len(batch))
        users = self.state.rows_of("users", batch.users)
        items = self.state.rows_of("items", batch.items)
        history = self._live.observe(users, items, times_s)
        if evaluator is not None:
            rows = Batch(users, items, self.candidates.recent_items(history), times_s)
            chosen = evaluator.choose(len(batch))
            candidates = None
            if self.settings.rerank:
                candidates = self.candidates.generate(
                    rows.only(chosen), history.only(chosen)
                )
            evaluator(rows, chosen, candidates)
        # 2.
        self._held.append((batch, counted))
        # 3.
        learned = Learned.nothing()
        while self._held and self._released + len(self._held[0][0]) <= self.due.after:
            held, counts = self._held.popleft()
            self._released += len(held)
            learned = super().learn_batch(held, counted=counts)
        return learned

    def _forget_live(self, kind: str, rows: Rows) -> None:
        if kind == "users":
            self._live.forget(rows)
        else:
            self._live.sweep(np.arange(self._live.size))


class PendingEvents:
    """Events that were ranked and that the baselines have not learned from yet."""

    def __init__(self) -> None:
        self._learned = 0
        self._items = np.empty(0, np.int64)
        self._recent: Recent = np.empty((0, RECENT), np.int32)
        self._ages_s = np.empty((0, RECENT))

    def delayed(self, batch: Stretch, due: FeedbackDue) -> Stretch:
        """What waits and a batch, as one stretch; what is due at its end waits no more."""
        waiting = len(self._items)
        items = np.concatenate([self._items, batch.items])
        recent = np.concatenate([self._recent, batch.recent])
        ages_s = np.concatenate([self._ages_s, batch.ages_s])
        due_before = due.before[batch.ranked] - self._learned
        end = due.after - self._learned
        self._items = items[end:]
        self._recent = recent[end:]
        self._ages_s = ages_s[end:]
        self._learned = due.after
        ranked = batch.ranked + waiting
        return Stretch(items, recent, ages_s, ranked, due_before, end, batch.seen)
