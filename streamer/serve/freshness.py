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
        self._latest: dict[str, deque[tuple[float, float]]] = {
            kind: deque(maxlen=KEPT) for kind in KINDS
        }

    def recent_items(self, event: Event, now: float) -> None:
        """A request would see the event from now on."""
        self._add("recent_items", event, now)

    def new_item(self, event: Event, now: float) -> None:
        """The event's item, which was new, can be recommended from now on."""
        self._add("new_item", event, now)

    def vectors(self, event: Event, now: float) -> None:
        """The event is part of the model from now on."""
        self._add("vectors", event, now)

    def _add(self, kind: str, event: Event, now: float) -> None:
        for clock, began in zip(CLOCKS, (event.time_s, event.appended_s), strict=True):
            if began < self._since_s:
                continue
            if self._record is not None:
                self._record(kind, clock, max(now - began, 0.0))
            if clock == "record":
                self._latest[kind].append((now, max(now - began, 0.0)))

    def quantiles(self, now: float, last_s: float = LAST_S) -> dict[str, Any]:
        """Median and 99th percentile of the latest waits since records were written;
        None without any.
        """
        found = {}
        for kind, seen in self._latest.items():
            waits = [wait for at, wait in list(seen) if at >= now - last_s]
            p50, p99 = (
                np.percentile(waits, [50, 99]).tolist() if waits else (None, None)
            )
            found[f"{kind}_s"] = {"p50": p50, "p99": p99, "count": len(waits)}
        return found
