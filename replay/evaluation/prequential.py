"""A method on a log, test then train: the production line itself, with every event ranked before it is trained.

Those that come before anything is trained are misses for the method, so that figures are over the same events whatever
the batch size and the delay.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamer.dead_letters.base import MemoryDeadLetters
from streamer.errors import SettingsError
from streamer.event import EventDecoder
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Learned, Learner
from streamer.metrics.composition import composition
from streamer.model.setting import changed, setting
from streamer.model.settings import LearnerSettings
from streamer.pipeline import Pipeline
from streamer.prequential import FLOORS, METRICS, MODEL, SLICES, Delay, DelayedLearner, Prequential
from streamer.replay.evaluation.events_source import EventsSource
from streamer.replay.evaluation.measure import Measure
from streamer.replay.events import Events
from streamer.settings import PipelineSettings

K = 10
"""The length of the list that the curves look at."""


@dataclass(frozen=True, kw_only=True)
class PrequentialSettings(LearnerSettings):
    """How a method is evaluated on a stream: the learner of `streamer run`, and what is measured of it."""

    heading: ClassVar[str] = "Evaluation"

    batch_size: int = changed(PipelineSettings, "batch_size", PipelineSettings.batch_size)
    ks: tuple[int, ...] = setting((1, 5, 10, 20, 50), "Lengths of the lists.", at_least=1)
    window: int = setting(5000, "Length of the window of the windowed figures.", at_least=1, unit="events")
    floors: tuple[str, ...] = setting(tuple(FLOORS), "Trivial recommenders beside it.", option="floors")
    delay_events: int = setting(0, "An event is trained only after this many further ones were ranked.", at_least=0)
    delay_seconds: float = setting(
        0.0, "An event is trained only after this many further seconds of the stream were ranked.", at_least=0
    )
    points: int = setting(200, "Points of the curves.", at_least=1)

    def problems(self) -> list[str]:
        unknown = [floor for floor in self.floors if floor not in FLOORS]
        return super().problems() + [f"there is no floor {f!r}: choose among {', '.join(FLOORS)}" for f in unknown]


@dataclass(slots=True)
class PrequentialResult:
    """What became of a method on a stream.

    Args:
        measures: every figure of the method and of the floors; a slice without events has none.
        curve: points along the stream: `events`, `time` (seconds since the epoch), `loss`, and for the model and each
            floor `<name>/<all or new>/recent` and `.../overall`, the hit rates at 10; None where there is no event.
        composition: points along the stream: `events`, and shares `head`, `torso`, `tail` of the cache.
        events: how many events each slice has; `all` has every one that was not refused.
        occurrence: how often each item was resampled, by row, at the end.
        popularity: how many events each item had, by row, at the end.
        seconds: of the whole run.
        events_per_second: of the whole run, ranking included.
        train_events_per_second: the same without ranking.
        seconds_per_step: median time of a micro-batch in the learner, without ranking.
        accounting: what became of all events.
    """

    measures: list[Measure] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    composition: list[dict[str, Any]] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=dict)
    occurrence: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    popularity: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    seconds: float = 0.0
    events_per_second: float = 0.0
    train_events_per_second: float = 0.0
    seconds_per_step: float = 0.0
    accounting: dict[str, Any] = field(default_factory=dict)

    def value(self, metric: str, k: int, slice_: str, floor: str | None = None) -> float | None:
        """One figure; None if there is none."""
        wanted = (metric, k, slice_, floor)
        found = (m.value for m in self.measures if (m.metric, m.k, m.slice, m.floor) == wanted)
        return next(found, None)


class PrequentialRun:
    """One method on one stream.

    Args:
        chunks: the events in the order of the stream, or a function that gives them.
        total: how many there are: where the second half begins, and how far the run is.
        settings: the method, and how it is evaluated.

    Raises:
        SettingsError: with every problem at once.
    """

    def __init__(
        self, chunks: Iterable[Events] | Callable[[], Iterable[Events]], total: int, settings: PrequentialSettings
    ) -> None:
        if problems := settings.problems():
            raise SettingsError(problems)
        self._chunks, self._total, self._settings = chunks, total, settings
        self._next_point = 0.0
        self._result = PrequentialResult()

    def run(self, on_progress: Callable[[int, int], None] | None = None) -> PrequentialResult:
        """Send the events down the production line.

        Args:
            on_progress: called after every batch with the events so far and the total.
        """
        settings, started = self._settings, time.perf_counter()
        after = partial(self._after, on_progress=on_progress)
        learner = _Watched(settings, after, lambda: self._test.seconds)
        self._learner = learner
        self._test = Prequential(
            learner,
            K,
            time_share=None,
            sample=None,
            window=settings.window,
            new_only=True,
            ks=settings.ks,
            floors=settings.floors,
            half=self._total // 2,
        )
        pipeline = self._pipeline()
        pipeline.run()
        return self._finished(pipeline, time.perf_counter() - started)

    def _pipeline(self) -> Pipeline:
        settings = self._settings
        chunks = self._chunks() if callable(self._chunks) else self._chunks
        line = PipelineSettings(batch_size=settings.batch_size, max_age_s=0, checkpoint_every_s=0)
        return Pipeline(
            self._learner,
            lambda: EventsSource(chunks, self._total),
            EventDecoder(),
            MemoryDeadLetters(),
            line,
            prequential=self._test,
        )

    def _after(self, batch: MicroBatch, learned: Learned, on_progress: Callable[[int, int], None] | None) -> None:
        """A batch was learned: now and then a point of the curves."""
        done = self._test.events
        if done >= self._next_point or done >= self._total:
            self._next_point = done + self._total / self._settings.points
            self._result.curve.append(self._point(batch, learned))
            shares = composition(self._learner.cache, self._learner.exact)
            self._result.composition.append({"events": done, **shares._asdict()})
        if on_progress is not None:
            on_progress(done, self._total)

    def _point(self, batch: MicroBatch, learned: Learned) -> dict[str, Any]:
        loss = float(learned.step.loss)
        point: dict[str, Any] = {
            "events": self._test.events,
            "time": batch.timestamps_s[-1],
            "loss": loss if np.isfinite(loss) else None,
        }
        for name in (MODEL, *self._settings.floors):
            for slice_ in ("all", "new"):
                figure = self._test.figure(name, slice_)
                point[f"{name}/{slice_}/recent"] = figure.recent
                point[f"{name}/{slice_}/overall"] = figure.overall
        return point

    def _finished(self, pipeline: Pipeline, seconds: float) -> PrequentialResult:
        result, learner, test = self._result, self._learner, self._test
        rows = np.arange(len(learner.items))
        result.measures = self._measures()
        result.events = {slice_: test.tallies[MODEL].events(slice_) for slice_ in SLICES}
        result.occurrence, result.popularity = learner.occurrence.values(rows), learner.exact.counts(rows)
        result.seconds, result.events_per_second = seconds, test.events / seconds
        result.train_events_per_second = test.events / max(seconds - test.seconds, 1e-9)
        result.seconds_per_step = statistics.median(learner.step_seconds or [0.0])
        result.accounting = pipeline.accounting.to_json()
        return result

    def _measures(self) -> list[Measure]:
        found = []
        for name in (MODEL, *self._settings.floors):
            tally, floor = self._test.tallies[name], None if name == MODEL else name
            for slice_ in SLICES:
                for metric in METRICS:
                    for k in self._settings.ks:
                        value = tally.overall(slice_, metric, k)
                        if value is not None:
                            found.append(Measure(metric, k, slice_, value, floor))
        return found


class _Watched(DelayedLearner):
    """Tells what each batch did, and how long it took.

    Args:
        settings: the method, and how late it learns.
        after: is told of each batch.
        ranking_s: seconds that ranking took so far.
    """

    def __init__(
        self,
        settings: PrequentialSettings,
        after: Callable[[MicroBatch, Learned], None],
        ranking_s: Callable[[], float],
    ) -> None:
        super().__init__(settings, Delay(settings.delay_events, settings.delay_seconds))
        self._after, self._ranking_s = after, ranking_s
        self.step_seconds: list[float] = []

    def learn_batch(
        self, batch: MicroBatch, before_training: Callable[..., None] | None = None, counted: bool = True
    ) -> Learned:
        learn = super().learn_batch if self.delay else partial(Learner.learn_batch, self)
        started = time.perf_counter() - self._ranking_s()
        learned = learn(batch, before_training, counted)
        if len(learned.items):  # else its feedback is late
            self.step_seconds.append(time.perf_counter() - self._ranking_s() - started)
        self._after(batch, learned)
        return learned
