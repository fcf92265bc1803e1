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

from streamer.metrics.catalogue import (
    BANDS,
    DECILES,
    MEMORY,
    PARTS,
    PHASES,
    SIDES,
    STORE_ERRORS,
    TOP_RANKS,
    WHY_EVICTED,
)
from streamer.metrics.health import Health
from streamer.metrics.history import Timeline
from streamer.metrics.instruments import Instruments
from streamer.metrics.observer import Observer

if TYPE_CHECKING:
    from torch import Tensor

    from streamer.cache_store.state import StoreStatus
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
        names = (
            [f"hit_rate {name}" for name in prequential.names]
            if prequential is not None
            else []
        )
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
        self.status = dataclasses.replace(
            status
        )  # a copy: read by other threads while the run goes on
        self.health.partitions = len(status.partitions)
        self.health.lag = sum(status.lag.values())
        self.health.unread = list(status.partitions.values()).count(None)
        store_problem = (
            None
            if status.store.live
            else status.store.problem or "the store does not respond"
        )
        problems = (status.source_problem, store_problem, status.saves.problem)
        self.health.problems = [problem for problem in problems if problem is not None]
        self._set_stream(status)
        self._set_learning(status)
        self._set_limits()
        self._set_sampler()
        self._set_store(status.store)
        self._set_members(status)
        self._set_checkpoints(status)
        self._set_publishing(status)
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
        if (p := self._prequential) is not None:
            for name in p.names:
                i.set(
                    "streamer_prequential_hit_rate",
                    p.figure(name).recent,
                    name,
                    str(p.k),
                )
                i.set(
                    "streamer_prequential_ndcg",
                    p.figure(name, metric="ndcg").recent,
                    name,
                    str(p.k),
                )
            if (share := p.watch.cold_share) is not None:
                i.set("streamer_recommended_cold_share", share)
            if (baseline := p.best_baseline()) is not None:
                i.replace(
                    "streamer_prequential_best_baseline_hit_rate",
                    {(baseline.name, str(p.k)): baseline.hit_rate},
                )
            for history, shares in status.influence.items():
                for evidence, share in shares.items():
                    i.set("streamer_ranker_influence_share", share, history, evidence)
            i.rise("streamer_prequential_events_total", p.model.events)

    def _set_limits(self) -> None:
        i = self.instruments
        learner = self._learner
        if learner is None:
            return
        i.set("streamer_cold_items", len(learner.state.cold_items))
        limits = learner.state.limits._asdict()
        for side in SIDES:
            i.set("streamer_ids_limit", limits[side], side)
            i.set("streamer_oldest_age_seconds", learner.state.age_s(side), side)
            i.set(
                "streamer_evicted_age_seconds",
                learner.eviction.evicted_age_s.get(side),
                side,
            )
            for reason in WHY_EVICTED:
                i.rise(
                    "streamer_evicted_total",
                    learner.eviction.evicted[side, reason],
                    side,
                    reason,
                )
        i.set("streamer_young_age_seconds", learner.settings.young_age_s)

    def _set_memory(self) -> None:
        assert self._learner is not None
        sizes: Counter[str] = Counter()
        for kind, parts in self._learner.state.memory().items():
            of = "items" if kind == "pairs" else kind if kind in SIDES else "other"
            sizes["categories" if of == "other" and "ids" in parts else of] += sum(
                parts.values()
            )
        for part in MEMORY:
            self.instruments.set("streamer_memory_bytes", sizes[part], part)

    def _set_sampler(self) -> None:
        """What the draws of the latest step looked like; the line has waited for the
        device already, for the loss.
        """
        if self._learned is None:
            return
        i = self.instruments
        step = self._learned.step
        users = max(len(self._learned.users), 1)
        for name in PARTS:
            part = step.parts.get(name)
            if part is None:
                continue
            draws = float(_array(part.counts).sum()) / users
            distinct = float(_array(part.distinct))
            i.set("streamer_loss_part", float(_array(part.loss)), name)
            i.set(
                "streamer_sampler_effective_size", float(_array(part.effective)), name
            )
            i.set("streamer_sampler_distinct_negatives", distinct, name)
            i.set(
                "streamer_sampler_distinct_share",
                distinct / draws if draws else 0.0,
                name,
            )
            i.set("streamer_sampler_own_share", float(_array(part.own_share)), name)

    def _set_members(self, status: Status) -> None:
        i = self.instruments
        i.set("streamer_group_trainers", len(status.members))
        i.set("streamer_group_spread_users", status.spread_users)
        for number, member in enumerate(status.members):
            name = str(number)
            waiting_s = member.waiting_ms / 1000
            exchange_s = member.exchange_ms / 1000
            i.set("streamer_group_partitions", len(member.partitions), name)
            i.rise("streamer_group_waiting_seconds_total", waiting_s, name)
            i.rise("streamer_group_exchange_seconds_total", exchange_s, name)
            i.rise("streamer_group_sent_bytes_total", member.sent_bytes, name)

    def _set_store(self, store: StoreStatus) -> None:
        i = self.instruments
        i.set("streamer_store_live", float(store.live))
        i.set("streamer_store_round_trip_seconds", store.round_trip_s)
        i.set("streamer_store_staleness_seconds", store.staleness_s)
        i.set("streamer_store_backlog_contributions", store.backlog_contributions)
        i.set("streamer_store_backlog_events", store.backlog_events)
        i.set("streamer_store_log_entries", store.log_length)
        i.rise("streamer_store_exchanges_total", store.exchanges)
        i.rise("streamer_store_exchange_cpu_seconds_total", store.exchange_cpu_s)
        i.rise("streamer_store_sent_bytes_total", store.sent_bytes)
        i.rise("streamer_store_received_bytes_total", store.received_bytes)
        i.rise("streamer_store_refused_events_total", store.refused_events)
        i.rise("streamer_store_duplicate_events_total", store.duplicate_events)
        i.rise("streamer_store_retired_events_total", store.retired_events)
        i.rise("streamer_store_joins_total", store.joins)
        i.rise("streamer_store_seeds_total", store.seeds)
        i.rise("streamer_store_snapshots_total", store.snapshots)
        errors: Counter[str] = Counter()
        for reason, count in store.errors.items():
            errors[reason if reason in STORE_ERRORS else "other"] += count
        for reason, count in errors.items():
            i.rise("streamer_store_errors_total", count, reason)

    def _set_checkpoints(self, status: Status) -> None:
        i = self.instruments
        saves = status.saves
        i.set("streamer_checkpoint_writable", float(saves.problem is None))
        i.set("streamer_checkpoint_unsaved_events", saves.unsaved_events)
        i.set("streamer_checkpoint_duration_seconds", saves.seconds)
        i.set("streamer_checkpoint_longest_pause_seconds", saves.longest_pause_s)
        i.set("streamer_checkpoint_size_bytes", saves.size_bytes)
        i.set("streamer_checkpoint_base_bytes", saves.base_bytes)
        i.set("streamer_checkpoint_deltas", saves.deltas)
        i.set("streamer_checkpoint_delta_bytes", saves.delta_bytes)
        i.rise("streamer_checkpoints_total", saves.saved, "saved")
        i.rise("streamer_checkpoints_total", saves.failed, "failed")

    def _set_publishing(self, status: Status) -> None:
        i = self.instruments
        published = status.publishing
        i.set(
            "streamer_publish_live",
            float(published is None or published.problem is None),
        )
        i.rise(
            "streamer_published_points_total",
            published.snapshots if published is not None else 0,
        )
        i.rise(
            "streamer_published_bytes_total",
            published.written_bytes if published is not None else 0,
        )
        at_s = published.at_s if published is not None else None
        i.set(
            "streamer_published_age_seconds",
            self._wall() - at_s if at_s is not None else None,
        )

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
        self._set_sampler_report(self.sampler_report)
        self._set_memory()
        took = 0.0 if first else time.perf_counter() - started
        self._look_at = self._clock() + max(LOOK_PAUSE * took, MIN_LOOK_PAUSE_S)

    def _set_sampler_report(self, report: SamplerReport) -> None:
        i = self.instruments
        i.set("streamer_cache_slots", report.slots)
        i.set("streamer_cache_distinct_items", report.distinct)
        i.set("streamer_cache_entropy_nats", report.entropy)
        i.set("streamer_cache_turnover_share", report.turnover)
        i.set("streamer_cache_entry_age_seconds", report.age_s)
        i.set("streamer_cache_batch_overlap_share", report.overlap)
        for band, slots, drawn in zip(
            BANDS, report.slot_bands, report.occurrence_bands, strict=True
        ):
            i.set("streamer_cache_slot_share", slots, band)
            i.set("streamer_occurrence_share", drawn, band)
        for decile, slots, drawn in zip(
            DECILES, report.slot_deciles, report.occurrence_deciles, strict=True
        ):
            i.set("streamer_cache_slot_share_decile", slots, decile)
            i.set("streamer_occurrence_share_decile", drawn, decile)
        shares = [top.share for top in report.top] + [0.0] * len(TOP_RANKS)
        for rank, share in zip(TOP_RANKS, shares, strict=False):
            i.set("streamer_cache_top_slot_share", share, rank)
        for part, value in report.divergence.items():
            i.set("streamer_popularity_divergence_nats", value, part)
        i.set("streamer_popularity_items", report.items)
        i.set("streamer_popularity_hash_log_error", report.hash_error)
        i.set("streamer_popularity_hash_collision_share", report.collision_share)

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


def _array(tensor: Tensor) -> Any:
    """What a tensor holds. On the host without a call that lets other threads run
    first: they may take their time.
    """
    return tensor.numpy() if tensor.device.type == "cpu" else tensor.cpu().numpy()


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
