"""What the learner samples from: cache, occurrence vector and popularity in figures.
Too slow for every step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamer.learner import Learner
from streamer.metrics.composition import Point, Ranking, curve
from streamer.model.batch import Rows

TOP = 10
CURVE_POINTS = 48


@dataclass(frozen=True, slots=True)
class Top:
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
    occurrence_bands: list[float]
    top: list[Top]
    curve: list[Point]
    items: int


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
        state = self._learner.state
        ranking = Ranking.of(state.item_counts)
        cache = state.cache[state.cache < len(ranking.order)]
        rows, slots = np.unique(cache, return_counts=True)
        occurrence = state.occurrence.values(ranking.order)  # [N], most popular first
        return SamplerReport(
            slots=len(state.cache),
            distinct=len(rows),
            entropy=entropy(slots),
            turnover=turnover(before, state.cache),
            overlap=float(slots[np.isin(rows, batch)].sum() / max(slots.sum(), 1)),
            age_s=self._age_s(rows, slots),
            occurrence_bands=ranking.shares(occurrence).tolist(),
            top=self._top(rows, slots, ranking),
            curve=curve(ranking.counts, occurrence, CURVE_POINTS),
            items=int((ranking.counts > 0).sum()),
        )

    def _age_s(self, rows: Rows, slots: Rows) -> float:
        now = self._clock()
        self._since = {row: self._since.get(row, now) for row in rows.tolist()}
        ages = now - np.fromiter(self._since.values(), np.float64, len(rows))
        return float((ages * slots).sum() / max(slots.sum(), 1))

    def _top(self, rows: Rows, slots: Rows, ranking: Ranking) -> list[Top]:
        most = np.argsort(-slots, kind="stable")[:TOP]
        ranks = ranking.place[rows[most]] + 1
        ids = self._learner.state.items.ids_of(rows[most].tolist())
        shares = slots[most] / slots.sum()
        columns = (slots[most].tolist(), shares.tolist(), ranks.tolist())
        return list(map(Top, ids, *columns))


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
    size = int(max(before.max(initial=0), after.max())) + 1
    kept = np.minimum(
        np.bincount(before, minlength=size), np.bincount(after, minlength=size)
    )
    return 1.0 - float(kept.sum()) / len(after)
