"""Publishes what a trainer learns, beside training: copies on the training thread,
packs and writes on two of its own, one for deltas and one for bases.

The training thread copies a delta only while the thread of deltas is free. While it is
not, because a disk is slow or a broker away, what changes is remembered as rows: the
next delta is larger, and nothing else grows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any

from streamer.errors import StreamerError
from streamer.learner import State, checkpoint_meta
from streamer.snapshot.capture import Capture, CaptureAbandoned, marked
from streamer.snapshot.chain import Chain
from streamer.snapshot.frames import Arrays, RowChunk, Rows
from streamer.snapshot.places import Place
from streamer.snapshot.snapshot import (
    Link,
    Packing,
    SnapshotEnd,
    SnapshotId,
    positions_to_json,
)
from streamer.snapshot.writer import SnapshotWriter
from streamer.sources.base import Positions

logger = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
"""A delta is written after this time even if nothing has changed: servers see that the
trainer lives.
"""
MAX_DELTA_ROWS = 100_000
"""If more rows have changed, because nothing could be written for long, they are copied
slice by slice, as a base.
"""
MAX_DELTAS = 100_000
MIN_BASE_BYTES = 1 << 26
"""Deltas may become as large as this before there is another base, however small the
last was; how many they are does not matter.
"""
LINES = "table.lines"
RETRY_S = 1.0
LAST_WRITE_S = 10.0
"""How long the end of a run waits for what is being written."""


@dataclass(slots=True)
class PublishStatus:
    """What became of publishing."""

    generation: int | None = None
    number: int = 0
    problem: str | None = None
    snapshots: int = 0
    written_bytes: int = 0
    at_s: float | None = None
    """When what was written last was copied, in seconds since the epoch."""
    _problems: dict[bool, str] = field(default_factory=dict)
    """Of deltas, and of bases."""

    def note_written(self, about: SnapshotEnd, size_bytes: int) -> None:
        """A snapshot is written."""
        had_problem = bool(self._problems)
        self._problems.pop(about.is_base, None)
        self.problem = next(iter(self._problems.values()), None)
        if had_problem and self.problem is None:
            logger.warning("Publishing recovered.")
        self.number = max(self.number, about.number)
        self.at_s = max(self.at_s or 0.0, about.time_s)
        self.snapshots += 1
        self.written_bytes += size_bytes

    def note_problem(self, error: Exception, *, is_base: bool) -> None:
        """A snapshot could not be written."""
        if not self._problems:
            is_bug = not isinstance(error, StreamerError)
            logger.warning("Publishing failed, will retry: %s", error, exc_info=is_bug)
        self._problems[is_base] = str(error)
        self.problem = str(error)


class Due(IntFlag):
    """What is to be copied after a step."""

    BASE = 1
    """Some more of a base."""
    DELTA = 2
    HEARTBEAT = 4
    """A delta even if nothing has changed."""


class ServedRows:
    """Rows of a learner as servers need them: without optimizer state."""

    def __init__(self, state: State) -> None:
        self.changes = state.changes
        self._state = state

    def kinds(self) -> tuple[str, ...]:
        """Kinds of rows that servers need; training alone needs the others."""
        return tuple(kind for kind in self._state.kinds() if is_served(kind))

    def take(self, kind: str, rows: Rows) -> Arrays:
        """A copy of what these rows hold."""
        arrays = dict(self._state.take(kind, rows))
        if LINES in arrays:
            table = self._state.trainer.model.tables[table_of(kind)]
            arrays[LINES] = arrays[LINES][:, : table.dim]
        return arrays


def is_served(kind: str) -> bool:
    """Whether servers need rows of this kind."""
    return kind != "hash" and not kind.startswith("admission.")


def table_of(kind: str) -> str:
    """The table that a kind of rows has a line of: `item.id` of items, `item.brand` of
    brands.
    """
    return {"users": "user.id", "items": "item.id"}.get(kind, kind)


@dataclass(frozen=True, slots=True)
class Dense:
    """What belongs to no row, and what is said of a snapshot, as of one step."""

    arrays: Arrays
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delta:
    """What has changed, copied between two steps."""

    number: int
    chunks: list[RowChunk]
    dense: Dense


class Publisher:
    """Publishes a learner's changes.

    Args:
        state: what changes; its steps and `step` are called by one thread.
        place: where snapshots go; closed at the end.
        every_s: time between deltas.
        base_every_s: time between bases; one also comes when the deltas since the last
            are larger than it.
        heartbeat_s: time until a delta comes though nothing has changed.
    """

    def __init__(
        self,
        state: State,
        place: Place,
        every_s: float,
        base_every_s: float,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.status = PublishStatus()
        self.base_wanted = False
        self._state = state
        self._place = place
        self._every_s = every_s
        self._base_every_s = base_every_s
        self._heartbeat_s = heartbeat_s
        self._rows = ServedRows(state)
        self._kinds = self._rows.kinds()
        self._changed = state.changes.reader()
        self._base: Capture | None = None
        self._delta_at = 0.0
        self._heartbeat_at = 0.0
        self._base_at = 0.0
        self._number = 0  # of the last delta that was copied
        self._chain = Chain(MAX_DELTAS, MIN_BASE_BYTES)
        self._lock = threading.Lock()  # guards chain and status
        self._closing = threading.Event()
        self._bases = SnapshotWriter("base-publisher")
        self._deltas = SnapshotWriter("delta-publisher")

    def start(self) -> None:
        """Begin to publish."""
        self._base_at = time.monotonic()

    def due(self) -> Due:
        """What is to be copied now: nothing while a delta is being written."""
        found = Due(0)
        if self._closing.is_set() or not self._deltas.is_idle:
            return found
        now = time.monotonic()
        if self._base is not None:
            if not self._base.is_full:
                found |= Due.BASE
        elif self._bases.is_idle and now >= self._base_at:
            timely = now >= self._base_at + self._base_every_s
            if timely or self.base_wanted or self._chain.wants_base:
                # a base repeats the state after a delta of the same step
                found |= Due.BASE | Due.DELTA
        if now >= self._delta_at:
            found |= Due.DELTA
        if not self._chain.links:
            found &= ~Due.DELTA
        if now >= self._heartbeat_at:
            found |= Due.HEARTBEAT
        return found

    def step(
        self,
        positions: Callable[[], Positions],
        idle: bool = False,
        due: Due | None = None,
    ) -> None:
        """Copy what is due, between two steps of training.

        Args:
            positions: how far each partition is trained.
            idle: whether there was nothing to train.
            due: what `due` has returned; None: ask.
        """
        due = self.due() if due is None else due
        if due & Due.DELTA:
            delta = self._copy_delta(positions, heartbeat=bool(due & Due.HEARTBEAT))
            if delta is not None:
                self._submit_delta(delta)
        if due & Due.BASE:
            if self._base is None:
                self._begin_base(positions())
            else:
                self._advance_base(idle)

    # deltas ---------------------------------------------------------------------------

    def _copy_delta(
        self, positions: Callable[[], Positions], *, heartbeat: bool
    ) -> Delta | None:
        """What changed since the last delta; None if nothing did, or so much that a
        base takes its place.
        """
        changed = {kind: self._changed.take(kind) for kind in self._kinds}
        count = self._total(sum(map(len, changed.values())))
        if count > MAX_DELTA_ROWS:
            with self._lock:
                self._chain.clear()
            return None
        if not (count or heartbeat):
            return None
        now = time.monotonic()
        self._delta_at = now + self._every_s
        self._heartbeat_at = now + self._heartbeat_s
        chunks = self._copied(changed)
        dense = self._dense(positions())
        self._number += 1
        return Delta(self._number, chunks, dense)

    def _total(self, rows: int) -> int:
        """How many rows a delta has."""
        return rows

    def _copied(self, changed: dict[str, Rows]) -> list[RowChunk]:
        """A copy of rows."""
        wanted = {kind: marked(rows) for kind, rows in changed.items()}
        return Capture(self._rows, wanted).copy_all()

    def _submit_delta(self, delta: Delta) -> None:
        self._deltas.submit(lambda: self._write_delta(delta))

    def _write_delta(self, delta: Delta) -> None:
        """Write a delta; whatever happens, training goes on, and it is tried again."""
        previous = self._chain.last
        while not self._closing.is_set():
            try:
                ident = self._id(delta.number, is_base=False)
                self._write(ident, delta.chunks, lambda: (previous, delta.dense))
                return
            except Exception as error:
                self._note_problem(error, is_base=False)
                self._closing.wait(RETRY_S)

    # bases ----------------------------------------------------------------------------

    def _begin_base(self, positions: Positions) -> None:
        """Begin to copy all rows as they are now, which is after the last delta, if
        there is one: then the base has its number, and the next delta fits both.
        """
        self.base_wanted = False
        self._base_at = time.monotonic()
        repeats = self._number if self._chain.links else None
        if repeats is None:
            for kind in self._kinds:
                self._changed.take(kind)  # the base has all that a delta would say
        dense = self._dense(positions)
        self._base = self._capture()
        self._submit_base(self._base, repeats, dense)

    def _capture(self) -> Capture:
        wanted = {kind: self._state.used(kind) for kind in self._kinds}
        return Capture(self._rows, wanted)

    def _advance_base(self, idle: bool) -> None:
        """Copy some more of a base."""
        assert self._base is not None
        self._base.advance_step(idle=idle)
        if self._base.is_over:
            self._base.close()
            self._base = None

    def _submit_base(self, capture: Capture, repeats: int | None, dense: Dense) -> None:
        self._bases.submit(lambda: self._write_base(capture, repeats, dense))

    def _write_base(self, capture: Capture, repeats: int | None, dense: Dense) -> None:
        """Write a base; if that fails, another is begun soon."""
        try:
            if self.status.generation is None:
                self.status.generation, self._number = self._place.begin()
            if repeats is None:
                self._number += 1
            ident = self._id(repeats or self._number, is_base=True)
            self._write(
                ident,
                capture.chunks(),
                lambda: (self._repeated(repeats), self._finished(dense)),
            )
            self._place.prune(ident)
        except CaptureAbandoned:
            return
        except Exception as error:
            capture.abandon()
            self._note_problem(error, is_base=True)
            self._base_at = time.monotonic() + RETRY_S

    def _repeated(self, number: int | None) -> Link | None:
        """The delta of this number, when it is written."""
        while number is not None:
            for one in self._chain.links:
                if one.link.number == number:
                    return one.link
            if self._closing.wait(0.01):
                raise CaptureAbandoned("the run ended")
        return None

    def _finished(self, dense: Dense) -> Dense:
        """What belongs to no row of a base, when all its rows are copied."""
        return dense

    # both -----------------------------------------------------------------------------

    def _dense(self, positions: Positions) -> Dense:
        """What belongs to no row: whole in every snapshot, as the last one says it."""
        arrays, values = self._state.dense()
        meta = checkpoint_meta(self._state.settings, values)
        meta |= {
            "positions": positions_to_json(positions),
            "step": self._state.trainer.steps,
        }
        return Dense(arrays, meta)

    def _id(self, number: int, *, is_base: bool) -> SnapshotId:
        assert self.status.generation is not None, "a generation begins with a base"
        return SnapshotId(self.status.generation, number, is_base)

    def _write(
        self,
        ident: SnapshotId,
        chunks: Iterable[RowChunk],
        last: Callable[[], tuple[Link | None, Dense]],
    ) -> None:
        """Write a snapshot, and note that it is there.

        Args:
            ident: which one.
            chunks: its rows.
            last: called when all rows are packed; the state that it changes or repeats,
                and what belongs to no row.
        """
        ends: list[SnapshotEnd] = []

        def end() -> tuple[SnapshotEnd, Arrays]:
            previous, dense = last()
            about = SnapshotEnd(**ident._asdict(), previous=previous, meta=dense.meta)
            ends.append(about)
            return about, dense.arrays

        packing = Packing()
        self._place.write(ident, packing.frames(chunks, end))
        about = ends[-1]
        link = Link(ident.number, packing.checksum)
        with self._lock:
            if not ident.is_base:
                self._chain.add_delta(link, packing.size_bytes)
            elif about.previous is None:
                self._chain.add_base(link, packing.size_bytes)
            elif self._chain.links:  # or a base that repeats nothing is on its way
                self._chain.add_base(about.previous, packing.size_bytes)
            self.status.note_written(about, packing.size_bytes)

    def _note_problem(self, error: Exception, *, is_base: bool) -> None:
        with self._lock:
            self.status.note_problem(error, is_base=is_base)
        self.base_wanted = True

    # the end --------------------------------------------------------------------------

    def flush(self) -> bool:
        """Wait for a while until everything that was copied is written; False if it is
        not, or cannot be now.
        """
        deadline = time.monotonic() + LAST_WRITE_S
        while time.monotonic() < deadline and self.status.problem is None:
            is_copying = self._base is not None and not self._base.is_over
            if self._deltas.is_idle and (is_copying or self._bases.is_idle):
                return True
            time.sleep(0.001)
        return False

    def close(self, positions: Callable[[], Positions] | None) -> None:
        """Write the last changes, if they can be written now, and end.

        Args:
            positions: how far each partition is trained; None if what is learned must
                not be published.
        """
        last = None
        if positions is not None:
            last = self._copy_delta(positions, heartbeat=False)
        if last is not None and self._chain.links and self.flush():
            self._submit_delta(last)
            self.flush()
        if self._base is not None:
            self._base.abandon()
            self._base.close()
        self._closing.set()
        self._bases.close(LAST_WRITE_S)
        self._deltas.close(LAST_WRITE_S)
        self._place.close()
