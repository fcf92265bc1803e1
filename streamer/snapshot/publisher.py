"""Publishes what a trainer learns, beside training: copies on the training thread,
packs and writes on another.

Each delta has the rows that changed since the one before. A base, which has every row,
comes in slices as large as can be copied between two steps, one with each delta, so
that it holds up neither training nor what is new; that of a small model is one slice. A
slice has as many rows as have changed, or more, so that a base is over before twice its
rows are written. A server starts from the first slice of a base, and one that follows
passes over them. The next base begins when the deltas since outweigh the one before,
when there are many, or when a server has missed something and asks.

The training thread copies only while the thread that writes is free. While it is not,
because a disk is slow or a broker away, what changes is remembered as rows: the next
delta is larger, and nothing else grows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.errors import StreamerError
from streamer.learner import State, checkpoint_meta
from streamer.snapshot.frames import CHUNK_ROWS, Arrays, RowChunk, Rows
from streamer.snapshot.places import Place
from streamer.snapshot.snapshot import Link, Packing, SnapshotEnd, positions_to_json
from streamer.snapshot.writer import SnapshotWriter
from streamer.sources.base import Positions

logger = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
"""A delta is written after this time even if nothing has changed: servers see that the
trainer lives.
"""
MAX_DELTA_ROWS = 100_000
"""If more rows have changed, because nothing could be written for long, they come with
all others, as a base.
"""
MAX_DELTAS = 250
"""After this many the next base begins: a server that has missed one goes on."""
MIN_BASE_S = 10.0
"""Time between the beginnings of two bases, however many servers ask for one."""
SLICE_CHUNKS = 16
"""Chunks of a base in a delta; as many as have changed, if those are more."""
UNCHANGED = {"unchanged": True}
"""Says of a chunk that whoever has applied the delta before has its rows already."""
NO_VALUES: Mapping[str, Any] = {}
LINES = "table.lines"
RETRY_S = 1.0
LAST_WRITE_S = 10.0
"""How long the end of a run waits for what is being written."""

KindRows = tuple[str, Rows]


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


class Due(IntEnum):
    """What is to be copied after a step."""

    NOTHING = 0
    CHANGES = 1
    """A delta, if anything has changed."""
    DELTA = 2
    """A delta even if nothing has changed."""
    BASE = 3
    """A delta with the first slice of a base."""


@dataclass(slots=True)
class Delta:
    """What is written at once, copied between two steps; numbers count from the start
    of this process.
    """

    number: int
    first: int
    """See `SnapshotEnd.first`."""
    continues: bool
    """Whether it has all that changed since the one before."""
    obsolete: int
    """Nobody needs what is before this one any more."""
    has_slice: bool
    """Whether it has a slice of a base."""
    chunks: list[RowChunk]
    arrays: Arrays
    meta: dict[str, Any]


def is_served(kind: str) -> bool:
    """Whether servers need rows of this kind; training alone needs the others."""
    return kind != "hash" and not kind.startswith("admission.")


def table_of(kind: str) -> str:
    """The table that rows of this kind have a line of."""
    return {"users": "user.id", "items": "item.id"}.get(kind, kind)


def _in_chunks(used: Mapping[str, NDArray[np.bool_]]) -> Iterator[KindRows]:
    """The rows that are in use, of each kind, a chunk at a time."""
    for kind, is_used in used.items():
        for at in range(0, len(is_used), CHUNK_ROWS):
            yield kind, at + np.flatnonzero(is_used[at : at + CHUNK_ROWS])


class Publisher:
    """Publishes a learner's changes.

    Args:
        state: what changes; its steps and `step` are called by one thread.
        place: where snapshots go; closed at the end.
        every_s: time between deltas.
        heartbeat_s: time until a delta comes though nothing has changed.
    """

    def __init__(
        self,
        state: State,
        place: Place,
        every_s: float,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.status = PublishStatus()
        self._state = state
        self._place = place
        self._every_s = every_s
        self._heartbeat_s = heartbeat_s
        self._kinds = tuple(kind for kind in state.kinds() if is_served(kind))
        self._changed = state.changes.reader()
        self._delta_at = 0.0
        self._heartbeat_at = 0.0
        self._number = 0  # of the last delta that was copied
        self._first = 0  # from which on servers have every row; 0: from none
        self._base: Iterator[KindRows] | None = None  # what is left of one under way
        self._base_first = 0  # with which it has begun
        self._base_at = 0.0
        self._base_wanted = False  # by a server
        self._base_bytes = 0  # of its deltas
        self._delta_bytes = 0  # of those since
        self._deltas = 0  # since
        self._generation_from = 0  # number in the place before our first
        self._last: Link | None = None  # the state that was written last
        self._closing = threading.Event()
        self._writer = SnapshotWriter("publisher")

    def due(self) -> Due:
        """What is to be copied now: nothing while a delta is being written."""
        if self._closing.is_set() or not self._writer.is_idle:
            return Due.NOTHING
        now = time.monotonic()
        if self._base is None and self._base_is_due(now):
            return Due.BASE
        if now >= self._heartbeat_at or self._base is not None:
            return Due.DELTA
        return Due.CHANGES if now >= self._delta_at else Due.NOTHING

    def _base_is_due(self, now: float) -> bool:
        if not self._first:
            return True
        if now < self._base_at + MIN_BASE_S:
            return False
        is_outweighed = self._delta_bytes > self._base_bytes
        return self._base_wanted or is_outweighed or self._deltas >= MAX_DELTAS

    def step(self, positions: Callable[[], Positions], due: Due | None = None) -> None:
        """Copy what is due, between two steps of training.

        Args:
            positions: how far each partition is trained.
            due: what `due` has returned; None: ask.
        """
        due = self.due() if due is None else due
        if due:
            delta = self._copy(positions, due)
            if delta is not None:
                self._submit(delta)

    # copying --------------------------------------------------------------------------

    def _copy(self, positions: Callable[[], Positions], due: Due) -> Delta | None:
        """What changed since the last delta, with the next slice of a base; None if
        nothing changed, and nothing else is due.
        """
        changed = {kind: self._changed.take(kind) for kind in self._kinds}
        count = self._total(sum(map(len, changed.values())))
        if not count and due < Due.DELTA:
            return None
        now = time.monotonic()
        self._delta_at = now + self._every_s
        self._heartbeat_at = now + self._heartbeat_s
        is_too_much = count > MAX_DELTA_ROWS
        if is_too_much:
            changed = {}
            self._first = 0
        has_nothing = self._base is None and not self._first
        if is_too_much or has_nothing or due == Due.BASE:
            self._begin_base()
        self._number += 1
        self._deltas += 1
        has_slice = self._base is not None
        changed_chunks = 0 if is_too_much else -(-count // CHUNK_ROWS)
        slice_chunks = max(SLICE_CHUNKS, changed_chunks)
        part = list(islice(self._base or (), slice_chunks))
        is_over = has_slice and len(part) < slice_chunks
        chunks, is_over = self._copied(part, changed, is_over)
        obsolete = 0
        if is_over:
            # servers may still read the base before; but none of an earlier start
            obsolete = self._first or 1
            self._first = self._base_first
            self._base = None
            self._deltas = 0
        arrays, meta = self._dense(positions())
        return Delta(
            self._number,
            self._first,
            not is_too_much,
            obsolete,
            has_slice,
            chunks,
            arrays,
            meta,
        )

    def _begin_base(self) -> None:
        """Have every row come by once more, from the next delta on."""
        # what is used from now on changes, and comes as such: the base does not grow
        used = {kind: self._state.used(kind).copy() for kind in self._kinds}
        self._base = _in_chunks(used)
        self._base_first = self._number + 1
        self._base_at = time.monotonic()
        self._base_wanted = False
        self._base_bytes = 0
        self._delta_bytes = 0

    def _total(self, rows: int) -> int:
        """How many rows a delta has."""
        return rows

    def _copied(
        self, part: list[KindRows], changed: dict[str, Rows], is_over: bool
    ) -> tuple[list[RowChunk], bool]:
        """Copies of the rows of a slice and of those that changed; and whether the base
        is over.
        """
        chunks = [self._chunk(kind, rows, UNCHANGED) for kind, rows in part]
        for kind, rows in changed.items():
            for at in range(0, len(rows), CHUNK_ROWS):
                chunks.append(self._chunk(kind, rows[at : at + CHUNK_ROWS]))
        return chunks, is_over

    def _chunk(
        self, kind: str, rows: Rows, values: Mapping[str, Any] = NO_VALUES
    ) -> RowChunk:
        """A copy of rows as servers need them: without optimizer state."""
        found = self._state.take(kind, rows)
        arrays = {n: a for n, a in found.items() if not n.startswith("shared.")}
        if LINES in arrays:
            table = self._state.trainer.model.tables[table_of(kind)]
            arrays[LINES] = arrays[LINES][:, : table.dim]
        return RowChunk(kind, rows, arrays, values)

    def _dense(self, positions: Positions) -> tuple[Arrays, dict[str, Any]]:
        """What belongs to no row: whole in every snapshot, as the last one says it."""
        arrays, values = self._state.dense()
        meta = checkpoint_meta(self._state.settings, values) | {
            "positions": positions_to_json(positions),
            "step": self._state.trainer.steps,
        }
        return arrays, meta

    # writing --------------------------------------------------------------------------

    def _submit(self, delta: Delta) -> None:
        self._writer.submit(lambda: self._write(delta))

    def _write(self, delta: Delta) -> None:
        """Write a delta; whatever happens, training goes on, and it is tried again."""
        while not self._closing.is_set():
            try:
                self._try_to_write(delta)
            except Exception as error:
                if self.status.problem is None:
                    is_bug = not isinstance(error, StreamerError)
                    logger.warning(
                        "Publishing failed, will retry: %s", error, exc_info=is_bug
                    )
                self.status.problem = str(error)
                self._closing.wait(RETRY_S)
                continue
            if self.status.problem is not None:
                logger.warning("Publishing recovered.")
                self.status.problem = None
            return

    def _try_to_write(self, delta: Delta) -> None:
        status = self.status
        if status.generation is None:
            status.generation, self._generation_from = self._place.begin()
        before = self._generation_from
        number = before + delta.number
        first = before + delta.first if delta.first else 0
        end = SnapshotEnd(
            generation=status.generation,
            number=number,
            first=first,
            previous=self._last if delta.continues else None,
            meta=delta.meta,
        )
        packing = Packing()
        frames = packing.frames(delta.chunks, end, delta.arrays)
        self._place.write(end, frames)
        if delta.obsolete:
            self._place.prune(before + delta.obsolete)
        self._last = Link(number, packing.checksum)
        if delta.has_slice:
            self._base_bytes += packing.size_bytes
        else:
            self._delta_bytes += packing.size_bytes
        self._base_wanted = self._place.base_wanted() or self._base_wanted
        status.number = number
        status.at_s = end.time_s
        status.snapshots += 1
        status.written_bytes += packing.size_bytes

    # the end --------------------------------------------------------------------------

    def flush(self) -> bool:
        """Wait for a while until everything that was copied is written; False if it is
        not, or cannot be now.
        """
        deadline = time.monotonic() + LAST_WRITE_S
        while not self._writer.is_idle:
            if time.monotonic() > deadline or self.status.problem is not None:
                return False
            time.sleep(0.001)
        return True

    def close(self, positions: Callable[[], Positions] | None) -> None:
        """Write the last changes, if they can be written now, and end.

        Args:
            positions: how far each partition is trained; None if what is learned must
                not be published.
        """
        last = self._copy(positions, Due.CHANGES) if positions is not None else None
        if self.flush() and last is not None:
            self._submit(last)
            self.flush()
        self._closing.set()
        self._writer.close(LAST_WRITE_S)
        self._place.close()
