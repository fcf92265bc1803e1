"""A method on a log, test then train: the production line itself, with every event
ranked before it is trained.

Those that come before anything is trained are misses for the method, so that figures
are over the same events whatever the batch size and the delay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, product

from streamer.build import assemble
from streamer.dead_letters.base import DeadLetters
from streamer.errors import SettingsError
from streamer.evaluation import MODEL, WITHOUT_TOWERS, Tally
from streamer.evaluation.tally import METRICS
from streamer.event import EventDecoder, EventSettings
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Evaluator, Learned
from streamer.replay.datasets.log import CATALOGUE_TYPE
from streamer.replay.evaluation.delay import Delay, DelayedLearner
from streamer.replay.evaluation.results import (
    STRETCHES,
    Measure,
    RunResult,
    step_measure,
)
from streamer.replay.evaluation.settings import PrequentialSettings
from streamer.replay.evaluation.slices import (
    CLOCK,
    RETRIEVED,
    SECOND_HALF,
    STRETCH,
    K,
    SlicedPrequential,
)
from streamer.replay.events import Events, Record
from streamer.settings import PipelineSettings
from streamer.sources.base import Chunk, Partition, Positions, RebalanceListener

OnProgress = Callable[[float, str], None]


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
        self.learner = _TimedLearner(settings)
        self._test = SlicedPrequential(self.learner, settings, total // 2)

    def run(self, on_progress: OnProgress = lambda share, text: None) -> RunResult:
        """Send the events down the production line; returns figures of the method and
        the baselines, none of an empty slice.

        About it: `slices`, the number of ranked events of each, and the `accounting`.
        `on_progress` is called after every batch with the share of the stream that is
        done, and the events so far.
        """

        def advance(_: MicroBatch) -> None:
            done = self._test.events
            on_progress(done / max(self._total, 1), f"{done:,} events")

        # without times all events are of one moment, the same in every run
        records = (events.records(lambda: 0.0) for events in self._chunks)
        stream = chain(self._catalogue, chain.from_iterable(records))
        total = len(self._catalogue) + self._total
        pipeline = assemble(
            self.learner,
            lambda: EventsSource(stream, total),
            EventDecoder(
                EventSettings(catalogue_types=(CATALOGUE_TYPE,)),
                typed=self._settings.typed,
            ),
            DeadLetters(),
            PipelineSettings(
                batch_size=self._settings.batch_size, max_age_s=0, checkpoint_every_s=0
            ),
            prequential=self._test,
        )
        pipeline.run(advance)
        accounting = pipeline.accounting.to_json()
        tally = self._test.tally
        about = {
            "ranked": tally.events(),
            "refused": accounting["dead_letters"],
            "slices": {slice_: tally.events(slice_) for slice_ in _shown(tally)},
            "accounting": accounting,
        }
        return RunResult(self._measures(), about)

    def _measures(self) -> list[Measure]:
        test = self._test
        ks = self._settings.ks
        found = []
        for name in (MODEL, *self._settings.baselines):
            baseline = None if name == MODEL else name
            for metric in METRICS:
                found += _by_slice(test.tally, name, metric, metric, ks, baseline)
        cold_share = test.watch.cold_share
        if self._catalogue and cold_share is not None:
            found.append(Measure("cold-share", K, "all", cold_share))
        found += _by_slice(test.retrieved, MODEL, "hr", "towers-recall", RETRIEVED)
        found += _by_slice(test.tally, WITHOUT_TOWERS, "hr", "hr-without-towers", ks)
        return [*found, step_measure(self.learner.step_seconds)]


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
    for slice_, k in product(_shown(tally), ks):
        figure = tally.figure(name, slice_, metric, k)
        if figure.overall is not None:
            parts = []
            if slice_ == f"{SECOND_HALF}all":
                parts = _stretches(tally, name, metric, k)
            found.append(
                Measure(
                    called, k, slice_, figure.overall, baseline, figure.error, parts
                )
            )
    return found


def _shown(tally: Tally) -> list[str]:
    """The slices that have figures of their own."""
    return [slice_ for slice_ in tally.slices if not slice_.startswith(STRETCH)]


def _stretches(tally: Tally, name: str, metric: str, k: int) -> list[float]:
    """Means over the stretches of the second half; none if one has no event."""
    found = []
    for number in range(STRETCHES):
        figure = tally.figure(name, f"{STRETCH}{number}", metric, k)
        if figure.overall is None:
            return []
        found.append(figure.overall)
    return found


class _TimedLearner(DelayedLearner):
    """A learner that measures its steps; seconds of ranking are no part of a step."""

    def __init__(self, settings: PrequentialSettings) -> None:
        super().__init__(settings, Delay(settings.delay_seconds))
        self.step_seconds: list[float] = []

    def learn_batch(
        self,
        batch: MicroBatch,
        evaluator: Evaluator | None = None,
        counted: bool = True,
    ) -> Learned:
        assert isinstance(evaluator, SlicedPrequential)
        evaluator.types = batch.types
        started = CLOCK() - evaluator.seconds
        learned = super().learn_batch(batch, evaluator, counted)
        if len(learned.items):  # else its feedback is late
            self.step_seconds.append(CLOCK() - evaluator.seconds - started)
        return learned


class EventsSource:
    """A `Source` of `total` records, in their order; takes them as they are polled."""

    all_assigned = True
    is_member = True
    at_end = False
    problem = None

    def __init__(self, records: Iterable[Record], total: int) -> None:
        self.partition = Partition("events", 0)
        self._total = total
        self._position = 0
        self._records = iter(records)

    def open(self, listener: RebalanceListener) -> None:
        listener.on_assigned([self.partition])

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """The next events; nothing ever comes later, so nothing is waited for."""
        records = list(islice(self._records, max_records))
        self.at_end = self.at_end or len(records) < max_records
        if not records:
            return []
        keys, values, times_ms = map(list, zip(*records, strict=True))
        offsets = list(range(self._position, self._position + len(records)))
        self._position += len(records)
        return [Chunk(self.partition, offsets, times_ms, keys, values)]

    def positions(self) -> Positions:
        return {self.partition: self._position}

    def commit(self, positions: Positions) -> None:
        """Does nothing: the stream is read once."""

    def end_offsets(self) -> Positions:
        return {self.partition: max(self._total, self._position)}

    def close(self) -> None:
        """Does nothing."""
