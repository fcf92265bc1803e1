"""What the learner samples from: cache, occurrence vector and popularity in figures.
Too slow for every step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streamer.learner import Learner
from streamer.metrics.composition import BANDS, DECILES, Doubles, Point, Ranking, curve
from streamer.model.batch import Rows
from streamer.model.popularity import estimation_error

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


@dataclass(frozen=True, slots=True)
class SamplerReport:
    """Figures of cache, occurrence and popularity at one moment."""

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


class SamplerReporter:
    """Makes reports of a learner, and remembers since when items have been in its
    cache.
    """

    def __init__(
        self, learner: Learner, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._learner = learner
        self._clock = clock
        self._since: dict[int, float] = {}

    def report(self, before: Rows, batch: Rows) -> SamplerReport:
        """The figures now; `before` is the cache before its latest refresh, `batch` has
        the latest batch's items.
        """
        learner = self._learner
        ranking = Ranking.of(learner.state.item_counts)
        cache = learner.state.cache[learner.state.cache < len(ranking.order)]
        rows, slots = np.unique(cache, return_counts=True)
        occurrence = learner.state.occurrence.values(
            ranking.order
        )  # [N], most popular first
        expected = ranking.shares(ranking.counts, DECILES)
        deciles = ranking.shares_of(cache, DECILES)
        compared = ranking.seen[:: max(1, len(ranking.seen) // COMPARED)]
        return SamplerReport(
            slots=len(learner.state.cache),
            distinct=len(rows),
            entropy=entropy(slots),
            turnover=turnover(before, learner.state.cache),
            overlap=float(slots[np.isin(rows, batch)].sum() / max(slots.sum(), 1)),
            age_s=self._age_s(rows, slots),
            slot_bands=ranking.shares_of(cache, BANDS).tolist(),
            slot_deciles=deciles.tolist(),
            occurrence_bands=ranking.shares(occurrence, BANDS).tolist(),
            occurrence_deciles=ranking.shares(occurrence, DECILES).tolist(),
            divergence={
                "cache": divergence(deciles, expected),
                "batch": divergence(ranking.shares_of(batch, DECILES), expected),
            },
            top=self._top(rows, slots, ranking),
            curve=curve(ranking.counts, occurrence, CURVE_POINTS),
            items=len(ranking.seen),
            hash_error=estimation_error(
                learner.state.hashed, learner.state.item_counts, compared
            ),
            collision_share=learner.state.hashed.collision_share(),
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
        found = zip(
            rows[most].tolist(), slots[most].tolist(), ranks.tolist(), strict=True
        )
        return [
            Top(self._learner.state.items.id_of(row), n, n / total, rank)
            for row, n, rank in found
        ]


def entropy(counts: Rows) -> float:
    """Of a distribution given by counts, in nats."""
    shares = counts[counts > 0] / max(int(counts.sum()), 1)
    return max(0.0, float(-(shares * np.log(shares)).sum()))


def turnover(before: Rows, after: Rows) -> float:
    """Share of the slots of `after` that hold an item which `before` has no slot left
    for.
    """
    if not len(after):
        return 0.0
    old, old_slots = np.unique(before, return_counts=True)
    new, new_slots = np.unique(after, return_counts=True)
    _, at_old, at_new = np.intersect1d(
        old, new, assume_unique=True, return_indices=True
    )
    return 1.0 - float(np.minimum(old_slots[at_old], new_slots[at_new]).sum()) / len(
        after
    )


def divergence(found: Doubles, expected: Doubles) -> float:
    """Kullback-Leibler divergence of one distribution from another, in nats."""
    some = (found > 0) & (expected > 0)
    return max(0.0, float((found[some] * np.log(found[some] / expected[some])).sum()))
