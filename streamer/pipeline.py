"""The line that a micro-batch goes along.

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
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from streamer.accounting import Accounting
from streamer.errors import SourceUnavailable
from streamer.evaluation import Prequential
from streamer.ingest.batcher import MicroBatch
from streamer.ingest.reader import Reader
from streamer.learner import OnlineLearner
from streamer.metrics.observer import Observer
from streamer.metrics.status import Status, StatusReport
from streamer.progress import Progress
from streamer.sharing.sharing import Sharing
from streamer.snapshot.publisher import Due, Publisher

logger = logging.getLogger(__name__)


class Pipeline:
    """One trainer on one stream, made of parts that `streamer.build` puts together.

    Args:
        reader: reads ahead and cuts micro-batches.
        learner: what is learned.
        sharing: what is shared with other trainers.
        progress: what is accounted for, saved and committed.
        prequential: ranks events before they are trained; None for none.
        publisher: brings servers what is learned; None for no servers.
    """

    def __init__(
        self,
        reader: Reader,
        learner: OnlineLearner,
        sharing: Sharing,
        progress: Progress,
        prequential: Prequential | None = None,
        publisher: Publisher | None = None,
    ) -> None:
        self.reader = reader
        self.ingest = reader.ingest
        self.learner = learner
        self.progress = progress
        self.on_status: Callable[[Status], None] | None = None
        self._sharing = sharing
        self._prequential = prequential
        self._publisher = publisher
        self._report = self._make_report()
        self._observer = Observer()
        self._on_batch: Callable[[MicroBatch], None] | None = None
        self._stop = threading.Event()

    def _make_report(self) -> StatusReport:
        return StatusReport(
            self.learner,
            self.ingest,
            self._sharing,
            self.progress,
            self._prequential,
            self._publisher,
        )

    # what others see ------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """What a person wants to see; refreshed twice a second."""
        return self._report.status

    @property
    def accounting(self) -> Accounting:
        """What became of every event, over the life of the model."""
        return self.progress.accounting

    @property
    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint that is safe on disk."""
        return self.progress.last_checkpoint

    def summary(self) -> dict[str, Any]:
        """What a program wants to know of a run that has ended."""
        return self._report.summary()

    def watch(self, observer: Observer) -> None:
        """Report everything that happens to an observer; call it before `run`."""
        self._observer = observer
        self.reader.timed = observer.timed
        observer.begin(self.learner, self._prequential)

    # the walk -------------------------------------------------------------------------

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

    def stop(self) -> None:
        """Ask the line to end after the step that runs; may be called from a signal
        handler.
        """
        self._stop.set()

    def start(self) -> None:
        """See that dead letters can be written, join those that we share with, and
        begin to read.

        Raises:
            StreamerError: dead letters cannot be written.
            SharingError: the store cannot be used.
        """
        try:
            self.progress.dead_letters.open()
        except SourceUnavailable as error:
            logger.warning("Dead letters cannot be written yet, will retry: %s", error)
        limits = self.learner.state.limits
        logger.info("Limits: max_users=%d, max_items=%d", limits.users, limits.items)
        if self.last_checkpoint is not None:
            consumed = f"{self.accounting.consumed:,}"
            logger.info("Resuming from %s: %s events", self.last_checkpoint, consumed)

        self._sharing.start()
        self._report.start()
        self.reader.start()

    def _has_ended(self) -> bool:
        return self._stop.is_set() or self.ingest.finished

    def step(self, timeout_s: float = 0.2) -> None:
        """One micro-batch along the line; returns without one if none closes in time."""
        self._observer.beat()
        self.ingest.is_paused = self.progress.check_backpressure()

        # 1. the next batch: polled, decoded and cut ahead of us; it counts as trained
        # when this block ends
        with self.ingest.batch(timeout_s) as batch:
            # 2. what other trainers have found out since the last batch
            self._receive(batch)
            if batch is not None:
                # 3. events are ranked, learned from, and contributed to other trainers
                self._learn(batch)
                # 4. what could not be decoded is put aside, with the reason
                if batch.dead_letters:
                    self.progress.dead_letters.write(batch.dead_letters)
                # 5. every event is accounted for
                self.progress.account(batch)
                self._observer.trained(batch)
        if self._on_batch is not None and batch is not None and len(batch):
            self._on_batch(batch)

        # 6. servers get what has changed
        if self._publisher is not None:
            with self._observer.phase("publish"):
                self._publisher.step(self.ingest.trained, self._publish_due())
        # 7. what a person wants to see
        if self._report.is_due():
            self.progress.beat()
            self._show_status()
        # 8. everything is saved with its offsets, now and then; they are committed
        # when it is safe
        if self.progress.is_due():
            self.checkpoint()
        elif self.progress.is_copying:
            with self._observer.phase("checkpoint"):
                self.progress.advance(idle=batch is None)

    def _receive(self, batch: MicroBatch | None) -> None:
        with self._observer.phase("store"):
            self._sharing.receive()

    def _learn(self, batch: MicroBatch) -> None:
        for stretch in self.learner.split_catalogue_events(batch):
            for part in self._sharing.parts(stretch):
                with self._observer.phase("step"):
                    learned = self.learner.learn_batch(
                        part.batch, self._prequential, part.counted
                    )
                with self._observer.phase("store"):
                    self._sharing.contribute(part, learned)
                self._report.learned(learned, len(part.batch))
        with self._observer.phase("store"):
            self._sharing.advance(batch)

    def _publish_due(self) -> Due | None:
        """What to publish after this step; None: the publisher knows."""
        return None

    def checkpoint(self) -> None:
        """Save everything, and commit its offsets when it is safe."""
        with self._observer.phase("checkpoint"):
            self.progress.save()

    def _show_status(self, *, last: bool = False) -> None:
        status = self._report.refresh(last=last)
        self._observer.refreshed(status)
        if self.on_status is not None:
            self.on_status(status)

    def close(self) -> None:
        """Flush to other trainers, save, commit, and leave the consumer group.

        Raises:
            StreamerError: the last checkpoint or the last dead letters could not be
                written.
        """
        with ExitStack() as stack:
            # each of these happens, whatever became of the others, the last one first
            stack.callback(self._observer.ended)
            stack.callback(self.progress.dead_letters.close)
            stack.callback(self._sharing.close)
            stack.callback(self.reader.stop)
            stack.callback(self._show_status, last=True)
            if self._publisher is not None:
                positions = self.ingest.trained if self.ingest.is_consistent else None
                stack.callback(self._publisher.close, positions)
            stack.callback(self.progress.close)
            self._sharing.flush()
            self.progress.save_last()
