"""What the cache and the occurrence vector are made of, by popularity of the items.

Items are sorted by popularity. A stratum (a band, a decile) is made of whole items:
those that begin in its part of all events, so that the most popular item is always in
the first, however popular it is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

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
BANDS = (HEAD, TORSO)
DECILES = tuple(k / 10 for k in range(1, 10))


class Composition(NamedTuple):
    """Shares of the cache's slots; they sum to one, or are all zero for an empty cache."""

    head: float
    torso: float
    tail: float


def composition(cache: Rows, popularity: ExactPopularity) -> Composition:
    """The cache by popularity band. Looks at all items: not for every step."""
    return Composition(*Ranking.of(popularity).shares_of(cache, BANDS).tolist())


class Ranking:
    """Items sorted by how often they were seen, given [N] events of each row."""

    def __init__(self, counts: Doubles) -> None:
        self.order = np.argsort(-counts, kind="stable")
        """[N] rows, the most popular first."""
        self.place = np.empty(len(counts), np.int64)
        """[N] where each row is in `order`."""
        self.place[self.order] = np.arange(len(counts))
        self.counts = counts[self.order]
        """[N] events, of the most popular first."""
        self.seen = self.order[: int((self.counts > 0).sum())]
        """Those of `order` that were seen at all."""
        upto = np.cumsum(self.counts)
        self._before = np.concatenate([[0.0], upto])[:-1] / max(
            float(upto[-1]) if len(upto) else 0.0, 1e-12
        )

    @classmethod
    def of(cls, popularity: ExactPopularity) -> Ranking:
        """By exact counts."""
        return cls(popularity.counts(np.arange(popularity.size)))

    def shares(self, amounts: Doubles, edges: tuple[float, ...]) -> Doubles:
        """Share of an amount by stratum; `amounts` are [N], the most popular first. All
        zero if there is nothing.
        """
        bounds = [0, *self._cuts(edges), len(amounts)]
        sums = np.array([amounts[start:end].sum() for start, end in pairwise(bounds)])
        return sums / max(float(sums.sum()), 1e-12)

    def shares_of(self, rows: Rows, edges: tuple[float, ...]) -> Doubles:
        """Share of some rows, with repetitions, by stratum; rows that nobody has
        counted are passed over.
        """
        places = self.place[rows[rows < len(self.place)]]
        strata = np.searchsorted(self._cuts(edges), places, side="right")
        return np.bincount(strata, minlength=len(edges) + 1) / max(len(places), 1)

    def _cuts(self, edges: tuple[float, ...]) -> Rows:
        """Where each stratum but the first begins."""
        return np.searchsorted(self._before, edges, side="left")


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
