"""When rows were last seen: which of them go first, and how old they are.

Every step has a number, and a row keeps that of the last step that saw it, in 32 bits.
Rows stand in a doubly linked list in the order in which they were last seen, those of
one step in the order of their numbers: to see a row, and to find those that were not
seen for longest, costs the same however many there are. The links are not saved: the
numbers determine them.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

import numpy as np

from streamer.model.batch import Ints, Rows
from streamer.model.jit import njit_borrowing
from streamer.model.rows.by_rows import Arrays, Columns, take_or_fill
from streamer.model.rows.growing import grown

MAX_MARKS = 1024
_NONE = -1
_OLDER = 0
_NEWER = 1


class StepClock:
    """Numbers steps, and knows the event time of each: of the latest exactly, of older
    ones to 1% of the whole.

    The event time is the median of a step's events, and never goes back: a few events
    with absurd times change nothing.
    """

    def __init__(self) -> None:
        self.step = 0
        self.now_s = 0
        self._steps: list[int] = []
        self._times_s: list[int] = []

    def tick(self, times_s: Rows) -> int:
        """A step begins, with events of these times; returns its number, from 1."""
        self.step += 1
        if len(times_s):
            self.now_s = max(self.now_s, int(np.median(times_s)))
        if not self._steps or self.now_s > self._times_s[-1]:
            self._steps.append(self.step)
            self._times_s.append(self.now_s)
        if len(self._steps) > MAX_MARKS:
            self._thin_out()
        return self.step

    def _thin_out(self) -> None:
        """Leave half as many marks, evenly in time, and the latest."""
        times_s = np.array(self._times_s)
        since_first_s = times_s - times_s[0]
        slots = since_first_s * (MAX_MARKS // 2 - 1) // since_first_s[-1]
        kept = np.concatenate([[True], np.diff(slots) > 0])
        kept[-1] = True
        self._times_s = times_s[kept].tolist()
        self._steps = np.array(self._steps)[kept].tolist()

    def time_of(self, step: int) -> int:
        """The event time of a step."""
        at = bisect.bisect_right(self._steps, step) - 1
        if not self._times_s:
            return 0
        return self._times_s[max(at, 0)]

    def forget_before(self, step: int) -> None:
        """Nobody will ask for steps before this one any more."""
        at = bisect.bisect_right(self._steps, step) - 1
        if at > 0:
            del self._steps[:at]
            del self._times_s[:at]

    def dense(self) -> Arrays:
        """Everything."""
        marks = np.array([self._steps, self._times_s], np.int64).reshape(2, -1)
        return {
            "now": np.array([self.step, self.now_s]),
            "marks": marks,
        }

    def load_dense(self, arrays: Arrays) -> None:
        """Take over what `dense` returned."""
        self.step, self.now_s = (int(x) for x in arrays["now"])
        self._steps, self._times_s = arrays["marks"].reshape(2, -1).tolist()


class _Order(NamedTuple):
    """What the compiled loops work on."""

    last_step: Ints
    links: Ints
    ends: Rows


class Recency(Columns):
    """The order in which rows were last seen.

    Examples:
        >>> recency = Recency()
        >>> recency.mark_seen(np.array([3, 1, 2]), step=1)
        >>> recency.mark_seen(np.array([1]), step=2)
        >>> recency.oldest(2), recency.step_of_oldest
        (array([2, 3]), 1)
    """

    def __init__(self) -> None:
        super().__init__({}, last_step=np.zeros(0, np.int32))  # 0: not in the list
        self.clear()

    def clear(self) -> None:
        super().clear()
        # the row seen just before, and just after
        self._links = np.full((0, 2), _NONE, np.int32)
        self._ends = np.full(2, _NONE)  # the newest row, and the oldest
        self._linked = True

    def mark_seen(self, rows: Rows, step: int) -> None:
        """Rows, which may repeat, are seen in this step; steps ascend."""
        if not len(rows):
            return
        self._link()
        self.grow(int(rows.max()) + 1)
        if not (rows[1:] > rows[:-1]).all():
            rows = np.unique(rows)
        _mark_seen(self._order, rows, step)

    def oldest(self, count: int) -> Rows:
        """At most this many rows that were not seen for longest, in this order."""
        self._link()
        found = np.empty(max(min(count, self.size), 0), np.int64)
        return found[: _oldest(self._order, found)]

    @property
    def step_of_oldest(self) -> int | None:
        """The step that last saw the row that was not seen for longest; None if there
        is no row.
        """
        self._link()
        row = int(self._ends[_NEWER])
        if row == _NONE:
            return None
        return int(self._last_step[row])

    def last_steps(self, rows: Rows) -> Rows:
        """The step that last saw each row, 0 if none did."""
        return take_or_fill(self._last_step, rows).astype(np.int64)

    def forget(self, rows: Rows) -> None:
        """Retire rows."""
        self._link()
        _forget(self._order, rows[rows < self.size])

    @property
    def _last_step(self) -> Ints:
        return self.columns["last_step"]

    @property
    def _order(self) -> _Order:
        return _Order(self._last_step, self._links, self._ends)

    def grow(self, size: int) -> None:
        super().grow(size)
        self._links = grown(self._links, size, _NONE)

    def _link(self) -> None:
        """Make the list of the numbers, if it does not belong to them."""
        if self._linked:
            return
        last = self._last_step[: self.size]
        rows = np.argsort(last, kind="stable")
        rows = rows[last[rows] > 0]
        self._links[:] = _NONE
        self._ends[:] = _NONE
        self._links[rows[1:], _OLDER] = rows[:-1]
        self._links[rows[:-1], _NEWER] = rows[1:]
        if len(rows):
            self._ends[:] = rows[-1], rows[0]
        self._linked = True

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._links[:1].nbytes * self.size

    def put(self, rows: Rows, arrays: Arrays) -> None:
        super().put(rows, arrays)
        self._linked = False


@njit_borrowing
def _mark_seen(order: _Order, rows: Rows, step: int) -> None:
    for row in rows:
        if order.last_step[row] > 0:
            _unlink(order, row)
        newest = order.ends[0]
        order.links[row, _OLDER] = newest
        order.links[row, _NEWER] = _NONE
        if newest >= 0:
            order.links[newest, _NEWER] = row
        else:
            order.ends[1] = row
        order.ends[0] = row
        order.last_step[row] = step


@njit_borrowing
def _unlink(order: _Order, row: int) -> None:
    older = order.links[row, _OLDER]
    newer = order.links[row, _NEWER]
    if newer >= 0:
        order.links[newer, _OLDER] = older
    else:
        order.ends[0] = older
    if older >= 0:
        order.links[older, _NEWER] = newer
    else:
        order.ends[1] = newer


@njit_borrowing
def _forget(order: _Order, rows: Rows) -> None:
    for row in rows:
        if order.last_step[row] > 0:
            _unlink(order, row)
            order.last_step[row] = 0


@njit_borrowing
def _oldest(order: _Order, found: Rows) -> int:
    row = order.ends[1]
    count = 0
    while row >= 0 and count < len(found):
        found[count] = row
        row = order.links[row, _NEWER]
        count += 1
    return count
