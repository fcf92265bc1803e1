"""What counting knows of a user and a candidate, as of an event.

Candidates are the user's recent items, their neighbours, items that are popular lately,
and whatever the caller adds. Each is described by the numbers in `FEATURES`; of
nearness, with r_k the user's k-th recent item, w(r, j) the weight of j among the
neighbours of r and W(r) the weight of all pairs of r:

    near(j) = sum_k w(r_k, j) / ((k + 1) sqrt(W(r_k)))

and the timed one with timed weights, and exp(-gap / 0.3 days) beside 1 / (k + 1).
Events are walked through one by one: what an event is described by has counted all
events before it, and not itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Floats, Rows
from streamer.model.jit import (
    bits_of_float32,
    float32_from_bits,
    inlined,
    mixed,
    njit_borrowing,
)
from streamer.model.ranking.co_occurrence import (
    GAP_S,
    CoOccurrence,
    Lists,
    pair_up,
    room_for_event,
)
from streamer.model.rows.by_rows import Arrays, ByRows, held
from streamer.model.rows.growing import grown
from streamer.model.rows.recent_items import History
from streamer.model.rows.retired import RetiredItems, is_retired

LATELY = 5000
JUST_NOW = 500
"""Events of the two windows in which popularity is counted."""
POPULAR_LATELY = 60
POPULAR_JUST_NOW = 30
"""How many of the most popular items of each window are candidates of everybody."""
LEARNED_CANDIDATES = 64
"""About how many candidates of an event the ranker learns from."""
BUCKETS = (0, 1, 2, 4, 8, 16)
"""Users are told apart by the number of their recent items: at least this many."""
BUCKET_NAMES = ("0", "1", "2-3", "4-7", "8-15", "16+")

FEATURES = (
    "near log",
    "near root",
    "near share",
    "near timed log",
    "near timed root",
    "near timed share",
    "near last",
    "near 2 to 3",
    "near 4 to 10",
    "near 11 to 30",
    "near most",
    "near support",
    "is near",
    "events log",
    "events lately",
    "events just now",
    "hours since last",
    "hours since first",
    "is recent",
    "recent rank",
    "recent gap",
    "recent events",
    "recent times",
    "recent hours",
    "recent again",
    "had before",
    "tower",
    "tower cosine",
    "tower most",
)
"""What a candidate is described by. `near`: nearness to the user's recent items, as a
whole and by how recent they are; `events`: popularity; `recent`: of candidates among
the recent items themselves; `had before`: of those that the user had, but not lately;
`tower`: the towers' inner product, cosine, and largest cosine with a recent item
(`streamer.model.retrieval`)."""
TOWERS = tuple(f for f, name in enumerate(FEATURES) if name.startswith("tower"))
KINDS = {
    "co-occurrence": tuple(f for f, name in enumerate(FEATURES) if "near" in name),
    "popularity": tuple(
        f for f, name in enumerate(FEATURES) if name.startswith(("events", "hours"))
    ),
    "own history": tuple(
        f for f, name in enumerate(FEATURES) if "recent" in name or name == "had before"
    ),
    "towers": TOWERS,
}
"""Features by what they come from."""
_FEATURES = len(FEATURES)
_IS_RECENT = FEATURES.index("is recent")
_HAD_BEFORE = FEATURES.index("had before")
_SUMS = 8
_MOST = 1 << 30
_HOUR_S = np.float32(3600)
_NEVER = np.float32(3)


class Counts(NamedTuple):
    """Events of each item: ever, by users who had it lately, and in the two windows;
    when the first and last came.
    """

    ever: NDArray[np.int32]
    again: NDArray[np.int32]
    lately: NDArray[np.uint16]
    just_now: NDArray[np.uint16]
    first_s: NDArray[np.int32]
    last_s: NDArray[np.int32]


class Described(NamedTuple):
    """Memory for candidates, filled by the compiled loop; see `Candidates`."""

    first: Rows
    items: NDArray[np.int32]
    features: Floats
    target: Rows
    bucket: Rows


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
        seen: [c] whether the user had the item before.
    """

    first: Rows
    items: NDArray[np.int32]
    features: Floats
    target: Rows
    bucket: Rows
    seen: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.target)

    def only(self, events: Rows) -> Candidates:
        """Those of some events; a copy."""
        if len(events) == len(self):
            return self
        sizes = np.diff(self.first)[events]
        first = np.concatenate([[0], np.cumsum(sizes)])
        at = np.arange(first[-1]) + np.repeat(self.first[events] - first[:-1], sizes)
        target = np.where(
            self.target[events] >= 0,
            self.target[events] - self.first[events] + first[:-1],
            -1,
        )
        return Candidates(
            first,
            self.items[at],
            self.features[at],
            target,
            self.bucket[events],
            self.seen[at],
        )

    def discoveries(self) -> Candidates:
        """Those of events whose own item is a candidate, and new to its user."""
        events = np.flatnonzero(self.target >= 0)
        return self.only(events[~self.seen[self.target[events]]])

    def mark_seen(self, seen: NDArray[np.bool_]) -> None:
        """Note which candidates their users had before, beside recent items, of which
        it is known.
        """
        np.logical_or(self.seen, seen, out=self.seen)
        self.features[:, _HAD_BEFORE] = self.seen & (self.features[:, _IS_RECENT] == 0)


class Evidence(ByRows):
    """Counts what users had, together and lately.

    Args:
        neighbours: kept of each item, at most.
        retired: items that are no candidates any more.
    """

    def __init__(self, neighbours: int, retired: RetiredItems | None = None) -> None:
        self.co_occurrence = CoOccurrence(neighbours, retired)
        self.clear()
        none = np.empty(0, np.int64)
        self._memory = Described(
            none,
            np.empty(0, np.int32),
            np.empty((0, _FEATURES), np.float32),
            none,
            none,
        )

    def clear(self) -> None:
        self.size = 0
        self.events = 0
        self.now_s = 0
        long = np.zeros(0, np.int32)
        short = np.zeros(0, np.uint16)
        self._counts = Counts(long, long, short, short, long, long)
        self._window = np.full(
            LATELY, -1, np.int32
        )  # items of the last events; event n at n % LATELY
        self._popular: NDArray[np.int32] | None = None  # of the window as it is
        self._place = np.full(0, -1, np.int32)  # of each candidate; -1 between events

    def observe(
        self,
        items: Rows,
        times_s: Rows,
        history: History,
        wanted: Rows,
        extra: Rows | None = None,
        learned: NDArray[np.bool_] | None = None,
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
        return self._walk(items, times_s, history, wanted, extra, learned, count=True)

    def candidates(
        self,
        history: History,
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
        users = len(history.items)
        items = np.full(users, -1) if items is None else items
        times_s = np.full(users, self.now_s) if times_s is None else times_s
        return self._walk(
            items, times_s, history, np.arange(users), extra, None, count=False
        )

    def lately(self, items: Rows) -> NDArray[np.float64]:
        """Share of each item in the last events."""
        found = np.zeros(len(items))
        known = items < self.size
        found[known] = self._counts.lately[items[known]]
        return found / max(min(self.events, LATELY), 1)

    def popular(self) -> NDArray[np.int32]:
        """The most popular items of both windows, most popular first, each once;
        counted once an event.
        """
        if self._popular is not None:
            return self._popular
        latest = self._window[
            np.arange(max(self.events - JUST_NOW, 0), self.events) % LATELY
        ]
        both = np.concatenate(
            [
                self._most_frequent(self._window, POPULAR_LATELY),
                self._most_frequent(latest, POPULAR_JUST_NOW),
            ]
        )
        _, at = np.unique(both, return_index=True)
        self._popular = both[np.sort(at)]
        return self._popular

    @staticmethod
    def _most_frequent(items: NDArray[np.int32], most: int) -> NDArray[np.int32]:
        distinct, counts = np.unique(items[items >= 0], return_counts=True)
        return distinct[np.argsort(-counts, kind="stable")[:most]]

    def _walk(
        self,
        items: Rows,
        times_s: Rows,
        history: History,
        wanted: Rows,
        extra: Rows | None,
        learned: NDArray[np.bool_] | None,
        *,
        count: bool,
    ) -> Candidates:
        popular = self.popular() if len(wanted) else np.empty(0, np.int32)
        extra = np.empty((len(wanted), 0), np.int64) if extra is None else extra
        drawn = (
            np.zeros(len(wanted), np.int64)
            if learned is None
            else np.where(learned, LEARNED_CANDIDATES, 0)
        )
        known = (
            max(
                items.max(initial=-1),
                history.items.max(initial=-1),
                extra.max(initial=-1),
            )
            + 1
        )
        self._grow(int(known))
        when_s = np.clip(times_s, 0, 2**31 - 1).astype(np.int32)
        most = (
            history.items.shape[1] * (1 + self.co_occurrence.length)
            + len(popular)
            + extra.shape[1]
        )
        self._memory = self._memory._replace(
            first=np.zeros(len(wanted) + 1, np.int64),
            target=np.full(len(wanted), -1),
            bucket=np.zeros(len(wanted), np.int64),
        )
        sums = np.empty((most, _SUMS), np.float32)
        at = np.zeros(3, np.int64)  # events, wanted events and candidates so far
        while True:
            pairs = self.co_occurrence
            _describe_and_count(
                pairs.lists,
                pairs.length,
                self._counts,
                self._window,
                self.events,
                items,
                when_s,
                history,
                wanted,
                popular,
                extra,
                drawn,
                self._place,
                sums,
                self._memory,
                at,
                count,
            )
            if at[0] == len(items):
                break
            self._make_room(int(at[2]), most, len(wanted) - int(at[1]))
        if count and len(items):
            self.events += len(items)
            self._popular = None
            self.now_s = max(self.now_s, int(when_s.max()))
        filled = int(at[2])
        memory = self._memory
        found = memory.items[:filled]
        features = memory.features[:filled]
        return Candidates(
            memory.first,
            found,
            features,
            memory.target,
            memory.bucket,
            features[:, _IS_RECENT] > 0,
        )

    def _make_room(self, filled: int, most: int, left: int) -> None:
        """For candidates, and for the pairs of further events."""
        lists = self.co_occurrence.lists
        if lists.end[0] + room_for_event(self.co_occurrence.length) > len(lists.items):
            self.co_occurrence.extend()
        items = self._memory.items
        features = self._memory.features
        if filled + most > len(items):
            size = filled + most * (2 + left // 8)
            larger = np.empty(size, np.int32)
            described = np.empty((size, _FEATURES), np.float32)
            larger[:filled] = items[:filled]
            described[:filled] = features[:filled]
            self._memory = self._memory._replace(items=larger, features=described)

    def _grow(self, size: int) -> None:
        self._counts = Counts(*(grown(array, size) for array in self._counts))
        self._place = grown(self._place, size, fill=-1)
        self.co_occurrence.reserve(size)
        self.size = max(self.size, size)

    def forget(self, items: Rows) -> None:
        """Retire items; their neighbours belong to `co_occurrence`."""
        for array in self._counts:
            array[items[items < self.size]] = 0
        self._window[np.isin(self._window, items)] = -1
        self._popular = None

    def leaving(self, events: int) -> Rows:
        """Items whose counts fall when this many further events come; they may repeat."""
        coming = np.arange(self.events, self.events + events)
        rows: Rows = self._window[
            np.concatenate([coming, coming - JUST_NOW]) % LATELY
        ].astype(np.int64)
        return rows[rows >= 0]

    @property
    def nbytes(self) -> int:
        return sum(array.itemsize for array in (*self._counts, self._place)) * self.size

    def take(self, rows: Rows) -> Arrays:
        """The counts of items; their neighbours belong to `co_occurrence`."""
        return {
            name: held(array, rows) for name, array in self._counts._asdict().items()
        }

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self._grow(int(rows.max(initial=-1)) + 1)
        for name, array in self._counts._asdict().items():
            array[rows] = arrays[name]

    def dense(self) -> Arrays:
        clock = np.array([self.events, self.now_s])
        return super().dense() | {"window": self._window.copy(), "clock": clock}

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self._grow(self.size)
        self._window = np.array(arrays["window"], np.int32)
        self._popular = None
        self.events, self.now_s = (int(n) for n in arrays["clock"])


@njit_borrowing
def _describe_and_count(
    lists: Lists,
    longest: int,
    counts: Counts,
    window: NDArray[np.int32],
    events: int,
    items: Rows,
    times_s: NDArray[np.int32],
    history: History,
    wanted: Rows,
    popular: NDArray[np.int32],
    extra: Rows,
    drawn: Rows,
    place: NDArray[np.int32],
    sums: Floats,
    out: Described,
    at: Rows,
    count: bool,
) -> None:
    """Walk on from `at` until all events are done or there is no room for the next."""
    room = room_for_event(longest)
    while at[0] < len(items):
        event = at[0]
        if count and lists.end[0] + room > len(lists.items):
            return
        while at[1] < len(wanted) and wanted[at[1]] == event:
            if at[2] + len(sums) > len(out.items):
                return
            n = _gather(
                lists,
                event,
                times_s[event],
                history,
                popular,
                extra[at[1]],
                place,
                sums,
                out,
                at[2],
            )
            if items[event] >= 0:
                out.target[at[1]] = place[items[event]]
            for c in range(at[2], n):
                place[out.items[c]] = -1
            share = 1.0
            if drawn[at[1]] > 0:
                share = (
                    min(drawn[at[1]] / (n - at[2]), 1.0)
                    if out.target[at[1]] >= 0
                    else 0.0
                )
            number = events + event
            n = _describe(
                counts,
                event,
                number,
                times_s[event],
                history,
                share,
                sums,
                out,
                at[1],
                at[2],
                n,
            )
            out.bucket[at[1]] = _bucket(history.items[event])
            out.first[at[1] + 1] = n
            at[1] += 1
            at[2] = n
        if count:
            pair_up(
                lists,
                longest,
                items[event],
                times_s[event],
                history.items[event],
                history.times_s[event],
            )
            _count(
                counts,
                window,
                events + event,
                items[event],
                times_s[event],
                history.items[event],
            )
        at[0] += 1


@njit_borrowing
def _count(
    counts: Counts,
    window: NDArray[np.int32],
    n: int,
    item: int,
    time_s: int,
    recent: NDArray[np.int32],
) -> None:
    oldest = window[n % LATELY]
    older = window[(n - JUST_NOW) % LATELY]
    if oldest >= 0:
        counts.lately[oldest] -= 1
    if n >= JUST_NOW and older >= 0:
        counts.just_now[older] -= 1
    window[n % LATELY] = item
    counts.lately[item] += 1
    counts.just_now[item] += 1
    if counts.ever[item] == 0:
        counts.first_s[item] = time_s
    if counts.ever[item] == _MOST:  # only their ratio matters by then
        counts.ever[item] >>= 1
        counts.again[item] >>= 1
    counts.ever[item] += 1
    counts.last_s[item] = time_s
    for other in recent:
        counts.again[item] += other == item


@njit_borrowing
def _bucket(recent: NDArray[np.int32]) -> int:
    length = 0
    bucket = 0
    while length < len(recent) and recent[length] >= 0:
        length += 1
    for b in range(len(BUCKETS)):
        if length >= BUCKETS[b]:
            bucket = b
    return bucket


@inlined
def _candidate(
    item: int,
    place: NDArray[np.int32],
    sums: Floats,
    out: Described,
    first: int,
    n: int,
) -> int:
    """Make an item a candidate, if it is none yet; returns how many there are."""
    if place[item] < 0:
        place[item] = n
        out.items[n] = item
        sums[n - first] = 0
        n += 1
    return n


@njit_borrowing
def _gather(
    lists: Lists,
    event: int,
    time_s: int,
    history: History,
    popular: NDArray[np.int32],
    extra: Rows,
    place: NDArray[np.int32],
    sums: Floats,
    out: Described,
    first: int,
) -> int:
    """Write the candidates of an event from `first` on, and add up their nearness;
    returns where they end.

    The recent items come first, in their order. Columns of `sums`: near, timed, by
    recency (4), most, support.
    """
    recent = history.items[event]
    recent_s = history.times_s[event]
    n = first
    L = len(recent)
    for k in range(L):
        if recent[k] < 0:
            break
        n = _candidate(recent[k], place, sums, out, first, n)
    rank = 0
    for k in range(L):
        r = recent[k]
        if r < 0:
            break
        if k > 0 and recent_s[k] != recent_s[k - 1]:
            rank = k
        share = np.float32(1) / np.sqrt(max(lists.total[r], np.float32(1)))
        near = np.float32(1) / np.float32(rank + 1)
        gap = np.exp(-np.float32(max(time_s - recent_s[k], 0)) / GAP_S)
        timed = near * gap / np.sqrt(max(lists.timed_total[r], np.float32(1e-3)))
        group = 2 + (rank > 0) + (rank > 2) + (rank > 9)
        for m in range(lists.start[r], lists.start[r] + lists.length[r]):
            if is_retired(lists.retired, lists.items[m]):
                continue
            n = _candidate(lists.items[m], place, sums, out, first, n)
            line = sums[place[lists.items[m]] - first]
            weight = share * lists.weights[m]
            line[0] += near * weight
            line[1] += timed * lists.timed[m]
            line[group] += weight
            line[6] = max(line[6], near * weight)
            line[7] += np.float32(1)
    for item in popular:
        n = _candidate(item, place, sums, out, first, n)
    for item in extra:
        if item >= 0:
            n = _candidate(item, place, sums, out, first, n)
    return n


@njit_borrowing
def _describe(
    counts: Counts,
    event: int,
    number: int,
    time_s: int,
    history: History,
    share: float,
    sums: Floats,
    out: Described,
    k: int,
    first: int,
    end: int,
) -> int:
    """Write the features of an event's candidates, in the order of `FEATURES`; returns
    where they end.

    Of a share of them, if that is less than 1, which is drawn by the number of the
    event, and of its own item.
    """
    recent = history.items[event]
    recent_s = history.times_s[event]
    times = history.counts[event]
    most = np.float32(1e-30)
    max_timed = np.float32(1e-30)
    for c in range(end - first):
        most = max(most, sums[c, 0])
        max_timed = max(max_timed, sums[c, 1])
    n = first
    target = out.target[k]
    limit = np.uint64(share * 2.0**32)
    for c in range(end - first):
        item = out.items[first + c]
        s = sums[c]
        x = out.features[n]
        if first + c == target:
            out.target[k] = n
        elif _drawn(number, item) >= limit:
            continue
        out.items[n] = item
        n += 1
        x[:] = 0
        if s[7] > 0:
            x[0] = _log(1 + 30 * s[0])
            x[1] = np.sqrt(s[0])
            x[2] = s[0] / most
            x[3] = _log(1 + 30 * s[1])
            x[4] = np.sqrt(s[1])
            x[5] = s[1] / max_timed
            for g in range(4):
                if s[2 + g] > 0:
                    x[6 + g] = _log(1 + 30 * s[2 + g])
            x[10] = _log(1 + 30 * s[6])
            x[11] = _log(1 + s[7])
            x[12] = 1
        x[13] = _log(np.float32(1 + counts.ever[item]))
        x[14] = _log(np.float32(1 + counts.lately[item]))
        x[15] = _log(np.float32(1 + counts.just_now[item]))
        x[16] = _NEVER
        x[17] = _NEVER
        if counts.ever[item] > 0:
            x[16] = _log_hours(time_s - counts.last_s[item])
            x[17] = _log_hours(time_s - counts.first_s[item])
        if c < len(recent) and recent[c] == item:
            rank = c
            while rank > 0 and recent_s[rank] == recent_s[rank - 1]:
                rank -= 1
            x[18] = 1
            x[19] = np.float32(1) / np.float32(rank + 1)
            x[20] = np.exp(-np.float32(max(time_s - recent_s[c], 0)) / GAP_S)
            x[21] = x[13]
            x[22] = _log(np.float32(times[c]))
            x[23] = _log_hours(time_s - recent_s[c])
            x[24] = np.float32(counts.again[item] + 0.5) / np.float32(
                counts.ever[item] + 1
            )
    return n


@inlined
def _drawn(event: int, item: int) -> np.uint64:
    """A number below 2**32, the same whenever it is asked for."""
    return mixed(
        np.uint64(event) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(item)
    ) >> np.uint64(32)


@inlined
def _log_hours(seconds: int) -> np.float32:
    return np.float32(0.2) * _log(1 + np.float32(max(seconds, 0)) / _HOUR_S)


@inlined
def _log(y: np.float32) -> np.float32:
    """log of y >= 1 within 1e-5: the exponent's bits, and a polynomial of the mantissa."""
    bits = bits_of_float32(np.float32(y))  # type: ignore[call-arg,var-annotated]
    f = float32_from_bits((bits & 0x7FFFFF) | 0x3F800000) - np.float32(1)
    p = np.float32(0.09488474) + f * np.float32(-0.02172218)
    p = np.float32(-0.49871556) + f * (
        np.float32(0.32195188) + f * (np.float32(-0.20321429) + f * p)
    )
    return np.float32((bits >> 23) - 127) * np.float32(0.6931472) + f * (
        np.float32(0.99995362) + f * p
    )
