"""When rows were last seen: which of them go first, and how old they are.

Every step has a stamp, and a row keeps that of the last step that saw it. Rows of one
step are in the order of their numbers. One look at all stamps finds many of the oldest
rows, in order; they stay the oldest, but for those that are seen again, until they are
used up.
"""

from __future__ import annotations

import numpy as np

from streamer.model.batch import Rows
from streamer.model.rows.by_rows import Arrays, Columns, take_or_fill

STEP_BITS = 20
"""Lower bits of a stamp, which tell the steps of one second of event time apart."""
QUEUED = 1 << 15
"""Of the oldest rows, how many one look at all of them finds."""


class StepClock:
    """Stamps steps with the event time, in ascending order.

    The event time is the median of a step's events, and never goes back: a few events
    with absurd times change nothing.
    """

    def __init__(self) -> None:
        self.stamp = 0
        self.now_s = 0

    def tick(self, times_s: Rows) -> None:
        """A step begins, with events of these times."""
        if len(times_s):
            self.now_s = max(self.now_s, int(np.median(times_s)))
        self.stamp = max(self.stamp + 1, self.now_s << STEP_BITS)

    def ages_s(self, stamps: Rows) -> Rows:
        """Event time that has passed since the step of each stamp."""
        found: Rows = np.maximum(self.now_s - (stamps >> STEP_BITS), 0)
        return found

    def dense(self) -> Arrays:
        """Everything."""
        return {"now": np.array([self.stamp, self.now_s])}

    def load_dense(self, arrays: Arrays) -> None:
        """Take over what `dense` returned."""
        self.stamp, self.now_s = arrays["now"].tolist()


class Recency(Columns):
    """The order in which rows were last seen.

    Examples:
        >>> recency = Recency()
        >>> recency.mark_seen(np.array([3, 1, 2]), stamp=1)
        >>> recency.mark_seen(np.array([1]), stamp=2)
        >>> recency.oldest(2)
        array([2, 3])
    """

    def __init__(self) -> None:
        super().__init__({}, stamps=np.zeros(0, np.int64))  # 0: never seen
        self.clear()

    def clear(self) -> None:
        super().clear()
        self._look_again()

    def _look_again(self) -> None:
        """What is known of the oldest rows is not true any more."""
        self._queue = np.empty(0, np.int64)  # the oldest rows, in order
        self._until = 0  # the stamp of the last of them; all others were seen later

    @property
    def _stamps(self) -> Rows:
        return self.columns["stamps"]

    def mark_seen(self, rows: Rows, stamp: int) -> None:
        """Rows, which may repeat, are seen in the step of this stamp; stamps ascend."""
        if not len(rows):
            return
        self.grow(int(rows.max()) + 1)
        self._stamps[rows] = stamp
        if stamp <= self._until:
            self._look_again()

    def oldest(self, count: int) -> Rows:
        """At most this many rows that were not seen for longest, in this order."""
        stamps = self._stamps[self._queue]
        self._queue = self._queue[(stamps > 0) & (stamps <= self._until)]
        if len(self._queue) < count:
            self._find_oldest(max(count, QUEUED))
        return self._queue[:count]

    def _find_oldest(self, count: int) -> None:
        """Put at least this many rows into the queue, if there are."""
        stamps = self._stamps[: self.size]
        seen = int(np.count_nonzero(stamps))
        if not seen:
            return
        last = self.size - max(seen - count, 0) - 1
        self._until = int(np.partition(stamps, last)[last])
        rows = np.flatnonzero((stamps > 0) & (stamps <= self._until))
        order = np.argsort(stamps[rows], kind="stable")
        self._queue = rows[order]

    def last_seen(self, rows: Rows) -> Rows:
        """The stamp of the step that last saw each row, 0 if none did."""
        return take_or_fill(self._stamps, rows)

    def put(self, rows: Rows, arrays: Arrays) -> None:
        super().put(rows, arrays)
        self._look_again()
