"""Each user's last distinct items: state of the stream that the user tower and the repeat bias read."""

from __future__ import annotations

import numpy as np

from model.batch import Recent, Rows
from model.growing import grown
from model.jit import compiled


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
        known = np.minimum(users, max(self.size - 1, 0))
        self._grow(1)
        return np.where((users < self.size)[:, None], self._items[known], np.int32(-1))

    def _grow(self, size: int) -> None:
        self._items = grown(self._items, size, fill=-1)
        self.size = max(self.size, size)

    def forget_users(self, users: Rows) -> None:
        """Retire users."""
        self._items[users] = -1

    def forget_items(self, items: Rows) -> None:
        """Retire items: they vanish from every user's list (looks at all users)."""
        gone = np.isin(self._items[: self.size], items)
        touched = np.flatnonzero(gone.any(axis=1))
        for user in touched:
            left = self._items[user][~gone[user]]
            self._items[user] = -1
            self._items[user, : len(left)] = left

    def state(self) -> Recent:
        """The lists of all users, [users, L]; a view."""
        return self._items[: self.size]

    def load_state(self, state: Recent) -> None:
        """Take over lists that `state` answered; they may be of another length."""
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
