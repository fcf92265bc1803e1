"""The recovery unit of a line: when it is saved, what is in it, and how a run goes on from it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamer.accounting import Accounting
from streamer.checkpoint import BackgroundSaver, Checkpoint, CheckpointStore
from streamer.errors import IncompatibleCheckpoint
from streamer.ingest.offsets import OffsetLedger, OffsetSnapshot
from streamer.learner import FORMAT, Learner, checkpoint_meta
from streamer.sharing.sharing import Sharing
from streamer.sources.base import Partition, Positions

logger = logging.getLogger(__name__)


class Restored(NamedTuple):
    """What a checkpoint says besides what was learned."""

    accounting: Accounting
    offsets: OffsetLedger


@dataclass(frozen=True, slots=True)
class Saves:
    """What became of the checkpoints of this process.

    Args:
        saved: how many are safe.
        failed: how many could not be written.
        unsaved_events: events that no safe checkpoint holds.
        seconds: from the copy of the state until the latest one was safe; None before the first.
        size_bytes: of the latest one.
    """

    saved: int = 0
    failed: int = 0
    unsaved_events: int = 0
    seconds: float | None = None
    size_bytes: int | None = None


class Checkpointer:
    """Saves learner, accounting and positions together, behind the trainer's back.

    Args:
        store: where; closed together with this.
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
        self._saver = BackgroundSaver(store)
        self._last: Future[Path] | None = None
        self._tried_at, self._tried_events = clock(), 0
        self._safe_at, self._safe_events = clock(), 0
        self._saves = Saves()
        self.path: Path | None = None
        """The newest checkpoint that is safe."""

    def restore(self, learner: Learner, sharing: Sharing) -> Restored:
        """Go on from the newest checkpoint that is sound, if there is one.

        Raises:
            CheckpointError: there are some, but none can be used.
        """
        found = self._store.load()
        if found is None:
            return Restored(Accounting(), OffsetLedger())
        restored = _restored(learner, sharing, found)
        self.path = found.path
        self._tried_events = self._safe_events = restored.accounting.consumed
        self._safe_at = self._clock() - max(0.0, time.time() - found.meta["saved_at"])
        return restored

    def is_due(self, events: int) -> bool:
        """Whether to save now, with so many events consumed."""
        if self.is_safe(events) or self._saver.busy:
            return False
        by_time = self._every_s is not None and self._clock() - self._tried_at >= self._every_s
        return by_time or (self._every_events is not None and events - self._tried_events >= self._every_events)

    def is_safe(self, events: int) -> bool:
        """Whether a checkpoint holds all of so many events."""
        return events == self._safe_events

    def postpone(self, events: int) -> None:
        """It was due, but cannot be saved now: try again when it is due again."""
        self._tried_at, self._tried_events = self._clock(), events

    def save(
        self,
        learner: Learner,
        sharing: Sharing,
        accounting: Accounting,
        offsets: OffsetSnapshot,
        done: Callable[[bool], None],
    ) -> None:
        """Copy everything, between two batches; it is written while training goes on.

        Args:
            learner: what was learned.
            sharing: what others must know of it, and what it knows of others.
            accounting: of the same events.
            offsets: of the same events.
            done: called on another thread, when it is safe (True) or has failed.
        """
        shared, shared_values = sharing.state()
        tensors, values = learner.snapshot()
        tensors |= {f"sharing.{name}": array for name, array in shared.items()}
        meta = checkpoint_meta(learner, values) | {
            "sharing": shared_values,
            "positions": _listed(offsets.positions),
            "released": _listed(offsets.released),
            "accounting": accounting.to_json(),
        }
        events, taken_at = accounting.consumed, self._clock()
        self._tried_at, self._tried_events = taken_at, events
        self._last = self._saver.submit(tensors, meta)
        self._last.add_done_callback(lambda future: self._ended(future, events, taken_at, done))

    def _ended(self, future: Future[Path], events: int, taken_at: float, done: Callable[[bool], None]) -> None:
        safe = not future.cancelled() and future.exception() is None
        if safe:
            self.path, self._safe_events, self._safe_at = future.result(), events, taken_at
        if not future.cancelled():
            self._note(safe, taken_at)
        done(safe)

    def _note(self, safe: bool, taken_at: float) -> None:
        seconds, size_bytes = self._saves.seconds, self._saves.size_bytes
        if safe and self.path is not None:
            seconds, size_bytes = self._clock() - taken_at, _size_bytes(self.path)
        saved, failed = self._saves.saved + safe, self._saves.failed + (not safe)
        self._saves = Saves(saved, failed, 0, seconds, size_bytes)

    def saves(self, events: int) -> Saves:
        """What became of the checkpoints so far, with so many events consumed."""
        return replace(self._saves, unsaved_events=events - self._safe_events)

    @property
    def age_s(self) -> float | None:
        """How old the state in the newest safe checkpoint is; None if there is none."""
        return self._clock() - self._safe_at if self.path is not None else None

    def close(self) -> None:
        """Wait until everything is saved or has failed, and let go of the store.

        Raises:
            CheckpointError: the last one could not be saved.
        """
        self._saver.close()
        self._store.close()
        if self._last is not None and not self._last.cancelled():
            self._last.result()


def _restored(learner: Learner, sharing: Sharing, found: Checkpoint) -> Restored:
    meta = found.meta
    if meta.get("format") != FORMAT:
        raise IncompatibleCheckpoint(
            f"{found.path} has content of format {meta.get('format')}, this version of Streamer reads {FORMAT}"
        )
    learner.restore(found.tensors, meta["learner"])
    if "sharing" in meta:
        prefix = "sharing."
        arrays = {n.removeprefix(prefix): np.asarray(a) for n, a in found.tensors.items() if n.startswith(prefix)}
        sharing.load_state(arrays, meta["sharing"])
    offsets = OffsetLedger(_positions(meta["positions"]), _positions(meta["released"]))
    return Restored(Accounting.from_json(meta["accounting"]), offsets)


def _size_bytes(directory: Path) -> int | None:
    """Of all its files; None if it is gone: a newer one took its place."""
    try:
        return sum(file.stat().st_size for file in directory.iterdir())
    except OSError:
        return None


def _listed(positions: Positions) -> list[list[Any]]:
    return [[p.topic, p.number, offset] for p, offset in sorted(positions.items())]


def _positions(listed: Iterable[Iterable[Any]]) -> Mapping[Partition, int]:
    return {Partition(topic, number): offset for topic, number, offset in listed}
