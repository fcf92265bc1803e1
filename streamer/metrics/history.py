"""The past of a run for the charts of the live page: the last minutes, and the whole run
in fewer points.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

RECENT_POINTS = 600
RUN_POINTS = 600
"""Kept of the whole run, an even number: when there are more, neighbours are merged."""
SHOWN_POINTS = 300

Rows = list[tuple[float, ...]]
"""Of each moment, the values of all series."""


class Timeline:
    """Several series over time, the first of them the time; written by one thread and
    read by others.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, ...]] = deque(maxlen=RECENT_POINTS)
        self._run: Rows = []
        self._stride = 1  # moments of a point of the whole run
        self._open: Rows = []  # of the point that is not complete

    def add(self, values: Mapping[str, float]) -> None:
        """One moment; a series that is not among the values has none now."""
        row = tuple(values.get(name, float("nan")) for name in self.columns)
        with self._lock:
            self._recent.append(row)
            if len(self._run) == RUN_POINTS:
                self._run = _merged(self._run, RUN_POINTS // 2)
                self._stride *= 2
            self._open.append(row)
            if len(self._open) >= self._stride:
                self._run += _merged(self._open, 1)
                self._open = []

    def recent(self) -> Rows:
        """The last moments, the oldest first."""
        with self._lock:
            return list(self._recent)

    def run(self) -> Rows:
        """The whole run, merged where there were more moments."""
        with self._lock:
            return _merged(self._run, SHOWN_POINTS)


def _merged(rows: Rows, most: int) -> Rows:
    """At most this many rows, each the mean of about as many neighbours."""
    if len(rows) <= most:
        return list(rows)
    edges = [k * len(rows) // most for k in range(most + 1)]
    merged = []
    for start, end in pairwise(edges):
        columns = zip(*rows[start:end], strict=True)
        merged.append(tuple(sum(column) / (end - start) for column in columns))
    return merged
