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
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from streamer.dead_letters.base import MemoryDeadLetters
from streamer.errors import SettingsError
from streamer.evaluation import (
    BASELINES,
    METRICS,
    MODEL,
    RETRIEVED,
    SLICES,
    WITHOUT_TOWERS,
    Delay,
    DelayedLearner,
    Prequential,
)
from streamer.event import EventDecoder, EventSettings
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Evaluator, Learned, Learner
from streamer.metrics.composition import composition
from streamer.model.ranking.ranker import influence_by_name
from streamer.model.setting import changed, setting
from streamer.model.settings import LearnerSettings
from streamer.pipeline import Pipeline
from streamer.replay.datasets.log import CATALOGUE_TYPE
from streamer.replay.evaluation.events_source import EventsSource
from streamer.replay.evaluation.record import Measure, Point, RunResult, step_measure
from streamer.replay.events import Events, Record
from streamer.settings import PipelineSettings

K = 10
"""The length of the list that the curves look at."""
CLOCK = time.process_time
"""Time on a core: what a step and a baseline cost does not depend on what else the machine
does.
"""


@dataclass(frozen=True, kw_only=True)
class PrequentialSettings(LearnerSettings):
    """How a method is evaluated on a stream: the learner of `streamer run`, and what is
    measured of it.
    """

    heading: ClassVar[str] = "Evaluation"

    batch_size: int = changed(
        PipelineSettings, "batch_size", PipelineSettings.batch_size
    )
    ks: tuple[int, ...] = setting(
        (1, 5, 10, 20, 50), "Lengths of the lists.", at_least=1
    )
    window: int = setting(
        5000, "Length of the window of the windowed figures.", at_least=1, unit="events"
    )
    baselines: tuple[str, ...] = setting(
        tuple(BASELINES), "Trivial recommenders beside it.", option="baselines"
    )
    delay_events: int = setting(
        0,
        "An event is trained only after this many further ones were ranked.",
        at_least=0,
    )
    delay_seconds: float = setting(
        0.0,
        "An event is trained only after this many further seconds of the stream were ranked.",
        at_least=0,
    )
    retrieve_every: int = setting(
        4,
        "Of every n-th event, the item is looked for in the towers' own list too: all items by inner product, without "
        "counts and ranker. 0: of none.",
        at_least=0,
    )
    catalogue: bool = setting(
        False,
        "Items that a file beside the log describes are known before their first event, by catalogue events.",
    )
    points: int = setting(200, "Points of the curves.", at_least=1)

    def problems(self) -> list[str]:
        unknown = [baseline for baseline in self.baselines if baseline not in BASELINES]
        return super().problems() + [
            f"there is no baseline {f!r}: choose among {', '.join(BASELINES)}"
            for f in unknown
        ]


class PrequentialRun:
    """One method on one stream; `total`, the number of its events, shows where the
    second half begins.

    The `catalogue` comes before the stream.

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
        self._learner = _TimedLearner(
            settings, self._after_batch, lambda: self._test.seconds
        )
        self._test = Prequential(
            self._learner,
            K,
            time_share=None,
            sample=None,
            window=settings.window,
            new_only=True,
            clock=CLOCK,
            ks=settings.ks,
            baselines=settings.baselines,
            half=total // 2,
            retrieve_every=settings.retrieve_every,
        )
        self._next_point = 0.0
        self._result = RunResult()

    def run(
        self, on_progress: Callable[[float, str], None] = lambda share, text: None
    ) -> RunResult:
        """Send the events down the production line; figures of the method and the
        baselines, none of an empty slice.

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
        result = self._result
        pipeline = Pipeline(
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
        rows = learner.items.used
        result.occurrence = learner.occurrence.values(rows)
        result.popularity = learner.item_counts.counts(rows)
        for name in (MODEL, *self._settings.baselines):
            for slice_, metric, k in itertools.product(
                SLICES, METRICS, self._settings.ks
            ):
                value = test.tallies[name].overall(slice_, metric, k)
                if value is not None:
                    result.measures.append(
                        Measure(
                            metric, k, slice_, value, None if name == MODEL else name
                        )
                    )
            if speed := self._events_per_second(name):
                result.measures.append(
                    Measure(
                        "events-per-second",
                        0,
                        "all",
                        speed,
                        None if name == MODEL else name,
                    )
                )
        if self._catalogue and (share := test.untouched_share) is not None:
            result.measures.append(Measure("cold-share", K, "all", share))
        result.measures += self._measures_of_towers()
        result.measures.append(step_measure(learner.step_seconds))
        result.about = {
            "influence": influence_by_name(test.influence),
            "retrieved": test.retrieved.events("all"),
            "slices": {slice_: test.tallies[MODEL].events(slice_) for slice_ in SLICES},
            "events_per_second": test.events / seconds,
            "train_events_per_second": test.events / max(seconds - test.seconds, 1e-9),
            "accounting": pipeline.accounting.to_json(),
        }
        return result

    def _measures_of_towers(self) -> list[Measure]:
        """What the towers retrieve, and what the ranker hits without them."""
        test = self._test
        found = []
        for slice_ in SLICES:
            values = {
                ("towers-recall", k): test.retrieved.overall(slice_, "hr", k)
                for k in RETRIEVED
            }
            if WITHOUT_TOWERS in test.tallies:
                tally = test.tallies[WITHOUT_TOWERS]
                ks = self._settings.ks
                values |= {
                    ("hr-without-towers", k): tally.overall(slice_, "hr", k) for k in ks
                }
            found += [
                Measure(metric, k, slice_, v)
                for (metric, k), v in values.items()
                if v is not None
            ]
        return found

    def _events_per_second(self, name: str) -> float:
        """How many events a second the model or a baseline ranks and learns from; 0 if
        nothing was measured.
        """
        test = self._test
        seconds = test.seconds_of[name] / max(test.timed_events, 1)
        if name == MODEL:
            seconds += (
                statistics.median(self._learner.step_seconds or [0.0])
                / self._settings.batch_size
            )
        return 1.0 / seconds if seconds else 0.0

    def _after_batch(self, batch: MicroBatch, learned: Learned) -> None:
        """Report a batch that was learned; now and then it is a point of the curves."""
        test = self._test
        loss = float(learned.step.loss)
        if test.events >= self._next_point or test.events >= self._total:
            self._next_point = test.events + self._total / self._settings.points
            point: Point = {"events": test.events, "time": batch.timestamps_s[-1]}
            point["loss"] = loss if np.isfinite(loss) else None
            for name in (MODEL, *self._settings.baselines):
                for slice_ in ("all", "new"):
                    figure = test.figure(name, slice_)
                    point |= {
                        f"{name}/{slice_}/recent": figure.recent,
                        f"{name}/{slice_}/overall": figure.overall,
                    }
            self._result.curve.append(point)
            shares = composition(self._learner.cache, self._learner.item_counts)
            self._result.composition.append({"events": test.events, **shares._asdict()})
        self._on_progress(test.events / max(self._total, 1), f"{test.events:,} events")


class _TimedLearner(DelayedLearner):
    """A learner that measures its steps; `ranking_s`, the seconds that ranking took so
    far, are no part of a step.
    """

    def __init__(
        self,
        settings: PrequentialSettings,
        after_batch: Callable[[MicroBatch, Learned], None],
        ranking_s: Callable[[], float],
    ) -> None:
        super().__init__(settings, Delay(settings.delay_events, settings.delay_seconds))
        self._after_batch = after_batch
        self._ranking_s = ranking_s
        self.step_seconds: list[float] = []

    def learn_batch(
        self,
        batch: MicroBatch,
        evaluator: Evaluator | None = None,
        counted: bool = True,
    ) -> Learned:
        learn = (
            super().learn_batch if self.delay else partial(Learner.learn_batch, self)
        )
        started = CLOCK() - self._ranking_s()
        learned = learn(batch, evaluator, counted)
        if len(learned.items):  # else its feedback is late
            self.step_seconds.append(CLOCK() - self._ranking_s() - started)
        self._after_batch(batch, learned)
        return learned
