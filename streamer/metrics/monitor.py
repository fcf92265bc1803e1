"""Watches a line: sets every metric, judges its health, and keeps what the live page
shows.

What is cheap happens every step, a few observations; the rest twice a second with the
line's status; a close look at the cache only so often that it takes a small share of
the time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client import CollectorRegistry

from streamer.metrics.catalogue import BANDS, PHASES
from streamer.metrics.health import Health
from streamer.metrics.history import Timeline
from streamer.metrics.instruments import Instruments
from streamer.metrics.learner_metrics import (
    set_draws,
    set_limits,
    set_memory,
    set_prequential,
    set_sampler_report,
)
from streamer.metrics.observer import Observer
from streamer.metrics.storage_metrics import (
    set_checkpoints,
    set_members,
    set_publishing,
    set_store,
)

if TYPE_CHECKING:
    from streamer.dead_letters.base import DeadLetter
    from streamer.evaluation import Prequential
    from streamer.ingest.batcher import MicroBatch
    from streamer.learner import Learned, Learner
    from streamer.metrics.sampler_report import SamplerReport, SamplerReporter
    from streamer.metrics.status import Status

LOOK_PAUSE = 400
"""The pause between two close looks, in multiples of what a look takes: a quarter of a
percent of the time.
"""
MIN_LOOK_PAUSE_S = 1.0
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
        self.sampler_report: SamplerReport | None = None
        self.build: dict[str, str] = {}
        self.timeline = Timeline(_COLUMNS)
        self._letters: deque[tuple[float, DeadLetter]] = deque(maxlen=KEPT_LETTERS)
        self._letters_lock = threading.Lock()
        self._prequential: Prequential | None = None
        self._learner: Learner | None = None
        self._reporter: SamplerReporter | None = None
        self._look_at = self._ranked_s = self._spent_s = 0.0
        self._learned: Learned | None = None
        self._caches: tuple[Any, Any] = (np.empty(0, np.int64), np.empty(0, np.int64))
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._delay_s = float("nan")
        self._stepped_at: float | None = None
        series = self.instruments.series
        self._phases = {name: series("streamer_phase_seconds", name) for name in PHASES}
        self._timers = {name: _Timer(self.timed, name) for name in PHASES}
        self._event_age = series("streamer_event_to_trained_seconds")
        self._batch_events = series("streamer_batch_events")
        self._batch_age = series("streamer_batch_age_seconds")
        # computed at a scrape: what goes on changing while nothing moves
        series("streamer_alive").set_function(lambda: float(self.health.alive().ok))
        series("streamer_ready").set_function(lambda: float(self.health.ready().ok))
        series("streamer_checkpoint_age_seconds").set_function(self.checkpoint_age_s)

    # what the line tells ----------------------------------------------------------------------------------------------

    def begin(self, learner: Learner, prequential: Prequential | None) -> None:
        from streamer.metrics.sampler_report import SamplerReporter

        self._learner = learner
        self._prequential = prequential
        self._reporter = SamplerReporter(learner, self._clock)
        self._ranked_s = prequential.seconds if prequential is not None else 0.0
        names = []
        if prequential is not None:
            names = [f"hit_rate {name}" for name in prequential.names]
        self.timeline = Timeline([*_COLUMNS, *names])
        self.build = {
            "version": metadata.version("streamer"),
            "python": platform.python_version(),
            "torch": metadata.version("torch"),
            "method": learner.state.trainer.method.name,
            "device": str(learner.state.trainer.device),
        }
        self.instruments.set("streamer_build_info", 1, *self.build.values())

    def beat(self) -> None:
        self.health.beat()

    def phase(self, name: str) -> contextlib.AbstractContextManager[object]:
        return self._timers[name]

    def timed(self, phase: str, seconds: float) -> None:
        if phase == "step" and self._prequential is not None:
            ranked_s = self._prequential.seconds - self._ranked_s
            self._ranked_s = self._prequential.seconds
            self._phases["rank"].observe(ranked_s)
            seconds -= ranked_s
        self._phases[phase].observe(seconds)

    def learned(self, learned: Learned) -> None:
        assert self._learner is not None
        self._learned = learned
        self._caches = (self._caches[1], self._learner.state.cache)
        self._counts["steps"] += 1
        self._counts["new_users"] += learned.new_users
        self._counts["new_items"] += learned.new_items

    def trained(self, batch: MicroBatch) -> None:
        started = time.perf_counter()
        self.health.stepped()
        now = self._wall()
        self._counts["consumed"] += batch.consumed
        self._counts["trained"] += batch.learned
        self._counts["not_admitted"] += batch.not_admitted
        self._counts["filtered"] += (
            batch.filtered + batch.not_admitted + batch.catalogue
        )
        self._counts["catalogue"] += batch.catalogue
        self._counts["lost"] += batch.lost
        self._batch_events.observe(len(batch))
        if batch.arrived_s is not None:
            self._batch_age.observe(self._clock() - batch.arrived_s)
        if len(batch):
            self._delay_s = now - batch.timestamps_s[-1]
            for timestamp_s in batch.timestamps_s[:: -(-len(batch) // DELAYS_A_BATCH)]:
                self._event_age.observe(max(0.0, now - timestamp_s))
        if batch.dead_letters:
            self._reasons.update(str(letter.reason) for letter in batch.dead_letters)
            with self._letters_lock:
                self._letters.extend(
                    (now, letter) for letter in batch.dead_letters[-KEPT_LETTERS:]
                )
        self._stepped_at = now
        self._spent_s += time.perf_counter() - started

    def refreshed(self, status: Status) -> None:
        started = time.perf_counter()
        # a copy: read by other threads while the run goes on
        self.status = dataclasses.replace(status)
        self.health.partitions = len(status.partitions)
        self.health.lag = sum(status.lag.values())
        self.health.unread = list(status.partitions.values()).count(None)
        store_problem = None
        if not status.store.live:
            store_problem = status.store.problem or "the store does not respond"
        problems = (status.source_problem, store_problem, status.saves.problem)
        self.health.problems = [problem for problem in problems if problem is not None]
        self._set_stream(status)
        self._set_learning(status)
        i = self.instruments
        if self._prequential is not None:
            set_prequential(i, self._prequential, status.influence)
        if self._learner is not None:
            set_limits(i, self._learner)
        if self._learned is not None:
            set_draws(i, self._learned)
        set_store(i, status.store)
        set_members(i, status)
        set_checkpoints(i, status.saves)
        set_publishing(i, status.publishing, self._wall())
        if self._clock() >= self._look_at:
            self._look_closely()
        self.timeline.add(self._moment(status))
        self._spent_s += time.perf_counter() - started
        self.instruments.rise("streamer_metrics_seconds_total", self._spent_s)

    def ended(self) -> None:
        self.health.ended()

    # twice a second ---------------------------------------------------------------------------------------------------

    def _set_stream(self, status: Status) -> None:
        i = self.instruments
        counts = self._counts
        i.rise("streamer_events_consumed_total", counts["consumed"])
        i.rise("streamer_events_trained_total", counts["trained"])
        i.rise("streamer_events_filtered_total", counts["filtered"])
        i.rise("streamer_events_not_admitted_total", counts["not_admitted"])
        i.rise("streamer_catalogue_events_total", counts["catalogue"])
        i.rise("streamer_lost_records_total", counts["lost"])
        for reason, count in self._reasons.items():
            i.rise("streamer_dead_letters_total", count, reason)
        i.set("streamer_source_live", float(status.source_problem is None))
        i.set("streamer_partitions", len(status.partitions))
        i.replace(
            "streamer_lag_records",
            {(p.topic, str(p.number)): lag for p, lag in status.lag.items()},
        )
        i.set("streamer_queued_events", status.queued_events)
        i.set("streamer_event_delay_seconds", self._delay_s)
        i.rise("streamer_rebalances_total", status.rebalances)

    def _set_learning(self, status: Status) -> None:
        i = self.instruments
        counts = self._counts
        i.rise("streamer_steps_total", counts["steps"])
        i.rise("streamer_new_users_total", counts["new_users"])
        i.rise("streamer_new_items_total", counts["new_items"])
        i.set("streamer_last_step_timestamp_seconds", self._stepped_at)
        i.rise("streamer_not_finite_rows_total", status.not_finite_rows)
        i.set("streamer_loss", status.loss)
        i.set("streamer_users", status.users)
        i.set("streamer_items", status.items)
        i.set("streamer_model_events", status.accounting.get("consumed", 0))

    def _moment(self, status: Status) -> dict[str, float]:
        """A point of the timeline."""
        values: dict[str, float | None] = {
            "time": self._wall(),
            "events_per_second": status.events_per_second,
            "lag": sum(status.lag.values()),
            "loss": status.loss,
            "delay": self._delay_s,
        }
        if self.sampler_report is not None and self.sampler_report.slots:
            values |= dict(zip(BANDS, self.sampler_report.slot_bands, strict=True))
        if (p := self._prequential) is not None:
            values |= {f"hit_rate {name}": p.figure(name).recent for name in p.names}
        return {name: value for name, value in values.items() if value is not None}

    # now and then -----------------------------------------------------------------------------------------------------

    def _look_closely(self) -> None:
        """The more items there are, the longer a look takes, and the rarer it is done.

        The first look does not count: compiled loops are loaded then, once.
        """
        if self._reporter is None or self._learned is None:
            return
        started = time.perf_counter()
        first = self.sampler_report is None
        self.sampler_report = self._reporter.report(
            self._caches[0], self._learned.items
        )
        set_sampler_report(self.instruments, self.sampler_report)
        assert self._learner is not None
        set_memory(self.instruments, self._learner)
        took = 0.0 if first else time.perf_counter() - started
        self._look_at = self._clock() + max(LOOK_PAUSE * took, MIN_LOOK_PAUSE_S)

    # for other threads ------------------------------------------------------------------------------------------------

    def checkpoint_age_s(self) -> float:
        """Age of what is safe; since the start if nothing is."""
        status = self.status
        if status is None or status.checkpoint_age_s is None:
            return self._wall() - self.started_at
        return status.checkpoint_age_s + self._clock() - status.at_s

    def letters(self) -> list[tuple[float, DeadLetter]]:
        """The latest dead letters and when they came, the newest first."""
        with self._letters_lock:
            return list(reversed(self._letters))


class _Timer:
    """Around a phase; one for each phase, as none runs twice at once."""

    __slots__ = ("_name", "_started", "_tell")

    def __init__(self, tell: Callable[[str, float], None], name: str) -> None:
        self._tell = tell
        self._name = name
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._tell(self._name, time.perf_counter() - self._started)
