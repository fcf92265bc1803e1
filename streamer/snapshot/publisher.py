"""Publishes what a trainer learns, beside training: copies on the training thread,
packs and writes on another.

Each delta has the rows that changed since the one before, and a slice of all others.
After some hundreds of them every row has come by: a server can start from the first of
these, and no base, which takes long to write, holds up what is new. A run begins with
slices as large as can be copied between two steps; those of a small model are one
base.

The training thread copies only while the thread that writes is free. While it is not,
because a disk is slow or a broker away, what changes is remembered as rows: the next
delta is larger, and nothing else grows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any

import numpy as np

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
all others, slice by slice.
"""
SWEEP_DELTAS = 500
"""Deltas in which every row comes by."""
SLICE_CHUNKS = 16
"""Chunks of all rows in a delta while there is nothing that servers can start from."""
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
    chunks: list[RowChunk]
    arrays: Arrays
    meta: dict[str, Any]


def is_served(kind: str) -> bool:
    """Whether servers need rows of this kind; training alone needs the others."""
    return kind != "hash" and not kind.startswith("admission.")


def table_of(kind: str) -> str:
    """The table that rows of this kind have a line of."""
    return {"users": "user.id", "items": "item.id"}.get(kind, kind)


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
        self._sweep_first = 1  # with which all rows have begun to come by once more
        self._sweep: Iterator[KindRows] = iter(())  # what is left of them
        self._slices = 0  # of the sweep, in each delta
        self._in_haste = False  # whether these are as large as they can be
        self._generation_from = 0  # number in the place before our first
        self._last: Link | None = None  # the state that was written last
        self._closing = threading.Event()
        self._writer = SnapshotWriter("publisher")

    def due(self) -> Due:
        """What is to be copied now: nothing while a delta is being written."""
        if self._closing.is_set() or not self._writer.is_idle:
            return Due.NOTHING
        now = time.monotonic()
        if now >= self._heartbeat_at or self._in_haste or not self._first:
            return Due.DELTA
        return Due.CHANGES if now >= self._delta_at else Due.NOTHING

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
        """What changed since the last delta, with the next of all rows; None if nothing
        changed, and nothing else is due.
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
        if is_too_much or not (self._first or self._in_haste):
            self._begin_sweep(in_haste=True)
        self._number += 1
        wanted = list(islice(self._sweep, self._slices))
        is_swept = len(wanted) < self._slices
        wanted += changed.items()
        chunks, is_swept = self._copied(wanted, is_swept)
        obsolete = 0
        if is_swept:
            obsolete = self._first
            self._first = self._sweep_first
        arrays, meta = self._dense(positions())
        delta = Delta(
            self._number,
            self._first,
            not is_too_much,
            obsolete,
            chunks,
            arrays,
            meta,
        )
        if is_swept:
            self._begin_sweep(in_haste=False)
        return delta

    def _begin_sweep(self, *, in_haste: bool) -> None:
        """Have all rows come by once more, from the next delta on."""
        self._in_haste = in_haste
        self._sweep_first = self._number + 1
        rows = CHUNK_ROWS
        self._slices = SLICE_CHUNKS
        if not in_haste:
            every = sum(len(self._state.used(kind)) for kind in self._kinds)
            rows = min(CHUNK_ROWS, every // SWEEP_DELTAS + 1)
            self._slices = every // (SWEEP_DELTAS * rows) + 1
        self._sweep = self._all_rows(rows)

    def _all_rows(self, size: int) -> Iterator[KindRows]:
        """All rows that are in use, so many at a time."""
        for kind in self._kinds:
            used = self._state.used(kind)
            for at in range(0, len(used), size):
                yield kind, at + np.flatnonzero(used[at : at + size])

    def _total(self, rows: int) -> int:
        """How many rows a delta has."""
        return rows

    def _copied(
        self, wanted: list[KindRows], is_swept: bool
    ) -> tuple[list[RowChunk], bool]:
        """Copies of rows; and whether all rows have come by."""
        chunks = []
        for kind, rows in wanted:
            for at in range(0, len(rows), CHUNK_ROWS):
                chunks.append(self._chunk(kind, rows[at : at + CHUNK_ROWS]))
        return chunks, is_swept

    def _chunk(self, kind: str, rows: Rows) -> RowChunk:
        """A copy of rows as servers need them: without optimizer state."""
        found = self._state.take(kind, rows)
        arrays = {n: a for n, a in found.items() if not n.startswith("shared.")}
        if LINES in arrays:
            table = self._state.trainer.model.tables[table_of(kind)]
            arrays[LINES] = arrays[LINES][:, : table.dim]
        return RowChunk(kind, rows, arrays)

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
