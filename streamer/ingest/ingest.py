"""Where the reading thread and the trainer meet: micro-batches to train, and the
offsets of what is trained.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from streamer.dead_letters.share import DeadLetterShare
from streamer.ingest.batcher import Batcher, MicroBatch
from streamer.ingest.offsets import OffsetLedger, OffsetSnapshot
from streamer.sources.base import Partition, Position, Positions, Source


class Owner:
    """Speaks to the other trainers for our partitions; here, of a trainer that has no
    others.
    """

    def claim(self, starts: Positions) -> Positions:
        """Return where to start reading partitions that are ours now: there, or before,
        if not all that comes before is counted. May wait.
        """
        return starts

    def acknowledged(self, positions: Positions) -> Positions:
        """Return how far the other trainers have what came before these positions. On
        any thread; never waits.
        """
        return positions

    def flush(self) -> None:
        """Wait, for a while, until the other trainers have what we contributed."""
        return

    def release(self, partitions: Iterable[Partition]) -> None:
        """Note that these partitions are not ours any more."""
        return


class Ingest:
    """What a `Reader` fills and the trainer takes. The methods are for the trainer.

    One lock, `changed`, guards everything here, the batcher and the ledger included: a
    thread holds it while it uses a field (a look at a flag may do without), and
    notifies it of what the other thread may wait for. Nobody waits for others while
    holding it: neither in the source's `open` and `poll`, nor in the owner's `claim`
    and `flush`.

    Args:
        batcher: from events to micro-batches.
        offsets: where to resume, from a checkpoint; partitions that are not in it start
            by the source's policy.
        owner: speaks to the other trainers for our partitions.
        dead_letter_share: how much of what is read may become dead letters.
    """

    def __init__(
        self,
        batcher: Batcher,
        offsets: OffsetLedger | None = None,
        owner: Owner | None = None,
        dead_letter_share: DeadLetterShare | None = None,
    ) -> None:
        self.batcher = batcher
        self.dead_letter_share = dead_letter_share or DeadLetterShare()
        self.offsets = offsets or OffsetLedger()
        self.owner = owner or Owner()
        self.changed = threading.Condition()
        self.source: Source | None = None  # once it is open
        self.in_training: frozenset[Partition] = frozenset()
        """Partitions of the batch that the trainer has."""
        self.is_paused = False
        """Whether no batch is given out: the queue fills, and reading pauses."""
        self.batch_failed = False
        """Whether a batch failed halfway: what is in memory belongs to no position."""
        self.handover_wanted = False
        """The trainer should take a snapshot, save and commit it, and call
        `handed_over`.
        """
        self.at_end = False
        """Everything that is to be read of our partitions is read."""
        self.others_at_end = False
        """And nobody else's partitions are left."""
        self.finished = False
        """And everything that was read is taken."""
        self.stopping = False
        self.error: BaseException | None = None
        """With which reading ended."""
        self.rebalances = 0
        self.unavailable: str | None = None
        """Why the source could not be opened or polled the last time."""

    @contextmanager
    def batch(self, timeout_s: float) -> Iterator[MicroBatch | None]:
        """Yield the next micro-batch, or None if none closes in time; it is trained
        when the block ends without error.

        Raises:
            StreamerError: reading has failed.
        """
        batch = self._take(timeout_s)
        self.batch_failed = batch is not None
        trained: Positions = {}
        try:
            yield batch
            trained = batch.positions if batch is not None else {}
            self.batch_failed = False
        finally:
            with self.changed:
                self.offsets.train(trained)
                self.in_training = frozenset()
                self.changed.notify_all()

    def _take(self, timeout_s: float) -> MicroBatch | None:
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while True:
                if self.error is not None:
                    raise self.error
                is_held = self.is_paused or not self._is_member()
                is_held |= self.dead_letter_share.pause_reason is not None
                batch = None if is_held else self._close_batch()
                now = time.monotonic()
                is_over = self.finished or self.handover_wanted or now >= deadline
                if batch is not None or is_over:
                    self._give_out(batch)
                    return batch

                wake_at = deadline
                closes_at = self.batcher.next_deadline()
                if closes_at is not None and not is_held:
                    wake_at = min(deadline, closes_at)
                self.changed.wait(wake_at - now)

    def _is_member(self) -> bool:
        """Whether what is queued is ours to train."""
        return self.source is None or self.source.is_member

    def _close_batch(self) -> MicroBatch | None:
        batch = self.batcher.flush() if self.at_end else self.batcher.take()
        self.finished = self.at_end and self.others_at_end and batch is None
        return batch

    def read_on(self) -> None:
        """There is more to read again; `changed` is held."""
        self.at_end = False
        self.others_at_end = False
        self.finished = False

    def _give_out(self, batch: MicroBatch | None) -> None:
        """Note which partitions the trainer is at; `changed` is held."""
        positions = batch.positions if batch is not None else {}
        self.in_training = frozenset(positions)
        self.changed.notify_all()

    @property
    def is_consistent(self) -> bool:
        """Whether what is in memory belongs to the positions that are trained."""
        return not self.batch_failed

    def take_snapshot(self) -> OffsetSnapshot:
        """Return the offsets that belong to what is trained, between two batches."""
        with self.changed:
            self.handover_wanted = False
            self.offsets.moved_back = False
            return self.offsets.snapshot()

    def trained(self) -> dict[Partition, Position]:
        """Return how far each partition is trained."""
        with self.changed:
            return self.offsets.snapshot().positions

    def commit(self, saved: Positions) -> None:
        """Commit positions that a checkpoint holds, as soon as the other trainers have
        acknowledged what is before.
        """
        with self.changed:
            self.offsets.save(saved)
            if self.source is None:
                return
            offsets = self.offsets.take_commit(self.owner.acknowledged)
            if offsets:
                self.source.commit(offsets)

    def handed_over(self, partitions: Iterable[Partition]) -> None:
        """Release partitions of a snapshot, after its commit or because it could not be
        saved.
        """
        with self.changed:
            self.offsets.release(partitions)
            self.changed.notify_all()

    def assigned(self) -> dict[Partition, int | None]:
        """Return our partitions, each with the next offset to train if that is known."""
        with self.changed:
            return self.offsets.assigned()

    @property
    def is_reading(self) -> bool:
        """Whether partitions are ours, and it is known where we began to read each."""
        positions = self.assigned().values()
        return bool(positions) and None not in positions

    def end_offsets(self) -> Positions:
        """Return the offset after the last record of each of our partitions, as far as
        is known.
        """
        return self.source.end_offsets() if self.source is not None else {}

    def lag(self) -> dict[Partition, int]:
        """Return for each of our partitions how many offsets are not trained yet."""
        ends = self.end_offsets()
        lag = {}
        for partition, position in self.assigned().items():
            if position is not None and partition in ends:
                lag[partition] = max(0, ends[partition] - position)
        return lag

    @property
    def problem(self) -> str | None:
        """What keeps us from reading now, in a sentence; None if nothing does."""
        if self.unavailable or self.source is None:
            return self.unavailable
        return self.source.problem

    @property
    def waits_for_others(self) -> bool:
        """Whether all of our partitions are trained, and other trainers may wait for
        our commit as we do for theirs.
        """
        with self.changed:
            return (
                self.at_end
                and not self.others_at_end
                and not self.batcher.queued_events
            )

    @property
    def queued_events(self) -> int:
        """How many events wait to be trained."""
        with self.changed:
            return self.batcher.queued_events
