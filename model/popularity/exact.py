"""Exact counts, with an optional half-life."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Doubles, Floats, Rows
from streamer.model.jit import njit_borrowing
from streamer.model.rows.by_rows import Arrays, Columns

MAX_EVENTS = 2**32 - 1
"""Of an item that are counted without a half-life, in 32 bits; it counts as that many
from then on.
"""
_PERIOD = 512
"""Half-lives after which weights begin anew at one."""


class ExactPopularity(Columns):
    """Counts every event of every item.

    With a half-life, an event counts half as much once that many further events have
    come. Nothing is scaled down for that: new events weigh more and more instead,
    2^(t / half-life), and only ratios are ever used. When the weight grows too large, a
    new period begins, and weights begin anew; a count of an earlier period is scaled
    down when its item has its next event. So no row is ever written but those of the
    events.

    Args:
        half_life_events: None keeps every event for ever.

    Raises:
        ValueError: the half-life is not positive.

    Examples:
        >>> popularity = ExactPopularity()
        >>> popularity.observe(np.array([0, 0, 0, 1]))
        >>> np.exp(popularity.log_pop(np.array([0, 1])))
        array([0.75, 0.25], dtype=float32)
    """

    def __init__(self, half_life_events: float | None = None) -> None:
        if half_life_events is not None and not half_life_events > 0:
            raise ValueError(
                f"half_life_events is {half_life_events}: choose a positive number, or None for no ageing"
            )
        self.half_life_events = half_life_events
        if half_life_events is None:
            super().__init__({}, counts=np.zeros(0, np.uint32))
        else:  # and the period in which each count was written
            periods = np.zeros(0, np.int32)
            super().__init__({}, counts=np.zeros(0), periods=periods)
        self.clear()

    def clear(self) -> None:
        super().clear()
        self._total = 0.0
        self._period = 0  # now
        self._log2_weight = 0.0  # of the newest event

    @property
    def _counts(self) -> NDArray[Any]:
        return self.columns["counts"]

    def observe(self, items: Rows) -> None:
        """Take in a micro-batch of events, in order."""
        self.add(items, None)

    def add(self, rows: Rows, counts: Doubles | None) -> None:
        """Take in events (`counts` None), or `counts` events of each row at once, as if
        evenly mixed.
        """
        events = float(len(rows))
        if counts is not None:
            events = float(counts.sum())
        if not events:
            return
        self.grow(int(rows.max()) + 1)
        self._age(events)
        if counts is None:
            weights = self._weights(len(rows))
            scale = 1.0
        else:
            weights = counts
            scale = self._mean_weight(events)
        if self._period:
            self._counts[rows] = self._of_this_period(rows)
            self.columns["periods"][rows] = self._period
        most = math.inf
        if self.half_life_events is None:
            most = MAX_EVENTS
        self._total += _add_weights(self._counts, rows, weights, scale, most)

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
        ago = self._period - self.columns["periods"][rows]
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
        """log of each item's share of the events; an item counts as seen once at
        least.
        """
        counts = np.maximum(self.counts(rows), 1.0)
        share = counts / max(self.total, 1.0)
        return np.log(share).astype(np.float32)

    def forget(self, rows: Rows) -> None:
        """Retire items: as if their events had never come."""
        rows = np.unique(rows[rows < self.size])
        self._total -= float(self._of_this_period(rows).sum())
        self._counts[rows] = 0

    def put(self, rows: Rows, arrays: Arrays) -> None:
        without_periods = {"periods": np.zeros(len(rows), np.int32)}
        super().put(rows, without_periods | arrays)

    def dense(self) -> Arrays:
        scalars = np.array([self._total, self._log2_weight, self._period])
        return super().dense() | {"scalars": scalars}

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self._total, self._log2_weight, period = arrays["scalars"].tolist()
        self._period = 0
        if self.half_life_events is not None:
            self._period = int(period)


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
