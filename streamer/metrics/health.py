"""Whether a process is alive, and whether it is ready: what Kubernetes asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

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
        self._clock = clock
        self._beat_at = clock()
        self._begun = self._over = False
        self._stepped_at: float | None = None
        self.partitions = 0
        self.unread = 0
        """Partitions of which it is not known yet where to begin."""
        self.lag = 0
        """Records that wait in our partitions, as far as is known."""
        self.problems: list[str] = []
        """What does not respond or cannot be written to: source, store, checkpoints."""

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
        if not alive.ok or not self._begun:
            return Verdict(False, alive.reason)
        if self.problems:
            return Verdict(False, "; ".join(self.problems))
        if not self.partitions:
            return Verdict(False, "no partition is assigned to this process yet")
        if self.unread:
            return Verdict(
                False,
                f"it is not known yet where to begin in {self.unread:,} of its partitions",
            )
        if not self.lag:
            return Verdict(True, "caught up")
        if self._stepped_at is None:
            return Verdict(
                False,
                f"no step yet, {self.lag:,} records wait; the first one compiles kernels",
            )
        since_s = self._clock() - self._stepped_at
        if since_s > RECENT_S:
            return Verdict(
                False, f"no step for {since_s:.0f} s while {self.lag:,} records wait"
            )
        return Verdict(True, "training")
