"""The status of a running line: figures for a person, computed twice a second from its
parts.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from streamer.accounting import Accounting
from streamer.cache_store.store import StoreStatus
from streamer.metrics.sampler_report import SamplerReport, SamplerReporter
from streamer.model.ranking.ranker import influence_by_name
from streamer.snapshot.checkpointer import SaveStats
from streamer.sources.base import Partition

if TYPE_CHECKING:
    from torch import Tensor

    from streamer.evaluation import BestBaseline, Prequential, TowersShare
    from streamer.evaluation.shop import ShopReport
    from streamer.ingest.ingest import Ingest
    from streamer.learner import Learned, OnlineLearner
    from streamer.limits import Limits
    from streamer.model.kernels.spec import LossOutcome
    from streamer.progress import Progress
    from streamer.sharing.sharing import Sharing
    from streamer.snapshot.publisher import Publisher, PublishStatus

logger = logging.getLogger(__name__)

EVERY_S = 0.5
MIN_FEATURE_EVENTS = 1000
"""Warn of a feature that no event has had after this many."""
LOSS_BATCHES = 20
"""Full batches over which the loss is averaged."""


class Member(NamedTuple):
    """One of several processes that train a model together."""

    partitions: list[Partition]
    """Those that it reads."""
    users: int
    queued_events: int
    waiting_ms: int
    """Until the slowest process had come to a step."""
    exchange_ms: int
    """In exchanges inside of steps."""
    sent_bytes: int


@dataclass(slots=True)
class Status:
    """What a person wants to see of a running line; refreshed twice a second."""

    events_per_second: float = 0.0
    loss: float | None = None
    """Mean over the latest events, so that a smaller batch, which has fewer negatives,
    weighs less.
    """
    hit_rate: float | None = None
    hit_rate_events: int = 0
    """Ranked events over which the hit rate is taken."""
    hit_rate_error: float = 0.0
    """Its standard error."""
    best_baseline: BestBaseline | None = None
    towers: TowersShare | None = None
    influence: dict[str, dict[str, float]] = field(default_factory=dict)
    """What decides the ranking, by length of the user's history and kind of evidence."""
    shop: ShopReport | None = None
    """What is being recommended now; None if nothing is ranked."""
    sampler: SamplerReport = field(default_factory=SamplerReport)
    """What is sampled from, as of the latest look."""
    draws: dict[str, LossOutcome] = field(default_factory=dict)
    """What the latest step drew, by part of its loss."""
    partitions: dict[Partition, int | None] = field(default_factory=dict)
    """Those that are assigned to us, and the next offset to train of each."""
    lag: dict[Partition, int] = field(default_factory=dict)
    source_problem: str | None = None
    """What keeps us from reading; None if nothing does."""
    rebalances: int = 0
    queued_events: int = 0
    backpressure_reason: str | None = None
    """Why nothing is trained, if dead letters must be written first or are too many."""
    steps: int = 0
    """Of the model's whole life."""
    new_steps: int = 0
    """Since the start of this process, as the two below."""
    new_users: int = 0
    new_items: int = 0
    not_finite_rows: int = 0
    """Rows of all steps that were not updated, because a number of theirs was not
    finite.
    """
    users: int = 0
    items: int = 0
    absent_features: list[str] = field(default_factory=list)
    """Features of the settings that none of many events has had."""
    limits: Limits | None = None
    """How many are kept, at most."""
    evicted: int = 0
    """Users and items that were forgotten since the start."""
    checkpoint_age_s: float | None = None
    saves: SaveStats = field(default_factory=SaveStats)
    store: StoreStatus = field(default_factory=StoreStatus)
    publishing: PublishStatus | None = None
    """None if nothing is published."""
    members: list[Member] = field(default_factory=list)
    """The processes that train the model together; empty for one that trains alone."""
    spread_users: int = 0
    """About how many users have events in several partitions, if that matters."""
    accounting: dict[str, Any] = field(default_factory=lambda: Accounting().to_json())
    """What became of every event, over the life of the model."""
    this_run: dict[str, Any] = field(default_factory=lambda: Accounting().to_json())
    """The same since the start of this process."""
    at_s: float = 0.0
    """When it was refreshed, on the monotonic clock."""

    def figures(self) -> dict[str, Any]:
        """What logs and the live page show, by name."""
        baseline = self.best_baseline
        return {
            "events_per_second": round(self.events_per_second, 1),
            "lag": sum(self.lag.values()),
            "queued_events": self.queued_events,
            "loss": self.loss,
            **hit_rate_figures(
                self.hit_rate, self.hit_rate_events, self.hit_rate_error, baseline
            ),
            "cache": self.sampler.cache_bands._asdict(),
            "checkpoint_age_s": self.checkpoint_age_s,
            "steps": self.steps,
            "users": self.users,
            "items": self.items,
            "evicted": self.evicted,
            "warnings": self.warnings,
            **self.accounting,
        }

    @property
    def warnings(self) -> list[str]:
        """What a person should know although nothing has failed."""
        found = []
        if self.backpressure_reason is not None:
            found.append(f"paused: {self.backpressure_reason}")
        for feature in self.absent_features:
            found.append(f"{feature} has not occurred in any event: check its name")
        if self.towers is not None and self.towers.adds_nothing:
            found.append(str(self.towers))
        return found

    @property
    def problems(self) -> list[str]:
        """What does not respond or cannot be written to: source, store, checkpoints."""
        store_problem = None
        if not self.store.live:
            store_problem = self.store.problem or "the store does not respond"
        found = (self.source_problem, store_problem, self.saves.problem)
        return [problem for problem in found if problem is not None]


class StatusReport:
    """Computes the status of a line.

    Args:
        learner: what is learned.
        ingest: where batches come from.
        sharing: what is shared with other trainers.
        progress: what is accounted for and saved.
        prequential: ranks events before they are trained; None for none.
        publisher: brings servers what is learned; None for no servers.
    """

    def __init__(
        self,
        learner: OnlineLearner,
        ingest: Ingest,
        sharing: Sharing,
        progress: Progress,
        prequential: Prequential | None = None,
        publisher: Publisher | None = None,
    ) -> None:
        self._learner = learner
        self._ingest = ingest
        self._sharing = sharing
        self._progress = progress
        self._prequential = prequential
        self._publisher = publisher
        self.status = Status(saves=progress.stats(), store=sharing.status())
        now = time.monotonic()
        self._started_at = now
        self._refreshed_at = now
        self._at_start = progress.accounting.to_json()
        self._last_events = progress.accounting.consumed
        self._sampler = SamplerReporter(learner)
        self._losses: list[tuple[Tensor, int]] = []  # of steps, with their events
        self._loss_sum = 0.0
        self._loss_events = 0.0

    def start(self) -> None:
        """The run begins now."""
        self._started_at = time.monotonic()

    def learned(self, learned: Learned, events: int) -> None:
        """Note what a step did; nobody waits for the device before it is shown."""
        status = self.status
        status.draws = learned.step.parts
        status.new_steps += 1
        status.new_users += learned.new_users
        status.new_items += learned.new_items
        self._losses.append((learned.step.loss, events))
        self._sampler.learned(learned.items)

    def is_due(self) -> bool:
        """Return whether the status is old enough to be refreshed."""
        return time.monotonic() - self._refreshed_at >= EVERY_S

    def refresh(self, *, last: bool = False) -> Status:
        """Compute everything anew; the last time, the rate stays as it was."""
        now = time.monotonic()
        consumed = self._progress.accounting.consumed
        elapsed = now - self._refreshed_at
        if elapsed > 0 and not last:
            rate = (consumed - self._last_events) / elapsed
            self.status.events_per_second = rate
        self._refreshed_at = now
        self._last_events = consumed

        self._refresh_stream()
        self._refresh_saving()  # what is accounted for decides what is said of learning
        self._refresh_learning()
        self.status.sampler = self._sampler.latest(now=last)
        self.status.at_s = now
        return self.status

    def _refresh_learning(self) -> None:
        status = self.status
        learner = self._learner
        status.loss = self._average_loss()
        if self._prequential is not None:
            model = self._prequential.model
            status.hit_rate = model.recent
            status.hit_rate_events = model.recent_events
            status.hit_rate_error = model.recent_error or 0.0
            status.best_baseline = self._prequential.best_baseline()
            status.towers = self._prequential.towers()
            status.influence = influence_by_name(self._prequential.watch.influence)
            status.shop = self._prequential.shop.report()
        self._count_not_finite()
        status.steps = learner.state.trainer.steps
        status.users = len(learner.state.users)
        status.items = len(learner.state.items)
        status.limits = learner.state.limits
        if status.this_run["trained"] >= MIN_FEATURE_EVENTS:
            self._note_absent_features(learner.features.never_occurred())
        status.evicted = sum(learner.eviction.evicted.values())

    def _note_absent_features(self, absent: list[str]) -> None:
        for feature in absent:
            if feature not in self.status.absent_features:
                logger.warning(
                    "%s has not occurred in any event: check its name", feature
                )
        self.status.absent_features = absent

    def _refresh_stream(self) -> None:
        status = self.status
        status.partitions = self._ingest.assigned()
        status.rebalances = self._ingest.rebalances
        status.lag = self._ingest.lag()
        status.queued_events = self._ingest.queued_events
        status.source_problem = self._ingest.problem
        status.backpressure_reason = self._progress.backpressure_reason

    def _refresh_saving(self) -> None:
        status = self.status
        status.checkpoint_age_s = self._progress.checkpoint_age_s
        status.saves = self._progress.stats()
        status.store = self._sharing.status()
        if self._publisher is not None:
            status.publishing = self._publisher.status
        now = self._progress.accounting.to_json()
        status.accounting = now
        status.this_run = {
            name: now[name] - before
            for name, before in self._at_start.items()
            if name != "dead_letters"
        }
        letters = Counter(now["dead_letters"])
        letters.subtract(self._at_start["dead_letters"])
        status.this_run["dead_letters"] = dict(letters)

    def _average_loss(self) -> float | None:
        window = LOSS_BATCHES * self._ingest.batcher.batch_size
        for tensor, events in self._losses:
            keep = max(0.0, 1 - events / window)
            loss = float(tensor)
            if math.isfinite(loss):
                self._loss_sum = keep * self._loss_sum + events * loss
                self._loss_events = keep * self._loss_events + events
        self._losses = []
        return self._loss_sum / self._loss_events if self._loss_events else None

    def _count_not_finite(self) -> None:
        count = int(self._learner.state.trainer.not_finite)
        new = count - self.status.not_finite_rows
        self.status.not_finite_rows = count
        if new > 0:
            logger.warning(
                "%s rows were not updated: their weights or gradients are not finite. Is the learning rate too high?",
                f"{new:,}",
            )

    def summary(self) -> dict[str, Any]:
        """What a program wants to know of a run that has ended."""
        consumed = self._progress.accounting.consumed
        seconds = max(self._refreshed_at - self._started_at, 1e-9)
        events = consumed - self._at_start["consumed"]
        checkpoint = self._progress.last_checkpoint
        found = self.status.figures() | {
            "events_this_run": events,
            "seconds": round(seconds, 3),
            "events_per_second": round(events / seconds, 1),
            "checkpoint": str(checkpoint) if checkpoint is not None else None,
        }
        if self._prequential is not None:
            baseline = self._prequential.best_baseline(overall=True)
            model = self._prequential.model
            found |= hit_rate_figures(
                model.overall, model.events, model.error or 0.0, baseline
            )
        return found


def hit_rate_figures(
    hit_rate: float | None, events: int, error: float, baseline: BestBaseline | None
) -> dict[str, Any]:
    """A hit rate with what it is worth: the ranked events behind it, its standard
    error, and how it compares with the best baseline.
    """
    against = None
    if baseline is not None and hit_rate is not None:
        against = baseline.against(hit_rate, error)
    return {
        "hit_rate_at_10": hit_rate,
        "hit_rate_events": events,
        "hit_rate_standard_error": error,
        "best_baseline": baseline and baseline.name,
        "best_baseline_hit_rate_at_10": baseline and baseline.hit_rate,
        "against_baseline": against,
    }
