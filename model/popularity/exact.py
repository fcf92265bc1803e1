"""Exact counts, with an optional half-life."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.batch import Floats, Rows
from model.growing import grown

_LARGEST_GROWTH = 2.0**512


class ExactPopularity:
    """Counts every event of every item.

    With a half-life, an event counts half as much once that many further events have come. Nothing is scaled down for
    that: new events weigh more and more instead, 2^(t / half-life), and only ratios are ever used. When the weight
    grows too large, everything is rescaled once.

    Args:
        half_life_events: None keeps every event for ever.
        floor: an item counts as at least so many events of today; keeps the logarithm finite.

    Examples:
        >>> popularity = ExactPopularity()
        >>> popularity.observe(np.array([0, 0, 0, 1]))
        >>> np.exp(popularity.log_pop(np.array([0, 1])))
        array([0.75, 0.25], dtype=float32)
    """

    def __init__(self, half_life_events: float | None = None, floor: float = 1.0) -> None:
        self.half_life_events, self.floor = half_life_events, floor
        self._counts = np.zeros(0)
        self._total = 0.0
        self._weight = 1.0  # of an event that comes now
        self.size = 0

    def observe(self, items: Rows) -> None:
        self.add(items, None)

    def add(self, rows: Rows, counts: NDArray[np.float64] | None) -> None:
        """Take in events (`counts` None), or so many events of each row at once."""
        if not len(rows):
            return
        self._grow(int(rows.max()) + 1)
        weights, events = self._weights(len(rows)), float(len(rows))
        if counts is not None:
            weights, events = self._weight * counts, float(counts.sum())
        np.add.at(self._counts, rows, weights)
        self._total += float(weights.sum())
        self._age(events)

    def _weights(self, events: int) -> NDArray[np.float64]:
        if self.half_life_events is None:
            return np.ones(events)
        return self._weight * np.exp2(np.arange(events) / self.half_life_events)

    def _age(self, events: float) -> None:
        if self.half_life_events is None:
            return
        self._weight *= 2.0 ** (events / self.half_life_events)
        if self._weight > _LARGEST_GROWTH:
            self._counts /= self._weight
            self._total /= self._weight
            self._weight = 1.0

    def _grow(self, size: int) -> None:
        self._counts = grown(self._counts, size)
        self.size = max(self.size, size)

    def counts(self, rows: Rows) -> NDArray[np.float64]:
        """Events of each item, in events of today."""
        known = rows < self.size
        found = self._counts[np.where(known, rows, 0)] if self.size else np.zeros(len(rows))
        return np.where(known, found, 0.0) / self._weight

    @property
    def total(self) -> float:
        """All events, in events of today."""
        return self._total / self._weight

    def log_pop(self, rows: Rows) -> Floats:
        share = np.maximum(self.counts(rows), self.floor) / max(self.total, self.floor)
        return np.log(share).astype(np.float32)

    def forget(self, rows: Rows) -> None:
        rows = rows[rows < self.size]
        self._total -= float(self._counts[rows].sum())
        self._counts[rows] = 0

    def state(self) -> dict[str, NDArray[Any]]:
        scalars = np.array([self._total, self._weight])
        return {"counts": self._counts[: self.size], "scalars": scalars}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        self._counts, self.size = np.zeros(0), 0
        self._grow(len(state["counts"]))
        self._counts[: self.size] = state["counts"]
        self._total, self._weight = (float(x) for x in state["scalars"])
