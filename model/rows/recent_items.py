"""Each user's last distinct items, when the user last had each, and how often."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Ints, Recent, Rows
from streamer.model.jit import inlined, njit_borrowing
from streamer.model.rows.blocks import bits_for
from streamer.model.rows.lists import (
    SMALLEST_BITS,
    ItemLists,
    Lists,
    copy_within,
    make_room,
    sweep_list,
)
from streamer.model.rows.retired import Flags, RetiredItems, is_retired


class UserHistory(NamedTuple):
    """The last distinct items of B users, most recent first.

    Args:
        items: [B, L] item rows, filled up with -1.
        times_s: [B, L] when the user last had each, in seconds since the epoch.
        counts: [B, L] how often since it came into the list, at most 255.
    """

    items: Recent
    times_s: Ints
    counts: NDArray[np.uint8]

    @classmethod
    def empty(cls, users: int, length: int) -> UserHistory:
        """Users without items."""
        shape = (users, length)
        return cls(
            np.full(shape, -1, np.int32),
            np.zeros(shape, np.int32),
            np.zeros(shape, np.uint8),
        )

    def only(self, users: Rows) -> UserHistory:
        """Those of some users."""
        return UserHistory(self.items[users], self.times_s[users], self.counts[users])


class RecentPool(NamedTuple):
    """Columns of the lists of all users."""

    items: Ints  # most recent first
    times_s: Ints
    counts: NDArray[np.uint8]


class RecentItems(ItemLists):
    """The last `length` distinct items of each user; lists take the memory that they
    need.

    Args:
        length: how many items are kept of each user, at most 255.
        retired: items that are passed over.

    Examples:
        >>> recent = RecentItems(length=2)
        >>> users, items, times_s = np.array([0, 0, 0, 0]), np.array([7, 8, 7, 9]), np.array([10, 11, 12, 13])
        >>> recent.observe(users, items, times_s).items
        array([[-1, -1],
               [ 7, -1],
               [ 8,  7],
               [ 7,  8]], dtype=int32)
    """

    def __init__(self, length: int, retired: RetiredItems | None = None) -> None:
        long = np.empty(0, np.int32)
        short = np.empty(0, np.uint8)
        super().__init__(length, RecentPool(long, long, short), short, retired)

    def observe(self, users: Rows, items: Rows, times_s: Rows) -> UserHistory:
        """Each event's user as of the event; the events are taken in.

        An event sees all earlier events of its user, those of the same call too.
        """
        self.reserve(int(users.max(initial=-1)) + 1)
        self.extend(len(users) << bits_for(self.length, SMALLEST_BITS))
        seen = UserHistory.empty(len(users), self.length)
        if self.length > 0:
            when_s = times_s.astype(np.int32)
            _observe(self.lists, users, items, when_s, self.retired.flags, seen)
        return seen

    def of(self, users: Rows) -> UserHistory:
        """These users now; one never seen has no items."""
        found = UserHistory.empty(len(users), self.length)
        known = np.flatnonzero((users >= 0) & (users < self.size))
        _copy(self.lists, users, known, self.retired.flags, found)
        return found


@njit_borrowing
def _observe(
    lists: Lists,
    users: Rows,
    items: Rows,
    times_s: Ints,
    retired: Flags,
    seen: UserHistory,
) -> None:
    pool = lists.pool
    longest = seen.items.shape[1]
    for b in range(len(users)):
        user = users[b]
        item = np.int32(items[b])
        if len(retired):
            sweep_list(lists, user, retired)

        # what the event sees, and where its own item stands in the list
        start = lists.blocks.start[user]
        length = lists.length[user]
        place = length
        count = np.uint8(1)
        for k in range(length):
            _copy_to(pool, start + k, seen, b, k)
            if pool.items[start + k] == item:
                place = k
                count = np.uint8(min(pool.counts[start + k] + 1, 255))
        if place == length:
            place = min(length, longest - 1)
            start = make_room(lists, user, place + 1)
            lists.length[user] = max(length, place + 1)

        # the item comes to the front, those before it move on
        for k in range(start + place, start, -1):
            copy_within(pool, k - 1, k)
        pool.items[start] = item
        pool.times_s[start] = times_s[b]
        pool.counts[start] = count


@inlined
def _copy_to(
    pool: RecentPool,
    place: int,
    found: UserHistory,
    user: int,
    to: int,
) -> None:
    found.items[user, to] = pool.items[place]
    found.times_s[user, to] = pool.times_s[place]
    found.counts[user, to] = pool.counts[place]


@njit_borrowing
def _copy(
    lists: Lists,
    users: Rows,
    known: Rows,
    retired: Flags,
    found: UserHistory,
) -> None:
    for b in known:
        start = lists.blocks.start[users[b]]
        to = 0
        for place in range(start, start + lists.length[users[b]]):
            if not is_retired(retired, lists.pool.items[place]):
                _copy_to(lists.pool, place, found, b, to)
                to += 1
