"""What the cache and the occurrence vector are made of, by popularity of the items.

Items are sorted by popularity. A band is made of whole items: those
that begin in its part of all events, so that the most popular item is always in the
first, however popular it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows
from streamer.model.popularity import ExactPopularity

Doubles = NDArray[np.float64]

HEAD = 0.5
TORSO = 0.8
"""The head begins in the first half of all events, the torso in the next 30%, the tail
in the rest.
"""


class Composition(NamedTuple):
    """Shares of an amount by band; they sum to one, or are all zero if there is nothing."""

    head: float = 0.0
    torso: float = 0.0
    tail: float = 0.0


EMPTY = Composition()


class Ranking:
    """Items sorted by how often they were seen, given [N] events of each row."""

    def __init__(self, counts: Doubles) -> None:
        self.order = np.argsort(-counts, kind="stable")
        """[N] rows, the most popular first."""
        self.place = np.argsort(self.order)
        """[N] where each row is in `order`."""
        self.counts = counts[self.order]
        """[N] events, of the most popular first."""

    @classmethod
    def of(cls, popularity: ExactPopularity) -> Ranking:
        """By exact counts."""
        return cls(popularity.counts(np.arange(popularity.size)))

    def slot_shares(self, cache: Rows) -> Composition:
        """The slots of a cache by band."""
        known = cache[cache < len(self.order)]
        slots = np.bincount(known, minlength=len(self.order))
        return self.shares(slots[self.order])

    def shares(self, amounts: NDArray[Any]) -> Composition:
        """An amount by band; `amounts` are [N], the most popular first."""
        total = max(float(amounts.sum()), 1e-12)
        parts = np.split(amounts, self._begins())
        return Composition(*(float(part.sum()) / total for part in parts))

    def least_counts(self) -> Doubles:
        """[2] how many events the last item of the head has, and of the torso."""
        return self.counts[np.maximum(self._begins() - 1, 0)]

    def _begins(self) -> Rows:
        """[2] places where torso and tail begin."""
        before = np.cumsum(self.counts) - self.counts
        return np.searchsorted(before / max(self.counts.sum(), 1e-12), (HEAD, TORSO))


class Point(NamedTuple):
    """Mean share of neighbouring popularity ranks; shares of all events, and of
    everything resampled.
    """

    rank: float
    popularity: float
    occurrence: float


def curve(popularity: Doubles, occurrence: Doubles, points: int) -> list[Point]:
    """Shares of an item by its popularity rank, averaged over ranks that are neighbours
    on a logarithmic axis.

    Args:
        popularity: [N] events of each item, the most popular first.
        occurrence: [N] how often each was resampled.
        points: at most this many.
    """
    size = len(popularity)
    if not size:
        return []
    spread = (
        np.geomspace(1, size + 1, points + 1).round()
        if size > points
        else np.arange(1, size + 2)
    )
    edges = np.unique(spread.astype(np.int64)) - 1
    starts = edges[:-1]
    widths = np.diff(edges)
    means = [
        np.add.reduceat(amounts, starts) / widths / max(float(amounts.sum()), 1e-12)
        for amounts in (popularity, occurrence)
    ]
    ranks = np.sqrt((starts + 1.0) * (starts + widths))
    return [
        Point(*(float(x) for x in point)) for point in zip(ranks, *means, strict=True)
    ]
