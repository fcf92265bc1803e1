"""Watches a line: keeps every metric, judges its health, and remembers what the live
page shows.

What is cheap happens every step, a few observations; the rest twice a second with the
line's status.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from streamer import DISTRIBUTION
from streamer.metrics import figures
from streamer.metrics.catalogue import BANDS, PHASES
from streamer.metrics.health import Health
from streamer.metrics.history import Timeline
from streamer.metrics.instruments import Instruments, Values
from streamer.metrics.observer import Observer

if TYPE_CHECKING:
    from streamer.dead_letters.base import DeadLetter
    from streamer.evaluation import Prequential
    from streamer.ingest.batcher import MicroBatch
    from streamer.learner import OnlineLearner
    from streamer.metrics.status import Status

KEPT_LETTERS = 20
DELAYS_A_BATCH = 4

_COLUMNS = ("time", "events_per_second", "lag", "loss", "delay", *BANDS)


class Monitor(Observer):
    """Everything that can be seen of one process; `wall` is the time since the epoch."""

    def __init__(
        self,
        registry: CollectorRegistry,
        source: str = "",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.registry = registry
        self.source = source
        self._clock = clock
        self._wall = wall
        self.started_at = wall()
        self.instruments = Instruments(registry)
        self.health = Health(clock)
        self.status: Status | None = None
        self.build: dict[str, str] = {}
        self.timeline = Timeline(_COLUMNS)
        self._letters: deque[tuple[float, DeadLetter]] = deque(maxlen=KEPT_LETTERS)
        self._prequential: Prequential | None = None
        self._learner: OnlineLearner | None = None
        self._ranked_s = 0.0
        self._delay_s: float | None = None
        histogram = self.instruments.histogram
        self._phases = {
            name: histogram("streamer_phase_seconds", name) for name in PHASES
        }
        self._event_age = histogram("streamer_event_to_trained_seconds")
        self._batch_events = histogram("streamer_batch_events")
        self._batch_age = histogram("streamer_batch_age_seconds")
        # computed at a scrape: what goes on changing while nothing moves
        at_scrape: Values = {
            "streamer_alive": lambda: float(self.health.alive().ok),
            "streamer_ready": lambda: float(self.health.ready().ok),
            "streamer_checkpoint_age_seconds": self.checkpoint_age_s,
        }
        self.instruments.put("process", at_scrape)

    # what the line reports ------------------------------------------------------------

    def begin(self, learner: OnlineLearner, prequential: Prequential | None) -> None:
        self._learner = learner
        self._prequential = prequential
        self._ranked_s = prequential.seconds if prequential is not None else 0.0
        names = []
        if prequential is not None:
            names = [f"hit_rate {name}" for name in prequential.names]
        self.timeline = Timeline([*_COLUMNS, *names])
        self.build = {
            "version": metadata.version(DISTRIBUTION),
            "python": platform.python_version(),
            "torch": metadata.version("torch"),
            "method": learner.state.trainer.method.name,
            "device": str(learner.state.trainer.device),
        }
        info = ("streamer_build_info", *self.build.values())
        self.instruments.put("build", {info: 1})

    def beat(self) -> None:
        self.health.beat()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.timed(name, time.perf_counter() - started)

    def timed(self, phase: str, seconds: float) -> None:
        if phase == "step" and self._prequential is not None:
            ranked_s = self._prequential.seconds - self._ranked_s
            self._ranked_s = self._prequential.seconds
            self._phases["rank"].observe(ranked_s)
            seconds -= ranked_s
        self._phases[phase].observe(seconds)

    def trained(self, batch: MicroBatch) -> None:
        self.health.stepped()
        now = self._wall()
        self._batch_events.observe(len(batch))
        if batch.arrived_s is not None:
            self._batch_age.observe(self._clock() - batch.arrived_s)
        if len(batch):
            self._delay_s = now - batch.timestamps_s[-1]
            for timestamp_s in batch.timestamps_s[:: -(-len(batch) // DELAYS_A_BATCH)]:
                self._event_age.observe(max(0.0, now - timestamp_s))
        if batch.dead_letters:
            latest = batch.dead_letters[-KEPT_LETTERS:]
            self._letters.extend([(now, letter) for letter in latest])

    def refreshed(self, status: Status) -> None:
        # a copy: read by other threads while the run goes on
        status = dataclasses.replace(status)
        self.status = status
        self.health.status = status
        put = self.instruments.put
        put("status", figures.status_figures(status, self._wall()))
        put("delay", {"streamer_event_delay_seconds": self._delay_s})
        if self._prequential is not None:
            put("ranking", figures.ranking_figures(self._prequential, status))
        if self._learner is not None:
            put("limits", figures.limit_figures(self._learner))
            put("memory", figures.memory_figures(self._learner))
        put("draws", figures.draw_figures(status))
        self.timeline.add(self._moment(status))

    def ended(self) -> None:
        self.health.ended()

    def _moment(self, status: Status) -> dict[str, float]:
        """A point of the timeline."""
        values: dict[str, float | None] = {
            "time": self._wall(),
            "events_per_second": status.events_per_second,
            "lag": sum(status.lag.values()),
            "loss": status.loss,
            "delay": self._delay_s,
        }
        if any(status.sampler.cache_bands):
            values |= status.sampler.cache_bands._asdict()
        if (p := self._prequential) is not None:
            values |= {f"hit_rate {name}": p.figure(name).recent for name in p.names}
        return {name: value for name, value in values.items() if value is not None}

    # for other threads ----------------------------------------------------------------

    def checkpoint_age_s(self) -> float:
        """Age of what is safe; since the start if nothing is."""
        status = self.status
        if status is None or status.checkpoint_age_s is None:
            return self._wall() - self.started_at
        return status.checkpoint_age_s + self._clock() - status.at_s

    def letters(self) -> list[tuple[float, DeadLetter]]:
        """The latest dead letters and when they came, the newest first."""
        letters = self._letters.copy()  # the line may add some meanwhile
        return list(reversed(letters))
