"""What a shop wants to know of its recommendations: what is in the lists now, and in
which part of the catalogue they hit.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from streamer.evaluation.tally import Ranks
from streamer.learner import OnlineLearner
from streamer.metrics.composition import Doubles, Ranking
from streamer.model.batch import Rows
from streamer.model.ranking.candidates import Candidates

BANDS = ("head", "torso", "tail")
BATCHES = 200
"""Batches that figures are over, and in whose lists items are counted."""
LISTS_EVERY = 256
"""Ranked events between two looks at the lists."""
NEW_BELOW = 10
"""An item is new that has had fewer events."""
TOP = 10
BANDS_EVERY = 1.05
"""Bands are found again when there are this many times as many events."""


class BandFigure(NamedTuple):
    """Hit rate of the ranked events whose items are of a band."""

    band: str
    events: int
    hit_rate: float | None
    error: float | None
    """Standard error of it."""


class TopRecommended(NamedTuple):
    """An item that is in many lists."""

    item: str
    share: float
    """Of the lists."""
    events: int
    """That the item has had."""


@dataclass(frozen=True, slots=True)
class ShopReport:
    """What is being recommended now."""

    lists: int = 0
    """That were looked at."""
    coverage: float | None = None
    """Share of all items that are in any of them."""
    new_share: float | None = None
    """Share of new items among what is in them."""
    top: list[TopRecommended] = field(default_factory=list)
    bands: list[BandFigure] = field(default_factory=list)


class ShopWatch:
    """Looks at the lists of the latest ranked events, and at their hits.

    Args:
        learner: whose lists they are.
        k: length of the lists.
    """

    def __init__(self, learner: OnlineLearner, k: int) -> None:
        self._state = learner.state
        self._k = k
        self._lists = deque[tuple[int, Rows]](maxlen=BATCHES)
        self._hits = deque[Rows](maxlen=BATCHES)  # [bands, 2] events and hits
        self._next_lists = 0
        self._min_counts = np.full(2, np.inf)  # of an item in head, and in torso
        self._next_bands = 0.0

    def observe(self, items: Rows, ranks: Ranks, candidates: Candidates | None) -> None:
        """Take in the items of n ranked events, before they are learned."""
        hits = ranks.among_all <= self._k
        bands = self._bands_of(items)
        events_of_band = np.bincount(bands, minlength=len(BANDS))
        hits_of_band = np.bincount(bands[hits], minlength=len(BANDS))
        self._hits.append(np.stack([events_of_band, hits_of_band], axis=1))
        self._next_lists -= len(items)
        if candidates is not None and self._next_lists <= 0:
            self._next_lists = LISTS_EVERY
            self._lists.append((len(candidates), self._first_k(candidates)))

    def report(self) -> ShopReport:
        """What is known now."""
        bands = self._band_figures()
        listed = [rows for _, rows in self._lists]
        if not listed:
            return ShopReport(bands=bands)
        state = self._state
        lists = sum(count for count, _ in self._lists)
        rows, times = np.unique(np.concatenate(listed), return_counts=True)
        kept = state.items.is_used(rows)
        rows = rows[kept]
        times = times[kept]
        events = self._events_of(rows)
        best = np.argsort(-times, kind="stable")[:TOP]
        top = []
        for row, count, had in zip(rows[best], times[best], events[best], strict=True):
            item = state.items.id_of(int(row))
            top.append(TopRecommended(item, float(count) / lists, round(float(had))))
        return ShopReport(
            lists=lists,
            coverage=len(rows) / max(len(state.items), 1),
            new_share=float(times[events < NEW_BELOW].sum() / max(times.sum(), 1)),
            top=top,
            bands=bands,
        )

    def _first_k(self, candidates: Candidates) -> Rows:
        """The items of the first k of each list."""
        scores = self._state.ranker.scores(candidates)
        best = []
        for start, end in itertools.pairwise(candidates.first.tolist()):
            order = np.argsort(-scores[start:end], kind="stable")
            best.append(candidates.items[start + order[: self._k]])
        return np.concatenate(best).astype(np.int64)

    def _events_of(self, rows: Rows) -> Doubles:
        """[n] events that items have had; 0 of those that were never counted."""
        counts = self._state.item_counts
        found = np.zeros(len(rows))
        known = rows < counts.size
        found[known] = counts.counts(rows[known])
        return found

    def _bands_of(self, items: Rows) -> Rows:
        """[n] the band of each item, by its events so far."""
        counts = self._state.item_counts
        if counts.total >= self._next_bands:
            self._next_bands = BANDS_EVERY * counts.total
            if counts.size:
                self._min_counts = Ranking.of(counts).least_counts()
        events = self._events_of(items)
        below: Rows = (events[:, None] < self._min_counts).sum(axis=1)
        return below

    def _band_figures(self) -> list[BandFigure]:
        if not self._hits:
            return []
        found = []
        sums = np.sum(self._hits, axis=0).tolist()
        for band, (events, hits) in zip(BANDS, sums, strict=True):
            rate = hits / events if events else None
            error = math.sqrt(rate * (1 - rate) / events) if rate is not None else None
            found.append(BandFigure(band, events, rate, error))
        return found
