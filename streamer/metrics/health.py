"""Whether a process is alive, and whether it is ready: what Kubernetes asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamer.metrics.status import Status

STUCK_AFTER_S = 180.0
"""A pipeline that has not looked for a batch for this long hangs; the first step
compiles, which takes a while.
"""
RECENT_S = 60.0
"""With records waiting, a step within this time is a recent one."""


class Verdict(NamedTuple):
    """A verdict and its reason, for a person."""

    ok: bool
    reason: str


class Health:
    """What a line last did, judged by the time since."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.status: Status | None = None
        """The latest one; None before the first."""
        self._clock = clock
        self._beat_at = clock()
        self._begun = False
        self._over = False
        self._stepped_at: float | None = None

    def beat(self) -> None:
        """The line looks for the next batch."""
        self._beat_at = self._clock()
        self._begun = True

    def stepped(self) -> None:
        """A batch is done."""
        self._stepped_at = self._clock()

    def ended(self) -> None:
        """The line runs no more."""
        self._over = True

    def alive(self) -> Verdict:
        """Whether the line steps or waits, or is going to."""
        silent_s = self._clock() - self._beat_at
        if self._over:
            return Verdict(False, "the run has ended")
        if not self._begun:
            return Verdict(True, "starting")  # a large checkpoint takes its time
        if silent_s > STUCK_AFTER_S:
            return Verdict(False, f"training has not moved for {silent_s:.0f} s")
        return Verdict(True, "training")

    def ready(self) -> Verdict:
        """Whether the line reaches all that it needs, has partitions, and a recent step
        or nothing to do.
        """
        alive = self.alive()
        status = self.status
        if not alive.ok or not self._begun:
            return Verdict(False, alive.reason)
        if status is None or not (status.partitions or status.problems):
            return Verdict(False, "no partition is assigned to this process yet")
        if status.problems:
            return Verdict(False, "; ".join(status.problems))
        if status.backpressure_reason is not None:
            return Verdict(False, f"paused: {status.backpressure_reason}")
        unread = list(status.partitions.values()).count(None)
        if unread:
            reason = (
                f"it is not known yet where to begin in {unread:,} of its partitions"
            )
            return Verdict(False, reason)
        lag = sum(status.lag.values())
        if not lag:
            return Verdict(True, "caught up")
        if self._stepped_at is None:
            reason = (
                f"no step yet, {lag:,} records wait; the first one compiles kernels"
            )
            return Verdict(False, reason)
        since_s = self._clock() - self._stepped_at
        if since_s > RECENT_S:
            reason = f"no step for {since_s:.0f} s while {lag:,} records wait"
            return Verdict(False, reason)
        return Verdict(True, "training")
