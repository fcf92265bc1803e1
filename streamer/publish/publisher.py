"""Publishes what a trainer learns, beside training: copies on the training thread,
packs and writes on its own.

The training thread copies rows only while the writer is free. While it is not, because
a disk is slow or a broker away, what changes is remembered as rows: the next delta is
larger, and nothing else grows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any, NamedTuple

import msgspec
import numpy as np

from streamer.errors import StreamerError
from streamer.learner import State
from streamer.lockstep.group import Group
from streamer.lockstep.users import UsersOfGroup
from streamer.model.rows.changes import ChangedRows
from streamer.publish.points import BEGIN, End, Frames, PointId, Writer, listed
from streamer.snapshot.frames import NO_ROWS, Arrays, Rows
from streamer.sources.base import Positions

logger = logging.getLogger(__name__)

SLICE_ROWS = 4096
"""Rows that are copied, packed and put at a time."""
SLICE_S = 0.004
IDLE_SLICE_S = 0.04
"""Time that copying a base takes from training between two steps, and where there is
nothing to train.
"""
HEARTBEAT_S = 2.0
"""A delta is written after this time even if nothing has changed: servers see that the
trainer lives.
"""
MAX_DELTA_ROWS = 100_000
"""If more rows have changed, because nothing could be written for long, they are copied
slice by slice, as a base.
"""
MIN_BASE_BYTES = 1 << 26
"""Deltas may become as large as this before there is another base, however small the
last was.
"""
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


class Due(IntFlag):
    """What is to be copied after a step; in a group rank 0 knows it, and all ranks do
    it.
    """

    BASE = 1
    """Some more of a base."""
    DELTA = 2
    HEARTBEAT = 4
    """A delta even if nothing has changed."""


def copied(state: State, kind: str, rows: Rows) -> Arrays:
    """A copy of rows without their optimizer state."""
    arrays = dict(state.take(kind, rows))
    if LINES in arrays:
        arrays[LINES] = arrays[LINES][
            :, : state.trainer.model.tables[table_of(kind)].dim
        ]
    return arrays


def cut(rows: Rows) -> list[Rows]:
    """Rows, as many at a time as are copied at once."""
    return [
        rows[start : start + SLICE_ROWS] for start in range(0, len(rows), SLICE_ROWS)
    ]


class _Base:
    """A base that is being copied, slice by slice, between steps.

    Args:
        state: of which.
        kinds: of the rows that are copied here.
        users: brings those of all ranks of a group; None where there is no group.
    """

    def __init__(
        self, state: State, kinds: list[str], users: UsersOfGroup | None
    ) -> None:
        self.slices: list[Slice] = []
        self.complete = False
        self._users = users
        own = [kind for kind in kinds if users is None or kind != "users"]
        parts = [(kind, part) for kind in own for part in cut(state.rows(kind))]
        self._left = (
            Slice(kind, part, copied(state, kind, part)) for kind, part in parts
        )
        self._users_left = iter(cut(state.rows("users")) if users is not None else [])

    def copy(self, budget_s: float) -> None:
        """Copy some more; of users of a group, one slice of each rank."""
        deadline = time.monotonic() + budget_s
        is_done = True
        for one in self._left:
            self.slices.append(one)
            if time.monotonic() >= deadline:
                is_done = False
                break
        if self._users is not None:
            rows = next(self._users_left, NO_ROWS)
            found, more = self._users.gather(rows, more=len(rows) > 0 or not is_done)
            self.slices += [Slice("users", *one) for one in found]
            is_done = not more
        self.complete = is_done


def is_served(kind: str) -> bool:
    """Whether servers need rows of this kind; training alone needs the others."""
    return kind != "hash" and not kind.startswith("admission.")


def table_of(kind: str) -> str:
    """The table that a kind of rows has a line of: `item.id` of items, `item.brand` of
    brands.
    """
    return {"users": "user.id", "items": "item.id"}.get(kind, kind)


class Publisher:
    """Publishes a learner's changes.

    Args:
        state: what changes; its steps and `step` are called by one thread.
        writer: where points go; closed at the end. None on all ranks of a group but 0,
            which bring their users to it.
        every_s: time between deltas.
        base_every_s: time between bases; one also comes when the deltas since the last
            are larger than it.
        group: the ranks that train the learner.
        heartbeat_s: time until a delta comes though nothing has changed.
    """

    def __init__(
        self,
        state: State,
        writer: Writer | None,
        every_s: float,
        base_every_s: float,
        group: Group | None = None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.status = PublishStatus()
        self.base_wanted = False
        self._state = state
        self._writer = writer
        self._group = group or Group()
        self._kinds = (
            [kind for kind in state.kinds() if is_served(kind)]
            if writer is not None
            else ["users"]
        )
        self._users: UsersOfGroup | None = None
        if self._group.size > 1:
            self._users = UsersOfGroup(
                self._group, lambda rows: copied(state, "users", rows)
            )
        self._every_s = every_s
        self._base_every_s = base_every_s
        self._heartbeat_s = heartbeat_s
        self._deltas = state.changes.reader()
        self._bases = state.changes.reader()
        self._base: _Base | None = None
        self._due = self._heartbeat = self._base_due = 0.0
        self._sequence = 0
        self._base_bytes = 0
        self._delta_bytes = 0
        self._leaps = False  # the next base takes the place of the next delta
        self._chain = 0  # checksum of the last delta
        self._job: Copied | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(
            target=self._write_all, name="publisher", daemon=True
        )

    def start(self) -> None:
        """Begin to write."""
        if self._writer is not None:
            self._thread.start()

    def due(self) -> Due:
        """What is to be copied now: nothing while the writer is busy, or on a rank that
        has none.
        """
        with self._changed:
            if self._writer is None or self._job is not None or self._closing:
                return Due(0)
        now = time.monotonic()
        found = Due(0)
        many = self._delta_bytes > max(self._base_bytes, MIN_BASE_BYTES)
        if self._base is not None or self.base_wanted or many or now >= self._base_due:
            found |= Due.BASE
        if now >= self._due and self._base_bytes and not self._leaps:
            found |= Due.DELTA
        return found | (Due.HEARTBEAT if now >= self._heartbeat else 0)

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
            due: what `due` has returned, on rank 0 if there is a group, whose ranks
                call this together; None: ask.
        """
        due = self.due() if due is None else due
        if due & Due.BASE and self._base is None:
            self.base_wanted = False
            self._drain(self._bases)
            self._base = _Base(self._state, self._kinds, self._users)
        elif due & Due.BASE and self._base is not None:
            self._base.copy(IDLE_SLICE_S if idle else SLICE_S)
            if self._base.complete:
                self._hand_over(self._finished_base(positions()))
                return
        if due & Due.DELTA:
            self._hand_over(self._delta(positions, bool(due & Due.HEARTBEAT)))

    def _finished_base(self, positions: Positions) -> Copied | None:
        """All rows, those that changed while they were copied once more: so it is of
        one moment.
        """
        assert self._base is not None
        slices = self._base.slices + self._slices(self._drain(self._bases))
        self._base = None
        if self._leaps:  # it has all that the deltas would say
            self._drain(self._deltas)
            self._sequence = self._sequence + 1
            self._leaps = False
        self._base_due = time.monotonic() + self._base_every_s
        return self._point(True, positions, slices)

    def _delta(
        self, positions: Callable[[], Positions], heartbeat: bool
    ) -> Copied | None:
        """What changed since the last delta; None if nothing did, or so much that a
        base takes its place.
        """
        changed = self._drain(self._deltas)
        own = np.array([sum(len(rows) for _, rows in changed)])
        count = sum(int(n[0]) for n in self._group.gather_equal(own))
        if count > MAX_DELTA_ROWS:
            for kind, rows in changed:
                self._deltas.put_back(kind, rows)
            self._leaps = self.base_wanted = True
            return None
        if not count and not heartbeat:
            return None
        now = time.monotonic()
        self._due = now + self._every_s
        self._heartbeat = now + self._heartbeat_s
        self._sequence += 1
        return self._point(False, positions(), self._slices(changed) if count else None)

    def _point(
        self, base: bool, positions: Positions, slices: list[Slice] | None
    ) -> Copied | None:
        """A point of these rows, of none if nothing has changed; None where there is no
        writer.
        """
        if self._writer is None:
            return None
        if slices is None:
            return Copied(self._end(base, positions, None))
        arrays, values = self._state.dense()
        if self._users is not None:
            arrays = self._users.dense(arrays)
        return Copied(self._end(base, positions, values), slices, arrays)

    def _slices(self, changed: Changed) -> list[Slice]:
        """Copies of rows; of users, those that any rank of the group has."""
        state = self._state
        found = []
        users = dict(changed).get("users", NO_ROWS)
        for kind, rows in changed:
            if kind != "users" or self._users is None:
                found += [
                    Slice(kind, part, copied(state, kind, part)) for part in cut(rows)
                ]
        if self._users is not None:
            found += [Slice("users", *one) for one in self._users.gather(users)[0]]
        return found

    def _drain(self, reader: ChangedRows) -> Changed:
        """The rows that changed since the last time, by kind."""
        taken = [(kind, reader.take(kind)) for kind in self._kinds]
        return [(kind, rows) for kind, rows in taken if len(rows)]

    def _end(
        self, base: bool, positions: Positions, values: dict[str, Any] | None
    ) -> End:
        return End(
            generation=0,  # filled in when it is written
            base=base,
            sequence=self._sequence,
            step=self._state.trainer.steps,
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
        assert self._writer is not None
        try:
            if status.generation is None:
                status.generation = self._writer.begin()
            end = msgspec.structs.replace(
                job.end, generation=status.generation, before=self._chain
            )
            point = PointId(end.generation, end.base, end.sequence)
            frames = Frames()
            self._writer.write(point, self._packed(frames, end, job))
            if end.base:
                self._writer.prune(point)
        except (
            Exception
        ) as error:  # whatever it is, training goes on, and it is tried again
            if status.problem is None:
                logger.warning(
                    "nothing is published: %s",
                    error,
                    exc_info=not isinstance(error, StreamerError),
                )
            with self._changed:
                status.problem = str(error)
                self.base_wanted = True
                self._changed.notify_all()
            return False
        if status.problem is not None:
            logger.warning("publishing goes on")
        status.problem = None
        status.sequence = end.sequence
        status.at_s = end.time_s
        status.points = status.points + 1
        status.written_bytes = status.written_bytes + frames.bytes
        if end.base:
            self._base_bytes = frames.bytes
            self._delta_bytes = 0
        else:
            self._chain = frames.checksum
            self._delta_bytes = self._delta_bytes + frames.bytes
        return True

    def _packed(self, frames: Frames, end: End, job: Copied) -> Iterator[bytes]:
        if end.base:
            settings = msgspec.to_builtins(self._state.settings)
            yield frames.pack(BEGIN, NO_ROWS, {}, {"settings": settings})
        for one in job.slices:
            yield frames.pack(*one)
        yield frames.end(end, job.dense)

    def close(self, positions: Callable[[], Positions] | None) -> None:
        """Write the last changes, if they can be written now, and end. All ranks of a
        group call it together.

        Args:
            positions: how far each partition is trained; None if what is learned must
                not be published, or not all ranks have come this far.
        """
        last = self._delta(positions, False) if positions is not None else None
        if self._writer is None or not self._thread.is_alive():
            return
        if last is not None and self.flush() and self._base_bytes:
            self._hand_over(last)
            self.flush()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(LAST_WRITE_S)
        self._writer.close()

    def flush(self) -> bool:
        """Wait for a while until everything that was copied is written; False if it is
        not.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._job is None or self.status.problem is not None,
                LAST_WRITE_S,
            )
            return self._job is None and not self._closing
