"""Events of each item: ever, and in a long and a short window of the latest events.

In the windows events count by their weights, in whole `UNITS`: so what leaves a window
takes away exactly what it had brought.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from streamer.model.batch import Doubles, Ints, Rows
from streamer.model.jit import inlined, njit_borrowing
from streamer.model.rows.by_rows import Arrays, Columns, take_or_fill

LONG_WINDOW = 5000
SHORT_WINDOW = 500
"""Events of the two windows in which popularity is counted."""
POPULAR_IN_LONG_WINDOW = 60
POPULAR_IN_SHORT_WINDOW = 30
"""How many of the most popular items of each window are candidates of everybody."""
UNITS = 256
"""Of an event with a weight of 1 in a window."""
_PER_UNIT = np.float32(1 / UNITS)
_MAX_EVENTS = 1 << 30


class ItemEvents(NamedTuple):
    """What is counted of each item."""

    ever: Ints
    again: Ints  # of users who have it among their recent items
    long_window: Ints  # in units
    short_window: Ints  # in units
    first_s: Ints  # time of its first event
    last_s: Ints  # time of its latest event


class Latest(NamedTuple):
    """The latest events: event n at n % LONG_WINDOW."""

    items: Ints
    units: Ints  # what each weighs

    @classmethod
    def none(cls) -> Latest:
        """No events yet."""
        items = np.full(LONG_WINDOW, -1, np.int32)
        return cls(items, np.full(LONG_WINDOW, UNITS, np.int32))


class Windows(Columns):
    """Counts events of items, and keeps the items of the latest events."""

    def __init__(self) -> None:
        none = np.zeros(0, np.int32)
        counts = ItemEvents(*[none] * len(ItemEvents._fields))
        super().__init__({}, **counts._asdict())
        self.clear()

    def clear(self) -> None:
        super().clear()
        self.events = 0
        self.now_s = 0
        self.latest = Latest.none()
        self._popular: Ints | None = None  # of the windows as they are

    @property
    def counts(self) -> ItemEvents:
        """Events of each item."""
        return ItemEvents(**self.columns)

    def advance(self, events: int, now_s: int) -> None:
        """Events were counted by `count_event`, the latest of them at this time."""
        self.events += events
        self.now_s = max(self.now_s, now_s)
        self._popular = None

    def share_in_long_window(self, items: Rows) -> Doubles:
        """Share of each item in the events of the long window."""
        counts = take_or_fill(self.columns["long_window"], items) / UNITS
        return counts / max(min(self.events, LONG_WINDOW), 1)

    def popular(self) -> Ints:
        """The most popular items of both windows, most popular first, each once;
        counted once an event.
        """
        if self._popular is None:
            first = max(self.events - SHORT_WINDOW, 0)
            short = np.arange(first, self.events) % LONG_WINDOW
            items = self.latest.items
            counts = self.counts
            in_long = _heaviest(items, counts.long_window, POPULAR_IN_LONG_WINDOW)
            in_short = _heaviest(
                items[short], counts.short_window, POPULAR_IN_SHORT_WINDOW
            )
            both = np.concatenate([in_long, in_short])
            _, at = np.unique(both, return_index=True)
            self._popular = both[np.sort(at)]
        return self._popular

    def leaving(self, events: int) -> Rows:
        """Items that leave a window when this many further events come; they may
        repeat.
        """
        coming = np.arange(self.events, self.events + events)
        places = np.concatenate([coming, coming - SHORT_WINDOW]) % LONG_WINDOW
        rows: Rows = self.latest.items[places].astype(np.int64)
        return rows[rows >= 0]

    def forget(self, rows: Rows) -> None:
        super().forget(rows)
        self.latest.items[np.isin(self.latest.items, rows)] = -1
        self._popular = None

    def dense(self) -> Arrays:
        clock = np.array([self.events, self.now_s])
        return super().dense() | {
            "latest": self.latest.items.copy(),
            "latest_units": self.latest.units.copy(),
            "clock": clock,
        }

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self.latest = Latest(
            np.array(arrays["latest"], np.int32),
            np.array(arrays["latest_units"], np.int32),
        )
        self._popular = None
        self.events, self.now_s = arrays["clock"].tolist()


def _heaviest(items: Ints, units: Ints, count: int) -> Ints:
    distinct = np.unique(items[items >= 0])
    return distinct[np.argsort(-units[distinct], kind="stable")[:count]]


@inlined
def in_events(units: int) -> np.float32:
    """What units in a window are worth, in events with a weight of 1."""
    return np.float32(units) * _PER_UNIT


@njit_borrowing
def count_event(
    counts: ItemEvents,
    latest: Latest,
    n: int,
    item: int,
    time_s: int,
    recent: Ints,
    weight: np.float32,
) -> None:
    """Count event number n, of a user with these recent items."""
    # 1. the events that leave the windows
    at = n % LONG_WINDOW
    out_of_short = (n - SHORT_WINDOW) % LONG_WINDOW
    if latest.items[at] >= 0:
        counts.long_window[latest.items[at]] -= latest.units[at]
    if n >= SHORT_WINDOW and latest.items[out_of_short] >= 0:
        counts.short_window[latest.items[out_of_short]] -= latest.units[out_of_short]

    # 2. the one that comes
    units = np.int32(np.rint(weight * UNITS))
    latest.items[at] = item
    latest.units[at] = units
    counts.long_window[item] += units
    counts.short_window[item] += units
    if counts.ever[item] == 0:
        counts.first_s[item] = time_s
    if counts.ever[item] == _MAX_EVENTS:  # only their ratio matters by then
        counts.ever[item] >>= 1
        counts.again[item] >>= 1
    counts.ever[item] += 1
    counts.last_s[item] = time_s
    for other in recent:
        counts.again[item] += other == item


class BeforeEvent(IntEnum):
    """Columns of what is noted before an event is counted that is to be taken back."""

    EVER = 0
    AGAIN = 1
    FIRST_S = 2
    LAST_S = 3
    LEAVES_LONG = 4
    LEAVING_UNITS = 5


@njit_borrowing
def note_event(
    counts: ItemEvents, latest: Latest, n: int, item: int, note: Rows
) -> None:
    """Note what `count_event` is about to change, for `take_back_event`."""
    note[BeforeEvent.EVER] = counts.ever[item]
    note[BeforeEvent.AGAIN] = counts.again[item]
    note[BeforeEvent.FIRST_S] = counts.first_s[item]
    note[BeforeEvent.LAST_S] = counts.last_s[item]
    note[BeforeEvent.LEAVES_LONG] = latest.items[n % LONG_WINDOW]
    note[BeforeEvent.LEAVING_UNITS] = latest.units[n % LONG_WINDOW]


@njit_borrowing
def take_back_event(counts: ItemEvents, latest: Latest, n: int, note: Rows) -> None:
    """Undo `count_event`; of several events, the latest first."""
    # 1. the one that came
    at = n % LONG_WINDOW
    item = latest.items[at]
    counts.long_window[item] -= latest.units[at]
    counts.short_window[item] -= latest.units[at]
    counts.ever[item] = note[BeforeEvent.EVER]
    counts.again[item] = note[BeforeEvent.AGAIN]
    counts.first_s[item] = note[BeforeEvent.FIRST_S]
    counts.last_s[item] = note[BeforeEvent.LAST_S]

    # 2. those that left the windows
    leaves_long = note[BeforeEvent.LEAVES_LONG]
    latest.items[at] = leaves_long
    latest.units[at] = note[BeforeEvent.LEAVING_UNITS]
    out_of_short = (n - SHORT_WINDOW) % LONG_WINDOW
    if leaves_long >= 0:
        counts.long_window[leaves_long] += latest.units[at]
    if n >= SHORT_WINDOW and latest.items[out_of_short] >= 0:
        counts.short_window[latest.items[out_of_short]] += latest.units[out_of_short]
