"""Publishes what a trainer learns, beside training: copies on the training thread, packs and writes on its own.

The training thread copies rows only while the writer is free. While it is not, because a disk is slow or a broker away,
what changes is remembered as rows: the next delta is larger, and nothing else grows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from streamer.checkpoint.frames import NO_ROWS, Arrays, Rows
from streamer.errors import StreamerError
from streamer.learner import Learner
from streamer.model.changes import ChangedRows
from streamer.publish.points import BEGIN, End, Frames, PointId, Writer, listed
from streamer.sources.base import Positions

logger = logging.getLogger(__name__)

SLICE_ROWS = 4096
"""Rows that are copied, packed and put at a time."""
SLICE_S, IDLE_SLICE_S = 0.004, 0.04
"""Time that copying a base takes from training between two steps, and where there is nothing to train."""
HEARTBEAT_S = 2.0
"""A delta is written after this time even if nothing has changed: servers see that the trainer lives."""
MOST_DELTA_ROWS = 100_000
"""If more rows have changed, because nothing could be written for long, they are copied slice by slice, as a base."""
LEAST_BASE_BYTES = 1 << 26
"""Deltas may become as large as this before there is another base, however small the last was."""
LINES = "table.lines"
RETRY_S = 1.0
LAST_WRITE_S = 10.0
"""How long the end of a run waits for what is being written."""


@dataclass(slots=True)
class PublishStatus:
    """What became of publishing."""

    generation: int | None = None
    sequence: int = 0
    problem: str | None = None
    points: int = 0
    written_bytes: int = 0
    at_s: float | None = None
    """When what was written last was copied, in seconds since the epoch."""


Changed = list[tuple[str, Rows]]
"""Rows that have changed, by kind."""


class Slice(NamedTuple):
    """A copy of some rows."""

    kind: str
    rows: Rows
    arrays: Arrays


@dataclass(slots=True)
class Copied:
    """What a point is made of, copied between two steps."""

    end: End
    slices: list[Slice] = field(default_factory=list)
    dense: Arrays = field(default_factory=dict)


def slices(learner: Learner, kind: str, rows: Rows) -> Iterator[Slice]:
    """Copies of rows without their optimizer state, some at a time."""
    for start in range(0, len(rows), SLICE_ROWS):
        part = rows[start : start + SLICE_ROWS]
        arrays = dict(learner.take(kind, part))
        if LINES in arrays:
            arrays[LINES] = arrays[LINES][:, : learner.trainer.model.tables[table_of(kind)].dim]
        yield Slice(kind, part, arrays)


class _Base:
    """A base that is being copied, slice by slice, between steps."""

    def __init__(self, learner: Learner) -> None:
        self.slices: list[Slice] = []
        self.complete = False
        rows = [(kind, learner.rows(kind)) for kind in learner.kinds() if is_served(kind)]
        self._left = (one for kind, found in rows for one in slices(learner, kind, found))

    def copy(self, budget_s: float) -> None:
        """Copy some more."""
        deadline = time.monotonic() + budget_s
        for one in self._left:
            self.slices.append(one)
            if time.monotonic() >= deadline:
                return
        self.complete = True


def is_served(kind: str) -> bool:
    """Whether servers need rows of this kind; training alone needs the others."""
    return kind != "hash" and not kind.startswith("admission.")


def table_of(kind: str) -> str:
    """The table that a kind of rows has a line of: `item.id` of items, `item.brand` of brands."""
    return {"users": "user.id", "items": "item.id"}.get(kind, kind)


class Publisher:
    """Publishes a learner's changes.

    Args:
        learner: what changes; its steps and `step` are called by one thread.
        writer: where points go; closed at the end.
        every_s: time between deltas.
        base_every_s: time between bases; one also comes when the deltas since the last are larger than it.
    """

    def __init__(self, learner: Learner, writer: Writer, every_s: float, base_every_s: float) -> None:
        self.status = PublishStatus()
        self.base_wanted = False
        self._learner, self._writer = learner, writer
        self._every_s, self._base_every_s = every_s, base_every_s
        self._deltas, self._bases = learner.changes.reader(), learner.changes.reader()
        self._base: _Base | None = None
        self._due = self._heartbeat = self._base_due = 0.0
        self._sequence, self._base_bytes, self._delta_bytes = 0, 0, 0
        self._leaps = False  # the next base takes the place of the next delta
        self._chain = 0  # checksum of the last delta
        self._job: Copied | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._write_all, name="publisher", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def step(self, positions: Callable[[], Positions], idle: bool = False) -> None:
        """Copy what is due, between two steps of training; returns at once while the writer is busy.

        Args:
            positions: how far each partition is trained.
            idle: whether there was nothing to train.
        """
        with self._changed:
            if self._job is not None or self._closing:
                return
        now = time.monotonic()
        if self._base is not None:
            self._base.copy(IDLE_SLICE_S if idle else SLICE_S)
            if self._base.complete:
                self._hand_over(self._finished_base(positions()))
        elif self.base_wanted or now >= self._base_due or self._delta_bytes > max(self._base_bytes, LEAST_BASE_BYTES):
            self.base_wanted = False
            self._drain(self._bases)
            self._base = _Base(self._learner)
        if self._job is None and now >= self._due and self._base_bytes and not self._leaps:
            self._hand_over(self._delta(positions(), now))

    def _finished_base(self, positions: Positions) -> Copied:
        """All rows, those that changed while they were copied once more: so it is of one moment."""
        assert self._base is not None
        changed = self._drain(self._bases)
        copied, self._base = self._base.slices + self._slices(changed), None
        if self._leaps:  # it has all that the deltas would say
            self._drain(self._deltas)
            self._sequence, self._leaps = self._sequence + 1, False
        self._base_due = time.monotonic() + self._base_every_s
        arrays, values = self._learner.dense()
        return Copied(self._end(True, positions, values), copied, arrays)

    def _delta(self, positions: Positions, now: float) -> Copied | None:
        """What changed since the last delta; None if nothing did, or so much that a base takes its place."""
        changed = self._drain(self._deltas)
        if sum(len(rows) for _, rows in changed) > MOST_DELTA_ROWS:
            for kind, rows in changed:
                self._deltas.put_back(kind, rows)
            self._leaps = self.base_wanted = True
            return None
        if not changed and now < self._heartbeat:
            return None
        self._due, self._heartbeat = now + self._every_s, now + HEARTBEAT_S
        self._sequence += 1
        if not changed:
            return Copied(self._end(False, positions, None))
        arrays, values = self._learner.dense()
        return Copied(self._end(False, positions, values), self._slices(changed), arrays)

    def _slices(self, changed: Changed) -> list[Slice]:
        return [one for kind, rows in changed for one in slices(self._learner, kind, rows)]

    def _drain(self, reader: ChangedRows) -> Changed:
        """The rows that changed since the last time, by kind."""
        taken = [(kind, reader.take(kind)) for kind in self._learner.kinds()]
        return [(kind, rows) for kind, rows in taken if is_served(kind) and len(rows)]

    def _end(self, base: bool, positions: Positions, values: dict[str, Any] | None) -> End:
        return End(
            generation=0,  # filled in when it is written
            base=base,
            sequence=self._sequence,
            step=self._learner.trainer.steps,
            time_s=time.time(),
            positions=listed(positions),
            dense=values,
        )

    # the writing thread -----------------------------------------------------------------------------------------------

    def _hand_over(self, job: Copied | None) -> None:
        if job is not None:
            with self._changed:
                self._job = job
                self._changed.notify_all()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while self._job is None and not self._closing:
                    self._changed.wait()
                job = self._job
            if job is None:
                return
            while not self._written(job):
                with self._changed:
                    if self._closing:
                        return
                    self._changed.wait(RETRY_S)
            with self._changed:
                self._job = None
                self._changed.notify_all()

    def _written(self, job: Copied) -> bool:
        """Write a point; False if it must be tried again."""
        status = self.status
        try:
            if status.generation is None:
                status.generation = self._writer.begin()
            end = msgspec.structs.replace(job.end, generation=status.generation, before=self._chain)
            point, frames = PointId(end.generation, end.base, end.sequence), Frames()
            self._writer.write(point, self._packed(frames, end, job))
            if end.base:
                self._writer.prune(point)
        except Exception as error:  # whatever it is, training goes on, and it is tried again
            if status.problem is None:
                logger.warning("nothing is published: %s", error, exc_info=not isinstance(error, StreamerError))
            with self._changed:
                status.problem, self.base_wanted = str(error), True
                self._changed.notify_all()
            return False
        if status.problem is not None:
            logger.warning("publishing goes on")
        status.problem, status.sequence, status.at_s = None, end.sequence, end.time_s
        status.points, status.written_bytes = status.points + 1, status.written_bytes + frames.bytes
        if end.base:
            self._base_bytes, self._delta_bytes = frames.bytes, 0
        else:
            self._chain, self._delta_bytes = frames.checksum, self._delta_bytes + frames.bytes
        return True

    def _packed(self, frames: Frames, end: End, job: Copied) -> Iterator[bytes]:
        if end.base:
            settings = msgspec.to_builtins(self._learner.settings)
            yield frames.pack(BEGIN, NO_ROWS, {}, {"settings": settings})
        for copied in job.slices:
            yield frames.pack(*copied)
        yield frames.end(end, job.dense)

    def close(self, positions: Positions | None) -> None:
        """Write the last changes, if they can be written now, and end.

        Args:
            positions: how far each partition is trained; None if what is learned must not be published.
        """
        if not self._thread.is_alive():
            return
        if positions is not None and self._base_bytes and self.flush():
            self._hand_over(self._delta(positions, time.monotonic()))
            self.flush()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(LAST_WRITE_S)
        self._writer.close()

    def flush(self) -> bool:
        """Wait for a while until everything that was copied is written; False if it is not."""
        with self._changed:
            self._changed.wait_for(lambda: self._job is None or self.status.problem is not None, LAST_WRITE_S)
            return self._job is None and not self._closing
