"""The line that a micro-batch goes along, run for ever.

    poll -> decode -> batch -> receive -> rank -> learn -> contribute -> dead letters ->
    account -> (save -> commit)

Polling and decoding happen ahead of it on a thread of their own (`streamer.ingest`),
writing checkpoints behind it on another (`streamer.snapshot`), the exchange with
other trainers beside it on a third (`cache_store.store`). Whatever is trained, counted
and positioned changes between two batches only, so a checkpoint taken there is
consistent: killed at any instant, a restart continues as if nothing had happened.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from streamer.accounting import Accounting
from streamer.cache_store.state import StoreStatus
from streamer.cache_store.store import CacheStore
from streamer.dead_letters.base import DeadLetters
from streamer.errors import SourceUnavailable
from streamer.evaluation import BestBaseline, Prequential, TowersShare
from streamer.event import EventDecoder
from streamer.ingest.batcher import Batcher, MicroBatch
from streamer.ingest.ingest import Ingest
from streamer.ingest.offsets import OffsetLedger, OffsetSnapshot
from streamer.ingest.reader import Reader
from streamer.ingest.stop_condition import StopCondition
from streamer.learner import Learner
from streamer.limits import Limits
from streamer.lockstep.checkpoint import RankCheckpointer
from streamer.lockstep.group import Group
from streamer.lockstep.ingest import LockstepIngest, Queues, RankFigures, Report
from streamer.lockstep.key_check import ONE_IN
from streamer.lockstep.sharing import GroupSharing, NoStore
from streamer.lockstep.sources import Assigned
from streamer.metrics.composition import Composition, composition
from streamer.metrics.observer import Observer
from streamer.model.ranking.ranker import influence_by_name
from streamer.publish.publisher import Due, Publisher, PublishStatus
from streamer.settings import PipelineSettings
from streamer.sharing.sharing import Sharing, StoreSharing
from streamer.snapshot import CheckpointStore
from streamer.snapshot.checkpointer import Checkpointer, SaveStats
from streamer.sources.base import Partition, Source

logger = logging.getLogger(__name__)

STATUS_EVERY_S = 0.5
LOSS_BATCHES = 20
"""Full batches over which the loss is averaged."""
COMPOSITION_PAUSE = 50
"""The pause after a look at the cache's composition, in multiples of the time that the
look took.
"""


class Lockstep(NamedTuple):
    """What makes a pipeline one rank of a group."""

    group: Group
    make_source: Callable[
        [
            Callable[[], Sequence[Partition]],
            Callable[[Partition], bool],
            Callable[[], bool],
        ],
        Assigned,
    ]
    """A source of the partitions that the first argument returns, as long as the second
    wants more of each; it commits while the third is true."""
    partitions: Callable[[], Sequence[Partition]]
    """Lists all partitions of the topics."""


class RankStatus(NamedTuple):
    """What is known of one rank of a group."""

    partitions: list[Partition]
    figures: RankFigures


@dataclass(slots=True)
class Status:
    """What a person wants to see of a running line; refreshed twice a second."""

    events_per_second: float = 0.0
    loss: float | None = None
    """Mean over the latest events, so that a smaller batch, which has fewer negatives,
    weighs less.
    """
    hit_rate: float | None = None
    best_baseline: BestBaseline | None = None
    towers: TowersShare | None = None
    influence: dict[str, dict[str, float]] = field(default_factory=dict)
    """What decides the ranking, by length of the user's history and kind of evidence."""
    cache: Composition = field(default_factory=lambda: Composition(0.0, 0.0, 0.0))
    partitions: dict[Partition, int | None] = field(default_factory=dict)
    """Those that are assigned to us, and the next offset to train of each."""
    lag: dict[Partition, int] = field(default_factory=dict)
    source_problem: str | None = None
    """What keeps us from reading; None if nothing does."""
    rebalances: int = 0
    queued_events: int = 0
    held_up: str | None = None
    """Why nothing is read, if dead letters must be written first."""
    steps: int = 0
    not_finite_rows: int = 0
    """Rows of all steps that were not updated, because a number of theirs was not
    finite.
    """
    users: int = 0
    items: int = 0
    limits: Limits | None = None
    """How many are kept, at most."""
    evicted: int = 0
    """Users and items that were forgotten since the start."""
    checkpoint_age_s: float | None = None
    saves: SaveStats = field(default_factory=SaveStats)
    store: StoreStatus = field(default_factory=StoreStatus)
    publishing: PublishStatus | None = None
    """None if nothing is published."""
    ranks: list[RankStatus] = field(default_factory=list)
    """Of a group; empty for a trainer that is in none."""
    spread_users: int = 0
    """About how many users have events in several partitions, of a group."""
    accounting: dict[str, Any] = field(default_factory=dict)
    at_s: float = 0.0
    """When it was refreshed, on the monotonic clock."""


class Pipeline:
    """One trainer on one stream.

    Args:
        learner: what is learned.
        make_source: where events come from.
        decoder: from records to events.
        dead_letters: where bad records go.
        settings: how the line runs.
        checkpoints: where its state is kept; closed at the end, as `dead_letters` are.
            None keeps nothing.
        prequential: ranks events before they are trained; None for none.
        store: what is shared with other trainers; closed at the end. None shares
            nothing.
        publisher: brings servers what is learned; closed at the end. None for no
            servers.
        lockstep: the group in which this trainer is one rank; None if it trains alone.
    """

    def __init__(
        self,
        learner: Learner,
        make_source: Callable[[], Source],
        decoder: EventDecoder,
        dead_letters: DeadLetters,
        settings: PipelineSettings,
        checkpoints: CheckpointStore | None = None,
        prequential: Prequential | None = None,
        store: CacheStore | NoStore | None = None,
        publisher: Publisher | None = None,
        lockstep: Lockstep | None = None,
    ) -> None:
        self.learner = learner
        self.settings = settings
        self.accounting = Accounting()
        self.status = Status()
        self.on_status: Callable[[Status], None] | None = None
        self._watch = Observer()
        self._dead_letters = dead_letters
        self._prequential = prequential
        self._publisher = publisher
        self._sharing = self._sharing_of(learner, store, lockstep)
        self._checkpoints: Checkpointer | None = None
        offsets = OffsetLedger()
        self._lockstep = lockstep
        if checkpoints is not None:
            self._checkpoints = self._checkpointer(checkpoints)
            self.accounting, offsets = self._checkpoints.restore(learner, self._sharing)
        self._earlier = self.accounting
        self._own = Accounting()
        self._ingest = Ingest(
            Batcher(settings.batch_size, settings.max_age_s or None),
            offsets,
            self._sharing,
        )
        if lockstep is not None:
            learner.group = lockstep.group
            self._ingest = ingest = self._lockstep_ingest(lockstep, offsets)
            if isinstance(self._checkpoints, RankCheckpointer):
                self._checkpoints.ingest = ingest
                ingest.keeps_checkpoints = True
                ingest.is_saving = lambda: (
                    self._checkpoints is not None and self._checkpoints.is_saving
                )
            if publisher is not None:
                ingest.due_to_publish = publisher.due
            make_source = partial(
                lockstep.make_source,
                lambda: ingest.own_partitions,
                ingest.queues.wants,
                self._may_commit,
            )
        self._reader = Reader(
            make_source,
            decoder,
            self._ingest,
            StopCondition(
                settings.until_end, settings.max_events if lockstep is None else None
            ),
            settings.max_queued_events,
            timed=lambda phase, seconds: self._watch.timed(phase, seconds),
        )
        self._stop = threading.Event()
        self._batch_failed = False
        self._started = self._status_at = self._composed_at = time.monotonic()
        self._first_events = self._status_events = self.accounting.consumed
        self._losses: list[
            tuple[Tensor, int]
        ] = []  # of the steps since the last look, with their events
        self._loss_sum = 0.0
        self._loss_events = 0.0
        self._on_batch: Callable[[MicroBatch], None] | None = None

    def _sharing_of(
        self,
        learner: Learner,
        store: CacheStore | NoStore | None,
        lockstep: Lockstep | None,
    ) -> Sharing:
        if lockstep is None:
            return (
                StoreSharing(learner, store)
                if isinstance(store, CacheStore)
                else Sharing()
            )
        if store is None:
            return Sharing()

        def partitions() -> Sequence[Partition]:
            return (
                self._ingest.partitions
                if isinstance(self._ingest, LockstepIngest)
                else []
            )

        return GroupSharing(
            learner, store, lockstep.group, partitions, lockstep.group.timeout_s / 3
        )

    def _checkpointer(self, store: CheckpointStore) -> Checkpointer:
        settings = self.settings
        group = self._lockstep.group if self._lockstep is not None else None
        every_s = settings.checkpoint_every_s or None
        every_events = settings.checkpoint_every_events
        if group is not None:
            directory = store.directory if group.rank == 0 else store.directory.parent
            return RankCheckpointer(group, store, directory, every_s, every_events)
        return Checkpointer(store, every_s, every_events, settings.from_checkpoint)

    def _may_commit(self) -> bool:
        """Whether no newer start of the group has taken our place."""
        return self._checkpoints is None or self._checkpoints.is_current()

    def _lockstep_ingest(
        self, lockstep: Lockstep, offsets: OffsetLedger
    ) -> LockstepIngest:
        settings = self.settings
        return LockstepIngest(
            lockstep.group,
            Queues(settings.batch_size, settings.max_queued_events),
            offsets,
            settings.batch_size,
            settings.max_age_s or None,
            settings.max_events,
            lockstep.partitions,
            lambda: self._own.counts(),
            lambda: len(self.learner.users),
        )

    def watch(self, observer: Observer) -> None:
        """Report everything that happens to an observer; call it before `run`."""
        self._watch = observer
        observer.begin(self.learner, self._prequential)

    @property
    def queued_events(self) -> int:
        """How many events are read and wait to be trained."""
        return self._ingest.queued_events

    def stop(self) -> None:
        """Ask the line to end after the step that runs; may be called from a signal
        handler.
        """
        self._stop.set()

    def run(self, on_batch: Callable[[MicroBatch], None] | None = None) -> None:
        """Train until the end, or until `stop`; then save, commit and leave.

        Args:
            on_batch: called after each batch with events, when it is trained and
                accounted for.

        Raises:
            StreamerError: the source or the store cannot be used, or the last
                checkpoint could not be written.
        """
        self._on_batch = on_batch
        self.start()
        try:
            while not self._has_ended():
                self.step()
        finally:
            self.close()

    def start(self) -> None:
        """See that dead letters can be written, join those that we share with, and
        begin to read.

        Raises:
            StreamerError: dead letters cannot be written.
            SharingError: the store cannot be used.
        """
        try:
            self._dead_letters.open()
        except SourceUnavailable as error:
            logger.warning("dead letters will wait: %s", error)
        limits = self.learner.limits
        logger.info(
            "at most %s users and %s items are kept",
            f"{limits.users:,}",
            f"{limits.items:,}",
        )
        self._sharing.start()
        self._started = time.monotonic()
        if self.last_checkpoint is not None:
            logger.info(
                "resuming from %s: %s events so far",
                self.last_checkpoint,
                f"{self._first_events:,}",
            )
        self._reader.start()
        if self._publisher is not None:
            self._publisher.start()

    def _has_ended(self) -> bool:
        """Whether nothing is left to do; the ranks of a group end at the same step."""
        if isinstance(self._ingest, LockstepIngest):
            self._ingest.wants_stop = self._stop.is_set()
            return self._ingest.finished
        return self._stop.is_set() or self._ingest.finished

    def step(self, timeout_s: float = 0.2) -> None:
        """One micro-batch along the line; returns without one if none closes in time."""
        self._watch.beat()
        # 1. the next batch: polled, decoded and cut ahead of us; it counts as trained
        # when this block ends
        with self._next_batch(timeout_s) as batch:
            if batch is not None:
                # 2. what other trainers have found out since the last batch
                with self._watch.phase("store"):
                    if self._lockstep is None or batch.others:
                        self._sharing.receive()
                # 3. events are ranked, learned from, and contributed to other trainers
                self._learn(batch)
                # 4. what could not be decoded is put aside, with the reason
                if batch.dead_letters:
                    self._dead_letters.write(batch.dead_letters)
                # 5. every event is accounted for
                self._own.add(batch)
                self._watch.trained(batch)
        self.accounting = self._earlier.plus(self._counts())
        if self._on_batch is not None and batch is not None and len(batch):
            self._on_batch(batch)
        # 6. servers get what has changed
        if self._publisher is not None:
            with self._watch.phase("publish"):
                due = (
                    Due(self._ingest.publish_agreed)
                    if isinstance(self._ingest, LockstepIngest)
                    else None
                )
                self._publisher.step(self._ingest.trained, batch is None, due)
        # 7. what a person wants to see
        self._refresh_status()
        # 8. everything is saved with its positions, now and then; they are committed
        # when it is safe
        if self._checkpoint_is_due():
            with self._watch.phase("checkpoint"):
                self.checkpoint()
        elif self._checkpoints is not None and self._checkpoints.is_copying:
            with self._watch.phase("checkpoint"):
                self._checkpoints.advance(idle=batch is None)

    def _counts(self) -> NDArray[np.int64]:
        """What became of the events of this run; in a group, of all ranks when they
        last agreed on a step.
        """
        if isinstance(self._ingest, LockstepIngest):
            return np.asarray(self._ingest.counts_of_ranks.sum(0))
        return self._own.counts()

    @contextmanager
    def _next_batch(self, timeout_s: float) -> Iterator[MicroBatch | None]:
        """The next batch, or None while dead letters hold us up: the queue fills, and
        reading stops.

        If the batch fails halfway, what is in memory belongs to no position, and is
        never saved.
        """
        is_held_up = self._is_held_up()
        if isinstance(self._ingest, LockstepIngest):
            self._ingest.is_paused = is_held_up  # the other ranks go on
        elif is_held_up:
            self._stop.wait(timeout_s)
            yield None
            return
        with self._ingest.batch(timeout_s) as batch:
            self._batch_failed = batch is not None
            yield batch
        self._batch_failed = False

    def _learn(self, batch: MicroBatch) -> None:
        for stretch in self.learner.split_catalogue_events(batch):
            for part in self._sharing.parts(stretch, self._ingest.end_offsets):
                with self._watch.phase("step"):
                    learned = self.learner.learn_batch(
                        part.batch, self._prequential, part.counted
                    )
                with self._watch.phase("store"):
                    self._sharing.contribute(part, learned)
                self._losses.append((learned.step.loss, len(part.batch)))
                self._watch.learned(learned)

    def _is_held_up(self) -> bool:
        why = self._dead_letters.held_up()
        if (why is None) != (self.status.held_up is None):
            logger.warning(
                "reading goes on" if why is None else f"reading stops: {why}"
            )
        self.status.held_up = why
        return why is not None

    # checkpoints -----------------------------------------------------------------------------------------------------

    @property
    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint that is safe on disk."""
        return self._checkpoints.path if self._checkpoints is not None else None

    def _checkpoint_is_due(self) -> bool:
        if isinstance(
            self._ingest, LockstepIngest
        ):  # rank 0 wants one, and all save at the same step
            agreed = self._ingest.checkpoint_agreed
            self._ingest.wants_checkpoint = (
                self._is_lead and not agreed and self._wants_checkpoint()
            )
            return agreed
        return self._wants_checkpoint()

    @property
    def _is_lead(self) -> bool:
        return self._lockstep is None or self._lockstep.group.rank == 0

    def _wants_checkpoint(self) -> bool:
        if self._ingest.handover_wanted:
            return True
        if self._checkpoints is None:
            return False
        now = self._begins() or (
            self._ingest.waits_for_others
            and not self._checkpoints.tried(self.accounting.consumed)
        )
        return now or self._checkpoints.is_due(self.accounting.consumed)

    def _begins(self) -> bool:
        """Whether a checkpoint is due before anything is trained, as no other says
        where we began.
        """
        first = (
            self.settings.save_at_start
            and self._checkpoints is not None
            and not self._checkpoints.begun
        )
        return self._ingest.offsets.moved_back or (first and self._ingest.is_reading)

    def checkpoint(self) -> None:
        """Save everything, commit its positions when it is safe, and release partitions
        that wait for that.

        1. flush the dead letters before our positions; if they cannot be made safe, try
           again later;
        2. take the offsets, which belong to what is trained;
        3. copy and write both while training goes on; at once, if somebody waits for
           the partitions.
        """
        # 1.
        flushed = self._flush_dead_letters()
        # 2.
        begins = self._begins()
        offsets = self._ingest.take_snapshot()
        self._sharing.before_save()
        # 3.
        if self._checkpoints is None or not flushed:
            self._saved(False, offsets)
            if isinstance(self._ingest, LockstepIngest):
                self._ingest.report(Report(self._ingest.agreed, -1, 0))
        elif (
            self._lockstep is None
            and self._checkpoints.is_safe(self.accounting.consumed)
            and not begins
        ):
            self._saved(True, offsets)
        else:
            done = partial(self._saved, offsets=offsets)
            self._checkpoints.save(
                self.learner, self._sharing, self.accounting, offsets, done
            )
            if offsets.releasing:
                self._checkpoints.finish()

    def _flush_dead_letters(self) -> bool:
        try:
            self._dead_letters.flush()
        except SourceUnavailable as error:
            logger.warning(
                "postponed a checkpoint, because its dead letters could not be written: %s",
                error,
            )
            if self._checkpoints is not None:
                self._checkpoints.postpone(
                    self.accounting.consumed, f"its dead letters are not safe: {error}"
                )
            return False
        return True

    def _saved(self, safe: bool, offsets: OffsetSnapshot) -> None:
        """Commit when a checkpoint is safe; release partitions that wait for it, also
        if it is not going to be.
        """
        if safe:
            self._ingest.commit(offsets.positions)
        self._ingest.handed_over(offsets.releasing)

    # the end, and what is seen until then ----------------------------------------------------------------------------

    def close(self) -> None:
        """Flush to other trainers, save, commit, leave the group: a position is
        committed when its state is safe.

        Raises:
            StreamerError: the last checkpoint or the last dead letters could not be
                written.
        """
        with (
            ExitStack() as stack
        ):  # each of these happens, whatever became of the others, the last one first
            stack.callback(self._watch.ended)
            if self._lockstep is not None:
                stack.callback(self._lockstep.group.close)
            stack.callback(self._dead_letters.close)
            stack.callback(self._sharing.close)
            stack.callback(self._reader.stop)
            stack.callback(self._refresh_status, force=True)
            if self._publisher is not None:
                whole = not self._batch_failed and (
                    self._lockstep is None or self._ingest.finished
                )
                stack.callback(
                    self._publisher.close, self._ingest.trained if whole else None
                )
            self._sharing.flush()
            if self._checkpoints is None:
                return
            stack.callback(self._checkpoints.close)
            if isinstance(
                self._ingest, LockstepIngest
            ):  # with the last step all ranks have agreed on a checkpoint
                stack.callback(self._ingest.close)
                if self._ingest.finished:
                    self._checkpoints.finish()
                    self._ingest.settle()
            elif self._batch_failed:
                saved = self.last_checkpoint or "the start"
                logger.warning(
                    "the last batch failed halfway: nothing is saved after %s", saved
                )
            elif self._begins() or not self._checkpoints.is_safe(
                self.accounting.consumed
            ):
                self.checkpoint()

    def _refresh_status(self, *, force: bool = False) -> None:
        now = time.monotonic()
        elapsed = now - self._status_at
        if elapsed < STATUS_EVERY_S and not force:
            return
        if self._checkpoints is not None and not force:
            self._checkpoints.beat()
        status = self.status
        learner = self.learner
        done = self.accounting.consumed
        if elapsed > 0 and not force:
            status.events_per_second = (done - self._status_events) / elapsed
        self._status_at = now
        self._status_events = done
        self._average_loss()
        if self._prequential is not None:
            status.hit_rate = self._prequential.model.recent
            status.best_baseline = self._prequential.best_baseline()
            status.towers = self._prequential.towers()
            status.influence = influence_by_name(self._prequential.watch.influence)
        if force or now >= self._composed_at:
            self._compose(now)
        status.partitions = self._ingest.assigned()
        status.rebalances = self._ingest.rebalances
        status.lag = self._ingest.lag()
        status.queued_events = self._ingest.queued_events
        status.source_problem = self._ingest.problem
        self._count_not_finite()
        status.steps = learner.trainer.steps
        status.users = len(learner.users)
        status.items = len(learner.items)
        if isinstance(self._ingest, LockstepIngest):
            self._refresh_group(status, self._ingest)
            status.spread_users = learner.key_check.spread * ONE_IN
        status.limits = learner.limits
        status.evicted = sum(learner.evicted.values())
        status.checkpoint_age_s = (
            self._checkpoints.age_s if self._checkpoints is not None else None
        )
        status.saves = (
            self._checkpoints.stats(done)
            if self._checkpoints is not None
            else SaveStats()
        )
        status.store = self._sharing.status()
        status.publishing = (
            self._publisher.status if self._publisher is not None else None
        )
        status.accounting = self.accounting.to_json()
        status.at_s = now
        self._watch.refreshed(status)
        if self.on_status is not None:
            self.on_status(status)

    @staticmethod
    def _refresh_group(status: Status, ingest: LockstepIngest) -> None:
        group = ingest.group
        partitions = sorted(ingest.positions)
        owners = {p: group.owner(group.part_of(p.number)) for p in partitions}
        status.partitions = dict(ingest.positions)
        status.ranks = [
            RankStatus([p for p in partitions if owners[p] == rank], figures)
            for rank, figures in enumerate(ingest.figures)
        ]
        status.users = sum(figures.users for figures in ingest.figures)
        status.queued_events = sum(figures.queued_events for figures in ingest.figures)

    def _average_loss(self) -> None:
        for tensor, events in self._losses:
            keep = max(0.0, 1 - events / (LOSS_BATCHES * self.settings.batch_size))
            if math.isfinite(loss := float(tensor)):
                self._loss_sum = keep * self._loss_sum + events * loss
                self._loss_events = keep * self._loss_events + events
        self._losses = []
        self.status.loss = (
            self._loss_sum / self._loss_events if self._loss_events else None
        )

    def _count_not_finite(self) -> None:
        before = self.status.not_finite_rows
        self.status.not_finite_rows = int(self.learner.trainer.not_finite)
        if (new := self.status.not_finite_rows - before) > 0:
            logger.warning(
                "%s rows were not updated: their weights or gradients are not finite. Is the learning rate too high?",
                f"{new:,}",
            )

    def _compose(self, now: float) -> None:
        """Look at the cache; the more items there are, the longer it takes, and the
        rarer it is done.
        """
        self.status.cache = composition(self.learner.cache, self.learner.item_counts)
        self._composed_at = now + COMPOSITION_PAUSE * (time.monotonic() - now)

    def summary(self) -> dict[str, Any]:
        """What a program wants to know of a run that has ended."""
        seconds = max(self._status_at - self._started, 1e-9)
        events = self.accounting.consumed - self._first_events
        test = self._prequential
        baseline = test.best_baseline(overall=True) if test is not None else None
        return {
            **self.accounting.to_json(),
            "events_this_run": events,
            "seconds": round(seconds, 3),
            "events_per_second": round(events / seconds, 1),
            "steps": self.learner.trainer.steps,
            "users": self.status.users,
            "items": len(self.learner.items),
            "loss": self.status.loss,
            "hit_rate_at_10": test.model.overall if test is not None else None,
            "best_baseline": baseline.name if baseline is not None else None,
            "best_baseline_hit_rate_at_10": baseline.hit_rate
            if baseline is not None
            else None,
            "cache": self.status.cache._asdict(),
            "checkpoint": str(self.last_checkpoint)
            if self.last_checkpoint is not None
            else None,
        }
