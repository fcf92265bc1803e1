"""How far a line has come: what became of every event, which checkpoint holds it, and
which offsets are committed.

An offset is committed when everything before it is safe: what was learned, in a
checkpoint; what could not be decoded, among the dead letters; what other trainers
need, acknowledged by them.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from streamer.accounting import Accounting
from streamer.dead_letters.base import DeadLetters
from streamer.errors import SourceUnavailable
from streamer.ingest.batcher import MicroBatch
from streamer.ingest.ingest import Ingest
from streamer.ingest.offsets import OffsetSnapshot
from streamer.learner import OnlineLearner
from streamer.sharing.sharing import Sharing
from streamer.snapshot.checkpointer import Checkpointer, SaveStats

logger = logging.getLogger(__name__)


class Progress:
    """Accounts for batches, saves checkpoints and commits their offsets.

    Learner, sharing and offsets are restored from the newest checkpoint at once.

    Args:
        ingest: where batches come from; it commits.
        learner: what is saved.
        sharing: what is saved of the state that other trainers share.
        dead_letters: where records go that are not events; opened and closed by the
            line.
        checkpoints: when and where everything is saved; None saves nothing.
        save_at_start: whether a checkpoint is saved before anything is trained, as a
            start from nothing would begin elsewhere.
    """

    def __init__(
        self,
        ingest: Ingest,
        learner: OnlineLearner,
        sharing: Sharing,
        dead_letters: DeadLetters,
        checkpoints: Checkpointer | None = None,
        save_at_start: bool = False,
    ) -> None:
        self.dead_letters = dead_letters
        self.checkpoints = checkpoints
        self.backpressure_reason: str | None = None
        """Why nothing is trained, if dead letters must be written first or are too
        many.
        """
        self._ingest = ingest
        self._learner = learner
        self._sharing = sharing
        self._save_at_start = save_at_start
        self._accounting = Accounting()
        if checkpoints is not None:
            restored = checkpoints.restore(learner, sharing)
            self._accounting = restored.accounting
            ingest.offsets = restored.offsets
        # what has trained before has read events: then many dead letters are a pause
        share = ingest.dead_letter_share
        share.is_first_look = self._accounting.trained == 0

    # accounting -----------------------------------------------------------------------

    @property
    def accounting(self) -> Accounting:
        """What became of every event, over the life of the model."""
        return self._accounting

    def account(self, batch: MicroBatch) -> None:
        """Count the events of a batch that is trained."""
        self._accounting.add(batch)

    def check_backpressure(self) -> bool:
        """Return whether the line must pause: until more dead letters are written, or
        fewer of the records are dead letters.
        """
        reason = self.dead_letters.backpressure_reason()
        if reason is None:
            reason = self._ingest.dead_letter_share.pause_reason
        if reason is not None and self.backpressure_reason is None:
            logger.warning("Paused reading: %s.", reason)
        elif reason is None and self.backpressure_reason is not None:
            logger.warning("Resumed reading.")
        self.backpressure_reason = reason
        return reason is not None

    # checkpoints ----------------------------------------------------------------------

    @property
    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint that is safe on disk."""
        return self.checkpoints.path if self.checkpoints is not None else None

    @property
    def checkpoint_age_s(self) -> float | None:
        """The age of what is safe on disk; None if nothing is."""
        return self.checkpoints.age_s if self.checkpoints is not None else None

    def stats(self) -> SaveStats:
        """Return what became of the checkpoints of this run."""
        if self.checkpoints is None:
            return SaveStats()
        return self.checkpoints.stats(self.accounting.consumed)

    def is_due(self) -> bool:
        """Return whether to save now, between two batches."""
        if self._ingest.handover_wanted:
            return True
        if self.checkpoints is None:
            return False
        if self._needs_initial_checkpoint():
            return True

        consumed = self.accounting.consumed
        if self._ingest.waits_for_others and not self.checkpoints.tried(consumed):
            return True
        return self.checkpoints.is_due(consumed)

    def _needs_initial_checkpoint(self) -> bool:
        """Whether no checkpoint says yet where we began to read."""
        if self._ingest.offsets.moved_back:
            return True
        if self.checkpoints is None or self.checkpoints.begun:
            return False
        return self._save_at_start and self._ingest.is_reading

    def save(self) -> None:
        """Save everything, commit its offsets when it is safe, and release partitions
        that wait for that.

        1. flush the dead letters before our offsets; if they cannot be made safe, try
           again later;
        2. take the offsets, which belong to what is trained;
        3. copy and write both while training goes on; at once, if somebody waits for
           the partitions.
        """
        # 1.
        is_flushed = self._flush_dead_letters()
        # 2.
        is_initial = self._needs_initial_checkpoint()
        offsets = self._ingest.take_snapshot()
        self._sharing.before_save()
        # 3.
        if self.checkpoints is None or not is_flushed:
            self._skip(offsets)
        elif self._is_saved() and not is_initial:
            self._ended(True, offsets)
        else:
            done = partial(self._ended, offsets=offsets)
            self.checkpoints.save(
                self._learner, self._sharing, self.accounting, offsets, done
            )
            if offsets.releasing:
                self.checkpoints.finish()

    def _flush_dead_letters(self) -> bool:
        try:
            self.dead_letters.flush()
        except SourceUnavailable as error:
            logger.warning(
                "Postponed a checkpoint: its dead letters could not be written: %s",
                error,
            )
            if self.checkpoints is not None:
                problem = f"its dead letters are not safe: {error}"
                self.checkpoints.postpone(self.accounting.consumed, problem)
            return False
        return True

    def _is_saved(self) -> bool:
        """Whether the newest safe checkpoint holds all that is trained."""
        assert self.checkpoints is not None
        return self.checkpoints.is_safe(self.accounting.consumed)

    def _skip(self, offsets: OffsetSnapshot) -> None:
        """Release partitions though nothing is saved."""
        self._ended(False, offsets)

    def _ended(self, safe: bool, offsets: OffsetSnapshot) -> None:
        """Commit when a checkpoint is safe; release partitions that wait for it, also
        if it is not going to be.
        """
        if safe:
            self._ingest.commit(offsets.positions)
        self._ingest.handed_over(offsets.releasing)

    @property
    def is_copying(self) -> bool:
        """Whether a checkpoint waits for rows that `advance` is to copy."""
        return self.checkpoints is not None and self.checkpoints.is_copying

    def advance(self, *, idle: bool) -> None:
        """Copy some of the rows of the checkpoint under way, between two batches."""
        assert self.checkpoints is not None
        self.checkpoints.advance(idle=idle)

    def beat(self) -> None:
        """Show a sign of life, every second or so.

        Raises:
            Superseded: a newer start of this trainer has taken its place.
        """
        if self.checkpoints is not None:
            self.checkpoints.beat()

    # the end --------------------------------------------------------------------------

    def save_last(self) -> None:
        """Save what no checkpoint holds yet; nothing, if the last batch failed."""
        if self.checkpoints is None:
            return
        if self._ingest.batch_failed:
            return
        if self._needs_initial_checkpoint() or not self._is_saved():
            self.save()

    def close(self) -> None:
        """Wait until everything is saved or has failed, and commit what has waited for
        the other trainers.

        Raises:
            CheckpointError: the last checkpoint could not be saved.
        """
        if self.checkpoints is None:
            return
        try:
            self.checkpoints.close()
            self._ingest.commit({})
        finally:
            if self._ingest.batch_failed:
                logger.warning(
                    "The last batch failed halfway: nothing is saved after %s.",
                    self.last_checkpoint or "the start",
                )
