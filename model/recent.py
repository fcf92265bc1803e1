"""Each user's last distinct items: state of the stream that the user tower and the repeat bias read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Recent, Rows
from streamer.model.growing import grown
from streamer.model.jit import compiled


class RecentItems:
    """The last `length` distinct items of each user, most recent first.

    Args:
        length: how many items are kept of each user.

    Examples:
        >>> recent = RecentItems(length=2)
        >>> users, items = np.array([0, 0, 0, 0]), np.array([7, 8, 7, 9])
        >>> recent.observe(users, items)
        array([[-1, -1],
               [ 7, -1],
               [ 8,  7],
               [ 7,  8]], dtype=int32)
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.size = 0
        self._items = np.full((0, length), -1, np.int32)

    def observe(self, users: Rows, items: Rows) -> Recent:
        """Answer each event's recent items as of the event, and take the event in.

        An event sees all earlier events of its user, those of the same call too.
        """
        self._grow(int(users.max()) + 1 if len(users) else 0)
        seen = np.empty((len(users), self.length), np.int32)
        _observe(self._items, users, items, seen)
        return seen

    def of(self, users: Rows) -> Recent:
        """[B, L] the recent items of these users now; a user never seen has none."""
        known = (users >= 0) & (users < self.size)
        found = np.full((len(users), self.length), -1, np.int32)
        found[known] = self._items[users[known]]
        return found

    def _grow(self, size: int) -> None:
        self._items = grown(self._items, size, fill=-1)
        self.size = max(self.size, size)

    def forget_users(self, users: Rows) -> None:
        """Retire users; those never seen have nothing to forget."""
        self._items[users[users < self.size]] = -1

    def forget_items(self, items: Rows) -> None:
        """Retire items: they vanish from every user's list (looks at all users)."""
        if not len(items):
            return
        gone = np.zeros(int(items.max()) + 1, np.bool_)
        gone[items] = True
        _remove(self._items[: self.size], gone)

    def state(self) -> Recent:
        """The lists of all users, [users, L]; a view."""
        return self._items[: self.size]

    def load_state(self, state: Recent) -> None:
        """Take over lists that `state` returned; they may be of another length."""
        self.size = 0
        self._items = np.full((0, self.length), -1, np.int32)
        self._grow(len(state))
        shared = min(self.length, state.shape[1])
        self._items[: len(state), :shared] = state[:, :shared]


@compiled
def _observe(items_of: Recent, users: Rows, items: Rows, seen: Recent) -> None:
    L = items_of.shape[1]
    for b in range(len(users)):
        line = items_of[users[b]]
        item = np.int32(items[b])
        place = L - 1
        for k in range(L):
            seen[b, k] = line[k]
            if line[k] == item:
                place = k
        for k in range(place, 0, -1):
            line[k] = line[k - 1]
        if L:
            line[0] = item


@compiled
def _remove(items_of: Recent, gone: NDArray[np.bool_]) -> None:
    """Take marked items out of every list; the others move up in their order."""
    users, L = items_of.shape
    for u in range(users):
        left = 0
        for k in range(L):
            item = items_of[u, k]
            if item >= 0 and item < len(gone) and gone[item]:
                continue
            if left < k:
                items_of[u, left] = item
            left += 1
        for k in range(left, L):
            items_of[u, k] = -1
