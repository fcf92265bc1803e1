"""Which items each user has seen, as of each event."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamer.model.batch import Bools, Ints, Rows
from streamer.model.jit import njit_allocating, njit_borrowing
from streamer.model.rows.by_rows import Arrays, ByRows, take_or_fill
from streamer.model.rows.pair_counts import EMPTY, PairCounts, Pool, contains, slots_of
from streamer.model.rows.retired import RetiredItems

_SHORT = 32
"""Items that are sorted by insertion."""


class SeenBefore(NamedTuple):
    """What the users of n events had seen before them, of those events whose item was
    new to its user.

    Args:
        fresh: [n] whether the event's item was new to its user.
        first: [n + 1] event k's items are `items[first[k]:first[k + 1]]`; none if it is
            not fresh.
        items: item rows, each once an event.
    """

    fresh: Bools
    first: Rows
    items: Ints

    @classmethod
    def unknown(cls, events: int) -> SeenBefore:
        """Nobody knows what the users have seen: no event counts as new."""
        return cls(
            np.zeros(events, np.bool_),
            np.zeros(events + 1, np.int64),
            np.empty(0, np.int32),
        )


class _BatchEvents(NamedTuple):
    """Events of a batch, and those of them that are ranked."""

    users: Rows  # [B]
    items: Rows  # [B]
    earlier: Rows  # [B] the event before it of the same user in this batch; -1: none
    ranked: Rows  # [n] ascending

    @classmethod
    def of(cls, users: Rows, items: Rows, ranked: Rows) -> _BatchEvents:
        order = np.argsort(users, kind="stable")
        earlier = np.full(len(users), -1)
        same = users[order][1:] == users[order][:-1]
        earlier[order[1:][same]] = order[:-1][same]
        return cls(users, items, earlier, ranked)


class UserItems(ByRows):
    """The distinct items of every user, in compact tables: about ten bytes a user and
    item.

    Args:
        retired: items that count as seen by nobody.
    """

    def __init__(self, retired: RetiredItems | None = None) -> None:
        self.retired = retired or RetiredItems()
        self.clear()

    def before(self, users: Rows, items: Rows, ranked: Rows) -> SeenBefore:
        """What the users of some events (`ranked`, ascending) of a batch had seen
        before them.

        An event sees all earlier events of its user, those of the batch too.
        """
        batch = _BatchEvents.of(users, items, ranked)
        fresh = np.empty(len(ranked), np.bool_)
        first = np.zeros(len(ranked) + 1, np.int64)
        _find_fresh(self._pairs.pool, batch, fresh, first)
        found = np.empty(first[-1], np.int32)
        kept = _gather(self._pairs.pool, batch, fresh, first, found)
        return SeenBefore(fresh, first, found[:kept])

    def contains(
        self, users: Rows, items: Rows, ranked: Rows, first: Rows, candidates: Ints
    ) -> Bools:
        """[c] whether the users of some events (`ranked`) had seen their candidates
        before them, as `before` counts it.

        Event `ranked[k]` has those from `first[k]` to `first[k + 1]`.
        """
        found = np.empty(len(candidates), np.bool_)
        batch = _BatchEvents.of(users, items, ranked)
        _find_seen(self._pairs.pool, batch, first, candidates, found)
        return found

    def of(self, user: int) -> Rows:
        """The items of a user now, ascending."""
        items: Rows = self.take(np.array([user]))["items"].astype(np.int64)
        kept: Bools = take_or_fill(self.retired.flags, items) == 0
        return items[kept]

    def observe(self, users: Rows, items: Rows) -> None:
        """Take events in."""
        self._pairs.add(users, items)

    @property
    def nbytes(self) -> int:
        return self._pairs.nbytes

    @property
    def size(self) -> int:  # type: ignore[override]
        return len(np.trim_zeros(self._pairs.pool.used, "b"))

    def take(self, rows: Rows) -> Arrays:
        """The items of these users, one after the other, each user's in ascending
        order, and how many each has.
        """
        counts = take_or_fill(self._pairs.pool.used, rows)
        items = np.empty(counts.sum(), np.int32)
        _list(self._pairs.pool, rows, items)
        return {"counts": counts, "items": items}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self._pairs.put(rows, arrays["counts"], arrays["items"])

    def forget(self, users: Rows) -> None:
        """Retire users."""
        self._pairs.drop(users)

    def with_retired(self, users: Rows) -> Rows:
        """Those of some users who have seen a retired item."""
        return self._pairs.with_keys(users, self.retired.flags)

    def sweep(self, users: Rows) -> None:
        """Take retired items out of what users have seen."""
        self._pairs.remove_keys(users, self.retired.flags)

    def dense(self) -> Arrays:
        return {}

    def load_dense(self, arrays: Arrays) -> None:
        pass

    def clear(self) -> None:
        self._pairs = PairCounts(counted=False)


@njit_borrowing
def _find_fresh(pool: Pool, batch: _BatchEvents, fresh: Bools, first: Rows) -> None:
    """Tell fresh events, and leave room for all that their users may have seen."""
    for k in range(len(batch.ranked)):
        event = batch.ranked[k]
        user = batch.users[event]
        item = batch.items[event]
        known = contains(pool, user, item)
        room = pool.used[user] if user < len(pool.used) else 0
        before = batch.earlier[event]
        while before >= 0:
            known = known or batch.items[before] == item
            room += 1
            before = batch.earlier[before]
        fresh[k] = not known
        first[k + 1] = first[k] + (0 if known else room)


@njit_borrowing
def _gather(
    pool: Pool, batch: _BatchEvents, fresh: Bools, first: Rows, found: Ints
) -> int:
    """Write each fresh event's items without repetition, close together, and `first`
    anew; returns how many.
    """
    to = 0
    for k in range(len(batch.ranked)):
        first[k] = to
        if not fresh[k]:
            continue
        user = batch.users[batch.ranked[k]]
        for slot in slots_of(pool, user):
            if pool.keys[slot] != EMPTY:
                found[to] = pool.keys[slot]
                to += 1

        # the table has each item once; only those of this batch may repeat
        begin = to
        before = batch.earlier[batch.ranked[k]]
        while before >= 0:
            item = batch.items[before]
            double = contains(pool, user, item)
            for place in range(begin, to):
                double = double or found[place] == item
            if not double:
                found[to] = item
                to += 1
            before = batch.earlier[before]
    first[len(batch.ranked)] = to
    return to


@njit_allocating
def _find_seen(
    pool: Pool, batch: _BatchEvents, first: Rows, candidates: Ints, found: Bools
) -> None:
    of_batch = np.empty(len(batch.users), np.int64)
    for k in range(len(batch.ranked)):
        event = batch.ranked[k]
        count = 0
        before = batch.earlier[event]
        while before >= 0:
            of_batch[count] = batch.items[before]
            count += 1
            before = batch.earlier[before]
        ordered = np.sort(of_batch[:count])
        for c in range(first[k], first[k + 1]):
            item = candidates[c]
            at = np.searchsorted(ordered, item)
            found[c] = contains(pool, batch.users[event], item) or (
                at < count and ordered[at] == item
            )


@njit_allocating
def _list(pool: Pool, users: Rows, items: Ints) -> None:
    """Write the items of users, those of each in ascending order."""
    to = 0
    for user in users:
        first = to
        for slot in slots_of(pool, user):
            if pool.keys[slot] != EMPTY:
                items[to] = pool.keys[slot]
                to += 1
        if to - first > _SHORT:
            items[first:to].sort()
            continue
        # insertion is many times faster where there are few
        for k in range(first + 1, to):
            item = items[k]
            place = k
            while place > first and items[place - 1] > item:
                items[place] = items[place - 1]
                place -= 1
            items[place] = item
