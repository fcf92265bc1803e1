"""What the learner samples from: cache, occurrence vector and popularity in figures.

Looking at all items is too slow for every step, so a look is followed by a pause that
keeps it to a small share of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from streamer.learner import OnlineLearner
from streamer.metrics.composition import EMPTY, Composition, Point, Ranking, curve
from streamer.model.batch import Rows

TOP = 10
CURVE_POINTS = 48
LOOK_PAUSE = 400
"""The pause between two looks, in multiples of what a look takes: a quarter of a percent
of the time.
"""
MIN_LOOK_PAUSE_S = 1.0


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

    slots: int = 0
    distinct: int = 0
    entropy: float = 0.0
    turnover: float = 0.0
    overlap: float = 0.0
    age_s: float = 0.0
    cache_bands: Composition = EMPTY
    occurrence_bands: Composition = EMPTY
    top: list[Top] = field(default_factory=list)
    curve: list[Point] = field(default_factory=list)
    items: int = 0


class SamplerReporter:
    """Makes reports of a learner, and remembers since when items have been in its
    cache.
    """

    def __init__(
        self, learner: OnlineLearner, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state = learner.state
        self._clock = clock
        self._since: dict[int, float] = {}
        self._before: Rows = learner.state.cache
        self._cache: Rows = learner.state.cache
        self._batch: Rows = np.empty(0, np.int64)
        self._look_at = 0.0
        self._latest: SamplerReport | None = None

    def learned(self, items: Rows) -> None:
        """A step has learned from these items, and the cache was drawn again."""
        self._before = self._cache
        self._cache = self._state.cache
        self._batch = items

    def latest(self, *, now: bool = False) -> SamplerReport:
        """The latest report; a new one if it is time for that, or it must be as of now.

        The more items there are, the longer a look takes, and the rarer it is done. The
        first does not count: compiled loops are loaded then, once.
        """
        started = self._clock()
        if self._latest is not None and not now and started < self._look_at:
            return self._latest
        report = self.report(self._before, self._batch)
        ended = self._clock()
        took = 0.0 if self._latest is None else ended - started
        self._look_at = ended + max(LOOK_PAUSE * took, MIN_LOOK_PAUSE_S)
        self._latest = report
        return report

    def report(self, before: Rows, batch: Rows) -> SamplerReport:
        """The figures now; `before` is the cache before its latest refresh, `batch` has
        the latest batch's items.
        """
        state = self._state
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
            cache_bands=ranking.slot_shares(cache),
            occurrence_bands=ranking.shares(occurrence),
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
        ids = self._state.items.ids_of(rows[most].tolist())
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
