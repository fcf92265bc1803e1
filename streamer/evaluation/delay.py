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
import torch

from streamer.errors import SettingsError
from streamer.evaluation.baselines import RECENT, Stretch
from streamer.evaluation.baselines.base import Doubles
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Evaluator, Learned, Learner
from streamer.model.batch import Batch, Recent, Rows
from streamer.model.rows.recent_items import RecentItems
from streamer.model.rows.seen_items import SeenBefore
from streamer.model.settings import LearnerSettings
from streamer.model.trainer import StepResult


class Due(NamedTuple):
    """How many events of the stream may be learned from, as a batch comes.

    Args:
        before: [B] when each of its events is ranked; ascends.
        after: when all are.
    """

    before: Rows
    after: int

    @classmethod
    def at_once(cls, events: int, batch: int) -> Due:
        """Without a delay: all that came before."""
        return cls(np.arange(events, events + batch), events + batch)


class Delay:
    """Says which events are due.

    Args:
        events: this many further events come first.
        seconds: this many further seconds of the stream pass first, by its events'
            times. With both, both must.

    Raises:
        SettingsError: with every wrong setting.

    Examples:
        >>> Delay(events=2).due([0.0, 0.0, 0.0, 0.0])
        Due(before=array([0, 0, 0, 1]), after=2)
        >>> Delay(seconds=10).due([100.0, 105.0, 110.0, 120.0])
        Due(before=array([0, 0, 1, 3]), after=3)
    """

    def __init__(self, events: int = 0, seconds: float = 0.0) -> None:
        given = {"events": events, "seconds": seconds}
        if problems := [
            f"delay {name} must be at least 0, not {n}"
            for name, n in given.items()
            if not n >= 0
        ]:
            raise SettingsError(problems)
        self.events = events
        self.seconds = seconds
        self._came = self._learned = 0
        self._latest = -np.inf
        self._times = np.empty(
            0
        )  # of events that are not due; the latest so far where times go back

    def __bool__(self) -> bool:
        return bool(self.events or self.seconds)

    def due(self, times_s: Sequence[float]) -> Due:
        """Take events in, and say how many are due before each of them and after all."""
        now = np.maximum.accumulate(np.concatenate([[self._latest], times_s]))[1:]
        self._times = np.concatenate([self._times, now])
        came = self._came + np.arange(len(now) + 1)
        old = self._learned + np.searchsorted(
            self._times, [*(now - self.seconds), now[-1] - self.seconds], "right"
        )
        due = np.minimum(np.maximum(came - self.events, 0), np.minimum(old, came))
        self._times = self._times[due[-1] - self._learned :]
        self._came = int(came[-1])
        self._learned = int(due[-1])
        self._latest = float(now[-1])
        return Due(due[:-1], int(due[-1]))


class DelayedLearner(Learner):
    """Learns from a micro-batch when all of its events are due; ranks it when it comes.

    What is not due at the end of the stream is never learned.

    Args:
        settings: what is learned, and how.
        delay: when events are due.
    """

    def __init__(self, settings: LearnerSettings, delay: Delay) -> None:
        super().__init__(settings)
        self.delay = delay
        self._held: deque[tuple[MicroBatch, bool]] = deque()
        self._released = 0
        self._live = RecentItems(self.recent.length, self.retired)
        self.on_reuse.append(self._forget_live)

    def learn_batch(
        self,
        batch: MicroBatch,
        evaluator: Evaluator | None = None,
        counted: bool = True,
    ) -> Learned:
        """1. rank the batch as it comes; 2. hold it back; 3. learn from those that are
        due.
        """
        # 1.
        due = self.delay.due(batch.timestamps_s)
        times_s = self._times(batch)
        users = self.rows_of("users", batch.users)
        items = self.rows_of("items", batch.items)
        history = self._live.observe(users, items, times_s)
        if evaluator is not None:
            rows = Batch(users, items, self.recent_items(history), times_s)
            chosen = evaluator.choose(len(batch))
            candidates = (
                self.candidates(rows.only(chosen), history.only(chosen))
                if self.settings.rerank
                else None
            )
            evaluator(rows, chosen, candidates, due)
        # 2.
        self._held.append((batch, counted))
        # 3.
        learned = _nothing()
        while self._held and self._released + len(self._held[0][0]) <= due.after:
            held, counts = self._held.popleft()
            self._released += len(held)
            learned = super().learn_batch(held, counted=counts)
        return learned

    def _forget_live(self, kind: str, rows: Rows) -> None:
        if kind == "users":
            self._live.forget(rows)
        else:
            self._live.sweep(np.arange(self._live.size))


def _nothing() -> Learned:
    """What no batch does."""
    step = StepResult(torch.tensor(torch.nan), {}, [], [])
    rows = np.empty(0, np.int64)
    return Learned(rows, rows, 0, 0, step, step.occurrence())


class PendingEvents:
    """Events that were ranked and that the baselines have not learned from yet; without a
    feedback delay, none.
    """

    def __init__(self) -> None:
        self._learned = 0
        self._users = np.empty(0, np.int64)
        self._items = np.empty(0, np.int64)
        self._recent: Recent = np.empty((0, RECENT), np.int32)
        self._ages_s = np.empty((0, RECENT))

    def stretch(
        self,
        batch: Batch,
        recent: Recent,
        ages_s: Doubles,
        ranked: Rows,
        due: Due,
        seen: SeenBefore,
    ) -> Stretch:
        """What waits and a batch, as one stretch; what is due at its end waits no more.

        Args:
            batch: the events that come.
            recent: [B, 10] the last distinct items of each event's user, as of the
                event.
            ages_s: [B, 10] how long before the event the user had each of them.
            ranked: those of them to be ranked.
            due: how many events of the whole stream are due.
            seen: what the users of the `ranked` had before.
        """
        before = len(self._items)
        users = np.concatenate([self._users, batch.users])
        items = np.concatenate([self._items, batch.items])
        recents = np.concatenate([self._recent, recent])
        ages = np.concatenate([self._ages_s, ages_s])
        end = due.after - self._learned
        due_before = due.before[ranked] - self._learned
        stretch = Stretch(
            users, items, recents, ages, ranked + before, due_before, end, seen
        )
        self._users = users[end:]
        self._items = items[end:]
        self._recent = recents[end:]
        self._ages_s = ages[end:]
        self._learned = due.after
        return stretch
