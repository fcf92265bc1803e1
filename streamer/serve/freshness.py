"""How long events take until a request sees them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from streamer.serve.overlay import Event

KINDS = ("recent_items", "new_item", "vectors")
"""The event is among its user's recent items; its item, which was new, can be
recommended; its vectors are updated.
"""
CLOCKS = ("event", "record")
"""From the event's own time, or from when its record was written."""
KEPT = 100_000
"""Latest waits of each kind that are kept."""
LAST_S = 60.0
"""Quantiles are those of the last minute."""


class Freshness:
    """Takes waits in seconds.

    Args:
        record: called with kind, clock and seconds of each; None for nobody.
        since_s: events that happened or were written before are not counted: they
            waited for us, not for the trainer.
    """

    def __init__(
        self,
        record: Callable[[str, str, float], None] | None = None,
        since_s: float | None = None,
    ) -> None:
        self._record = record
        self._since_s = time.time() if since_s is None else since_s
        self._latest: dict[str, deque[tuple[float, float]]] = {}
        for kind in KINDS:
            self._latest[kind] = deque(maxlen=KEPT)

    def add(self, kind: str, event: Event, now: float) -> None:
        """A request sees the event from now on, in one of the `KINDS`."""
        times_s = (event.time_s, event.appended_s)
        for clock, began in zip(CLOCKS, times_s, strict=True):
            if began < self._since_s:
                continue
            wait_s = max(now - began, 0.0)
            if self._record is not None:
                self._record(kind, clock, wait_s)
            if clock == "record":
                self._latest[kind].append((now, wait_s))

    def quantiles(self, now: float, last_s: float = LAST_S) -> dict[str, Any]:
        """Median and 99th percentile of the latest waits since records were written;
        None without any.
        """
        found = {}
        for kind, seen in self._latest.items():
            since = now - last_s
            waits = [wait for at, wait in list(seen) if at >= since]
            p50 = None
            p99 = None
            if waits:
                p50, p99 = np.percentile(waits, (50, 99)).tolist()
            found[f"{kind}_s"] = {"p50": p50, "p99": p99, "count": len(waits)}
        return found
