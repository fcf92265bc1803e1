"""The walk through events and queries: candidates are gathered and described one event
after the other, by what was counted before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamer.model.batch import Floats, Ints, Rows
from streamer.model.jit import inlined, mixed, njit_borrowing
from streamer.model.ranking.co_occurrence import (
    GAP_S,
    Neighbours,
    Weight,
    is_full,
    pair_up,
)
from streamer.model.ranking.features import (
    Near,
    bucket_of,
    describe_nearness,
    describe_next,
    describe_popularity,
    describe_recent,
)
from streamer.model.ranking.uncounted import (
    Notes,
    QueryEvents,
    count_query,
    take_back_query,
)
from streamer.model.ranking.windows import ItemEvents, Latest, count_event
from streamer.model.rows.recent_items import UserHistory
from streamer.model.rows.retired import is_retired

_SMALLEST_WEIGHT = np.float32(1e-30)


class Counted(NamedTuple):
    """What was counted before an event."""

    neighbours: Neighbours
    items: ItemEvents
    latest: Latest
    events: int


class Walked(NamedTuple):
    """The events that are walked through, and those whose candidates are wanted."""

    items: Rows  # [B] -1 where there is no target
    times_s: Ints  # [B]
    history: UserHistory  # [B, L]
    wanted: Rows  # [n] places of events, ascending
    extra: Rows  # [n, x] further candidates of each, -1 for none
    drawn: Rows  # [n] about how many of its candidates are kept; 0 keeps all
    popular: Ints
    weights: Floats  # [B] how much each event counts


class Memory(NamedTuple):
    """What the walk fills; see `Candidates`."""

    first: Rows
    items: Ints
    features: Floats
    target: Rows
    bucket: Rows
    place: Ints  # [N] of each item among the candidates of an event; -1 between events
    sums: Floats  # [m, Near] of an event's candidates, as many as it may have


@njit_borrowing
def describe_events(counted: Counted, walked: Walked, out: Memory, at: Rows) -> None:
    """Describe the candidates of wanted events, and count each event after that. Walks
    on from `at` until all are done or there is no room for the next.
    """
    neighbours = counted.neighbours
    history = walked.history
    while at[0] < len(walked.items):
        event = at[0]
        if is_full(neighbours):
            return
        while at[1] < len(walked.wanted) and walked.wanted[at[1]] == event:
            if not has_room(out, at):
                return
            _describe_next(counted, walked, out, at)

        item = walked.items[event]
        time_s = walked.times_s[event]
        recent = history.items[event]
        weight = walked.weights[event]
        pair_up(neighbours, item, time_s, recent, history.times_s[event], weight)
        number = counted.events + event
        count_event(counted.items, counted.latest, number, item, time_s, recent, weight)
        at[0] += 1


@njit_borrowing
def describe_queries(
    counted: Counted,
    walked: Walked,
    queries: QueryEvents,
    notes: Notes,
    out: Memory,
    at: Rows,
) -> None:
    """Describe the candidates of queries, each as if its own events had been counted.
    Walks on from `at` until all are done or there is no room for the next.
    """
    neighbours = counted.neighbours
    items = counted.items
    latest = counted.latest
    while at[0] < len(walked.items):
        if not has_room(out, at):
            return
        k = at[0]
        count_query(neighbours, items, latest, counted.events, queries, k, notes)
        _describe_next(counted, walked, out, at)
        take_back_query(neighbours, items, latest, counted.events, queries, k, notes)
        at[0] += 1


@njit_borrowing
def has_room(out: Memory, at: Rows) -> bool:
    """Whether the candidates of another event find room."""
    return bool(at[2] + len(out.sums) <= len(out.items))


@njit_borrowing
def _describe_next(counted: Counted, walked: Walked, out: Memory, at: Rows) -> None:
    """Describe the candidates of the next wanted event."""
    k = at[1]
    first = at[2]
    event = walked.wanted[k]
    item = walked.items[event]
    end = _gather(counted.neighbours, walked, k, out, first)
    if item >= 0:
        out.target[k] = out.place[item]
    for c in range(first, end):
        out.place[out.items[c]] = -1
    share = 1.0
    if walked.drawn[k] > 0:
        share = 0.0
        if out.target[k] >= 0:
            share = min(walked.drawn[k] / (end - first), 1.0)
    end = _describe(counted, walked, k, share, out, first, end)
    out.bucket[k] = bucket_of(walked.history.items[event])
    out.first[k + 1] = end
    at[1] += 1
    at[2] = end


@inlined
def _add_candidate(item: int, out: Memory, first: int, n: int) -> int:
    """Make an item a candidate, if it is none yet; returns where they end."""
    if out.place[item] < 0:
        out.place[item] = n
        out.items[n] = item
        out.sums[n - first] = 0
        n += 1
    return n


@njit_borrowing
def _gather(
    neighbours: Neighbours, walked: Walked, k: int, out: Memory, first: int
) -> int:
    """Write the candidates of a wanted event from `first` on, and add up their
    nearness; returns where they end.

    The recent items come first, in their order.
    """
    lists = neighbours.lists
    pool = lists.pool
    event = walked.wanted[k]
    time_s = walked.times_s[event]
    recent = walked.history.items[event]
    recent_s = walked.history.times_s[event]
    n = first
    L = len(recent)
    for place in range(L):
        if recent[place] < 0:
            break
        n = _add_candidate(recent[place], out, first, n)

    rank = 0  # items of one second share that of the first
    for place in range(L):
        r = recent[place]
        if r < 0:
            break
        if place > 0 and recent_s[place] != recent_s[place - 1]:
            rank = place
        share = np.float32(1) / np.sqrt(max(neighbours.total[r], np.float32(1)))
        near = np.float32(1) / np.float32(rank + 1)
        gap = np.exp(-np.float32(max(time_s - recent_s[place], 0)) / GAP_S)
        timed = near * gap / np.sqrt(max(neighbours.timed_total[r], np.float32(1e-3)))
        group = Near.OF_LAST + (rank > 0) + (rank > 2) + (rank > 9)
        start = lists.blocks.start[r]
        for m in range(start, start + lists.length[r]):
            if is_retired(neighbours.retired, pool.items[m]):
                continue
            n = _add_candidate(pool.items[m], out, first, n)
            sums = out.sums[out.place[pool.items[m]] - first]
            weight = share * pool.weights[m, Weight.PLAIN]
            sums[Near.WEIGHT] += near * weight
            sums[Near.TIMED] += timed * pool.weights[m, Weight.TIMED]
            sums[group] += weight
            sums[Near.MOST] = max(sums[Near.MOST], near * weight)
            sums[Near.SUPPORT] += np.float32(1)
            if place == 0:
                sums[Near.NEXT] = pool.next[m]

    for item in walked.popular:
        n = _add_candidate(item, out, first, n)
    for item in walked.extra[k]:
        if item >= 0:
            n = _add_candidate(item, out, first, n)
    return n


@njit_borrowing
def _describe(
    counted: Counted,
    walked: Walked,
    k: int,
    share: float,
    out: Memory,
    first: int,
    end: int,
) -> int:
    """Write the features of a wanted event's candidates; returns where they end.

    Of a share of them, if that is less than 1, which is drawn by the number of the
    event, and of its own item.
    """
    event = walked.wanted[k]
    number = counted.events + event
    time_s = walked.times_s[event]
    recent = walked.history.items[event]
    max_weight = _SMALLEST_WEIGHT
    max_timed = _SMALLEST_WEIGHT
    all_next = np.float32(0)
    for c in range(end - first):
        max_weight = max(max_weight, out.sums[c, Near.WEIGHT])
        max_timed = max(max_timed, out.sums[c, Near.TIMED])
        all_next += out.sums[c, Near.NEXT]

    n = first
    target = out.target[k]
    limit = np.uint64(share * 2.0**32)
    for c in range(end - first):
        item = out.items[first + c]
        if first + c == target:
            out.target[k] = n
        elif _drawn(number, item) >= limit:
            continue
        # those that are left out leave no gap
        out.items[n] = item
        x = out.features[n]
        n += 1
        x[:] = 0
        describe_nearness(x, out.sums[c], max_weight, max_timed)
        describe_next(x, out.sums[c, Near.NEXT], all_next)
        describe_popularity(x, counted.items, item, time_s)
        if c < len(recent) and recent[c] == item:
            describe_recent(x, counted.items, walked.history, event, c, time_s)
    return n


@inlined
def _drawn(event: int, item: int) -> np.uint64:
    """A number below 2**32, the same whenever it is asked for."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    return mixed(np.uint64(event) * golden + np.uint64(item)) >> np.uint64(32)
