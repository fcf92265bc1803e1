"""Test, then train: how well the model predicts events that it has not seen yet.

Before a micro-batch is trained, some of its events are ranked among their candidates,
as of each event. Baselines see every event and rank the same ones. Evaluation looks at
the learner and changes nothing in it.

What the towers are worth is measured on the same events: the ranker ranks once more
with their inner product at zero.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.evaluation.baselines import (
    Baseline,
    BaselineRunner,
    Counting,
    LastItems,
    MostPopular,
    Stretch,
)
from streamer.evaluation.ranking import (
    MODEL,
    WITHOUT_TOWERS,
    EventRanker,
    RankerWatch,
)
from streamer.evaluation.shop import ShopWatch
from streamer.evaluation.tally import Figure, Ranks, Tally
from streamer.learner import OnlineLearner
from streamer.model.batch import Batch, Rows
from streamer.model.ranking.candidates import Candidates
from streamer.model.ranking.features import TOWERS
from streamer.model.rows.seen_items import SeenBefore

MIN_RANKED = 1000
"""Ranked events in the window before `towers` compares anything."""


class BestBaseline(NamedTuple):
    """The baseline that is hardest to beat."""

    name: str
    hit_rate: float
    error: float = 0.0
    """Standard error of the hit rate."""

    def against(self, hit_rate: float, error: float) -> str:
        """How a model's hit rate compares: `above` or `below` if the two differ by
        more than the standard error of their difference, else `equal`.
        """
        noise = math.hypot(error, self.error)
        if abs(hit_rate - self.hit_rate) <= noise:
            return "equal"
        return "above" if hit_rate > self.hit_rate else "below"


class TowersShare(NamedTuple):
    """The hit rates of the window's ranked events with the towers, and without."""

    hit_rate: float
    without: float
    events: int

    @property
    def adds_nothing(self) -> bool:
        """Whether the ranker hits no more often with the towers than without."""
        return self.without >= self.hit_rate

    def __str__(self) -> str:
        """A sentence for a person."""
        effect = "add nothing" if self.adds_nothing else "help"
        rates = f"HR {self.hit_rate:.3f} with them, {self.without:.3f} without"
        return (
            f"The towers {effect} on this stream: {rates}, "
            f"of the latest {self.events:,} ranked."
        )


class EventSampler:
    """Chooses events of each batch.

    Args:
        time_share: how much of the time ranking may take; batches are passed over to
            keep to it. None passes over none.
        max_events: at most this many events of a batch are ranked, and none before
            anything is trained. None ranks all.
        clock: seconds.
    """

    def __init__(
        self,
        time_share: float | None = 0.05,
        max_events: int | None = 64,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.time_share = time_share
        self.clock = clock
        self._max_events = max_events
        self._not_before = clock()
        self._warm = False
        self._rng = np.random.default_rng(0)

    def choose(self, events: int, *, trained: bool) -> Rows:
        """Which events of the next batch to rank, ascending; none if time is up.

        Args:
            events: how many there are.
            trained: whether anything is trained yet.
        """
        if self.clock() < self._not_before:
            return np.empty(0, np.int64)
        if self._max_events is None:
            return np.arange(events)
        if not trained:
            return np.empty(0, np.int64)
        if events <= self._max_events:
            return np.arange(events)
        chosen = self._rng.choice(events, self._max_events, replace=False)
        return np.sort(chosen)

    def spent(self, seconds: float, *, ranked: bool) -> None:
        """Plan the next ranking after one that took some seconds; a quiet stream saves
        nothing up for later.

        The first ranking does not count: compiled loops are loaded then, once. Nor does
        a batch of which nothing was ranked.
        """
        if self.time_share is not None and self._warm and ranked:
            begun = self.clock() - seconds
            pause = seconds / self.time_share
            self._not_before = max(begun, self._not_before) + pause
        self._warm = self._warm or ranked


class Prequential:
    """Ranks a share of the events before they are trained.

    Args:
        learner: whose model ranks.
        sampler: chooses the events; None for the defaults.
        tally: counts hits; None for hit rates at 10.
        baselines: recommenders beside the most popular items; None for those of a
            running line.
    """

    def __init__(
        self,
        learner: OnlineLearner,
        sampler: EventSampler | None = None,
        tally: Tally | None = None,
        baselines: Sequence[Baseline] | None = None,
    ) -> None:
        self.learner = learner
        self.sampler = sampler or EventSampler()
        self.ranker = EventRanker(learner)
        self.popularity = MostPopular()
        others = [LastItems(), Counting()] if baselines is None else baselines
        self.baselines = BaselineRunner(
            [self.popularity, *others],
            learner.state.retired,
            self.sampler.clock,
            beside=self.sampler.time_share is not None,
        )
        models = (MODEL, WITHOUT_TOWERS) if learner.settings.rerank else (MODEL,)
        self.names = (*models, *self.baselines.names)
        """The recommenders that have figures."""
        self._tally = tally or Tally()
        self.k = self._tally.k
        self.watch = RankerWatch(learner, self.k)
        self.shop = ShopWatch(learner, self.k)
        self.events = 0
        """Events that came so far, ranked or not."""
        self.seconds = 0.0
        """Seconds that evaluation took so far."""
        self._open: tuple[dict[str, Ranks], NDArray[np.bool_]] | None = None
        learner.eviction.on_reuse.append(self._forget)

    @property
    def tally(self) -> Tally:
        """What was counted; waits for baselines that still rank the latest batch."""
        self._close()
        return self._tally

    def figure(self, name: str = MODEL, metric: str = "hr") -> Figure:
        """A figure of the model or of a baseline, over all events."""
        return self.tally.figure(name, metric=metric)

    @property
    def model(self) -> Figure:
        """The model's hit rate."""
        return self.figure()

    def best_baseline(self, *, overall: bool = False) -> BestBaseline | None:
        """The baseline with the highest hit rate over the window, or over all events;
        None before the first.
        """
        best = None
        for name in self.baselines.names:
            figure = self.figure(name)
            rate = figure.overall if overall else figure.recent
            error = figure.error if overall else figure.recent_error
            if rate is not None and (best is None or rate > best.hit_rate):
                best = BestBaseline(name, rate, error or 0.0)
        return best

    def towers(self) -> TowersShare | None:
        """What the towers add to the ranking of the window's events; None without a
        ranker, or before `MIN_RANKED` events.
        """
        model = self.model
        without = self.figure(WITHOUT_TOWERS)
        if WITHOUT_TOWERS not in self.names or model.recent_events < MIN_RANKED:
            return None
        return TowersShare(
            model.recent or 0.0, without.recent or 0.0, model.recent_events
        )

    def choose(self, events: int) -> Rows:
        """Which events of the next batch to rank: as many as time allows."""
        return self.sampler.choose(
            events, trained=bool(self.learner.state.item_counts.size)
        )

    def __call__(
        self, batch: Batch, chosen: Rows, candidates: Candidates | None
    ) -> None:
        """Rank the chosen events, and take the batch in. The learner calls this before
        it trains a batch.

        Args:
            batch: the events.
            chosen: those to be ranked, ascending.
            candidates: of the chosen ones, described; None if the towers alone rank all
                items.
        """
        started = self.sampler.clock()
        self._close()
        if not self.events:
            self._start_from_learner(batch)
        # 1. what is known of the events before they come
        seen = self._seen_before(batch, chosen)
        members = self._members(batch, chosen, seen)
        # 2. the model ranks
        ranks: dict[str, Ranks] = {}
        if len(chosen):
            ranks[MODEL] = self._rank(batch, chosen, candidates, seen)
            if candidates is not None:
                ranks[WITHOUT_TOWERS] = self.ranker.by_ranker(candidates, seen, TOWERS)
                self.watch.observe(candidates)
            self.shop.observe(batch.items[chosen], ranks[MODEL], candidates)
        # 3. the baselines rank and learn; when they are done, the batch is counted
        self.baselines.start(self._stretch(batch, chosen, seen))
        self._open = (ranks, members)
        self.events += len(batch)
        seconds = self.sampler.clock() - started
        if candidates is not None:
            # The search among all items is most of what evaluation costs.
            seconds += self.learner.candidates.evaluation_s
        self.seconds += seconds
        self.sampler.spent(seconds, ranked=bool(len(chosen)))

    def _seen_before(self, batch: Batch, chosen: Rows) -> SeenBefore:
        """What the users of the chosen events had: unknown on a running line."""
        return SeenBefore.unknown(len(chosen))

    def _members(
        self, batch: Batch, chosen: Rows, seen: SeenBefore
    ) -> NDArray[np.bool_]:
        """[n, slices] which slices of the tally the chosen events belong to."""
        return np.ones((len(chosen), 1), np.bool_)

    def _rank(
        self,
        batch: Batch,
        chosen: Rows,
        candidates: Candidates | None,
        seen: SeenBefore,
    ) -> Ranks:
        if candidates is None:
            every = np.arange(len(chosen))
            return self.ranker.by_towers(batch, chosen, seen, every)
        return self.ranker.by_ranker(candidates, seen)

    def _stretch(self, batch: Batch, chosen: Rows, seen: SeenBefore) -> Stretch:
        """What the baselines rank and learn from as this batch comes."""
        return self.baselines.stretch(batch, chosen, seen)

    def _close(self) -> None:
        """Count the latest batch, when the baselines are done with it."""
        if self._open is None:
            return
        ranks, members = self._open
        self._open = None
        found = self.baselines.finish()
        if len(members):
            self._tally.add(ranks | found, members)

    def _start_from_learner(self, batch: Batch) -> None:
        """Before the first batch: a learner that was restored has counts already.

        Baselines other than the most popular items begin with nothing.
        """
        known = self.learner.state.item_counts
        if known.size:
            counts = known.counts(np.arange(known.size))
            self.popularity.start_from(np.rint(counts).astype(np.int64))

    def _forget(self, kind: str, rows: Rows) -> None:
        """Rows of the learner are given to other users or items."""
        self.baselines.forget(kind, rows)
