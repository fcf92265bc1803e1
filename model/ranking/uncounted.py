"""Events of a query that nobody has counted yet: they are counted while its candidates
are described, and taken back then.

So a query is described as training would describe it: there, what a user did before an
event has always been counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from streamer.model.batch import Doubles, Ints, Rows
from streamer.model.jit import njit_borrowing
from streamer.model.ranking.co_occurrence import (
    MAX_PAIR_DISTANCE,
    Neighbours,
    max_block_bits,
    pair_up,
)
from streamer.model.ranking.windows import (
    BeforeEvent,
    ItemEvents,
    Latest,
    count_event,
    note_event,
    take_back_event,
)
from streamer.model.rows.lists import copy_within
from streamer.model.rows.recent_items import UserHistory

_ONE = np.float32(1)
"""The weight of an event that is not learned yet."""


class UserEvents(NamedTuple):
    """Events of a user, oldest first."""

    items: Rows  # [e]
    times_s: Ints  # [e]
    history: UserHistory  # [e, L] as of each event

    @classmethod
    def none(cls, length: int) -> UserEvents:
        """No events of a user with so many recent items."""
        rows = np.empty(0, np.int64)
        return cls(rows, rows.astype(np.int32), UserHistory.empty(0, length))


class QueryEvents(NamedTuple):
    """Uncounted events of queries; those of k are `first[k]` to `first[k + 1]`."""

    first: Rows  # [n + 1]
    items: Rows
    times_s: Ints
    history: UserHistory

    @classmethod
    def of(cls, queries: Sequence[UserEvents]) -> QueryEvents:
        """Those of each query, one after the other; at least one query."""
        sizes = [len(query.items) for query in queries]
        histories = zip(*(query.history for query in queries), strict=True)
        return cls(
            np.concatenate([[0], np.cumsum(sizes)]),
            np.concatenate([query.items for query in queries]),
            np.concatenate([query.times_s for query in queries]),
            UserHistory(*map(np.concatenate, histories)),
        )

    @property
    def max_events(self) -> int:
        """Events that a query has, at most."""
        return int(np.diff(self.first).max())

    @property
    def max_lists(self) -> int:
        """Lists of neighbours that the events of a query change, at most."""
        max_recent = int(self.history.items.shape[1])
        return self.max_events + max_recent


class BeforeQuery(IntEnum):
    """Columns of what is noted of an item whose list of neighbours changes."""

    ITEM = 0
    START = 1
    BITS = 2
    LENGTH = 3
    TOTAL = 4
    TIMED_TOTAL = 5


class Notes(NamedTuple):
    """What the events of a query change, as it was before them."""

    lists: Doubles  # [max_lists, BeforeQuery]
    events: Rows  # [max_events, BeforeEvent]
    changed: Rows  # [1] lists that are noted

    @classmethod
    def reserve(cls, queries: QueryEvents) -> Notes:
        """Room for the notes of one query after the other."""
        return cls(
            np.empty((queries.max_lists, len(BeforeQuery))),
            np.empty((queries.max_events, len(BeforeEvent)), np.int64),
            np.zeros(1, np.int64),
        )


@njit_borrowing
def count_query(
    neighbours: Neighbours,
    counts: ItemEvents,
    latest: Latest,
    number: int,
    queries: QueryEvents,
    k: int,
    notes: Notes,
) -> None:
    """Count the events of a query from event `number` on, as those of training are; the
    pool has room for a copy of each list that they change.
    """
    notes.changed[0] = 0
    first = queries.first[k]
    for event in range(first, queries.first[k + 1]):
        item = queries.items[event]
        time_s = queries.times_s[event]
        recent = queries.history.items[event]
        recent_s = queries.history.times_s[event]
        _change_copy(neighbours, item, notes)
        for other in recent[:MAX_PAIR_DISTANCE]:
            if other >= 0:
                _change_copy(neighbours, other, notes)
        pair_up(neighbours, item, time_s, recent, recent_s, _ONE)

        n = number + event - first
        note_event(counts, latest, n, item, notes.events[event - first])
        count_event(counts, latest, n, item, time_s, recent, _ONE)


@njit_borrowing
def take_back_query(
    neighbours: Neighbours,
    counts: ItemEvents,
    latest: Latest,
    number: int,
    queries: QueryEvents,
    k: int,
    notes: Notes,
) -> None:
    """Undo `count_query`."""
    for event in range(queries.first[k + 1] - queries.first[k] - 1, -1, -1):
        take_back_event(counts, latest, number + event, notes.events[event])

    lists = neighbours.lists
    for note in notes.lists[: notes.changed[0]]:
        item = np.int64(note[BeforeQuery.ITEM])
        lists.blocks.start[item] = note[BeforeQuery.START]
        lists.blocks.bits[item] = note[BeforeQuery.BITS]
        lists.length[item] = note[BeforeQuery.LENGTH]
        neighbours.total[item] = note[BeforeQuery.TOTAL]
        neighbours.timed_total[item] = note[BeforeQuery.TIMED_TOTAL]


@njit_borrowing
def _change_copy(neighbours: Neighbours, item: int, notes: Notes) -> None:
    """See that an item's list is a copy, behind the end of the pool, with room for as
    many neighbours as it may have.
    """
    lists = neighbours.lists
    blocks = lists.blocks
    start = blocks.start[item]
    end = blocks.end[0]
    if blocks.bits[item] > 0 and start >= end:
        return  # it is one already
    note = notes.lists[notes.changed[0]]
    note[BeforeQuery.ITEM] = item
    note[BeforeQuery.START] = start
    note[BeforeQuery.BITS] = blocks.bits[item]
    note[BeforeQuery.LENGTH] = lists.length[item]
    note[BeforeQuery.TOTAL] = neighbours.total[item]
    note[BeforeQuery.TIMED_TOTAL] = neighbours.timed_total[item]

    bits = max_block_bits(neighbours.max_length)
    to = end + (notes.changed[0] << bits)
    for place in range(lists.length[item]):
        copy_within(lists.pool, start + place, to + place)
    blocks.start[item] = to
    blocks.bits[item] = bits
    notes.changed[0] += 1
