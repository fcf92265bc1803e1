"""The recovery unit of a run: when it is saved, what is in it, and how a run resumes
from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from streamer.accounting import Accounting
from streamer.errors import CheckpointError, CorruptCheckpoint, Superseded
from streamer.ingest.offsets import OffsetLedger, OffsetSnapshot
from streamer.learner import OnlineLearner, checkpoint_meta
from streamer.model.rows.changes import ChangedRows
from streamer.model.settings import LearnerSettings
from streamer.sharing.sharing import Sharing
from streamer.snapshot.capture import Capture, CaptureAbandoned, marked
from streamer.snapshot.chain import Checkpoint
from streamer.snapshot.directory import SnapshotDirectory, number_of
from streamer.snapshot.frames import RowChunk, Rows
from streamer.snapshot.snapshot import positions_from_json, positions_to_json
from streamer.snapshot.store import CheckpointStore
from streamer.snapshot.writer import SnapshotWriter

logger = logging.getLogger(__name__)


class Restored(NamedTuple):
    """What a checkpoint holds besides what was learned."""

    accounting: Accounting
    offsets: OffsetLedger


@dataclass(slots=True)
class SaveStats:
    """What became of the checkpoints of this process."""

    saved: int = 0  # safe on disk
    failed: int = 0  # could not be written
    unsaved_events: int = 0  # that no safe checkpoint holds
    seconds: float | None = None
    """From the step of the latest state until it was safe; None before the first."""
    size_bytes: int | None = None  # of the latest one: a base, or a delta
    problem: str | None = None
    """Why the latest one is not safe; None if it is, or there was none."""
    longest_pause_s: float = 0.0
    """That a step had to wait, but for when somebody waited for a checkpoint."""
    deltas: int = 0  # since the last base
    base_bytes: int = 0
    delta_bytes: int = 0  # of all deltas since the last base


class Checkpointer:
    """Saves learner, accounting and offsets as one checkpoint, while training goes on.

    A checkpoint holds what changed since the last safe one (a delta), or everything (a
    base). One save is under way at a time and at most one waits: a newer state replaces
    the waiting one, or one that has rows left to copy. A failed save (disk full,
    permissions) is logged and counted; training goes on, and the next save is the next
    try.

    Args:
        store: where checkpoints are kept; closed together with this.
        every_s: seconds between checkpoints; None for none by time.
        every_events: events between checkpoints; None for none by count.
        start_from: path of a checkpoint to start from, instead of the newest.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        store: CheckpointStore,
        every_s: float | None = 60.0,
        every_events: int | None = None,
        start_from: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._every_s = every_s
        self._every_events = every_events
        self._clock = clock
        self._start_from = start_from
        self._origin: str | None = None  # the checkpoint that was started from by name
        self._writer = SnapshotWriter("checkpoint-saver")
        self._changed: ChangedRows | None = None  # since the last capture
        self._unsafe: dict[str, Rows] = {}  # rows of the last capture, until it is safe
        self._capture: Capture | None = None  # of the save under way
        self._error: Exception | None = None  # of the last save that ended
        self._tried_at = clock()
        self._tried_events = 0
        self._safe_at = clock()
        self._safe_events = 0
        self._stats = SaveStats()
        self.path: Path | None = None
        """The newest checkpoint that is safe on disk."""
        self.begun = False
        """Whether there is a checkpoint, or one was tried."""

    # resuming -------------------------------------------------------------------------

    def restore(self, learner: OnlineLearner, sharing: Sharing) -> Restored:
        """Put learner and sharing in the state of the newest whole checkpoint, and
        return the rest of it.

        Raises:
            CheckpointError: there are some, but none can be used.
        """
        found = self._find()
        if found is not None:
            self._put(learner, found)
        # from here on, rows differ from the checkpoint's
        self._changed = learner.state.changes.reader()
        # compiled loops are loaded now, not while a step waits for them
        for kind in self._kinds(learner):
            learner.state.take(kind, self._changed.take(kind))
        if found is None:
            return Restored(Accounting(), OffsetLedger())
        _warn_of_differences(learner.settings, found)
        meta = found.meta
        positions = positions_from_json(meta["positions"])
        accounting = Accounting.from_json(meta["accounting"])
        sharing.restore(meta.get("sharing", {}), positions)
        self.path = found.path
        self.begun = True
        self._origin = self._origin or meta.get("origin")
        self._tried_events = accounting.consumed
        self._safe_events = accounting.consumed
        self._safe_at = self._clock() - max(0.0, time.time() - meta["saved_at"])
        return Restored(accounting, OffsetLedger(positions))

    def _find(self) -> Checkpoint | None:
        """The checkpoint to resume from."""
        if self._start_from is None:
            return self._store.load()
        self._origin = str(self._start_from.resolve())
        return _load_chosen(self._store, self._start_from)

    def _put(self, learner: OnlineLearner, found: Checkpoint) -> None:
        learner.state.restore(found.chunks(), found.arrays(), found.meta["learner"])

    # saving ---------------------------------------------------------------------------

    def is_due(self, events: int) -> bool:
        """Return whether to save now, when `events` are consumed."""
        if self.is_safe(events) or self.is_saving:
            return False
        waited_s = self._clock() - self._tried_at
        if self._every_s is not None and waited_s >= self._every_s:
            return True
        new = events - self._tried_events
        return self._every_events is not None and new >= self._every_events

    @property
    def is_saving(self) -> bool:
        """Whether a save is under way or waits."""
        return not self._writer.is_idle

    @property
    def is_copying(self) -> bool:
        """Whether a save waits for rows that `advance` is to copy."""
        return self._capture is not None

    def is_safe(self, events: int) -> bool:
        """Return whether the newest safe checkpoint holds all consumed `events`."""
        return events == self._safe_events

    def tried(self, events: int) -> bool:
        """Return whether a checkpoint of all `events` is saved, or on its way."""
        return self.begun and events == self._tried_events

    def postpone(self, events: int, problem: str) -> None:
        """Skip the checkpoint that is due, because of a problem with it."""
        self._tried_at = self._clock()
        self._tried_events = events
        self.begun = True
        self._stats.problem = problem

    def save(
        self,
        learner: OnlineLearner,
        sharing: Sharing,
        accounting: Accounting,
        offsets: OffsetSnapshot,
        done: Callable[[bool], None],
    ) -> None:
        """Save everything as it is now, between two batches; `advance` copies it while
        training goes on.

        1. a save that waits or has rows left to copy is given up: this one takes its
           place;
        2. what is small is copied now;
        3. of the rows is noted which ones are to be copied: all, or those that no safe
           checkpoint holds;
        4. another thread writes, after what it is writing now.

        `done` is called on that thread, with True when the checkpoint is safe, with
        False when it failed. A save that is given up does not call it: the newer one
        takes its place.
        """
        started = time.perf_counter()
        # 1.
        if self._capture is not None:
            self._capture.abandon()
            self._let_go()
        # 2.
        arrays, values = learner.state.dense()
        meta = checkpoint_meta(learner.settings, values) | {
            "step": learner.state.trainer.steps,
            "sharing": sharing.save(),
            "positions": positions_to_json(offsets.positions),
            "accounting": accounting.to_json(),
            "origin": self._origin,
        }
        # 3.
        is_base = self._store.wants_base or self._changed is None
        capture = self._begin_capture(learner, is_base)
        # 4.
        unsafe = self._unsafe
        events = accounting.consumed
        taken_at = self._clock()
        chunks = self._with_seal(capture.chunks(), meta)

        def write() -> None:
            try:
                path = self._store.save(chunks, arrays, meta, base=is_base)
            except CaptureAbandoned:
                return  # a newer one took its place, and holds what waits for this one
            except Exception as error:
                capture.abandon()
                self._note_failure(error)
                done(False)
                return
            if self._unsafe is unsafe:
                self._unsafe = {}
            self._note_safe(path, events, taken_at)
            done(True)

        self._tried_at = taken_at
        self._tried_events = events
        self.begun = True
        self._writer.submit(write)
        self._capture = capture
        capture.seconds += time.perf_counter() - started
        self.advance()

    def _begin_capture(self, learner: OnlineLearner, is_base: bool) -> Capture:
        if self._changed is None:
            self._changed = learner.state.changes.reader()
        for kind, rows in self._unsafe.items():
            self._changed.put_back(kind, rows)
        self._unsafe = {}
        wanted = {}
        for kind in self._kinds(learner):
            changed = self._changed.take(kind)
            self._unsafe[kind] = changed
            wanted[kind] = learner.state.used(kind) if is_base else marked(changed)
        return Capture(learner.state, wanted)

    def _note_failure(self, error: Exception) -> None:
        logger.error("Saving a checkpoint failed, will retry: %s", error)
        self._error = error
        self._stats.failed += 1
        self._stats.problem = str(error)

    def _note_safe(self, path: Path, events: int, taken_at: float) -> None:
        self.path = path
        self._error = None
        self._safe_events = events
        self._safe_at = taken_at
        self._stats.saved += 1
        self._stats.seconds = self._clock() - taken_at
        self._stats.problem = None

    def _kinds(self, learner: OnlineLearner) -> tuple[str, ...]:
        """The kinds of rows that are saved here."""
        return learner.state.kinds()

    def _with_seal(
        self, chunks: Iterator[RowChunk], meta: dict[str, Any]
    ) -> Iterator[RowChunk]:
        """The rows to write, and what happens before the last frame."""
        return chunks

    def advance(self, *, idle: bool = False) -> None:
        """Copy some of the rows to save; to be called between two batches, often."""
        capture = self._capture
        if capture is None:
            return
        paused_s = capture.advance_step(idle=idle)
        stats = self._stats
        stats.longest_pause_s = max(stats.longest_pause_s, paused_s)
        if capture.is_over:
            self._let_go()

    def finish(self) -> None:
        """Copy all rows to save at once: somebody waits for the checkpoint."""
        if self._capture is not None:
            self._capture.finish()
            self._let_go()

    def _let_go(self) -> None:
        if self._capture is not None:
            self._capture.close()
            self._capture = None

    # what became of them --------------------------------------------------------------

    def beat(self) -> None:
        """Show a sign of life, every second or so.

        Raises:
            Superseded: a newer start of this trainer has taken its place.
        """
        self._store.beat()

    def is_current(self) -> bool:
        """Whether no newer start has taken our place. For any thread."""
        try:
            self.beat()
        except Superseded:
            return False
        return True

    def stats(self, events: int) -> SaveStats:
        """Return what became of the checkpoints so far, when `events` are consumed."""
        sizes = [one.size_bytes for one in self._store.links]
        return replace(
            self._stats,
            unsaved_events=events - self._safe_events,
            size_bytes=sizes[-1] if sizes else None,
            deltas=len(sizes[1:]),
            base_bytes=sum(sizes[:1]),
            delta_bytes=sum(sizes[1:]),
        )

    @property
    def age_s(self) -> float | None:
        """The age of the state in the newest safe checkpoint; None if there is none."""
        return self._clock() - self._safe_at if self.path is not None else None

    def close(self) -> None:
        """Wait until everything is saved or has failed, and close the store.

        Raises:
            CheckpointError: the last one could not be saved.
        """
        self.finish()
        self._writer.close()
        self._store.close()
        if self._error is not None:
            raise self._error


def _load_chosen(store: CheckpointStore, path: Path) -> Checkpoint:
    """The state at a chosen checkpoint; or the newest, if the run has gone on from the
    chosen one already: after a restart.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    newest = None
    try:
        newest = store.load(prune=False)  # or the chosen one may go
    except CorruptCheckpoint as error:
        logger.warning("%s", error)
    if newest is not None and newest.meta.get("origin") == str(path.resolve()):
        logger.info(
            "The run has started from %s before: it resumes from %s.",
            path, newest.path,
        )  # fmt: skip
        return newest
    number = number_of(path)
    if not path.is_file():
        raise CheckpointError(
            f"there is no checkpoint {path}: give the path of a .base or .delta file"
        )
    later = store.paths()
    if path.parent.resolve() == store.directory.resolve():
        chosen = store.load_number(number)
        later = [one for one in later if number_of(one) > number]
    else:
        chosen = SnapshotDirectory(path.parent).load_number(number)
        store.links = []
    if later:
        logger.warning(
            "Starting from %s: %s to %s are superseded. They are removed as old "
            "checkpoints are; `streamer checkpoint copy` keeps one.",
            path, later[0].name, later[-1].name,
        )  # fmt: skip
    return chosen


def _warn_of_differences(settings: LearnerSettings, found: Checkpoint) -> None:
    """Log settings and threads that are not those of the run that wrote a checkpoint."""
    theirs = found.meta["threads"]
    ours = torch.get_num_threads()
    if theirs != ours:
        logger.warning(
            "%s was written with %d CPU threads, this run has %d: sums are rounded "
            "otherwise, so the weights will not be the same to the last bit; "
            "--threads %d keeps them so.",
            found.path, theirs, ours, theirs,
        )  # fmt: skip
    as_saved: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))
    for name, now in as_saved.items():
        before = found.meta["settings"].get(name)
        if before != now:
            logger.warning(
                "The setting %s was %s in %s, and is %s now.",
                name, before, found.path.name, now,
            )  # fmt: skip
