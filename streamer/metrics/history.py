"""The past of a run for the charts of the live page: the last minutes, and moments of the
whole run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

RECENT_POINTS = 600
RUN_POINTS = 600
"""Kept of the whole run: when there are as many, every second one goes."""

Rows = list[tuple[float, ...]]
"""Of each moment, the values of all series."""


class Timeline:
    """Several series over time, the first of them the time; written by one thread and
    read by others.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._recent: deque[tuple[float, ...]] = deque(maxlen=RECENT_POINTS)
        self._run: Rows = []
        self._moments = 0
        self._stride = 1  # of the moments that are kept of the whole run

    def add(self, values: Mapping[str, float]) -> None:
        """One moment; a series that is not among the values has none now."""
        row = tuple(values.get(name, math.nan) for name in self.columns)
        self._recent.append(row)
        if self._moments % self._stride == 0:
            self._run = [*self._run, row]
        if len(self._run) == RUN_POINTS:
            self._run = self._run[::2]
            self._stride *= 2
        self._moments += 1

    def recent(self) -> Rows:
        """The last moments, the oldest first."""
        return list(self._recent.copy())  # a copy: the line may add some meanwhile

    def run(self) -> Rows:
        """Moments of the whole run, evenly chosen, the oldest first."""
        return self._run
