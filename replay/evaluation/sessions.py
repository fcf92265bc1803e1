"""Sessions as the literature evaluates them: learn sessions once, in their order;
freeze; predict the next item of each test prefix among all items, repeats included.

P@k (also called R@k) is the share of prefixes whose next item is among the first k,
MRR@k the mean of 1 / rank, 0 beyond k. The method learns and ranks with its defaults,
as `streamer run` and `streamer serve` do. Baselines learn the same sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from streamer.api import Learner
from streamer.errors import SettingsError, SourceError
from streamer.evaluation.baselines import RECENT, BaselineRunner, Stretch
from streamer.evaluation.tally import METRICS, MISS, values
from streamer.learner import OnlineLearner
from streamer.model.batch import Batch, Rows
from streamer.model.rows.retired import RetiredItems
from streamer.model.rows.seen_items import SeenBefore
from streamer.recommender import Recommender
from streamer.replay.datasets import Log
from streamer.replay.evaluation.baselines import BASELINES
from streamer.replay.evaluation.results import (
    Measure,
    RunResult,
    step_measure,
    stretches_of,
)
from streamer.replay.evaluation.settings import SessionSettings
from streamer.replay.evaluation.slices import CLOCK

KS = (10, 20)
ASKED_AT_ONCE = 256
Prefix = tuple[Sequence[str], str]
"""The items of a session so far, oldest first, and the next one."""
OnProgress = Callable[[float, str], None]


class SessionRun:
    """One method, one seed.

    Args:
        settings: how the method is evaluated.

    Raises:
        SettingsError: with every problem at once.
    """

    def __init__(self, settings: SessionSettings) -> None:
        if problems := settings.problems():
            raise SettingsError(problems)
        self.settings = settings
        self.learner = OnlineLearner(settings)
        self._learned_s = 0.0
        self._events = 0
        self._sessions = 0
        self._codes: dict[str, int] = {}
        baselines = [BASELINES[name]() for name in settings.baselines]
        self._baselines = BaselineRunner(baselines, RetiredItems(), CLOCK, beside=False)

    def run(
        self,
        train: Log,
        test: Log,
        on_progress: OnProgress = lambda share, text: None,
    ) -> RunResult:
        """Learn a log of sessions, and test on another: the last item of each of its
        lines is asked for.
        """
        self.learn(train)
        on_progress(0.5, f"{self._events:,} events learned")
        prefixes = [(items[:-1], items[-1]) for items in sessions(test)]
        asked = self.sampled([prefix for prefix in prefixes if prefix[0]])
        return self._result(self.test(asked), len(asked))

    def run_periods(
        self,
        periods: Sequence[Log],
        on_progress: OnProgress = lambda share, text: None,
    ) -> RunResult:
        """Learn each period, and test on the next one: every item after the first of
        its sessions is asked for. Figures are means over periods.

        Items that no earlier period has are left out of the tested sessions.
        """
        found = []
        total = 0
        for n, (before, period) in enumerate(pairwise(periods)):
            self.learn(before)
            prefixes: list[Prefix] = []
            for session in sessions(period):
                items = [item for item in session if item in self._codes]
                for end in range(1, len(items)):
                    prefixes.append((items[:end], items[end]))
            asked = self.sampled(prefixes)
            found.append(self.test(asked))
            total += len(asked)
            on_progress((n + 1) / len(periods), f"period {n + 1} of {len(periods) - 1}")
        means = []
        for of_periods in zip(*found, strict=True):
            errors = [m.error or 0.0 for m in of_periods]
            first = of_periods[0]
            means.append(
                Measure(
                    first.metric,
                    first.k,
                    first.slice,
                    float(np.mean([m.value for m in of_periods])),
                    first.baseline,
                    float(np.linalg.norm(errors) / len(errors)),
                )
            )
        return self._result(means, total)

    def learn(self, log: Log) -> None:
        """Learn the sessions of a log, the method and the baselines."""
        trained = log.interactions()
        # sessions of another period are others
        users = self._sessions + trained.users
        self._sessions += len(trained.user_ids)
        items = [trained.item_ids[item] for item in trained.items.tolist()]
        started = CLOCK()
        # without times, events come a second after the one before
        events = zip(users.tolist(), items, strict=True)
        Learner(self.learner).learn(events, batch_size=self.settings.batch_size)
        self._learned_s += CLOCK() - started
        codes = [self._codes.setdefault(item, len(self._codes)) for item in items]
        times_s = self._events + np.arange(len(items))
        self._events += len(items)
        batch = Batch(users, np.array(codes), None, times_s)
        nothing = np.empty(0, np.int64)
        stretch = self._baselines.stretch(batch, nothing, SeenBefore.unknown(0))
        self._baselines.start(stretch)

    def sampled(self, prefixes: Sequence[Prefix]) -> list[Prefix]:
        """Those that are asked: the same for every method and seed."""
        if not prefixes:
            raise SourceError("the test has no session of two known items")
        count = self.settings.sample
        if count is None or count >= len(prefixes):
            return list(prefixes)
        rng = np.random.default_rng(0)
        chosen = rng.choice(len(prefixes), count, replace=False)
        return [prefixes[n] for n in np.sort(chosen).tolist()]

    def test(self, prefixes: Sequence[Prefix]) -> list[Measure]:
        """The figures of the method and of the baselines; nothing is learned."""
        found = _measures(self._ranks(prefixes), None)
        self._baselines.start(self._asked(prefixes))
        for name, ranks in self._baselines.finish().items():
            found += _measures(ranks.among_all, name)
        return found

    def _ranks(self, prefixes: Sequence[Prefix]) -> Rows:
        """The rank of each next item in the method's list."""
        recommender = Recommender(self.learner)
        ranks = np.full(len(prefixes), MISS)
        for start in range(0, len(prefixes), ASKED_AT_ONCE):
            asked = prefixes[start : start + ASKED_AT_ONCE]
            queries = [recommender.session(items) for items, _ in asked]
            lists = recommender.recommend(queries, max(KS))
            for n, (recommended, (_, target)) in enumerate(
                zip(lists, asked, strict=True)
            ):
                for rank, recommendation in enumerate(recommended, 1):
                    if recommendation.item == target:
                        ranks[start + n] = rank
        return ranks

    def _asked(self, prefixes: Sequence[Prefix]) -> Stretch:
        """The prefixes as events of new users, of which none is learned."""
        count = len(prefixes)
        recent = np.full((count, RECENT), -1, np.int32)
        targets = np.zeros(count, np.int64)
        unknown = len(self._codes)
        for n, (items, target) in enumerate(prefixes):
            latest = dict.fromkeys(reversed(items))
            known = [self._codes[item] for item in latest if item in self._codes]
            recent[n, : len(known)] = known[:RECENT]
            targets[n] = self._codes.get(target, unknown)
        ages_s = np.broadcast_to(np.arange(1.0, RECENT + 1), recent.shape)
        every = np.arange(count)
        users = self._sessions + every
        none = np.zeros(count, np.int64)
        seen = SeenBefore.unknown(count)
        return Stretch(users, targets, recent, ages_s, every, none, 0, seen)

    def _result(self, measures: list[Measure], asked: int) -> RunResult:
        batches = max(self._events / self.settings.batch_size, 1)
        step = step_measure([self._learned_s / batches])
        return RunResult([*measures, step], {"ranked": asked})


def sessions(log: Log) -> Iterator[list[str]]:
    """The items of each session, in their order."""
    found = log.interactions()
    items = [found.item_ids[item] for item in found.items.tolist()]
    ends = np.flatnonzero(np.diff(found.users)) + 1
    for start, end in pairwise([0, *ends.tolist(), len(items)]):
        yield items[start:end]


def _measures(ranks: Rows, baseline: str | None) -> list[Measure]:
    """Means over the prefixes, with standard errors."""
    gains = values(ranks, KS)  # [n, metrics, ks]
    means = gains.mean(axis=0)
    errors = gains.std(axis=0) / np.sqrt(len(ranks))
    found = []
    for metric in ("hr", "mrr"):
        at = METRICS.index(metric)
        for place, k in enumerate(KS):
            mean = float(means[at, place])
            error = float(errors[at, place])
            parts = stretches_of(gains[:, at, place])
            found.append(Measure(metric, k, "all", mean, baseline, error, parts))
    return found
