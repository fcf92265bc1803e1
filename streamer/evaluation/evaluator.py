"""Test, then train: how well the model predicts events that it has not seen yet.

Before a micro-batch is trained, some of its events are ranked among their candidates,
as of each event; trivial recommenders, which see every event, are asked the same. A
sample passes over what comes before anything is trained. It looks at the learner and
changes nothing in it.

What the towers are worth is measured on the same events: the ranker ranks once more
with their number at zero, and some events are looked up in the towers' own list of all
items, without counts and without the ranker.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.errors import SettingsError
from streamer.evaluation.baselines import (
    RECENT,
    Baseline,
    MostPopular,
    Ranks,
    Stretch,
    make_baselines,
)
from streamer.evaluation.delay import Due, PendingEvents
from streamer.evaluation.metrics import MISS, Figure, Tally
from streamer.evaluation.slices import SLICES, FirstEvents, Traits
from streamer.learner import Learner
from streamer.model.batch import Batch, Floats, Rows
from streamer.model.jit import njit_allocating
from streamer.model.ranking.evidence import BUCKETS, KINDS, TOWERS, Candidates
from streamer.model.ranking.ranker import ALL, DISCOVERY
from streamer.model.retrieval import Excluded
from streamer.model.rows.recent_items import RecentItems
from streamer.model.rows.seen_items import SeenBefore, UserItems

MODEL = "model"
"""The name under which the model's own figures stand, beside those of the baselines."""
WITHOUT_TOWERS = "model-without-towers"
"""The same of the model whose ranker reads zero for the towers' inner product."""
RETRIEVED = (100, 200)
"""Lengths of the towers' own list at which its recall is measured."""
MIN_RANKED = 1000
"""Ranked events before anything is said of what the towers add."""
INFLUENCE_EVERY = 2000
"""Ranked events between two looks at what decides the ranking."""
UNTOUCHED_BATCHES = 200
"""Batches in whose lists items are counted that nobody has had yet."""
_NONE = np.empty(0, np.int64)
_NOTHING_SEEN = (_NONE, np.empty(0, np.int32))


class BestBaseline(NamedTuple):
    """The baseline that is hardest to beat."""

    name: str
    hit_rate: float


class TowersShare(NamedTuple):
    """The hit rates of the ranked events of the window with the towers, and without."""

    hit_rate: float
    without: float
    events: int

    @property
    def adds_nothing(self) -> bool:
        """Whether the ranker hits no more often with the towers than without."""
        return self.without >= self.hit_rate

    def __str__(self) -> str:
        """A sentence for a person."""
        rates = f"HR {self.hit_rate:.3f} with them, {self.without:.3f} without, of the latest {self.events:,} ranked"
        return f"The towers {'add nothing' if self.adds_nothing else 'help'} on this stream: {rates}."


class _Open(NamedTuple):
    """A batch whose ranks are not counted yet."""

    ranks: dict[str, Ranks]
    took: dict[str, float]
    """Seconds of the model and of each baseline."""
    traits: Traits
    events: int
    warm: bool
    walking: Future[None] | None


class Prequential:
    """Ranks a share of the events before they are trained.

    Args:
        learner: whose model ranks.
        k: an event is a hit if its item is among the first k.
        time_share: how much of the time ranking may take; batches are passed over to
            keep to it. None passes over none.
        sample: at most this many events of a batch are ranked, and none before anything
            is trained. None ranks all.
        window: events of the windowed figures.
        new_only: whether to rank events that are new to their user too, known items
            left out; keeps every user's items in memory.
        clock: seconds.
        ks: further lengths of lists.
        baselines: names of the trivial recommenders that are asked the same.
        half: number of the event with which the second half of the stream begins; None
            if nobody knows.
        retrieve_every: of every n-th event that is ranked, find the rank in the towers'
            own list too; 0: of none.

    Raises:
        SettingsError: with every wrong setting.
    """

    def __init__(
        self,
        learner: Learner,
        k: int = 10,
        time_share: float | None = 0.05,
        sample: int | None = 64,
        window: int = 5000,
        new_only: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        *,
        ks: Sequence[int] = (),
        baselines: Sequence[str] = ("most-popular",),
        half: int | None = None,
        retrieve_every: int = 0,
    ) -> None:
        self.learner = learner
        self.k = k
        self.time_share = time_share
        self.sample = sample
        self.half = half
        ks = sorted({k, *ks})
        if problems := _problems(ks, window, time_share):
            raise SettingsError(problems)
        self._popularity = MostPopular()
        names = [name for name in baselines if name != self._popularity.name]
        self._baselines: list[Baseline] = [self._popularity, *make_baselines(names)]
        models = (MODEL, WITHOUT_TOWERS) if learner.settings.rerank else (MODEL,)
        self._tallies = {
            name: Tally(SLICES, ks, window)
            for name in (*models, *(f.name for f in self._baselines))
        }
        self.retrieved = Tally(SLICES, RETRIEVED, window)
        self._retrieve_every = retrieve_every
        """What was found in the towers' own lists."""
        self._top = deque[tuple[int, int]](maxlen=UNTOUCHED_BATCHES)
        self.influence = np.full((len(BUCKETS), len(KINDS)), np.nan)
        """[buckets, kinds] what decides the ranking, and for whom: see
        `Ranker.influence`.
        """
        self._influence_at = 0
        self.events = 0
        """Events that came so far, ranked or not."""
        self.seconds = 0.0
        """Seconds that looking at them took."""
        self.timed_events = 0
        self.seconds_of = dict.fromkeys(self._tallies, 0.0)
        """Seconds that the model took to rank, and each baseline to rank and learn, and of
        how many events.
        """
        self._user_items = UserItems(learner.retired) if new_only else None
        self._recent = RecentItems(RECENT, learner.retired)
        learner.on_reuse.append(self._forget)
        self._users = FirstEvents()
        self._items = FirstEvents()
        self._pending = PendingEvents()
        self._beside = (
            ThreadPoolExecutor(1, "baselines") if time_share is not None else None
        )
        self._open: _Open | None = None
        self._clock = clock
        self._not_before = clock()
        self._warm = False
        self._rng = np.random.default_rng(0)

    def figure(
        self,
        name: str = MODEL,
        slice_: str = "all",
        metric: str = "hr",
        k: int | None = None,
    ) -> Figure:
        """One figure of the model or of a baseline, overall and over the window."""
        return Figure(self.tallies[name], slice_, metric, k or self.k)

    @property
    def model(self) -> Figure:
        """The model's hit rate on all events."""
        return self.figure()

    @property
    def new(self) -> Figure:
        """The model's hit rate on events new to their user."""
        return self.figure(slice_="new")

    def best_floor(self, *, overall: bool = False) -> BestBaseline | None:
        """The baseline with the highest hit rate over the window, or over all events; None
        before the first.
        """
        figures = {
            baseline.name: self.figure(baseline.name) for baseline in self._baselines
        }
        rates = {
            name: figure.overall if overall else figure.recent
            for name, figure in figures.items()
        }
        found = [
            BestBaseline(name, rate) for name, rate in rates.items() if rate is not None
        ]
        return max(found, key=lambda baseline: baseline.hit_rate, default=None)

    def towers(self) -> TowersShare | None:
        """What the towers add to the ranking of the window's events; None of a few, or
        without a ranker.
        """
        events = self.tallies[MODEL].recent_events("all")
        if WITHOUT_TOWERS not in self._tallies or events < MIN_RANKED:
            return None
        with_them = self.figure().recent
        without = self.figure(WITHOUT_TOWERS).recent
        return TowersShare(with_them or 0.0, without or 0.0, events)

    @property
    def untouched_share(self) -> float | None:
        """Share of items that nobody has had yet in the first k of the latest lists;
        None without any list.
        """
        items = sum(every for every, _ in self._top)
        return sum(untouched for _, untouched in self._top) / items if items else None

    @property
    def tallies(self) -> dict[str, Tally]:
        """What was counted, of the model and of each baseline; waits for baselines that are
        still at the latest batch.
        """
        self._close()
        return self._tallies

    def choose(self, events: int) -> Rows:
        """Which events of the next batch to rank: as many as time allows."""
        return self._chosen(events) if self._clock() >= self._not_before else _NONE

    def __call__(
        self,
        batch: Batch,
        chosen: Rows,
        candidates: Candidates | None,
        due: Due | None = None,
    ) -> None:
        """Rank the chosen events, and take the batch in. The learner calls this before
        it trains a batch.

        Args:
            batch: the events.
            chosen: those to be ranked, ascending.
            candidates: of the chosen ones, described; None if the towers alone rank all
                items.
            due: how many events are learned before each of these, with a feedback
                delay; None if all before it are.
        """
        started = self._clock()
        self._look(batch, chosen, candidates, due)
        self.took(self._clock() - started, ranked=bool(len(chosen)))

    def observe(self, batch: Batch) -> None:
        """Take a batch in without ranking anything."""
        self._look(batch, _NONE, None, None)

    def _chosen(self, events: int) -> Rows:
        if self.sample is None:
            return np.arange(events)
        if (
            not self.learner.item_counts.size
        ):  # nobody knows any item: not worth a place in the sample
            return _NONE
        if events <= self.sample:
            return np.arange(events)
        return np.sort(self._rng.choice(events, self.sample, replace=False))

    def took(self, seconds: float, *, ranked: bool) -> None:
        """Keep to the share of the time; a quiet stream saves nothing up for later.

        The first ranking does not count: compiled loops are loaded then, once. Nor does
        what every batch takes.
        """
        self.seconds += seconds
        if self.time_share is not None and self._warm and ranked:
            self._not_before = (
                max(self._clock() - seconds, self._not_before)
                + seconds / self.time_share
            )
        self._warm = self._warm or ranked

    def _look(
        self, batch: Batch, chosen: Rows, candidates: Candidates | None, due: Due | None
    ) -> None:
        """1. what is known of the events; 2. the model ranks; 3. the baselines rank and
        learn; 4. the figures.
        """
        self._close()
        if not self.events:
            self._go_on_from_learner(batch)
        # 1.
        seen = self._seen_before(batch, chosen)
        traits = self._traits(batch, chosen, seen)
        times_s = (
            batch.times_s
            if batch.times_s is not None
            else np.zeros(len(batch), np.int64)
        )
        recent, recent_s, _ = self._recent.observe(batch.users, batch.items, times_s)
        ages_s = np.maximum(times_s[:, None] - recent_s, 0.0)
        now_due = due or Due.at_once(self.events, len(batch))
        stretch = self._pending.stretch(batch, recent, ages_s, chosen, now_due, seen)
        # 2.
        started = self._clock()
        if candidates is None:
            ranks = {MODEL: self._retrieve(batch, chosen, seen, np.arange(len(chosen)))}
        else:
            ranks = {MODEL: self._rank(candidates, seen)}
            self._look_at_untouched(candidates)
        took = {MODEL: self._clock() - started}
        if candidates is not None:
            ranks[WITHOUT_TOWERS] = self._rank(candidates, seen, without=TOWERS)
            self._look_at_influence(candidates)
        if self._retrieve_every:
            some = np.flatnonzero((self.events + chosen) % self._retrieve_every == 0)
            found = self._retrieve(batch, chosen, seen, some)
            self.retrieved.add(*found, traits.members()[some])
        self.events += len(batch)
        # 3.
        walking = (
            self._beside.submit(self._walk, stretch, ranks, took)
            if self._beside
            else None
        )
        self._open = _Open(ranks, took, traits, len(batch), self._warm, walking)
        if walking is None:
            self._walk(stretch, ranks, took)
            # 4.
            self._close()

    def _walk(
        self, stretch: Stretch, ranks: dict[str, Ranks], took: dict[str, float]
    ) -> None:
        """The baselines rank and learn; where training must not wait for them, beside it
        on a thread of their own.
        """
        for baseline in self._baselines:
            started = self._clock()
            ranks[baseline.name] = baseline.walk(stretch)
            took[baseline.name] = self._clock() - started

    def _close(self) -> None:
        """Count what the model and the baselines found in the latest batch, when all are
        done.
        """
        if self._open is None:
            return
        done = self._open
        self._open = None
        if done.walking is not None:
            done.walking.result()
        if done.warm:  # else compiled loops were loaded
            self.timed_events += done.events
            for name, took in done.took.items():
                self.seconds_of[name] += took
        if len(done.traits.fresh):
            members = done.traits.members()
            for name, found in done.ranks.items():
                self._tallies[name].add(*found, members)

    def _forget(self, kind: str, rows: Rows) -> None:
        """Rows of the learner are going to be those of others."""
        if kind == "users":
            self._users.forget(rows)
            self._recent.forget(rows)
            if self._user_items is not None:
                self._user_items.forget(rows)
            return
        self._items.forget(rows)
        self._recent.sweep(np.arange(self._recent.size))
        if self._user_items is not None:
            self._user_items.sweep(np.arange(self._user_items.size))
        for baseline in self._baselines:
            if self._beside:
                self._beside.submit(
                    baseline.forget, rows
                )  # after the batch that they are at
            else:
                baseline.forget(rows)

    def _go_on_from_learner(self, batch: Batch) -> None:
        """Before the first batch: the learner may have learned already, and knows
        counts and rows.

        It does not say which users of the batch are new to it: then none counts as new.
        Baselines other than the most popular items begin with nothing.
        """
        exact = self.learner.item_counts
        if exact.size:
            self._popularity.start_from(
                np.rint(exact.counts(np.arange(exact.size))).astype(np.int64)
            )
            self._users.know(np.arange(int(batch.users.max()) + 1))

    def _seen_before(self, batch: Batch, chosen: Rows) -> SeenBefore:
        if self._user_items is None:
            return SeenBefore.unknown(len(chosen))
        seen = self._user_items.before(batch.users, batch.items, chosen)
        self._user_items.observe(batch.users, batch.items)
        return seen

    def _traits(self, batch: Batch, chosen: Rows, seen: SeenBefore) -> Traits:
        self._items.know(
            batch.items[self.learner.item_counts.counts(batch.items) > 0]
        )  # other trainers may have had some
        new_user = self._users.first(batch.users)
        new_item = self._items.first(batch.items)
        late = (
            self.events + chosen >= self.half
            if self.half is not None
            else np.zeros(len(chosen), np.bool_)
        )
        band = self._popularity.bands(batch.items[chosen]) if len(chosen) else _NONE
        return Traits(new_user[chosen], new_item[chosen], band, seen.fresh, late)

    def _rank(
        self, candidates: Candidates, seen: SeenBefore, without: Sequence[int] = ()
    ) -> Ranks:
        """By the ranker, with some features at zero; an item that is no candidate is in
        no list.
        """
        ranks = Ranks.missed(len(candidates))
        for purpose, places in ((ALL, ranks.among_all), (DISCOVERY, ranks.among_new)):
            wanted = seen.fresh | (purpose == ALL)
            if not wanted.any():
                continue
            scores = self.learner.ranker.scores(candidates, purpose, without)
            left_out = (
                (seen.first, seen.items) if purpose == DISCOVERY else _NOTHING_SEEN
            )
            _ranks(
                candidates.first,
                candidates.items,
                candidates.target,
                scores,
                wanted,
                *left_out,
                places,
            )
        return ranks

    def _retrieve(
        self, batch: Batch, chosen: Rows, seen: SeenBefore, some: Rows
    ) -> Ranks:
        """By the towers alone, among all items that can be recommended, of `some` of
        the chosen; others are missed.
        """
        ranks = Ranks.missed(len(some))
        size = self.learner.reachable_items
        known = np.flatnonzero(batch.items[chosen[some]] < size)
        if not len(known):
            return ranks
        retriever = self.learner.retriever
        asked = some[known]
        rows = batch.only(chosen[asked])
        left_out = Excluded(seen.first, seen.items).only(asked)
        found = retriever.ranks_with_and_without(
            retriever.items(size), rows.users, rows.items, rows.recent, left_out
        )
        ranks.among_all[known] = found[0]
        ranks.among_new[known] = np.where(seen.fresh[asked], found[1], MISS)
        return ranks

    def _look_at_untouched(self, candidates: Candidates) -> None:
        """Count items that nobody has had yet in the first k of each list."""
        if len(candidates) and len(self.learner.cold_items):
            scores = self.learner.ranker.scores(candidates)
            first = candidates.first.tolist()
            best = [
                a + np.argsort(-scores[a:b], kind="stable")[: self.k]
                for a, b in itertools.pairwise(first)
            ]
            top = np.concatenate(best)
            self._top.append(
                (len(top), int(self.learner.are_cold(candidates.items[top]).sum()))
            )
        elif len(candidates):
            self._top.append((self.k * len(candidates), 0))

    def _look_at_influence(self, candidates: Candidates) -> None:
        """Now and then; users that are not among the candidates keep what was found for
        their like before.
        """
        self._influence_at -= len(candidates)
        if len(candidates) and self._influence_at <= 0:
            self._influence_at = INFLUENCE_EVERY
            found = self.learner.ranker.influence(candidates)
            self.influence = np.where(np.isnan(found), self.influence, found)


@njit_allocating
def _ranks(
    first: Rows,
    items: NDArray[np.int32],
    target: Rows,
    scores: Floats,
    wanted: NDArray[np.bool_],
    seen_first: Rows,
    seen: NDArray[np.int32],
    found: Rows,
) -> None:
    """The target's rank among the candidates that the user has not seen; ties count
    against it.
    """
    last = np.full(
        max(items.max() if len(items) else 0, seen.max() if len(seen) else 0) + 1, -1
    )
    for e in range(len(target)):
        if not wanted[e] or target[e] < 0:
            continue
        if len(seen_first):
            for s in range(seen_first[e], seen_first[e + 1]):
                last[seen[s]] = e
        rank = 0
        own = scores[target[e]]
        for c in range(first[e], first[e + 1]):
            rank += scores[c] >= own and last[items[c]] != e
        found[e] = rank


def _problems(ks: Sequence[int], window: int, time_share: float | None) -> list[str]:
    found = [f"k must be at least 1, not {k}" for k in ks if k < 1]
    if window < 1:
        found.append(f"window must be at least 1, not {window}")
    if time_share is not None and not 0 < time_share <= 1:
        found.append(f"time_share must be above 0 and at most 1, not {time_share}")
    return found
