"""Each user's last distinct items, when the user last had each, and how often."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Recent, Rows
from streamer.model.by_rows import Arrays, ByRows
from streamer.model.growing import grown
from streamer.model.jit import compiled

Seconds = NDArray[np.int32]
"""Seconds since the epoch."""


class History(NamedTuple):
    """The last distinct items of B users, most recent first.

    Args:
        items: [B, L] item rows, filled up with -1.
        times_s: [B, L] when the user last had each.
        counts: [B, L] how often since it came into the list, at most 255.
    """

    items: Recent
    times_s: Seconds
    counts: NDArray[np.uint8]

    def only(self, users: Rows) -> History:
        """Those of some users."""
        return History(self.items[users], self.times_s[users], self.counts[users])


class RecentItems(ByRows):
    """The last `length` distinct items of each user.

    Args:
        length: how many items are kept of each user.

    Examples:
        >>> recent = RecentItems(length=2)
        >>> users, items, times_s = np.array([0, 0, 0, 0]), np.array([7, 8, 7, 9]), np.array([10, 11, 12, 13])
        >>> recent.observe(users, items, times_s).items
        array([[-1, -1],
               [ 7, -1],
               [ 8,  7],
               [ 7,  8]], dtype=int32)
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.clear()

    def clear(self) -> None:
        self.size, shape = 0, (0, self.length)
        self._all = History(np.full(shape, -1, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.uint8))

    def observe(self, users: Rows, items: Rows, times_s: Rows) -> History:
        """Each event's user as of the event; the events are taken in.

        An event sees all earlier events of its user, those of the same call too.
        """
        self._grow(int(users.max(initial=-1)) + 1)
        shape = (len(users), self.length)
        seen = History(np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.uint8))
        _observe(self._all, users, items, times_s.astype(np.int32), seen)
        return seen

    def of(self, users: Rows) -> History:
        """These users now; one never seen has no items."""
        shape, known = (len(users), self.length), (users >= 0) & (users < self.size)
        found = History(np.full(shape, -1, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.uint8))
        found.items[known], found.times_s[known], found.counts[known] = self._all.only(users[known])
        return found

    def _grow(self, size: int) -> None:
        items, times_s, counts = self._all
        self._all = History(grown(items, size, fill=-1), grown(times_s, size), grown(counts, size))
        self.size = max(self.size, size)

    def forget_users(self, users: Rows) -> None:
        """Retire users; those never seen have nothing to forget."""
        self._all.items[users[users < self.size]] = -1

    def forget_items(self, items: Rows) -> None:
        """Retire items: they vanish from every user's list (looks at all users)."""
        if not len(items):
            return
        gone = np.zeros(int(items.max()) + 1, np.bool_)
        gone[items] = True
        _remove(self._all, self.size, gone)

    def take(self, rows: Rows) -> Arrays:
        return self.of(rows)._asdict()

    def put(self, rows: Rows, arrays: Arrays) -> None:
        """Lists of another length are cut off, or are shorter than they could be."""
        self._grow(int(rows.max(initial=-1)) + 1)
        shared = min(self.length, arrays["items"].shape[1])
        self._all.items[rows] = -1
        for name, array in self._all._asdict().items():
            array[rows, :shared] = arrays[name][:, :shared]


@compiled
def _observe(lists: History, users: Rows, items: Rows, times_s: Seconds, seen: History) -> None:
    L = lists.items.shape[1]
    for b in range(len(users)):
        u, item = users[b], np.int32(items[b])
        place, count = L - 1, np.uint8(1)
        for k in range(L):
            seen.items[b, k], seen.times_s[b, k] = lists.items[u, k], lists.times_s[u, k]
            seen.counts[b, k] = lists.counts[u, k]
            if lists.items[u, k] == item:
                place, count = k, np.uint8(min(lists.counts[u, k] + 1, 255))
        for k in range(place, 0, -1):
            lists.items[u, k], lists.times_s[u, k] = lists.items[u, k - 1], lists.times_s[u, k - 1]
            lists.counts[u, k] = lists.counts[u, k - 1]
        if L:
            lists.items[u, 0], lists.times_s[u, 0], lists.counts[u, 0] = item, times_s[b], count


@compiled
def _remove(lists: History, users: int, gone: NDArray[np.bool_]) -> None:
    """Take marked items out of every list; the others move up in their order."""
    L = lists.items.shape[1]
    for u in range(users):
        left = 0
        for k in range(L):
            item = lists.items[u, k]
            if item >= 0 and item < len(gone) and gone[item]:
                continue
            lists.items[u, left], lists.times_s[u, left] = item, lists.times_s[u, k]
            lists.counts[u, left] = lists.counts[u, k]
            left += 1
        for k in range(left, L):
            lists.items[u, k] = -1
