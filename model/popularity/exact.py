"""Exact counts, with an optional half-life."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Doubles, Floats, Rows
from streamer.model.jit import njit_borrowing
from streamer.model.rows.by_rows import Arrays, ByRows, take_or_fill
from streamer.model.rows.growing import grown

MAX_EVENTS = 2**32 - 1
"""Of an item that are counted without a half-life, in 32 bits; it counts as that many
from then on.
"""
_PERIOD = 512
"""Half-lives after which weights begin anew at one."""


class ExactPopularity(ByRows):
    """Counts every event of every item.

    With a half-life, an event counts half as much once that many further events have
    come. Nothing is scaled down for that: new events weigh more and more instead,
    2^(t / half-life), and only ratios are ever used. When the weight grows too large, a
    new period begins, and weights begin anew; a count of an earlier period is scaled
    down when its item has its next event. So no row is ever written but those of the
    events.

    Args:
        half_life_events: None keeps every event for ever.
        min_count: an item counts as at least this many events of today; keeps the logarithm
            finite.

    Raises:
        ValueError: a number is not positive; the message lists every problem.

    Examples:
        >>> popularity = ExactPopularity()
        >>> popularity.observe(np.array([0, 0, 0, 1]))
        >>> np.exp(popularity.log_pop(np.array([0, 1])))
        array([0.75, 0.25], dtype=float32)
    """

    def __init__(
        self, half_life_events: float | None = None, min_count: float = 1.0
    ) -> None:
        if problems := _problems(half_life_events, min_count):
            raise ValueError("; ".join(problems))
        self.half_life_events = half_life_events
        self.min_count = min_count
        self._counts: NDArray[Any] = np.zeros(
            0, np.uint32 if half_life_events is None else np.float64
        )
        self._total = 0.0
        # when each count was written; now
        self._periods = np.zeros(0, np.int32)
        self._period = 0
        self._log2_weight = 0.0  # of the newest event
        self.size = 0

    def observe(self, items: Rows) -> None:
        """Take in a micro-batch of events, in order."""
        self.add(items, None)

    def add(self, rows: Rows, counts: Doubles | None) -> None:
        """Take in events (`counts` None), or `counts` events of each row at once, as if
        evenly mixed.
        """
        events = float(len(rows)) if counts is None else float(counts.sum())
        if not events:
            return
        self._grow(int(rows.max()) + 1)
        self._age(events)
        if counts is None:
            weights = self._weights(len(rows))
            scale = 1.0
        else:
            weights = counts
            scale = self._mean_weight(events)
        if self._period:
            self._counts[rows] = self._of_this_period(rows)
            self._periods[rows] = self._period
        most = MAX_EVENTS if self.half_life_events is None else math.inf
        self._total += _add_weights(self._counts, rows, weights, scale, most)

    def replace(self, rows: Rows, counts: Doubles) -> None:
        """Forget everything, and take in `counts` events of each row, as if evenly
        mixed.
        """
        self.clear()
        if len(rows):
            self._grow(int(rows.max()) + 1)
            self.add(rows, counts)

    def _age(self, events: float) -> None:
        """Note that events come; a new period before they are counted keeps their
        weights finite, however many come.
        """
        if self.half_life_events is None:
            return
        self._log2_weight += events / self.half_life_events
        passed = int(self._log2_weight // _PERIOD)
        if passed > 0:
            self._period += passed
            self._total = math.ldexp(self._total, -_PERIOD * passed)
            self._log2_weight -= _PERIOD * passed

    def _of_this_period(self, rows: Rows) -> Doubles:
        """What the counts of rows, which are known, weigh in this period."""
        if not self._period:
            return self._counts[rows].astype(np.float64, copy=False)
        ago = self._period - self._periods[rows]
        found: Doubles = np.ldexp(self._counts[rows], -_PERIOD * ago)
        return found

    def _weights(self, events: int) -> Doubles:
        """Of the last events, in their order."""
        if self.half_life_events is None:
            return np.ones(events)
        age = np.arange(events - 1, -1, -1)
        return np.exp2(self._log2_weight - age / self.half_life_events)

    def _mean_weight(self, events: float) -> float:
        """Of the last events: a geometric series."""
        if self.half_life_events is None:
            return 1.0
        rate = math.log(2) / self.half_life_events
        return math.expm1(-rate * events) / math.expm1(-rate) / events / self._today

    @property
    def _today(self) -> float:
        """Times a weight: in events of today."""
        return float(2.0**-self._log2_weight)

    def _grow(self, size: int) -> None:
        self._counts = grown(self._counts, size)
        if self.half_life_events is not None:
            self._periods = grown(self._periods, size)
        self.size = max(self.size, size)

    def counts(self, rows: Rows) -> Doubles:
        """Events of each item, in events of today."""
        if not self.size:
            return np.zeros(rows.shape)
        known = rows < self.size
        found = self._of_this_period(np.where(known, rows, 0))
        return np.where(known, found, 0.0) * self._today

    @property
    def total(self) -> float:
        """All events, in events of today."""
        return self._total * self._today

    def log_pop(self, rows: Rows) -> Floats:
        """log of each item's share of the events; an item counts as seen `min_count` times
        at least.
        """
        counts = np.maximum(self.counts(rows), self.min_count)
        share = counts / max(self.total, self.min_count)
        return np.log(share).astype(np.float32)

    def forget(self, rows: Rows) -> None:
        """Retire items: as if their events had never come."""
        rows = np.unique(rows[rows < self.size])
        self._total -= float(self._of_this_period(rows).sum())
        self._counts[rows] = 0

    @property
    def nbytes(self) -> int:
        periods = 0 if self.half_life_events is None else self._periods.itemsize
        return (self._counts.itemsize + periods) * self.size

    def take(self, rows: Rows) -> Arrays:
        found = {"counts": take_or_fill(self._counts, rows)}
        if self.half_life_events is not None:
            found["periods"] = take_or_fill(self._periods, rows)
        return found

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self._grow(int(rows.max(initial=-1)) + 1)
        self._counts[rows] = arrays["counts"]
        if self.half_life_events is not None:
            self._periods[rows] = arrays.get("periods", 0)

    def dense(self) -> Arrays:
        scalars = np.array([self._total, self._log2_weight, self._period])
        return super().dense() | {"scalars": scalars}

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self._grow(self.size)
        self._total, self._log2_weight, period = arrays["scalars"].tolist()
        self._period = int(period) if self.half_life_events is not None else 0

    def clear(self) -> None:
        self.__init__(self.half_life_events, self.min_count)  # type: ignore[misc]


@njit_borrowing
def _add_weights(
    counts: NDArray[Any],
    rows: Rows,
    weights: Doubles,
    scale: float,
    most: float,
) -> float:
    """Add weights times the scale to the counts of rows, which may repeat; returns the
    sum of what was added.
    """
    total = 0.0
    for k in range(len(rows)):
        before = float(counts[rows[k]])
        after = min(before + scale * weights[k], most)
        counts[rows[k]] = after
        total += after - before
    return total


def _problems(half_life_events: float | None, min_count: float) -> list[str]:
    found = []
    if half_life_events is not None and not half_life_events > 0:
        found.append(
            f"half_life_events is {half_life_events}: choose a positive number, or None for no ageing"
        )
    if not min_count > 0:
        found.append(
            f"min_count is {min_count}: choose a positive number, so that no item's logarithm is infinite"
        )
    return found
