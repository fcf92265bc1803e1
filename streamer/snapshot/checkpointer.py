"""The recovery unit of a run: when it is saved, what is in it, and how a run resumes
from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from streamer.accounting import Accounting
from streamer.errors import CorruptCheckpoint, Superseded
from streamer.ingest.offsets import OffsetLedger, OffsetSnapshot
from streamer.learner import Learner, checkpoint_meta
from streamer.model.rows.changes import ChangedRows
from streamer.sharing.sharing import Sharing
from streamer.snapshot.capture import Capture, CaptureAbandoned, marked
from streamer.snapshot.frames import Chunk, Rows
from streamer.snapshot.store import Checkpoint, CheckpointStore, find_point
from streamer.sources.base import Partition, Position

logger = logging.getLogger(__name__)

STEP_S = 0.005
LONG_STEP_S = 0.01
IDLE_S = 0.03
"""Time to copy rows between two steps, between two long ones, and while there is
nothing to train.
"""
STEP_SHARE = 0.1
"""Of the time of a step; it makes a step a long one if that is more than STEP_S."""
SHARED = "sharing."
"""Begins the names of arrays that belong to what is shared."""


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
    seconds: float | None = (
        None  # from the step of the latest state until it was safe; None before the first
    )
    size_bytes: int | None = None  # of the latest one: a base, or a delta
    problem: str | None = (
        None  # why the latest one is not safe; None if it is, or there was none
    )
    longest_pause_s: float = 0.0  # that a step had to wait, but for those when somebody waited for a checkpoint
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
        start_from: path of a point to start from, instead of the newest.
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
        self._origin: str | None = (
            None  # the point that the run was started from, if it was chosen
        )
        self._thread = ThreadPoolExecutor(1, "checkpoint-saver")
        self._changed: ChangedRows | None = None  # since the last capture
        self._unsafe: dict[str, Rows] = {}  # rows of the last capture, until it is safe
        self._capture: Capture | None = None  # of the save under way
        self._save: Future[Path] | None = None  # the last one
        self._ended: Future[Path] | None = (
            None  # the last one that is safe or has failed
        )
        self._tried_at = clock()
        self._tried_events = 0
        self._safe_at = clock()
        self._safe_events = 0
        self._stats = SaveStats()
        self._longest_pause_s = 0.0
        self._advanced_at = float("inf")
        self.path: Path | None = None
        """The newest checkpoint that is safe on disk."""
        self.begun = False
        """Whether there is a checkpoint, or one was tried."""

    # resuming --------------------------------------------------------------------------------------------------------

    def restore(self, learner: Learner, sharing: Sharing) -> Restored:
        """Put learner and sharing in the state of the newest whole checkpoint, and
        return the rest of it.

        Raises:
            CheckpointError: there are some, but none can be used.
        """
        found = self._find()
        if found is not None:
            self._put(learner, found)
        self._changed = (
            learner.state.changes.reader()
        )  # from here on, rows differ from the checkpoint's
        for kind in self._kinds(
            learner
        ):  # compiled loops are loaded now, not while a step waits for them
            learner.state.take(kind, self._changed.take(kind))
        if found is None:
            return Restored(Accounting(), OffsetLedger())
        meta = found.meta
        arrays = found.arrays()
        if (theirs := meta["threads"]) != (ours := torch.get_num_threads()):
            logger.warning(
                "%s was written with %d CPU threads, this run has %d: it goes on, but sums are rounded otherwise, so "
                "the weights will not be the same to the last bit; --threads %d keeps them so",
                found.path, theirs, ours, theirs,
            )  # fmt: skip
        settings: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(learner.settings)
        )  # as in a checkpoint
        for name, now in settings.items():
            if (before := meta["settings"].get(name)) != now:
                logger.warning(
                    "the setting %s was %s in %s, and is %s now",
                    name,
                    before,
                    found.path.name,
                    now,
                )
        positions = _from_json(meta["positions"])
        accounting = Accounting.from_json(meta["accounting"])
        shared = {
            name.removeprefix(SHARED): array
            for name, array in arrays.items()
            if name.startswith(SHARED)
        }
        sharing.restore(
            shared, meta.get("sharing", {}), {p: int(at) for p, at in positions.items()}
        )
        self.path = found.path
        self.begun = True
        self._origin = self._origin or meta.get("origin")
        self._tried_events = self._safe_events = accounting.consumed
        self._safe_at = self._clock() - max(0.0, time.time() - meta["saved_at"])
        self._stats = self._with_chain(self._stats)
        return Restored(accounting, OffsetLedger(positions))

    def _find(self) -> Checkpoint | None:
        return (
            self._store.load()
            if self._start_from is None
            else self._load_chosen(self._start_from)
        )

    def _put(self, learner: Learner, found: Checkpoint) -> None:
        learner.state.restore(found.chunks(), found.arrays(), found.meta["learner"])

    def _load_chosen(self, path: Path) -> Checkpoint:
        """The state at a chosen point; or the newest, if that goes on from the point
        already: after a restart.
        """
        try:
            newest = self._store.load(prune=False)  # or the chosen one may go
        except CorruptCheckpoint as error:
            newest = None
            logger.warning("%s", error)
        origin = newest.meta.get("origin") if newest is not None else None
        if newest is not None and origin == str(path.resolve()):
            logger.info(
                "the run has started from %s before: it goes on from %s",
                path,
                newest.path,
            )
            return newest
        directory, number = find_point(path)
        here = directory.resolve() == self._store.directory.resolve()
        chosen = (
            self._store if here else CheckpointStore(directory, readonly=True)
        ).load_point(number)
        if not here:
            self._store.chain = []
        self._origin = str(path.resolve())
        if later := [
            one.name
            for n, one in self._store.points().items()
            if not here or n > number
        ]:
            logger.warning(
                "starting from %s: %s to %s are superseded. They are removed as old checkpoints are; "
                "`streamer checkpoint pin` keeps one",
                path, later[0], later[-1],
            )  # fmt: skip
        return chosen

    # saving ----------------------------------------------------------------------------------------------------------

    def is_due(self, events: int) -> bool:
        """Return whether to save now, when `events` are consumed."""
        if self.is_safe(events) or self.is_saving:
            return False
        by_time = (
            self._every_s is not None
            and self._clock() - self._tried_at >= self._every_s
        )
        return by_time or (
            self._every_events is not None
            and events - self._tried_events >= self._every_events
        )

    @property
    def is_saving(self) -> bool:
        """Whether a save is under way or waits."""
        return self._save is not self._ended

    @property
    def is_copying(self) -> bool:
        """Whether a save waits for rows that `advance` is to copy."""
        return self._capture is not None

    def is_safe(self, events: int) -> bool:
        """Return whether the newest safe checkpoint holds all of the `events` that are
        consumed.
        """
        return events == self._safe_events

    def tried(self, events: int) -> bool:
        """Return whether a checkpoint that holds all of the `events` is saved, or on
        its way.
        """
        return self.begun and events == self._tried_events

    def postpone(self, events: int, problem: str) -> None:
        """Wait until a checkpoint is due again, because of a problem with the one that
        was due.
        """
        self._tried_at = self._clock()
        self._tried_events = events
        self.begun = True
        self._stats = replace(self._stats, problem=problem)

    def save(
        self,
        learner: Learner,
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
        if self._save is not None:
            self._save.cancel()
        # 2.
        shared, shared_values = (
            sharing.save()
        )  # first: it may put into the learner what has come from others
        arrays, values = learner.state.dense()
        arrays |= {f"{SHARED}{name}": array for name, array in shared.items()}
        meta = checkpoint_meta(learner.settings, values) | {
            "sharing": shared_values,
            "positions": _to_json(offsets.positions),
            "accounting": accounting.to_json(),
            "origin": self._origin,
        }
        # 3.
        base = self._store.wants_base or self._changed is None
        if self._changed is None:
            self._changed = learner.state.changes.reader()
        for kind, left in self._unsafe.items():
            self._changed.put_back(kind, left)
        kinds = self._kinds(learner)
        self._unsafe = unsafe = {kind: self._changed.take(kind) for kind in kinds}
        wanted = {
            kind: learner.state.used(kind) if base else marked(unsafe[kind])
            for kind in kinds
        }
        self._capture = Capture(learner.state, wanted)
        # 4.
        events = accounting.consumed
        self._tried_at = self._clock()
        self._tried_events = events
        self.begun = True
        chunks = self._with_seal(self._capture.chunks(), meta)
        self._save = self._thread.submit(
            self._store.save, chunks, arrays, meta, base=base
        )
        noted = partial(
            self._note_end, self._capture, unsafe, events, self._tried_at, done
        )
        self._save.add_done_callback(noted)
        self._advanced_at = time.perf_counter()
        self._capture.seconds += self._advanced_at - started
        self.advance()

    def _kinds(self, learner: Learner) -> tuple[str, ...]:
        """The kinds of rows that are saved here."""
        return learner.state.kinds()

    def _with_seal(
        self, chunks: Iterator[Chunk], meta: dict[str, Any]
    ) -> Iterator[Chunk]:
        """The rows to write, and what happens before the last frame."""
        return chunks

    def advance(self, *, idle: bool = False) -> None:
        """Copy some of the rows that the save under way waits for; to be called between
        two batches, often.
        """
        if (capture := self._capture) is None:
            return
        step_s = time.perf_counter() - self._advanced_at
        capture.advance(
            IDLE_S if idle else min(max(STEP_S, STEP_SHARE * step_s), LONG_STEP_S)
        )
        self._advanced_at = time.perf_counter()
        self._longest_pause_s = max(self._longest_pause_s, capture.seconds)
        capture.seconds = 0.0
        if capture.is_over:
            self._let_go()

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

    def finish(self) -> None:
        """Copy all rows that the save under way waits for: somebody waits for the
        checkpoint.
        """
        if self._capture is not None:
            self._capture.finish()
            self._let_go()

    def _let_go(self) -> None:
        if self._capture is not None:
            self._capture.close()
            self._capture = None

    def _note_end(
        self,
        capture: Capture,
        unsafe: dict[str, Rows],
        events: int,
        taken_at: float,
        done: Callable[[bool], None],
        save: Future[Path],
    ) -> None:
        """Note what became of a save, on the thread that wrote it."""
        if save.cancelled() or isinstance(error := save.exception(), CaptureAbandoned):
            return  # a newer one took its place, and holds whatever waits for this one
        if error is not None:
            capture.abandon()
            logger.error(
                "a checkpoint could not be saved, and training goes on: %s", error
            )
            self._stats = replace(
                self._stats, failed=self._stats.failed + 1, problem=str(error)
            )
        else:
            if self._unsafe is unsafe:
                self._unsafe = {}
            self.path = save.result()
            self._safe_events = events
            self._safe_at = taken_at
            saved = self._stats.saved + 1
            seconds = self._clock() - taken_at
            self._stats = self._with_chain(
                replace(self._stats, saved=saved, seconds=seconds, problem=None)
            )
        try:
            done(error is None)
        finally:
            self._ended = save

    # what became of them ---------------------------------------------------------------------------------------------

    def _with_chain(self, stats: SaveStats) -> SaveStats:
        if not (chain := self._store.chain):
            return stats
        base, *deltas = sizes = [one.size_bytes for one in chain]
        return replace(
            stats,
            size_bytes=sizes[-1],
            deltas=len(deltas),
            base_bytes=base,
            delta_bytes=sum(deltas),
        )

    def stats(self, events: int) -> SaveStats:
        """Return what became of the checkpoints so far, when `events` are consumed."""
        unsaved = events - self._safe_events
        return replace(
            self._stats, unsaved_events=unsaved, longest_pause_s=self._longest_pause_s
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
        self._thread.shutdown()
        self._store.close()
        if self._save is not None:
            self._save.result()


def _to_json(positions: Mapping[Partition, Position]) -> list[list[Any]]:
    logs = {
        p: [at.topic_id, at.leader_epoch] if at.topic_id else []
        for p, at in positions.items()
    }
    return [[*p, int(at), *logs[p]] for p, at in sorted(positions.items())]


def _from_json(listed: Iterable[Iterable[Any]]) -> Mapping[Partition, Position]:
    return {
        Partition(topic, number): Position(*position)
        for topic, number, *position in listed
    }
