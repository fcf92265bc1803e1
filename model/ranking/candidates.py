"""Candidates of an event or a user, each with its features.

Candidates are the user's recent items, their neighbours, items that are popular in the
latest events, and whatever the caller adds. Events are walked through one by one: the
features of an event's candidates have counted all events before it, and not itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streamer.model.batch import Bools, Floats, Ints, Rows
from streamer.model.jit import inlined, mixed, njit_borrowing
from streamer.model.ranking.co_occurrence import (
    GAP_S,
    CoOccurrence,
    NeighbourLists,
    pair_up,
    room_for_event,
)
from streamer.model.ranking.features import (
    FEATURES,
    Feature,
    Near,
    bucket_of,
    describe_nearness,
    describe_popularity,
    describe_recent,
)
from streamer.model.ranking.windows import ItemEvents, Windows, count_event
from streamer.model.rows.growing import grown
from streamer.model.rows.recent_items import UserHistory
from streamer.model.rows.retired import RetiredItems, is_retired

LEARNED_CANDIDATES = 64
"""About how many candidates of an event the ranker learns from."""
_SMALLEST_WEIGHT = np.float32(1e-30)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of some events or users, one after the other. The memory is used again
    by the next call.

    Args:
        first: [n + 1] those of k are `first[k]` to `first[k + 1]`.
        items: [c] item rows, each once an event.
        features: [c, FEATURES].
        target: [n] the place of each event's own item among all, -1 if it is no
            candidate.
        bucket: [n] place in `BUCKETS`.
        seen: [c] whether the user has seen the item before.
    """

    first: Rows
    items: Ints
    features: Floats
    target: Rows
    bucket: Rows
    seen: Bools

    def __len__(self) -> int:
        return len(self.target)

    def only(self, events: Rows) -> Candidates:
        """Those of some events; a copy."""
        if len(events) == len(self):
            return self
        sizes = np.diff(self.first)[events]
        first = np.concatenate([[0], np.cumsum(sizes)])
        moved = self.first[events] - first[:-1]
        at = np.arange(first[-1]) + np.repeat(moved, sizes)
        target = self.target[events]
        return Candidates(
            first,
            self.items[at],
            self.features[at],
            np.where(target >= 0, target - moved, -1),
            self.bucket[events],
            self.seen[at],
        )

    def discoveries(self) -> Candidates:
        """Those of events whose own item is a candidate, and new to its user."""
        events = np.flatnonzero(self.target >= 0)
        return self.only(events[~self.seen[self.target[events]]])

    def mark_seen(self, seen: Bools) -> None:
        """Note which candidates their users have seen before, beside recent items, of
        which it is known.
        """
        np.logical_or(self.seen, seen, out=self.seen)
        is_recent = self.features[:, Feature.IS_RECENT] > 0
        self.features[:, Feature.SEEN_BEFORE] = self.seen & ~is_recent


class _Counted(NamedTuple):
    """What was counted before an event."""

    lists: NeighbourLists
    items: ItemEvents
    latest: Ints
    events: int


class _Walked(NamedTuple):
    """The events that are walked through, and those whose candidates are wanted."""

    items: Rows  # [B] -1 where there is no target
    times_s: Ints  # [B]
    history: UserHistory  # [B, L]
    wanted: Rows  # [n] places of events, ascending
    extra: Rows  # [n, x] further candidates of each, -1 for none
    drawn: Rows  # [n] about how many of its candidates are kept; 0 keeps all
    popular: Ints


class _Memory(NamedTuple):
    """What the walk fills; see `Candidates`."""

    first: Rows
    items: Ints
    features: Floats
    target: Rows
    bucket: Rows
    place: Ints  # [N] of each item among the candidates of an event; -1 between events
    sums: Floats  # [m, Near] of an event's candidates, as many as it may have


class CandidateFeatures:
    """Counts the stream, and describes candidates by what it has counted.

    Args:
        neighbours: kept of each item, at most.
        retired: items that are no candidates any more.
    """

    def __init__(self, neighbours: int, retired: RetiredItems | None = None) -> None:
        self.co_occurrence = CoOccurrence(neighbours, retired)
        self.windows = Windows()
        none = np.empty(0, np.int64)
        self._memory = _Memory(
            first=none,
            items=np.empty(0, np.int32),
            features=np.empty((0, len(FEATURES)), np.float32),
            target=none,
            bucket=none,
            place=np.empty(0, np.int32),
            sums=np.empty((0, len(Near)), np.float32),
        )

    def observe(
        self,
        items: Rows,
        times_s: Rows,
        history: UserHistory,
        wanted: Rows,
        extra: Rows | None = None,
        learned: Bools | None = None,
    ) -> Candidates:
        """Take in events, and describe the candidates of some of them as of the event.

        Args:
            items: [B] item rows.
            times_s: [B] seconds since the epoch.
            history: of each event's user, as of the event.
            wanted: [n] which events, ascending; one that is wanted twice has two lists.
            extra: [n, x] further candidates of each, -1 for none.
            learned: [n] which of them the ranker learns from: of its candidates about
                `LEARNED_CANDIDATES` are drawn evenly, its own item among them; if that
                is no candidate, none. By default all have all.
        """
        found = self._walk(items, times_s, history, wanted, extra, learned, count=True)
        if len(items):
            self.windows.advance(len(items), int(_seconds(times_s).max()))
        return found

    def candidates(
        self,
        history: UserHistory,
        extra: Rows | None = None,
        items: Rows | None = None,
        times_s: Rows | None = None,
    ) -> Candidates:
        """Candidates of some users, described as of the latest event, or as of
        `times_s`.

        Args:
            history: [n, L] of each user.
            extra: [n, x] further candidates of each, -1 for none.
            items: [n] targets, if there are any.
            times_s: [n] seconds since the epoch.
        """
        users = np.arange(len(history.items))
        if items is None:
            items = np.full(len(users), -1)
        if times_s is None:
            times_s = np.full(len(users), self.windows.now_s)
        return self._walk(items, times_s, history, users, extra, None, count=False)

    def _walk(
        self,
        items: Rows,
        times_s: Rows,
        history: UserHistory,
        wanted: Rows,
        extra: Rows | None,
        learned: Bools | None,
        *,
        count: bool,
    ) -> Candidates:
        if extra is None:
            extra = np.empty((len(wanted), 0), np.int64)
        drawn = np.zeros(len(wanted), np.int64)
        if learned is not None:
            drawn[learned] = LEARNED_CANDIDATES
        popular = self.windows.popular() if len(wanted) else np.empty(0, np.int32)
        walked = _Walked(
            items, _seconds(times_s), history, wanted, extra, drawn, popular
        )
        self._reserve(walked)

        at = np.zeros(3, np.int64)  # events, wanted events and candidates so far
        while True:
            counted = _Counted(
                self.co_occurrence.lists,
                self.windows.counts,
                self.windows.latest,
                self.windows.events,
            )
            _describe_and_count(counted, walked, self._memory, at, count)
            if at[0] == len(items):
                break
            self._make_room(int(at[2]), len(wanted) - int(at[1]))

        memory = self._memory
        features = memory.features[: at[2]]
        return Candidates(
            memory.first,
            memory.items[: at[2]],
            features,
            memory.target,
            memory.bucket,
            features[:, Feature.IS_RECENT] > 0,
        )

    def _reserve(self, walked: _Walked) -> None:
        """Make room for the items and results of a walk."""
        largest = max(
            walked.items.max(initial=-1),
            walked.history.items.max(initial=-1),
            walked.extra.max(initial=-1),
        )
        size = int(largest) + 1
        self.windows.reserve(size)
        self.co_occurrence.reserve(size)
        of_history = walked.history.items.shape[1] * (1 + self.co_occurrence.length)
        most = of_history + len(walked.popular) + walked.extra.shape[1]
        wanted = len(walked.wanted)
        self._memory = self._memory._replace(
            first=np.zeros(wanted + 1, np.int64),
            target=np.full(wanted, -1),
            bucket=np.zeros(wanted, np.int64),
            place=grown(self._memory.place, self.windows.size, fill=-1),
            sums=np.empty((most, len(Near)), np.float32),
        )

    def _make_room(self, filled: int, left: int) -> None:
        """For the pairs of further events, and for the candidates of those wanted."""
        lists = self.co_occurrence.lists
        if lists.blocks.end[0] + room_for_event(lists.max_length) > len(lists.items):
            self.co_occurrence.extend()
        memory = self._memory
        most = len(memory.sums)
        if filled + most > len(memory.items):
            size = filled + most * (2 + left // 8)
            items = np.empty(size, np.int32)
            features = np.empty((size, len(FEATURES)), np.float32)
            items[:filled] = memory.items[:filled]
            features[:filled] = memory.features[:filled]
            self._memory = memory._replace(items=items, features=features)


def _seconds(times_s: Rows) -> Ints:
    return np.clip(times_s, 0, 2**31 - 1).astype(np.int32)


@njit_borrowing
def _describe_and_count(
    counted: _Counted, walked: _Walked, out: _Memory, at: Rows, count: bool
) -> None:
    """Walk on from `at` until all events are done or there is no room for the next."""
    lists = counted.lists
    history = walked.history
    room = room_for_event(lists.max_length)
    while at[0] < len(walked.items):
        event = at[0]
        item = walked.items[event]
        time_s = walked.times_s[event]
        if count and lists.blocks.end[0] + room > len(lists.items):
            return

        while at[1] < len(walked.wanted) and walked.wanted[at[1]] == event:
            k = at[1]
            first = at[2]
            if first + len(out.sums) > len(out.items):
                return
            end = _gather(lists, walked, k, out, first)
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
            out.bucket[k] = bucket_of(history.items[event])
            out.first[k + 1] = end
            at[1] += 1
            at[2] = end

        if count:
            recent = history.items[event]
            pair_up(lists, item, time_s, recent, history.times_s[event])
            number = counted.events + event
            count_event(counted.items, counted.latest, number, item, time_s, recent)
        at[0] += 1


@inlined
def _add_candidate(item: int, out: _Memory, first: int, n: int) -> int:
    """Make an item a candidate, if it is none yet; returns where they end."""
    if out.place[item] < 0:
        out.place[item] = n
        out.items[n] = item
        out.sums[n - first] = 0
        n += 1
    return n


@njit_borrowing
def _gather(
    lists: NeighbourLists, walked: _Walked, k: int, out: _Memory, first: int
) -> int:
    """Write the candidates of a wanted event from `first` on, and add up their
    nearness; returns where they end.

    The recent items come first, in their order.
    """
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
        share = np.float32(1) / np.sqrt(max(lists.total[r], np.float32(1)))
        near = np.float32(1) / np.float32(rank + 1)
        gap = np.exp(-np.float32(max(time_s - recent_s[place], 0)) / GAP_S)
        timed = near * gap / np.sqrt(max(lists.timed_total[r], np.float32(1e-3)))
        group = Near.OF_LAST + (rank > 0) + (rank > 2) + (rank > 9)
        start = lists.blocks.start[r]
        for m in range(start, start + lists.length[r]):
            if is_retired(lists.retired, lists.items[m]):
                continue
            n = _add_candidate(lists.items[m], out, first, n)
            sums = out.sums[out.place[lists.items[m]] - first]
            weight = share * lists.weights[m]
            sums[Near.WEIGHT] += near * weight
            sums[Near.TIMED] += timed * lists.timed[m]
            sums[group] += weight
            sums[Near.MOST] = max(sums[Near.MOST], near * weight)
            sums[Near.SUPPORT] += np.float32(1)

    for item in walked.popular:
        n = _add_candidate(item, out, first, n)
    for item in walked.extra[k]:
        if item >= 0:
            n = _add_candidate(item, out, first, n)
    return n


@njit_borrowing
def _describe(
    counted: _Counted,
    walked: _Walked,
    k: int,
    share: float,
    out: _Memory,
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
    for c in range(end - first):
        max_weight = max(max_weight, out.sums[c, Near.WEIGHT])
        max_timed = max(max_timed, out.sums[c, Near.TIMED])

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
        describe_popularity(x, counted.items, item, time_s)
        if c < len(recent) and recent[c] == item:
            describe_recent(x, counted.items, walked.history, event, c, time_s)
    return n


@inlined
def _drawn(event: int, item: int) -> np.uint64:
    """A number below 2**32, the same whenever it is asked for."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    return mixed(np.uint64(event) * golden + np.uint64(item)) >> np.uint64(32)
