"""How fast a stream is written: at once, at a rate, or as it once happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

TICK_S = 0.05
"""Events due within this time are written together."""
MAX_CATCH_UP_S = 1.0
"""A writer that fell behind makes up for this much of it, and not for the rest."""


class Pace:
    """When events are due: some time after the one before, or all at once if neither
    rate nor speed is given.

    Args:
        rate: events a second.
        speed: times real time, 60 for an hour in a minute.
        max_gap_s: longest pause between two events at that speed; None for no limit.
        sleep: waits for some seconds; may return early.
    """

    def __init__(
        self,
        rate: float | None = None,
        speed: float | None = None,
        max_gap_s: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate = rate
        self._speed = speed
        self._max_gap_s = max_gap_s
        self._clock = clock
        self._sleep = sleep
        # of the last event that was due: when on the clock, and its own time
        self._last_due_s: float | None = None
        self._last_ms: int | None = None

    def due(self, timestamps_ms: Sequence[int]) -> int:
        """Wait until the first of the events that come next is due, and return how many
        are, at least one.

        These count as written: the next call is about the events after them.
        """
        if self._rate is not None:
            gaps_s = np.full(len(timestamps_ms), 1 / self._rate)
        elif self._speed is not None:
            before = timestamps_ms[0] if self._last_ms is None else self._last_ms
            gaps_ms = np.diff(np.asarray(timestamps_ms, np.float64), prepend=before)
            # an event out of order is due with the one before
            gaps_s = (gaps_ms / 1000 / self._speed).clip(0, self._max_gap_s)
        else:
            return len(timestamps_ms)
        if self._last_due_s is None:
            self._last_due_s = self._clock()
            gaps_s[0] = 0.0
        due_s = self._last_due_s + np.cumsum(gaps_s)
        if (wait_s := due_s[0] - self._clock()) > 0:
            self._sleep(float(wait_s))
        elif wait_s < -MAX_CATCH_UP_S:
            due_s += -wait_s - MAX_CATCH_UP_S
        due_now = np.searchsorted(due_s, self._clock() + TICK_S, side="right")
        count = max(1, int(due_now))
        self._last_due_s = float(due_s[count - 1])
        self._last_ms = timestamps_ms[count - 1]
        return count
