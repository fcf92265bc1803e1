"""What a candidate is described by, and the loops that fill it in.

Of nearness, with r_k the user's k-th recent item, w(r, j) the weight of j among the
neighbours of r and W(r) the weight of all pairs of r:

    near(j) = sum_k w(r_k, j) / ((k + 1) sqrt(W(r_k)))

and the timed one with timed weights, and exp(-gap / 0.3 days) beside 1 / (k + 1).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from streamer.model.batch import Floats, Recent
from streamer.model.jit import inlined
from streamer.model.ranking.co_occurrence import GAP_S
from streamer.model.ranking.windows import ItemEvents, in_events
from streamer.model.rows.recent_items import UserHistory

CO_OCCURRENCE = "co-occurrence"
POPULARITY = "popularity"
OWN_HISTORY = "own history"
TWO_TOWERS = "towers"


class Feature(IntEnum):
    """The columns of a candidate's features, each with the kind of evidence that it
    comes from.
    """

    kind: str

    def __new__(cls, kind: str) -> Feature:
        """The next column."""
        member = int.__new__(cls, len(cls.__members__))
        member._value_ = len(cls.__members__)
        member.kind = kind
        return member

    # nearness to the user's recent items: as a whole, timed, by how recent they are
    NEAR_LOG = CO_OCCURRENCE
    NEAR_ROOT = CO_OCCURRENCE
    NEAR_SHARE = CO_OCCURRENCE
    NEAR_TIMED_LOG = CO_OCCURRENCE
    NEAR_TIMED_ROOT = CO_OCCURRENCE
    NEAR_TIMED_SHARE = CO_OCCURRENCE
    NEAR_LAST = CO_OCCURRENCE
    NEAR_2_TO_3 = CO_OCCURRENCE
    NEAR_4_TO_10 = CO_OCCURRENCE
    NEAR_11_TO_30 = CO_OCCURRENCE
    NEAR_MOST = CO_OCCURRENCE
    NEAR_SUPPORT = CO_OCCURRENCE
    IS_NEAR = CO_OCCURRENCE

    # how often it came next after the user's last item, lately
    NEXT_LOG = CO_OCCURRENCE
    NEXT_SHARE = CO_OCCURRENCE

    # events of the item
    EVENTS_LOG = POPULARITY
    EVENTS_LONG_WINDOW = POPULARITY
    EVENTS_SHORT_WINDOW = POPULARITY
    HOURS_SINCE_LAST = POPULARITY
    HOURS_SINCE_FIRST = POPULARITY

    # of candidates among the user's recent items
    IS_RECENT = OWN_HISTORY
    RECENT_RANK = OWN_HISTORY
    RECENT_GAP = OWN_HISTORY
    RECENT_EVENTS = OWN_HISTORY
    RECENT_TIMES = OWN_HISTORY
    RECENT_HOURS = OWN_HISTORY
    RECENT_AGAIN = OWN_HISTORY
    RECENT_IS_LAST = OWN_HISTORY
    RECENT_DISTINCT = OWN_HISTORY
    RECENT_REPEATS = OWN_HISTORY
    RECENT_LAST_WAS_REPEAT = OWN_HISTORY

    # of those that the user has seen, but not among the recent items
    SEEN_BEFORE = OWN_HISTORY

    # the towers' inner product, cosine, and largest cosine with a recent item
    TOWER = TWO_TOWERS
    TOWER_COSINE = TWO_TOWERS
    TOWER_MOST = TWO_TOWERS


FEATURES = tuple(feature.name.lower().replace("_", " ") for feature in Feature)
KINDS = {
    kind: [int(feature) for feature in Feature if feature.kind == kind]
    for kind in (CO_OCCURRENCE, POPULARITY, OWN_HISTORY, TWO_TOWERS)
}
"""Columns by the kind of evidence that they come from."""
TOWERS = KINDS[TWO_TOWERS]

BUCKETS = (0, 1, 2, 4, 8, 16)
"""Users are told apart by the number of their recent items: at least this many."""
BUCKET_NAMES = ("0", "1", "2-3", "4-7", "8-15", "16+")

_HOUR_S = np.float32(3600)
_NEVER = np.float32(3)


class Near(IntEnum):
    """Columns of a candidate's sums over the recent items that it is a neighbour of."""

    WEIGHT = 0
    TIMED = 1
    OF_LAST = 2
    OF_2_TO_3 = 3
    OF_4_TO_10 = 4
    OF_11_TO_30 = 5
    MOST = 6
    SUPPORT = 7
    NEXT = 8


@inlined
def describe_nearness(
    x: Floats, sums: Floats, max_weight: np.float32, max_timed: np.float32
) -> None:
    """Fill in nearness, from a candidate's sums and the largest of all candidates."""
    if sums[Near.SUPPORT] > 0:
        weight = sums[Near.WEIGHT]
        timed = sums[Near.TIMED]
        x[Feature.NEAR_LOG] = _log(1 + 30 * weight)
        x[Feature.NEAR_ROOT] = np.sqrt(weight)
        x[Feature.NEAR_SHARE] = weight / max_weight
        x[Feature.NEAR_TIMED_LOG] = _log(1 + 30 * timed)
        x[Feature.NEAR_TIMED_ROOT] = np.sqrt(timed)
        x[Feature.NEAR_TIMED_SHARE] = timed / max_timed
        # in the order of Near: last, 2 to 3, 4 to 10, 11 to 30
        for group in range(4):
            of_group = sums[Near.OF_LAST + group]
            if of_group > 0:
                x[Feature.NEAR_LAST + group] = _log(1 + 30 * of_group)
        x[Feature.NEAR_MOST] = _log(1 + 30 * sums[Near.MOST])
        x[Feature.NEAR_SUPPORT] = _log(1 + sums[Near.SUPPORT])
        x[Feature.IS_NEAR] = 1


@inlined
def describe_next(x: Floats, came_next: np.float32, of_all: np.float32) -> None:
    """Fill in how often a candidate, and all of them, came next after the last item."""
    x[Feature.NEXT_LOG] = _log(1 + came_next)
    x[Feature.NEXT_SHARE] = np.sqrt(came_next / (1 + of_all))


@inlined
def describe_popularity(x: Floats, counts: ItemEvents, item: int, time_s: int) -> None:
    """Fill in the events of an item, as of a time."""
    x[Feature.EVENTS_LOG] = _log(np.float32(1 + counts.ever[item]))
    x[Feature.EVENTS_LONG_WINDOW] = _log(
        in_events(counts.long_window[item]) + np.float32(1)
    )
    x[Feature.EVENTS_SHORT_WINDOW] = _log(
        in_events(counts.short_window[item]) + np.float32(1)
    )
    x[Feature.HOURS_SINCE_LAST] = _NEVER
    x[Feature.HOURS_SINCE_FIRST] = _NEVER
    if counts.ever[item] > 0:
        x[Feature.HOURS_SINCE_LAST] = _log_hours(time_s - counts.last_s[item])
        x[Feature.HOURS_SINCE_FIRST] = _log_hours(time_s - counts.first_s[item])


@inlined
def describe_recent(
    x: Floats, counts: ItemEvents, history: UserHistory, event: int, k: int, time_s: int
) -> None:
    """Fill in what is known of the k-th recent item of an event's user; the events of
    the item are filled in.
    """
    item = history.items[event, k]
    last_s = history.times_s[event, k]
    rank = k
    while rank > 0 and history.times_s[event, rank] == history.times_s[event, rank - 1]:
        rank -= 1
    distinct = 0
    times = 0
    while distinct < history.items.shape[1] and history.items[event, distinct] >= 0:
        times += history.counts[event, distinct]
        distinct += 1
    repeats = np.float32(times - distinct) / np.float32(times)
    x[Feature.IS_RECENT] = 1
    x[Feature.RECENT_RANK] = np.float32(1) / np.float32(rank + 1)
    x[Feature.RECENT_GAP] = np.exp(-np.float32(max(time_s - last_s, 0)) / GAP_S)
    x[Feature.RECENT_EVENTS] = x[Feature.EVENTS_LOG]
    x[Feature.RECENT_TIMES] = _log(np.float32(history.counts[event, k]))
    x[Feature.RECENT_HOURS] = _log_hours(time_s - last_s)
    again = np.float32(counts.again[item] + 0.5)
    x[Feature.RECENT_AGAIN] = again / np.float32(counts.ever[item] + 1)
    x[Feature.RECENT_IS_LAST] = rank == 0
    x[Feature.RECENT_DISTINCT] = _log(np.float32(distinct))
    x[Feature.RECENT_REPEATS] = repeats
    x[Feature.RECENT_LAST_WAS_REPEAT] = history.counts[event, 0] > 1


@inlined
def bucket_of(recent: Recent) -> int:
    """The place in `BUCKETS` of a user with these recent items."""
    length = 0
    while length < len(recent) and recent[length] >= 0:
        length += 1
    bucket = 0
    for b in range(len(BUCKETS)):
        if length >= BUCKETS[b]:
            bucket = b
    return bucket


@inlined
def _log_hours(seconds: int) -> np.float32:
    return np.float32(0.2) * _log(1 + np.float32(max(seconds, 0)) / _HOUR_S)


@inlined
def _log(y: np.float32) -> np.float32:
    """log of y >= 1 within 1e-5: the exponent's bits, and a polynomial of the mantissa."""
    bits = np.float32(y).view(np.int32)
    mantissa = np.int32((bits & 0x7FFFFF) | 0x3F800000)
    f = mantissa.view(np.float32) - np.float32(1)
    p = np.float32(0.09488474) + f * np.float32(-0.02172218)
    p = np.float32(-0.20321429) + f * p
    p = np.float32(0.32195188) + f * p
    p = np.float32(-0.49871556) + f * p
    p = np.float32(0.99995362) + f * p
    return np.float32((bits >> 23) - 127) * np.float32(0.6931472) + f * p
