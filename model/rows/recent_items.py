"""Each user's last distinct items, when the user last had each, and how often."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Ints, Recent, Rows
from streamer.model.jit import inlined, njit_borrowing
from streamer.model.rows.blocks import (
    Blocks,
    bits_for,
    block_size,
    free_block,
    leave_block,
    take_block,
)
from streamer.model.rows.by_rows import Arrays, ByRows, take_or_fill
from streamer.model.rows.growing import grown
from streamer.model.rows.retired import (
    Flags,
    RetiredItems,
    is_retired,
    rows_with_retired,
)

_SMALLEST_BITS = 1


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


class RecentLists(NamedTuple):
    """What the compiled loops work on: lists of all users in one pool.

    Args:
        items: [P] items, most recent first.
        times_s: [P] when.
        counts: [P] how often.
        blocks: the places of each user's list in the pool.
        length: [N] items in each user's list.
    """

    items: Ints
    times_s: Ints
    counts: NDArray[np.uint8]
    blocks: Blocks
    length: NDArray[np.uint8]


class RecentItems(ByRows):
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
        self.length = length
        self.retired = retired or RetiredItems()
        self.clear()

    def clear(self) -> None:
        self.size = 0
        self._lists = RecentLists(
            np.empty(0, np.int32),
            np.empty(0, np.int32),
            np.empty(0, np.uint8),
            Blocks.empty(),
            np.empty(0, np.uint8),
        )

    def observe(self, users: Rows, items: Rows, times_s: Rows) -> UserHistory:
        """Each event's user as of the event; the events are taken in.

        An event sees all earlier events of its user, those of the same call too.
        """
        self._grow(int(users.max(initial=-1)) + 1)
        self._extend(len(users) << bits_for(self.length, _SMALLEST_BITS))
        seen = UserHistory.empty(len(users), self.length)
        if self.length > 0:
            when_s = times_s.astype(np.int32)
            _observe(self._lists, users, items, when_s, self.retired.flags, seen)
        return seen

    def of(self, users: Rows) -> UserHistory:
        """These users now; one never seen has no items."""
        found = UserHistory.empty(len(users), self.length)
        known = np.flatnonzero((users >= 0) & (users < self.size))
        _copy(self._lists, users, known, self.retired.flags, found)
        return found

    def _grow(self, size: int) -> None:
        lists = self._lists
        self._lists = lists._replace(
            blocks=lists.blocks.reserve(size), length=grown(lists.length, size)
        )
        self.size = max(self.size, size)

    def _extend(self, places: int) -> None:
        """See that the pool has places that were never used."""
        lists = self._lists
        size = int(lists.blocks.end[0]) + places
        self._lists = lists._replace(
            items=grown(lists.items, size),
            times_s=grown(lists.times_s, size),
            counts=grown(lists.counts, size),
        )

    @property
    def nbytes(self) -> int:
        return 9 * int(self._lists.blocks.end[0]) + 6 * self.size

    def forget(self, users: Rows) -> None:
        """Retire users; those never seen have nothing to forget."""
        _forget(self._lists, users[users < self.size])

    def with_retired(self, users: Rows) -> Rows:
        """Those of some users whose lists hold a retired item."""
        return rows_with_retired(
            self.retired.flags,
            users[users < self.size],
            self._lists.blocks.start,
            self._lists.length,
            self._lists.items,
        )

    def sweep(self, users: Rows) -> None:
        """Take retired items out of the lists of users."""
        _sweep(self._lists, users[users < self.size], self.retired.flags)

    def take(self, rows: Rows) -> Arrays:
        """The lists of users, one after the other, and how long each is."""
        lists = self._lists
        length = take_or_fill(lists.length, rows)
        first = np.cumsum(length, dtype=np.int64) - length
        moved = np.repeat(take_or_fill(lists.blocks.start, rows) - first, length)
        at = np.arange(length.sum(dtype=np.int64)) + moved
        return {
            "items": lists.items[at],
            "times_s": lists.times_s[at],
            "counts": lists.counts[at],
            "length": length,
        }

    def put(self, rows: Rows, arrays: Arrays) -> None:
        """Lists that are longer than they may be here are cut off."""
        self._grow(int(rows.max(initial=-1)) + 1)
        self._extend(2 * len(rows) + 2 * int(arrays["length"].sum(dtype=np.int64)))
        given = UserHistory(arrays["items"], arrays["times_s"], arrays["counts"])
        _put(self._lists, rows, arrays["length"], self.length, given)

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self._grow(self.size)


@inlined
def _copy_place(lists: RecentLists, place: int, to: int) -> None:
    lists.items[to] = lists.items[place]
    lists.times_s[to] = lists.times_s[place]
    lists.counts[to] = lists.counts[place]


@njit_borrowing
def _forget(lists: RecentLists, users: Rows) -> None:
    for user in users:
        leave_block(lists.blocks, lists.items, user)
        lists.length[user] = 0


@njit_borrowing
def _make_room(lists: RecentLists, user: int, places: int) -> None:
    """See that a user's block has this many places; its list moves with it."""
    blocks = lists.blocks
    if places <= block_size(blocks, user):
        return
    bits = bits_for(places, _SMALLEST_BITS)
    start = blocks.start[user]
    to = take_block(blocks, lists.items, bits)
    for k in range(lists.length[user]):
        _copy_place(lists, start + k, to + k)
    free_block(blocks, lists.items, start, blocks.bits[user])
    blocks.start[user] = to
    blocks.bits[user] = bits


@njit_borrowing
def _sweep(lists: RecentLists, users: Rows, retired: Flags) -> None:
    """Take retired items out of lists; the others move up in their order."""
    for user in users:
        start = lists.blocks.start[user]
        left = start
        for k in range(start, start + lists.length[user]):
            if not is_retired(retired, lists.items[k]):
                _copy_place(lists, k, left)
                left += 1
        lists.length[user] = left - start


@njit_borrowing
def _observe(
    lists: RecentLists,
    users: Rows,
    items: Rows,
    times_s: Ints,
    retired: Flags,
    seen: UserHistory,
) -> None:
    longest = seen.items.shape[1]
    for b in range(len(users)):
        user = users[b]
        item = np.int32(items[b])
        if len(retired):
            _sweep(lists, users[b : b + 1], retired)

        # what the event sees, and where its own item stands in the list
        start = lists.blocks.start[user]
        length = lists.length[user]
        place = length
        count = np.uint8(1)
        for k in range(length):
            _copy_to(lists, start + k, seen, b, k)
            if lists.items[start + k] == item:
                place = k
                count = np.uint8(min(lists.counts[start + k] + 1, 255))
        if place == length:
            place = min(length, longest - 1)
            _make_room(lists, user, place + 1)
            start = lists.blocks.start[user]
            lists.length[user] = max(length, place + 1)

        # the item comes to the front, those before it move on
        for k in range(start + place, start, -1):
            _copy_place(lists, k - 1, k)
        lists.items[start] = item
        lists.times_s[start] = times_s[b]
        lists.counts[start] = count


@inlined
def _copy_to(
    lists: RecentLists, place: int, found: UserHistory, user: int, to: int
) -> None:
    found.items[user, to] = lists.items[place]
    found.times_s[user, to] = lists.times_s[place]
    found.counts[user, to] = lists.counts[place]


@njit_borrowing
def _copy(
    lists: RecentLists, users: Rows, known: Rows, retired: Flags, found: UserHistory
) -> None:
    for b in known:
        start = lists.blocks.start[users[b]]
        to = 0
        for place in range(start, start + lists.length[users[b]]):
            if not is_retired(retired, lists.items[place]):
                _copy_to(lists, place, found, b, to)
                to += 1


@njit_borrowing
def _put(
    lists: RecentLists,
    users: Rows,
    length: NDArray[np.uint8],
    longest: int,
    given: UserHistory,
) -> None:
    at = 0
    for k in range(len(users)):
        user = users[k]
        kept = min(int(length[k]), longest)
        lists.length[user] = 0
        _make_room(lists, user, kept)
        start = lists.blocks.start[user]
        for m in range(kept):
            lists.items[start + m] = given.items[at + m]
            lists.times_s[start + m] = given.times_s[at + m]
            lists.counts[start + m] = given.counts[at + m]
        lists.length[user] = kept
        at += length[k]
