"""A method on a log, test then train: the production line itself, with every event
ranked before it is trained.

Those that come before anything is trained are misses for the method, so that figures
are over the same events whatever the batch size and the delay.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from streamer.build import assemble
from streamer.dead_letters.base import MemoryDeadLetters
from streamer.errors import SettingsError
from streamer.evaluation import MODEL, WITHOUT_TOWERS, Tally
from streamer.evaluation.tally import METRICS
from streamer.event import EventDecoder, EventSettings
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Evaluator, Learned
from streamer.metrics.composition import composition
from streamer.model.ranking.ranker import influence_by_name
from streamer.replay.datasets.log import CATALOGUE_TYPE
from streamer.replay.evaluation.delay import Delay, DelayedLearner
from streamer.replay.evaluation.events_source import EventsSource
from streamer.replay.evaluation.record import (
    CurvePoint,
    Measure,
    RunResult,
    step_measure,
)
from streamer.replay.evaluation.settings import PrequentialSettings
from streamer.replay.evaluation.sliced import CLOCK, RETRIEVED, K, SlicedPrequential
from streamer.replay.evaluation.slices import SLICES
from streamer.replay.events import Events, Record
from streamer.settings import PipelineSettings


class PrequentialRun:
    """One method on one stream.

    Args:
        chunks: the events of the stream.
        total: their number, which shows where the second half begins.
        settings: how the method is evaluated.
        catalogue: catalogue events, which come before the stream.

    Raises:
        SettingsError: with every problem at once.
    """

    def __init__(
        self,
        chunks: Iterable[Events],
        total: int,
        settings: PrequentialSettings,
        catalogue: Sequence[Record] = (),
    ) -> None:
        if problems := settings.problems():
            raise SettingsError(problems)
        self._chunks = chunks
        self._total = total
        self._settings = settings
        self._catalogue = catalogue
        self._learner = _TimedLearner(settings, self._after_batch)
        self._test = SlicedPrequential(self._learner, settings, total // 2)
        self._next_point = 0.0
        self._result = RunResult()

    def run(
        self, on_progress: Callable[[float, str], None] = lambda share, text: None
    ) -> RunResult:
        """Send the events down the production line; returns figures of the method and
        the baselines, none of an empty slice.

        Points of the curve lie along the stream: `events`, `time` (seconds since the
        epoch), `loss`, and for the model and each baseline `<name>/<all or new>/recent`
        and `.../overall`, the hit rates at 10; None where there is no event. Points of
        the composition: `events`, and shares `head`, `torso`, `tail` of the cache.
        About it: `slices`, the number of ranked events of each; `events_per_second`,
        and the same without ranking; the `accounting`. `on_progress` is called after
        every batch with the share of the stream that is done, and the events so far.
        """
        self._on_progress = on_progress
        learner = self._learner
        test = self._test
        pipeline = assemble(
            learner,
            lambda: EventsSource(self._chunks, self._total, catalogue=self._catalogue),
            EventDecoder(EventSettings(catalogue_types=(CATALOGUE_TYPE,))),
            MemoryDeadLetters(),
            PipelineSettings(
                batch_size=self._settings.batch_size, max_age_s=0, checkpoint_every_s=0
            ),
            prequential=test,
        )
        started = time.perf_counter()
        pipeline.run()
        seconds = time.perf_counter() - started
        result = self._result
        rows = learner.state.items.used
        result.occurrence = learner.state.occurrence.values(rows)
        result.popularity = learner.state.item_counts.counts(rows)
        result.measures = self._measures()
        result.about = {
            "influence": influence_by_name(test.watch.influence),
            "retrieved": test.retrieved.events(),
            "slices": {slice_: test.tally.events(slice_) for slice_ in SLICES},
            "events_per_second": test.events / seconds,
            "train_events_per_second": test.events / max(seconds - test.seconds, 1e-9),
            "accounting": pipeline.accounting.to_json(),
        }
        return result

    def _measures(self) -> list[Measure]:
        test = self._test
        ks = self._settings.ks
        found = []
        for name in (MODEL, *self._settings.baselines):
            baseline = None if name == MODEL else name
            for metric in METRICS:
                found += _by_slice(test.tally, name, metric, metric, ks, baseline)
            if seconds := self._seconds_per_event(name):
                speed = 1.0 / seconds
                found.append(Measure("events-per-second", 0, "all", speed, baseline))
        cold_share = test.watch.cold_share
        if self._catalogue and cold_share is not None:
            found.append(Measure("cold-share", K, "all", cold_share))
        found += _by_slice(test.retrieved, MODEL, "hr", "towers-recall", RETRIEVED)
        found += _by_slice(test.tally, WITHOUT_TOWERS, "hr", "hr-without-towers", ks)
        return [*found, step_measure(self._learner.step_seconds)]

    def _seconds_per_event(self, name: str) -> float:
        """Seconds that the model or a baseline takes to rank an event and to learn from
        it; 0 if nothing was measured.
        """
        seconds = self._test.seconds_per_event(name)
        if name == MODEL:
            step_s = statistics.median(self._learner.step_seconds or [0.0])
            seconds += step_s / self._settings.batch_size
        return seconds

    def _after_batch(self, batch: MicroBatch, learned: Learned) -> None:
        """Report a batch that was learned; now and then it is a point of the curves."""
        events = self._test.events
        if events >= self._next_point or events >= self._total:
            self._next_point = events + self._total / self._settings.points
            self._add_point(batch, float(learned.step.loss))
        self._on_progress(events / max(self._total, 1), f"{events:,} events")

    def _add_point(self, batch: MicroBatch, loss: float) -> None:
        events = self._test.events
        tally = self._test.tally
        point: CurvePoint = {"events": events, "time": batch.timestamps_s[-1]}
        point["loss"] = loss if np.isfinite(loss) else None
        names = (MODEL, *self._settings.baselines)
        for name, slice_ in itertools.product(names, ("all", "new")):
            figure = tally.figure(name, slice_)
            point[f"{name}/{slice_}/recent"] = figure.recent
            point[f"{name}/{slice_}/overall"] = figure.overall
        self._result.curve.append(point)
        shares = composition(self._learner.state.cache, self._learner.state.item_counts)
        self._result.composition.append({"events": events, **shares._asdict()})


def _by_slice(
    tally: Tally,
    name: str,
    metric: str,
    called: str,
    ks: Sequence[int],
    baseline: str | None = None,
) -> list[Measure]:
    """One metric of a recommender over every slice that has events."""
    found = []
    for slice_, k in itertools.product(SLICES, ks):
        value = tally.figure(name, slice_, metric, k).overall
        if value is not None:
            found.append(Measure(called, k, slice_, value, baseline))
    return found


class _TimedLearner(DelayedLearner):
    """A learner that measures its steps; seconds of ranking are no part of a step."""

    def __init__(
        self,
        settings: PrequentialSettings,
        after_batch: Callable[[MicroBatch, Learned], None],
    ) -> None:
        super().__init__(settings, Delay(settings.delay_events, settings.delay_seconds))
        self._after_batch = after_batch
        self.step_seconds: list[float] = []

    def learn_batch(
        self,
        batch: MicroBatch,
        evaluator: Evaluator | None = None,
        counted: bool = True,
    ) -> Learned:
        assert isinstance(evaluator, SlicedPrequential)
        started = CLOCK() - evaluator.seconds
        learned = super().learn_batch(batch, evaluator, counted)
        if len(learned.items):  # else its feedback is late
            self.step_seconds.append(CLOCK() - evaluator.seconds - started)
        self._after_batch(batch, learned)
        return learned
