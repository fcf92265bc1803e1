"""Which items each user has seen, as of each event."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Bools, Ints, Rows
from streamer.model.jit import njit_allocating, njit_borrowing
from streamer.model.rows.by_rows import Arrays, take_or_fill
from streamer.model.rows.growing import grown
from streamer.model.rows.lists import ItemLists, Lists, make_room
from streamer.model.rows.retired import RetiredItems

_NO_LIMIT = 1 << 31


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
        ordered = users[order]
        same = ordered[1:] == ordered[:-1]
        earlier[order[1:][same]] = order[:-1][same]
        return cls(users, items, earlier, ranked)


class _SeenPool(NamedTuple):
    """Columns of the lists of all users; nothing is kept beside an item."""

    items: Ints  # ascending
    nothing: NDArray[np.uint8]
    nothing_else: NDArray[np.uint8]


class UserItems(ItemLists):
    """The distinct items of every user, ascending: about six bytes a user and item.

    Args:
        retired: items that count as seen by nobody.
    """

    def __init__(self, retired: RetiredItems | None = None) -> None:
        none = np.empty(0, np.int32)
        super().__init__(_NO_LIMIT, _pool_of(none), none, retired)

    def extend(self, places: int) -> None:
        size = int(self.lists.blocks.end[0]) + places
        items = grown(self.lists.pool.items, size)
        self.lists = self.lists._replace(pool=_pool_of(items))

    def before(self, users: Rows, items: Rows, ranked: Rows) -> SeenBefore:
        """What the users of some events (`ranked`, ascending) of a batch had seen
        before them.

        An event sees all earlier events of its user, those of the batch too.
        """
        batch = _BatchEvents.of(users, items, ranked)
        each = np.arange(len(users) + 1)
        fresh = ~self.contains(
            users,
            items,
            each[:-1],
            each,
            items.astype(np.int32),
        )
        first = np.zeros(len(ranked) + 1, np.int64)
        count = _gather(
            self.lists,
            batch,
            fresh,
            first,
            np.empty(0, np.int32),
        )
        found = np.empty(count, np.int32)
        _gather(self.lists, batch, fresh, first, found)
        return SeenBefore(fresh[ranked], first, found)

    def contains(
        self,
        users: Rows,
        items: Rows,
        ranked: Rows,
        first: Rows,
        candidates: Ints,
    ) -> Bools:
        """[c] whether the users of some events (`ranked`) had seen their candidates
        before them, as `before` counts it.

        Event `ranked[k]` has those from `first[k]` to `first[k + 1]`.
        """
        found = np.empty(len(candidates), np.bool_)
        batch = _BatchEvents.of(users, items, ranked)
        _find_seen(self.lists, batch, first, candidates, found)
        return found

    def of(self, user: int) -> Rows:
        """The items of a user now, ascending."""
        found = self.take(np.array([user]))
        items: Rows = found["items"].astype(np.int64)
        kept: Bools = take_or_fill(self.retired.flags, items) == 0
        return items[kept]

    def observe(self, users: Rows, items: Rows) -> None:
        """Take events in."""
        self.reserve(int(users.max(initial=-1)) + 1)
        done = _observe(self.lists, users, items, 0)
        while done < len(users):
            self.extend(_room(self.lists, users[done]))
            done = _observe(self.lists, users, items, done)

    def take(self, rows: Rows) -> Arrays:
        """The items of these users, one after the other, each user's in ascending
        order, and how many each has.
        """
        found = super().take(rows)
        return {
            "counts": found["length"],
            "items": found["items"],
        }

    def put(self, rows: Rows, arrays: Arrays) -> None:
        given = _pool_of(arrays["items"])._asdict()
        super().put(rows, given | {"length": arrays["counts"]})

    def dense(self) -> Arrays:
        return {}

    def load_dense(self, arrays: Arrays) -> None:
        pass


def _pool_of(items: Ints) -> _SeenPool:
    nothing = np.empty(0, np.uint8)
    return _SeenPool(items, nothing, nothing)


@njit_borrowing
def _room(lists: Lists, user: int) -> int:
    """Places of the pool that another item of a user may need."""
    return 2 * int(lists.length[user]) + 2


@njit_borrowing
def _find(lists: Lists, user: int, item: int) -> int:
    """The place of an item in a user's list; if it is none of them, -1 minus the place
    where it belongs.
    """
    if user >= len(lists.length):
        return -1
    start = lists.blocks.start[user]
    low = 0
    high = int(lists.length[user])
    while low < high:
        middle = (low + high) // 2
        found = lists.pool.items[start + middle]
        if found == item:
            return middle
        if found < item:
            low = middle + 1
        else:
            high = middle
    return -1 - low


@njit_borrowing
def _observe(
    lists: Lists,
    users: Rows,
    items: Rows,
    done: int,
) -> int:
    """Take in events from number `done` on; returns how many are when all are, or the
    pool has no room for the next.
    """
    pool = lists.pool
    for k in range(done, len(users)):
        user = users[k]
        if lists.blocks.end[0] + _room(lists, user) > len(pool.items):
            return k
        place = _find(lists, user, items[k])
        if place < 0:
            length = lists.length[user]
            start = make_room(lists, user, length + 1)
            at = start - 1 - place
            for m in range(start + length, at, -1):
                pool.items[m] = pool.items[m - 1]
            pool.items[at] = items[k]
            lists.length[user] = length + 1
    return len(users)


@njit_borrowing
def _gather(
    lists: Lists,
    batch: _BatchEvents,
    fresh: Bools,
    first: Rows,
    found: Ints,
) -> int:
    """Write where each fresh event's items begin, and the items without repetition if
    there is room for any; returns how many.
    """
    to = 0
    for k in range(len(batch.ranked)):
        event = batch.ranked[k]
        user = batch.users[event]
        if fresh[event]:
            if user < len(lists.length):
                start = lists.blocks.start[user]
                for place in range(start, start + lists.length[user]):
                    if len(found):
                        found[to] = lists.pool.items[place]
                    to += 1
            event = batch.earlier[event]
            while event >= 0:
                if fresh[event]:
                    if len(found):
                        found[to] = batch.items[event]
                    to += 1
                event = batch.earlier[event]
        first[k + 1] = to
    return to


@njit_allocating
def _find_seen(
    lists: Lists,
    batch: _BatchEvents,
    first: Rows,
    candidates: Ints,
    found: Bools,
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
            found[c] = _find(lists, batch.users[event], item) >= 0 or (
                at < count and ordered[at] == item
            )
