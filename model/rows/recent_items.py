"""Each user's last distinct items, when the user last had each, and how often."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Recent, Rows
from streamer.model.jit import inlined, njit_borrowing
from streamer.model.rows.by_rows import Arrays, ByRows, held
from streamer.model.rows.growing import grown
from streamer.model.rows.retired import (
    Flags,
    RetiredItems,
    is_retired,
    rows_with_retired,
)

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


class Lists(NamedTuple):
    """What the compiled loops work on: lists of all users in one pool, in blocks of
    powers of two.

    Args:
        items: [P] the pool: items, most recent first.
        times_s: [P] when.
        counts: [P] how often.
        start: [N] where each user's list begins.
        length: [N] items in it.
        bits: [N] log2 of the size of its block; 0 if it has none.
        free: [9] by log2 of its size, a block that was left: its first item leads to
            the next; -1 if none.
        end: [1] the first place of the pool that was never part of a block.
    """

    items: NDArray[np.int32]
    times_s: Seconds
    counts: NDArray[np.uint8]
    start: NDArray[np.int32]
    length: NDArray[np.uint8]
    bits: NDArray[np.int8]
    free: Rows
    end: Rows


_POOL = ("items", "times_s", "counts")
_BY_USER = ("start", "length", "bits")


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
        pool = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.uint8)
        by_user = np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0, np.int8)
        self._lists = Lists(*pool, *by_user, np.full(9, -1), np.zeros(1, np.int64))

    def observe(self, users: Rows, items: Rows, times_s: Rows) -> History:
        """Each event's user as of the event; the events are taken in.

        An event sees all earlier events of its user, those of the same call too.
        """
        self._grow(int(users.max(initial=-1)) + 1)
        self._extend(len(users) * self._largest_block)
        seen = self._nothing(len(users))
        _observe(
            self._lists,
            self.length,
            users,
            items,
            times_s.astype(np.int32),
            self.retired.flags,
            seen,
        )
        return seen

    def of(self, users: Rows) -> History:
        """These users now; one never seen has no items."""
        found = self._nothing(len(users))
        known = np.flatnonzero((users >= 0) & (users < self.size))
        _copy(self._lists, users, known, self.retired.flags, found)
        return found

    def _nothing(self, users: int) -> History:
        shape = (users, self.length)
        return History(
            np.full(shape, -1, np.int32),
            np.zeros(shape, np.int32),
            np.zeros(shape, np.uint8),
        )

    @property
    def _largest_block(self) -> int:
        return 1 << max(int(self.length - 1).bit_length(), 1)

    def _grow(self, size: int) -> None:
        lists = self._lists
        self._lists = lists._replace(
            **{name: grown(getattr(lists, name), size) for name in _BY_USER}
        )
        self.size = max(self.size, size)

    def _extend(self, places: int) -> None:
        """See that the pool has places that were never used."""
        lists = self._lists
        size = int(self._lists.end[0]) + places
        self._lists = lists._replace(
            **{name: grown(getattr(lists, name), size) for name in _POOL}
        )

    @property
    def nbytes(self) -> int:
        return 9 * int(self._lists.end[0]) + 6 * self.size

    def forget(self, users: Rows) -> None:
        """Retire users; those never seen have nothing to forget."""
        _leave_all(self._lists, users[users < self.size])

    def with_retired(self, users: Rows) -> Rows:
        """Those of some users whose lists hold a retired item."""
        lists = self._lists
        return rows_with_retired(
            self.retired.flags,
            users[users < self.size],
            lists.start,
            lists.length,
            lists.items,
        )

    def sweep(self, users: Rows) -> None:
        """Take retired items out of the lists of users."""
        _sweep(self._lists, users[users < self.size], self.retired.flags)

    def take(self, rows: Rows) -> Arrays:
        """The lists of users, one after the other, and how long each is."""
        lists = self._lists
        length = held(self._lists.length, rows)
        first = np.cumsum(length, dtype=np.int64) - length
        at = np.arange(length.sum(dtype=np.int64)) + np.repeat(
            held(lists.start, rows) - first, length
        )
        return {name: getattr(lists, name)[at] for name in _POOL} | {"length": length}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        """Lists that are longer than they may be here are cut off."""
        self._grow(int(rows.max(initial=-1)) + 1)
        self._extend(len(rows) * 2 + 2 * int(arrays["length"].sum(dtype=np.int64)))
        _put(
            self._lists,
            rows,
            arrays["length"],
            self.length,
            *(arrays[name] for name in _POOL),
        )

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self._grow(self.size)


@inlined
def _room(lists: Lists, user: int) -> int:
    return (1 << lists.bits[user]) if lists.bits[user] > 0 else 0


@njit_borrowing
def _take_block(lists: Lists, bits: int) -> int:
    to = lists.free[bits]
    if to >= 0:
        lists.free[bits] = lists.items[to]
    else:
        to = lists.end[0]
        lists.end[0] += 1 << bits
    return int(to)


@njit_borrowing
def _leave_block(lists: Lists, user: int) -> None:
    bits = lists.bits[user]
    start = lists.start[user]
    if bits > 0:
        lists.items[start] = lists.free[bits]
        lists.free[bits] = start


@njit_borrowing
def _leave_all(lists: Lists, users: Rows) -> None:
    for user in users:
        _leave_block(lists, user)
        lists.bits[user] = 0
        lists.length[user] = 0


@njit_borrowing
def _make_room(lists: Lists, user: int, places: int) -> None:
    """See that a user's block has this many places; its list moves with it."""
    if places <= _room(lists, user):
        return
    bits = 1
    while (1 << bits) < places:
        bits += 1
    start = lists.start[user]
    to = _take_block(lists, bits)
    for k in range(lists.length[user]):
        lists.items[to + k] = lists.items[start + k]
        lists.times_s[to + k] = lists.times_s[start + k]
        lists.counts[to + k] = lists.counts[start + k]
    _leave_block(lists, user)
    lists.start[user] = to
    lists.bits[user] = bits


@njit_borrowing
def _sweep(lists: Lists, users: Rows, retired: Flags) -> None:
    """Take retired items out of lists; the others move up in their order."""
    for user in users:
        start = lists.start[user]
        left = lists.start[user]
        for k in range(start, start + lists.length[user]):
            if is_retired(retired, lists.items[k]):
                continue
            lists.items[left] = lists.items[k]
            lists.times_s[left] = lists.times_s[k]
            lists.counts[left] = lists.counts[k]
            left += 1
        lists.length[user] = left - start


@njit_borrowing
def _observe(
    lists: Lists,
    longest: int,
    users: Rows,
    items: Rows,
    times_s: Seconds,
    retired: Flags,
    seen: History,
) -> None:
    if longest == 0:
        return
    for b in range(len(users)):
        user = users[b]
        item = np.int32(items[b])
        if len(retired):
            _sweep(lists, users[b : b + 1], retired)
        start = lists.start[user]
        length = lists.length[user]
        place = length
        count = np.uint8(1)
        for k in range(length):
            seen.items[b, k] = lists.items[start + k]
            seen.times_s[b, k] = lists.times_s[start + k]
            seen.counts[b, k] = lists.counts[start + k]
            if lists.items[start + k] == item:
                place = k
                count = np.uint8(min(lists.counts[start + k] + 1, 255))
        if place == length:
            place = min(length, longest - 1)
            _make_room(lists, user, place + 1)
            start = lists.start[user]
            lists.length[user] = max(length, place + 1)
        for k in range(start + place, start, -1):
            lists.items[k] = lists.items[k - 1]
            lists.times_s[k] = lists.times_s[k - 1]
            lists.counts[k] = lists.counts[k - 1]
        lists.items[start] = item
        lists.times_s[start] = times_s[b]
        lists.counts[start] = count


@njit_borrowing
def _copy(
    lists: Lists, users: Rows, known: Rows, retired: Flags, found: History
) -> None:
    for b in known:
        start = lists.start[users[b]]
        to = 0
        for k in range(start, start + lists.length[users[b]]):
            if not is_retired(retired, lists.items[k]):
                found.items[b, to] = lists.items[k]
                found.times_s[b, to] = lists.times_s[k]
                found.counts[b, to] = lists.counts[k]
                to += 1


@njit_borrowing
def _put(
    lists: Lists,
    users: Rows,
    length: NDArray[np.uint8],
    longest: int,
    items: NDArray[np.int32],
    times_s: Seconds,
    counts: NDArray[np.uint8],
) -> None:
    at = 0
    for k in range(len(users)):
        user = users[k]
        kept = min(int(length[k]), longest)
        lists.length[user] = 0
        _make_room(lists, user, kept)
        start = lists.start[user]
        for m in range(kept):
            lists.items[start + m] = items[at + m]
            lists.times_s[start + m] = times_s[at + m]
            lists.counts[start + m] = counts[at + m]
        lists.length[user] = kept
        at += length[k]
