"""What was, in bounded memory: every moment of the last minutes, and the whole run in
fewer points.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence

from streamer.display.charts import History as WholeRun

RECENT_POINTS = 600
RUN_POINTS = 600
SHOWN_POINTS = 300

Rows = list[tuple[float, ...]]


class Timeline:
    """Several series over time, the first of them the time; written by one thread and
    read by others.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, ...]] = deque(maxlen=RECENT_POINTS)
        self._run = WholeRun(RUN_POINTS)

    def add(self, values: Mapping[str, float]) -> None:
        """One moment; a series that is not among the values has none now."""
        row = tuple(values.get(name, float("nan")) for name in self.columns)
        with self._lock:
            self._recent.append(row)
            self._run.add(row)

    def recent(self) -> Rows:
        """The last moments, the oldest first, at most as many as are worth drawing."""
        with self._lock:
            rows = list(self._recent)
        every = -(-len(rows) // SHOWN_POINTS) or 1
        return rows[(len(rows) - 1) % every :: every]

    def run(self) -> Rows:
        """The whole run, merged where there were more moments."""
        with self._lock:
            return self._run.resampled(SHOWN_POINTS)
