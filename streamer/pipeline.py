"""The line that a micro-batch goes along, run for ever.

    poll -> decode -> batch -> rank -> learn -> dead letters -> account -> (checkpoint -> commit)

Polling and decoding happen ahead of it on a thread of their own (`streamer.ingest`), writing checkpoints behind it on
another (`streamer.checkpoint`). Whatever is trained, counted and positioned changes between two batches only, so a
checkpoint taken there is consistent: killed at any instant, a restart continues as if nothing had happened.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from streamer.accounting import Accounting
from streamer.batcher import Batcher, MicroBatch
from streamer.checkpoint import BackgroundSaver, CheckpointStore
from streamer.composition import Composition, composition
from streamer.dead_letters import DeadLetters
from streamer.event import EventDecoder
from streamer.ingest import Ingest
from streamer.learner import Learned, Learner
from streamer.prequential import Prequential
from streamer.sources.base import Partition, Source

logger = logging.getLogger(__name__)

FORMAT = 1
STATUS_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """How the line runs.

    Args:
        batch_size: events of a micro-batch.
        max_age_s: a smaller batch closes when its oldest event has waited so long; None waits for a full one.
        max_queued_events: reading ahead pauses while so many events wait.
        checkpoint_every_s: seconds between checkpoints; None for none by time.
        checkpoint_every_events: events between checkpoints; None for none by count.
        until_end: stop at the end of the stream as it was at the start.
        max_events: stop after so many events.
    """

    batch_size: int = 512
    max_age_s: float | None = 1.0
    max_queued_events: int = 16_384
    checkpoint_every_s: float | None = 60.0
    checkpoint_every_events: int | None = None
    until_end: bool = False
    max_events: int | None = None


@dataclass(slots=True)
class Status:
    """What a person wants to see of a running line; refreshed twice a second."""

    events_per_second: float = 0.0
    loss: float | None = None
    hit_rate: float | None = None
    most_popular_hit_rate: float | None = None
    cache: Composition = field(default_factory=lambda: Composition(0.0, 0.0, 0.0))
    lag: dict[Partition, int] = field(default_factory=dict)
    queued_events: int = 0
    steps: int = 0
    users: int = 0
    items: int = 0
    checkpoint_age_s: float | None = None
    accounting: dict[str, Any] = field(default_factory=dict)


class Pipeline:
    """One trainer on one stream.

    Args:
        learner: what is learned.
        make_source: where events come from.
        decoder: from records to events.
        dead_letters: where bad records go.
        settings: how the line runs.
        checkpoints: where its state is kept; None keeps nothing.
        prequential: ranks events before they are trained; None for none.
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
    ) -> None:
        self.learner, self.settings = learner, settings
        self.accounting, self.status = Accounting(), Status()
        self.last_checkpoint: Path | None = None
        self.on_status: Callable[[Status], None] | None = None
        self._dead_letters, self._prequential = dead_letters, prequential
        self._saver = BackgroundSaver(checkpoints) if checkpoints is not None else None
        self._positions = self._restore(checkpoints) if checkpoints is not None else {}
        self._ingest = Ingest(
            make_source,
            decoder,
            Batcher(settings.batch_size, settings.max_age_s),
            self._positions,
            settings.max_queued_events,
            settings.until_end,
            settings.max_events,
        )
        self._stop = threading.Event()
        self._started = self._saved_at = self._status_at = time.monotonic()
        self._saved_events = self.accounting.consumed
        self._first_events = self._status_events = self.accounting.consumed
        self._learned: Learned | None = None
        self._saving: Future[Path] | None = None

    def stop(self) -> None:
        """Ask the line to end after the step that runs; may be called from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Train until the end, or until `stop`; then save, commit and leave.

        Raises:
            StreamerError: the source cannot be used, or the last checkpoint could not be written.
        """
        self._ingest.start()
        try:
            while not self._stop.is_set() and not self._ingest.finished:
                self.step()
        finally:
            self.close()

    def step(self, timeout_s: float = 0.2) -> None:
        """One micro-batch along the line; returns without one if none closes in time."""
        # 1. the next batch: polled, decoded and cut ahead of us; it counts as trained when this block ends
        with self._ingest.batch(timeout_s) as batch:
            if batch is not None:
                # 2. events are ranked, then learned from
                self._learn(batch)
                # 3. what could not be decoded is put aside, with the reason
                self._dead_letters.write(batch.dead_letters)
                # 4. every event is accounted for
                self.accounting.add(batch)
        # 5. what a person wants to see
        self._refresh_status()
        # 6. everything with its positions, now and then; committed when it is safe
        if self._checkpoint_is_due():
            self.checkpoint()

    def _learn(self, batch: MicroBatch) -> None:
        if len(batch):
            self._learned = self.learner.learn(batch, self._prequential)

    # checkpoints -----------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Copy everything, between two batches; it is written while training goes on."""
        if self._saver is None:
            return
        self._dead_letters.flush()
        tensors, values = self.learner.snapshot()
        positions = self._ingest.positions()
        meta = {
            "format": FORMAT,
            "settings": msgspec.to_builtins(self.learner.settings),
            "learner": values,
            "positions": [[p.topic, p.number, offset] for p, offset in positions.items()],
            "accounting": self.accounting.to_json(),
            "saved_at": time.time(),
        }
        self._saving = self._saver.submit(tensors, meta)
        self._saving.add_done_callback(lambda done: self._committed(done, positions))
        self._saved_at, self._saved_events = time.monotonic(), self.accounting.consumed

    def _committed(self, done: Future[Path], positions: dict[Partition, int]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        self.last_checkpoint = done.result()
        self._ingest.commit(positions)

    def _checkpoint_is_due(self) -> bool:
        if self._saver is None or self._saver.busy or self.accounting.consumed == self._saved_events:
            return False
        every_s, every_events = self.settings.checkpoint_every_s, self.settings.checkpoint_every_events
        by_time = every_s is not None and time.monotonic() - self._saved_at >= every_s
        new_events = self.accounting.consumed - self._saved_events
        return by_time or (every_events is not None and new_events >= every_events)

    def _restore(self, checkpoints: CheckpointStore) -> dict[Partition, int]:
        found = checkpoints.load()
        if found is None:
            return {}
        self.learner.restore(found.tensors, found.meta["learner"])
        self.accounting = Accounting.from_json(found.meta["accounting"])
        self.last_checkpoint = found.path
        logger.info("going on from %s: %s events so far", found.path, f"{self.accounting.consumed:,}")
        return {Partition(topic, number): offset for topic, number, offset in found.meta["positions"]}

    # the end, and what is seen until then ----------------------------------------------------------------------------

    def close(self) -> None:
        """Save, commit, leave the group. In this order: a position is committed only when its state is safe."""
        try:
            if self.accounting.consumed != self._saved_events:
                self.checkpoint()
            if self._saver is not None:
                self._saver.close()
            if self._saving is not None and not self._saving.cancelled():
                self._saving.result()
        finally:
            self._refresh_status(force=True)
            self._ingest.stop()
            self._dead_letters.close()

    def _refresh_status(self, *, force: bool = False) -> None:
        now = time.monotonic()
        elapsed = now - self._status_at
        if elapsed < STATUS_EVERY_S and not force:
            return
        status, learner = self.status, self.learner
        done = self.accounting.consumed
        if elapsed > 0 and not force:
            status.events_per_second = (done - self._status_events) / elapsed
        self._status_at, self._status_events = now, done
        status.loss = float(self._learned.step.loss) if self._learned is not None else None
        if self._prequential is not None:
            status.hit_rate = self._prequential.model.recent
            status.most_popular_hit_rate = self._prequential.most_popular.recent
        status.cache = composition(learner.cache, learner.exact)
        status.lag, status.queued_events = self._ingest.lag(), self._ingest.queued_events
        status.steps, status.users, status.items = learner.trainer.steps, len(learner.users), len(learner.items)
        status.checkpoint_age_s = now - self._saved_at if self.last_checkpoint is not None else None
        status.accounting = self.accounting.to_json()
        if self.on_status is not None:
            self.on_status(status)

    def summary(self) -> dict[str, Any]:
        """What a program wants to know of a run that has ended."""
        seconds = max(self._status_at - self._started, 1e-9)
        events = self.accounting.consumed - self._first_events
        return {
            **self.accounting.to_json(),
            "events_this_run": events,
            "seconds": round(seconds, 3),
            "events_per_second": round(events / seconds, 1),
            "steps": self.learner.trainer.steps,
            "users": len(self.learner.users),
            "items": len(self.learner.items),
            "loss": self.status.loss,
            "hit_rate_at_10": self._prequential.model.overall if self._prequential is not None else None,
            "most_popular_hit_rate_at_10": (
                self._prequential.most_popular.overall if self._prequential is not None else None
            ),
            "cache": self.status.cache._asdict(),
            "checkpoint": str(self.last_checkpoint) if self.last_checkpoint is not None else None,
        }
