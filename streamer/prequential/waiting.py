"""Events that were ranked and wait to be learned from: without a feedback delay, none."""

from __future__ import annotations

import numpy as np

from streamer.model.batch import Batch, Recent, Rows
from streamer.prequential.delay import Due
from streamer.prequential.floors import RECENT, Stretch
from streamer.prequential.known import Had


class Waiting:
    """What the floors have not learned from yet."""

    def __init__(self) -> None:
        self._learned = 0
        self._users, self._items = np.empty(0, np.int64), np.empty(0, np.int64)
        self._recent: Recent = np.empty((0, RECENT), np.int32)

    def pass_over(self, events: int) -> None:
        """So many events come that no floor needs to learn from."""
        self._learned += events

    def stretch(self, batch: Batch, recent: Recent, ranked: Rows, due: Due, had: Had) -> Stretch:
        """What waits and a batch, as one stretch; what is due at its end waits no more.

        Args:
            batch: the events that come.
            recent: [B, 10] the last distinct items of each event's user, as of the event.
            ranked: those of them to be ranked.
            due: how many events of the whole stream are due.
            had: what the users of the `ranked` had before.
        """
        before = len(self._items)
        users, items = np.concatenate([self._users, batch.users]), np.concatenate([self._items, batch.items])
        recents = np.concatenate([self._recent, recent])
        end = due.after - self._learned
        stretch = Stretch(users, items, recents, ranked + before, due.before[ranked] - self._learned, end, had)
        self._users, self._items, self._recent = users[end:], items[end:], recents[end:]
        self._learned = due.after
        return stretch
