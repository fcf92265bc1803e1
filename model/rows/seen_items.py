"""Which items each user had, as of each event."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows
from streamer.model.jit import njit_allocating, njit_borrowing
from streamer.model.ranking.pair_counts import PairCounts, Pool, has
from streamer.model.rows.by_rows import Arrays, ByRows, held
from streamer.model.rows.retired import RetiredItems

_SHORT = 32
"""Items that are sorted by insertion."""


class SeenBefore(NamedTuple):
    """What the users of n events had before them, of those events whose item was new to
    its user.

    Args:
        fresh: [n] whether the event's item was new to its user.
        first: [n + 1] event k's items are `items[first[k]:first[k + 1]]`; none if it is
            not fresh.
        items: item rows, each once an event.
    """

    fresh: NDArray[np.bool_]
    first: Rows
    items: NDArray[np.int32]

    @classmethod
    def unknown(cls, events: int) -> SeenBefore:
        """Nobody knows what the users had: no event counts as new."""
        return cls(
            np.zeros(events, np.bool_),
            np.zeros(events + 1, np.int64),
            np.empty(0, np.int32),
        )


class UserItems(ByRows):
    """The distinct items of every user, in compact tables: about ten bytes a user and
    item.

    Args:
        retired: items that nobody had any more.
    """

    def __init__(self, retired: RetiredItems | None = None) -> None:
        self.retired = retired or RetiredItems()
        self.clear()

    def before(self, users: Rows, items: Rows, ranked: Rows) -> SeenBefore:
        """What the users of some events (`ranked`, ascending) of a batch had before
        them.

        An event sees all earlier events of its user, those of the batch too.
        """
        earlier = _earlier_of_user(users)
        fresh = np.empty(len(ranked), np.bool_)
        first = np.zeros(len(ranked) + 1, np.int64)
        _count(self._pairs.pool, users, items, earlier, ranked, fresh, first)
        found = np.empty(first[-1], np.int32)
        kept = _gather(
            self._pairs.pool, users, items, earlier, ranked, fresh, first, found
        )
        return SeenBefore(fresh, first, found[:kept])

    def had(
        self,
        users: Rows,
        items: Rows,
        ranked: Rows,
        first: Rows,
        candidates: NDArray[np.int32],
    ) -> NDArray[np.bool_]:
        """[c] whether the users of some events (`ranked`) had their candidates before
        them, as `before` counts it.

        Event `ranked[k]` has those from `first[k]` to `first[k + 1]`.
        """
        found = np.empty(len(candidates), np.bool_)
        _had(
            self._pairs.pool,
            users,
            items,
            _earlier_of_user(users),
            ranked,
            first,
            candidates,
            found,
        )
        return found

    def of(self, user: int) -> Rows:
        """The items of a user now, ascending."""
        items: Rows = self.take(np.array([user]))["items"].astype(np.int64)
        kept: NDArray[np.bool_] = held(self.retired.flags, items) == 0
        return items[kept]

    @property
    def nbytes(self) -> int:
        return self._pairs.nbytes

    def observe(self, users: Rows, items: Rows) -> None:
        """Take events in."""
        self._pairs.add(users, items)

    @property
    def size(self) -> int:  # type: ignore[override]
        return len(np.trim_zeros(self._pairs.pool.used, "b"))

    def take(self, rows: Rows) -> Arrays:
        """The items of these users, one after the other, each user's in ascending
        order, and how many each has.
        """
        counts = held(self._pairs.pool.used, rows)
        items = np.empty(counts.sum(), np.int32)
        _list(self._pairs.pool, rows, items)
        return {"counts": counts, "items": items}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self._pairs.put(rows, arrays["counts"], arrays["items"])

    def forget(self, users: Rows) -> None:
        """Retire users."""
        self._pairs.drop(users)

    def with_retired(self, users: Rows) -> Rows:
        """Those of some users who had a retired item."""
        return self._pairs.with_keys(users, self.retired.flags)

    def sweep(self, users: Rows) -> None:
        """Take retired items out of what users had."""
        self._pairs.remove_keys(users, self.retired.flags)

    def dense(self) -> Arrays:
        return {}

    def load_dense(self, arrays: Arrays) -> None:
        pass

    def clear(self) -> None:
        self._pairs = PairCounts(counted=False)


def _earlier_of_user(users: Rows) -> Rows:
    """For each event the one before it of the same user in this batch; -1 if there is
    none.
    """
    order = np.argsort(users, kind="stable")
    earlier = np.full(len(users), -1)
    same = users[order][1:] == users[order][:-1]
    earlier[order[1:][same]] = order[:-1][same]
    return earlier


@njit_borrowing
def _count(
    pool: Pool,
    users: Rows,
    items: Rows,
    earlier: Rows,
    ranked: Rows,
    fresh: NDArray[np.bool_],
    first: Rows,
) -> None:
    """Tell fresh events, and leave room for all that their users may have had."""
    for k in range(len(ranked)):
        event = ranked[k]
        user = users[event]
        item = items[event]
        known = has(pool, user, item)
        room = pool.used[user] if user < len(pool.used) else 0
        before = earlier[event]
        while before >= 0:
            known = known or items[before] == item
            room += 1
            before = earlier[before]
        fresh[k] = not known
        first[k + 1] = first[k] + (0 if known else room)


@njit_borrowing
def _gather(
    pool: Pool,
    users: Rows,
    items: Rows,
    earlier: Rows,
    ranked: Rows,
    fresh: NDArray[np.bool_],
    first: Rows,
    found: NDArray[np.int32],
) -> int:
    """Write each fresh event's items without repetition, close together, and `first`
    anew; returns how many.
    """
    to = 0
    for k in range(len(ranked)):
        first[k] = to
        if not fresh[k]:
            continue
        user = users[ranked[k]]
        if user < len(pool.start) and pool.start[user] >= 0:
            for slot in range(
                pool.start[user], pool.start[user] + (1 << pool.bits[user])
            ):
                if pool.keys[slot] >= 0:
                    found[to] = pool.keys[slot]
                    to += 1
        begin = to
        before = earlier[ranked[k]]
        while before >= 0:
            item = items[before]
            double = has(pool, user, item)
            for place in range(begin, to):
                double = double or found[place] == item
            if not double:
                found[to] = item
                to += 1
            before = earlier[before]
    first[len(ranked)] = to
    return to


@njit_allocating
def _had(
    pool: Pool,
    users: Rows,
    items: Rows,
    earlier: Rows,
    ranked: Rows,
    first: Rows,
    candidates: NDArray[np.int32],
    found: NDArray[np.bool_],
) -> None:
    of_batch = np.empty(len(users), np.int64)
    for k in range(len(ranked)):
        event = ranked[k]
        count = 0
        before = earlier[event]
        while before >= 0:
            of_batch[count] = items[before]
            count += 1
            before = earlier[before]
        lately = np.sort(of_batch[:count])
        for c in range(first[k], first[k + 1]):
            item = candidates[c]
            at = np.searchsorted(lately, item)
            found[c] = has(pool, users[event], item) or (
                at < count and lately[at] == item
            )


@njit_allocating
def _list(pool: Pool, users: Rows, items: NDArray[np.int32]) -> None:
    to = 0
    for user in users:
        if user >= len(pool.start) or pool.start[user] < 0:
            continue
        first = to
        for slot in range(pool.start[user], pool.start[user] + (1 << pool.bits[user])):
            if pool.keys[slot] >= 0:
                items[to] = pool.keys[slot]
                to += 1
        if to - first > _SHORT:
            items[first:to].sort()
            continue
        for k in range(first + 1, to):  # many times faster where there are few
            item = items[k]
            place = k
            while place > first and items[place - 1] > item:
                items[place] = items[place - 1]
                place -= 1
            items[place] = item
