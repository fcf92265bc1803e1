"""A close look at what the learner samples from: the cache, the occurrence vector, popularity. Not for every step.

Items are sorted by popularity. A stratum (a band, a decile) is made of whole items: those that begin in its part of all
events, so that the most popular item is always in the first, however popular it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.batch import Rows
from model.popularity import estimation_error
from streamer.composition import HEAD, TORSO
from streamer.learner import Learner

Doubles = NDArray[np.float64]

BAND_EDGES = (HEAD, TORSO)
DECILE_EDGES = tuple(k / 10 for k in range(1, 10))
TOP = 10
CURVE_POINTS = 48
COMPARED = 2000
"""Items at most over which the hashed estimate is compared with exact counts."""


class Top(NamedTuple):
    """An item that holds many slots of the cache."""

    item: str
    slots: int
    share: float
    popularity_rank: int


class Point(NamedTuple):
    """Mean share of neighbouring popularity ranks; shares of all events, and of everything resampled."""

    rank: float
    popularity: float
    occurrence: float


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen."""

    slots: int
    distinct: int
    entropy: float
    turnover: float
    overlap: float
    age_s: float
    slot_bands: list[float]
    slot_deciles: list[float]
    occurrence_bands: list[float]
    occurrence_deciles: list[float]
    divergence: dict[str, float]
    top: list[Top]
    curve: list[Point]
    items: int
    hash_error: float
    collision_share: float


class Looker:
    """Looks at a learner, and remembers since when items have been in its cache.

    Args:
        learner: what is looked at.
        clock: seconds.
    """

    def __init__(self, learner: Learner, clock: Callable[[], float] = time.monotonic) -> None:
        self._learner, self._clock = learner, clock
        self._since: dict[int, float] = {}

    def look(self, before: Rows, batch: Rows) -> Look:
        """What there is now.

        Args:
            before: the cache before its latest refresh.
            batch: item rows of the latest batch.
        """
        learner = self._learner
        ranking = Ranking(learner)
        cache = learner.cache[learner.cache < len(ranking.order)]
        rows, slots = np.unique(cache, return_counts=True)
        occurrence = learner.occurrence.values(ranking.order)  # [N], most popular first
        expected = ranking.shares(ranking.counts, DECILE_EDGES)
        deciles = ranking.shares_of(cache, DECILE_EDGES)
        compared = ranking.seen[:: max(1, len(ranking.seen) // COMPARED)]
        return Look(
            slots=len(learner.cache),
            distinct=len(rows),
            entropy=entropy(slots),
            turnover=turnover(before, learner.cache),
            overlap=float(slots[np.isin(rows, batch)].sum() / max(slots.sum(), 1)),
            age_s=self._age_s(rows, slots),
            slot_bands=ranking.shares_of(cache, BAND_EDGES).tolist(),
            slot_deciles=deciles.tolist(),
            occurrence_bands=ranking.shares(occurrence, BAND_EDGES).tolist(),
            occurrence_deciles=ranking.shares(occurrence, DECILE_EDGES).tolist(),
            divergence={
                "cache": divergence(deciles, expected),
                "batch": divergence(ranking.shares_of(batch, DECILE_EDGES), expected),
            },
            top=self._top(rows, slots, ranking),
            curve=curve(ranking.counts, occurrence),
            items=len(ranking.seen),
            hash_error=estimation_error(learner.hashed, learner.exact, compared),
            collision_share=learner.hashed.collision_share(),
        )

    def _age_s(self, rows: Rows, slots: Rows) -> float:
        now = self._clock()
        self._since = {row: self._since.get(row, now) for row in rows.tolist()}
        ages = now - np.fromiter(self._since.values(), np.float64, len(rows))
        return float((ages * slots).sum() / max(slots.sum(), 1))

    def _top(self, rows: Rows, slots: Rows, ranking: Ranking) -> list[Top]:
        most = np.argsort(-slots, kind="stable")[:TOP]
        ranks = ranking.place[rows[most]] + 1
        total = int(slots.sum())
        found = zip(rows[most].tolist(), slots[most].tolist(), ranks.tolist(), strict=True)
        return [Top(self._learner.items.id_of(row), n, n / total, rank) for row, n, rank in found]


class Ranking:
    """Items sorted by how often they were seen."""

    def __init__(self, learner: Learner) -> None:
        counts = learner.exact.counts(np.arange(learner.exact.size))
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
        self._before = np.concatenate([[0.0], upto])[:-1] / max(float(upto[-1]) if len(upto) else 0.0, 1e-12)

    def shares(self, amounts: Doubles, edges: tuple[float, ...]) -> Doubles:
        """Share of an amount by stratum; `amounts` are [N], the most popular first. All zero if there is nothing."""
        bounds = [0, *self._cuts(edges), len(amounts)]
        sums = np.array([amounts[start:end].sum() for start, end in pairwise(bounds)])
        return sums / max(float(sums.sum()), 1e-12)

    def shares_of(self, rows: Rows, edges: tuple[float, ...]) -> Doubles:
        """Share of some rows, with repetitions, by stratum; rows that nobody has counted are passed over."""
        places = self.place[rows[rows < len(self.place)]]
        strata = np.searchsorted(self._cuts(edges), places, side="right")
        return np.bincount(strata, minlength=len(edges) + 1) / max(len(places), 1)

    def _cuts(self, edges: tuple[float, ...]) -> Rows:
        """Where each stratum but the first begins."""
        return np.searchsorted(self._before, edges, side="left")


def entropy(counts: Rows) -> float:
    """Of a distribution given by counts, in nats."""
    shares = counts[counts > 0] / max(int(counts.sum()), 1)
    return max(0.0, float(-(shares * np.log(shares)).sum()))


def turnover(before: Rows, after: Rows) -> float:
    """Share of the slots of `after` that hold an item which `before` has no slot left for."""
    if not len(after):
        return 0.0
    old, old_slots = np.unique(before, return_counts=True)
    new, new_slots = np.unique(after, return_counts=True)
    _, at_old, at_new = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    return 1.0 - float(np.minimum(old_slots[at_old], new_slots[at_new]).sum()) / len(after)


def divergence(found: Doubles, expected: Doubles) -> float:
    """Kullback-Leibler divergence of one distribution from another, in nats."""
    some = (found > 0) & (expected > 0)
    return max(0.0, float((found[some] * np.log(found[some] / expected[some])).sum()))


def curve(popularity: Doubles, occurrence: Doubles) -> list[Point]:
    """Shares by popularity rank, averaged over ranks that are neighbours on a logarithmic axis."""
    if not len(popularity):
        return []
    edges = np.unique(np.geomspace(1, len(popularity) + 1, CURVE_POINTS + 1).round().astype(np.int64)) - 1
    starts, widths = edges[:-1], np.diff(edges)
    means = [
        np.add.reduceat(amounts, starts) / widths / max(float(amounts.sum()), 1e-12)
        for amounts in (popularity, occurrence)
    ]
    ranks = np.sqrt((starts + 1.0) * (starts + widths))
    return [Point(*(float(x) for x in point)) for point in zip(ranks, *means, strict=True)]
