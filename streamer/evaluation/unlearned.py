"""Events that are ranked as they come and learned later, or never.

What users did last is known at once, as it is to whoever serves them, and described
as a server describes it; only learning waits.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from streamer.ingest.batcher import MicroBatch
from streamer.learner import Evaluator, OnlineLearner
from streamer.model.batch import Batch, Rows
from streamer.model.ranking.uncounted import QueryEvents, UserEvents
from streamer.model.rows.recent_items import RecentItems, UserHistory


class UnlearnedEvents:
    """Events that a learner has not learned, by user.

    Args:
        learner: ranks them; their users and items get rows in it.
    """

    def __init__(self, learner: OnlineLearner) -> None:
        self._learner = learner
        self._state = learner.state
        self._waiting: dict[str, deque[UserEvents]] = defaultdict(deque)
        self._live = RecentItems(self._state.recent.length, self._state.retired)
        learner.eviction.on_reuse.append(self._forget)

    def begin(self) -> None:
        """Users have the recent items that were learned."""
        users = self._state.users.used
        self._live.put(users, self._state.recent.take(users))

    def rank(self, batch: MicroBatch, evaluator: Evaluator | None) -> None:
        """Rank a batch by what its users had last and by what is learned so far."""
        times_s = self._state.event_times(batch.timestamps_s, len(batch))
        users = self._state.rows_of("users", batch.users)
        items = self._state.rows_of("items", batch.items)
        history = self._live.observe(users, items, times_s)
        uncounted = self._wait(batch.users, items, times_s, history)
        if evaluator is None:
            return
        candidates = self._learner.candidates
        rows = Batch(users, items, candidates.recent_items(history), times_s)
        chosen = evaluator.choose(len(batch))
        found = None
        if self._state.settings.rerank:
            found = candidates.generate(
                rows.only(chosen),
                history.only(chosen),
                uncounted=[uncounted[n] for n in chosen.tolist()],
            )
        evaluator(rows, chosen, found)

    def release(self, users: Sequence[str]) -> None:
        """The first event of each of these users is about to be learned."""
        for user in users:
            self._waiting[user].popleft()

    def _wait(
        self, users: Sequence[str], items: Rows, times_s: Rows, history: UserHistory
    ) -> list[UserEvents]:
        """Add events to those that wait to be learned; returns what of each one's user
        waited before.
        """
        found = []
        nothing = UserEvents.none(self._state.recent.length)
        times_s = times_s.astype(np.int32)
        for n, user in enumerate(users):
            waiting = self._waiting[user]
            before = QueryEvents.of([nothing, *waiting])
            found.append(UserEvents(before.items, before.times_s, before.history))
            at = np.array([n])
            waiting.append(UserEvents(items[at], times_s[at], history.only(at)))
        return found

    def _forget(self, kind: str, rows: Rows) -> None:
        if kind == "users":
            self._live.forget(rows)
        else:
            self._live.sweep(np.arange(self._live.size))
