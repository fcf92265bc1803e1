"""The recovery unit of a run: when it is saved, what is in it, and how a run resumes from it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from streamer.accounting import Accounting
from streamer.checkpoint import CheckpointStore
from streamer.checkpoint.files import size_bytes_of
from streamer.errors import IncompatibleCheckpoint
from streamer.ingest.offsets import OffsetLedger, OffsetSnapshot
from streamer.learner import FORMAT, Learner, checkpoint_meta
from streamer.sharing.sharing import Sharing
from streamer.sources.base import Partition, Position

logger = logging.getLogger(__name__)


class Restored(NamedTuple):
    """What a checkpoint holds besides what was learned."""

    accounting: Accounting
    offsets: OffsetLedger


@dataclass(frozen=True, slots=True)
class SaveStats:
    """What became of the checkpoints of this process."""

    saved: int = 0  # safe on disk
    failed: int = 0  # could not be written
    unsaved_events: int = 0  # that no safe checkpoint holds
    seconds: float | None = None  # from the copy of the latest state until it was safe; None before the first
    size_bytes: int | None = None  # of the latest one
    problem: str | None = None  # why the latest one is not safe; None if it is, or there was none


class Checkpointer:
    """Saves learner, accounting and offsets as one checkpoint, while training goes on.

    One save is under way at a time and at most one waits: a newer state replaces the waiting one. A failed save (disk
    full, permissions) is logged and counted; training goes on, and the next save is the next try.

    Args:
        store: where checkpoints are kept; closed together with this.
        every_s: seconds between checkpoints; None for none by time.
        every_events: events between checkpoints; None for none by count.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        store: CheckpointStore,
        every_s: float | None = 60.0,
        every_events: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._every_s, self._every_events, self._clock = store, every_s, every_events, clock
        self._thread = ThreadPoolExecutor(1, "checkpoint-saver")
        self._last: Future[Path] | None = None  # submitted
        self._ended: Future[Path] | None = None  # saved or failed
        self._tried_at, self._tried_events = clock(), 0
        self._safe_at, self._safe_events = clock(), 0
        self._stats = SaveStats()
        self.path: Path | None = None
        """The newest checkpoint that is safe on disk."""
        self.begun = False
        """Whether there is a checkpoint, or one was tried."""

    def restore(self, learner: Learner, sharing: Sharing) -> Restored:
        """Put learner and sharing in the state of the newest sound checkpoint, and return the rest of it.

        Raises:
            CheckpointError: there are some, but none can be used.
        """
        found = self._store.load()
        if found is None:
            return Restored(Accounting(), OffsetLedger())
        meta = found.meta
        if meta.get("format") != FORMAT:
            raise IncompatibleCheckpoint(
                f"{found.path} has content of format {meta.get('format')}, this version of Streamer reads {FORMAT}: "
                "use the version that wrote it, or another checkpoint directory"
            )
        learner.restore(found.tensors, meta["learner"])
        if (theirs := meta["threads"]) != (ours := torch.get_num_threads()):
            logger.warning(
                "%s was written with %d CPU threads, this run has %d: it goes on, but sums are rounded otherwise, so "
                "the weights will not be the same to the last bit; --threads %d keeps them so",
                found.path, theirs, ours, theirs,
            )  # fmt: skip
        settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(learner.settings))  # as in a checkpoint
        for name, now in settings.items():
            if (before := meta["settings"].get(name)) != now:
                logger.warning("the setting %s was %s in %s, and is %s now", name, before, found.path.name, now)
        positions = _from_json(meta["positions"])
        prefix, accounting = "sharing.", Accounting.from_json(meta["accounting"])
        arrays = {n.removeprefix(prefix): np.asarray(a) for n, a in found.tensors.items() if n.startswith(prefix)}
        sharing.restore(arrays, meta.get("sharing", {}), {p: int(at) for p, at in positions.items()})
        self.path, self.begun = found.path, True
        self._tried_events = self._safe_events = accounting.consumed
        self._safe_at = self._clock() - max(0.0, time.time() - meta["saved_at"])
        return Restored(accounting, OffsetLedger(positions))

    def is_due(self, events: int) -> bool:
        """Return whether to save now, when `events` are consumed."""
        if self.is_safe(events) or self.is_saving:
            return False
        by_time = self._every_s is not None and self._clock() - self._tried_at >= self._every_s
        return by_time or (self._every_events is not None and events - self._tried_events >= self._every_events)

    @property
    def is_saving(self) -> bool:
        """Whether a save is under way or waits; another one now would hold two copies of the state."""
        return self._last is not self._ended

    def is_safe(self, events: int) -> bool:
        """Return whether the newest safe checkpoint holds all of the `events` that are consumed."""
        return events == self._safe_events

    def tried(self, events: int) -> bool:
        """Return whether a checkpoint that holds all of the `events` is saved, or on its way."""
        return self.begun and events == self._tried_events

    def postpone(self, events: int, problem: str) -> None:
        """Wait until a checkpoint is due again, because of a problem with the one that was due."""
        self._tried_at, self._tried_events, self.begun = self._clock(), events, True
        self._stats = replace(self._stats, problem=problem)

    def save(
        self,
        learner: Learner,
        sharing: Sharing,
        accounting: Accounting,
        offsets: OffsetSnapshot,
        done: Callable[[bool], None],
    ) -> None:
        """Copy everything, between two batches; it is written while training goes on.

        `done` is called on another thread, with True when the checkpoint is safe, with False when it failed or a newer
        state replaced it.
        """
        shared, shared_values = sharing.save()
        tensors, values = learner.snapshot()
        tensors |= {f"sharing.{name}": array for name, array in shared.items()}
        meta = checkpoint_meta(learner, values) | {
            "sharing": shared_values,
            "positions": _to_json(offsets.positions),
            "accounting": accounting.to_json(),
        }
        events, taken_at = accounting.consumed, self._clock()
        self._tried_at, self._tried_events, self.begun = taken_at, events, True
        if self._last is not None:
            self._last.cancel()  # only one that still waits can be cancelled
        self._last = self._thread.submit(self._store.save, tensors, meta)
        self._last.add_done_callback(lambda future: self._note_end(future, events, taken_at, done))

    def _note_end(self, future: Future[Path], events: int, taken_at: float, done: Callable[[bool], None]) -> None:
        if future.cancelled():  # a newer one took its place, and holds whatever waits for this one
            return
        if error := future.exception():
            logger.error("a checkpoint could not be saved, and training goes on: %s", error)
            self._stats = replace(self._stats, failed=self._stats.failed + 1, problem=str(error))
        else:
            self.path, self._safe_events, self._safe_at = future.result(), events, taken_at
            seconds, size_bytes = self._clock() - taken_at, size_bytes_of(self.path)
            self._stats = SaveStats(self._stats.saved + 1, self._stats.failed, 0, seconds, size_bytes)
        try:
            done(error is None)
        finally:
            self._ended = future

    def stats(self, events: int) -> SaveStats:
        """Return what became of the checkpoints so far, when `events` are consumed."""
        return replace(self._stats, unsaved_events=events - self._safe_events)

    @property
    def age_s(self) -> float | None:
        """The age of the state in the newest safe checkpoint; None if there is none."""
        return self._clock() - self._safe_at if self.path is not None else None

    def close(self) -> None:
        """Wait until everything is saved or has failed, and close the store.

        Raises:
            CheckpointError: the last one could not be saved.
        """
        self._thread.shutdown()
        self._store.close()
        if self._last is not None and not self._last.cancelled():
            self._last.result()


def _to_json(positions: Mapping[Partition, Position]) -> list[list[Any]]:
    logs = {p: [at.topic_id, at.leader_epoch] if at.topic_id else [] for p, at in positions.items()}
    return [[*p, int(at), *logs[p]] for p, at in sorted(positions.items())]


def _from_json(listed: Iterable[Iterable[Any]]) -> Mapping[Partition, Position]:
    return {Partition(topic, number): Position(*position) for topic, number, *position in listed}
