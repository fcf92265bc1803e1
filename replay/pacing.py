"""How fast a stream is written: at once, at a rate, or as it once happened.

A pace gets the times of the events that come next, waits until the first of them is due, and returns how many are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

TICK_S = 0.05
"""Events due within this time are written together."""
MAX_CATCH_UP_S = 1.0
"""A writer that fell behind makes up for this much of it, and not for the rest."""


class Pace(Protocol):
    """Says when events are due."""

    def due(self, timestamps_ms: Sequence[int]) -> int:
        """Wait until the first of the events is due; returns how many are, at least one.

        These count as written: the next call is about the events after them.

        Args:
            timestamps_ms: times of the events that come next, at least one.
        """
        ...


class Unpaced:
    """As fast as possible."""

    def due(self, timestamps_ms: Sequence[int]) -> int:
        """All of them."""
        return len(timestamps_ms)


class _Scheduled:
    """Each event is due some time after the one before.

    Args:
        clock: seconds.
        sleep: waits for some seconds; may return early.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], object]) -> None:
        self._clock, self._sleep = clock, sleep
        self._last_due_s: float | None = None  # on the clock, of the last event that was due
        self._last_ms: int | None = None  # and its own time

    def due(self, timestamps_ms: Sequence[int]) -> int:
        """See `Pace.due`."""
        gaps_s = self._gaps_s(timestamps_ms)
        if self._last_due_s is None:
            self._last_due_s, gaps_s[0] = self._clock(), 0.0
        due_s = self._last_due_s + np.cumsum(gaps_s)
        if (wait_s := due_s[0] - self._clock()) > 0:
            self._sleep(float(wait_s))
        elif wait_s < -MAX_CATCH_UP_S:
            due_s += -wait_s - MAX_CATCH_UP_S
        count = max(1, int(np.searchsorted(due_s, self._clock() + TICK_S, side="right")))
        self._last_due_s, self._last_ms = float(due_s[count - 1]), timestamps_ms[count - 1]
        return count

    def _gaps_s(self, timestamps_ms: Sequence[int]) -> NDArray[np.float64]:
        """Seconds from the event before to each event."""
        raise NotImplementedError


class SteadyPace(_Scheduled):
    """A fixed number of events a second.

    Args:
        events_per_second: more than 0.
    """

    def __init__(
        self,
        events_per_second: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(clock, sleep)
        self._gap_s = 1 / events_per_second

    def _gaps_s(self, timestamps_ms: Sequence[int]) -> NDArray[np.float64]:
        return np.full(len(timestamps_ms), self._gap_s)


class RealTimePace(_Scheduled):
    """As the events once happened, or faster.

    Args:
        speed: 1 for real time, 60 for an hour in a minute.
        max_gap_s: longest pause between two writes; None for no limit.
    """

    def __init__(
        self,
        speed: float = 1.0,
        max_gap_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(clock, sleep)
        self._speed, self._max_gap_s = speed, max_gap_s

    def _gaps_s(self, timestamps_ms: Sequence[int]) -> NDArray[np.float64]:
        times = np.asarray(timestamps_ms, np.float64)
        before = times[0] if self._last_ms is None else self._last_ms
        gaps_s = np.diff(times, prepend=before) / 1000 / self._speed
        return gaps_s.clip(0, self._max_gap_s)  # an event out of order is due with the one before


def make_pace(rate: float | None = None, speed: float | None = None, max_gap_s: float | None = None) -> Pace:
    """Events a second, times real time, or as fast as possible; see `WriteSettings`."""
    if rate is not None:
        return SteadyPace(rate)
    return RealTimePace(speed, max_gap_s) if speed is not None else Unpaced()
