"""Rows of a learner as of one step, copied piece by piece while training goes on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamer.errors import StreamerError
from streamer.snapshot.frames import CHUNK_ROWS, RowChunk, Rows

STEP_S = 0.005
LONG_STEP_S = 0.01
IDLE_S = 0.03
"""Time to copy rows between two steps, between two long ones, and while there is
nothing to train.
"""
STEP_SHARE = 0.1
"""Of the time of a step; it makes a step a long one if that is more than STEP_S."""
SLICE_BYTES = 1 << 19
"""What is copied at a time, about: in about a millisecond."""
WINDOW_ROWS = 1 << 18
"""Rows among which the next ones to copy are looked for at a time."""
MAX_QUEUED_BYTES = 32 << 20
"""Copies that wait to be written; no more are made until some of them are."""


class Changes(Protocol):
    """Calls its hooks before rows are written."""

    before_write: list[Callable[[str, Rows], None]]


class HasRows(Protocol):
    """Has rows of several kinds."""

    @property
    def changes(self) -> Changes:
        """What is called before rows are written."""
        ...

    def take(self, kind: str, rows: Rows) -> dict[str, NDArray[Any]]:
        """A copy of what these rows hold."""
        ...


class CaptureAbandoned(StreamerError):  # noqa: N818
    """What was captured is not wanted any more."""


class Capture:
    """What some rows hold at the step when this is made, whatever is written to them
    afterwards.

    The training thread calls `advance_step` between two steps, which copies as many rows
    as fit into the time for that; rows that a step is about to write are copied before.
    Another thread takes the copies out of `chunks`.

    Args:
        state: whose rows are copied.
        wanted: of each kind, which rows are to be copied; changed by this.
        clock: seconds.
    """

    def __init__(
        self,
        state: HasRows,
        wanted: Mapping[str, NDArray[np.bool_]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._state = state
        self._clock = clock
        self._waits = dict(wanted)  # of each row, whether it is still to be copied
        self._slice_rows = dict.fromkeys(self._waits, CHUNK_ROWS)
        self._left = self._slices()
        self._queue: deque[RowChunk] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()  # guards the queue and what follows
        self._is_complete = False
        self._is_abandoned = False
        self.seconds = 0.0
        """Time that the training thread has spent on it since the last step."""
        self._advanced_at = clock()
        state.changes.before_write.append(self._before_write)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to copy."""
        return self._is_complete or self._is_abandoned

    @property
    def is_full(self) -> bool:
        """Whether the thread that writes is behind."""
        return self._queued_bytes >= MAX_QUEUED_BYTES

    def advance_step(self, *, idle: bool = False) -> float:
        """Copy some rows between two steps; returns how long a step has waited for it."""
        step_s = self._clock() - self._advanced_at
        budget_s = min(max(STEP_S, STEP_SHARE * step_s), LONG_STEP_S)
        self.advance(IDLE_S if idle else budget_s)
        self._advanced_at = self._clock()
        waited_s = self.seconds
        self.seconds = 0.0
        return waited_s

    def advance(self, seconds: float) -> None:
        """Copy rows until `seconds` has grown to this, a slice at least, unless the
        thread that writes is behind.
        """
        before = self.seconds
        started = self._clock()
        while not (self.is_over or self.is_full):
            has_more = self.copy_slice()
            self.seconds = before + self._clock() - started
            if self.seconds >= seconds or not has_more:
                break

    def copy_slice(self) -> bool:
        """Copy the next few rows; False if none are left."""
        if (found := next(self._left, None)) is not None:
            self._copy(*found)
            return True
        with self._changed:
            self._is_complete = not self._is_abandoned
            self._changed.notify_all()
        return False

    def finish(self) -> None:
        """Copy all that is left, as fast as it is written."""
        while not self.is_over:
            self.advance(float("inf"))
            with self._changed:
                self._changed.wait_for(lambda: self.is_over or not self.is_full)

    def abandon(self) -> None:
        """Copy nothing more; whoever reads `chunks` gets an error. May be called on any
        thread, and when it is over.
        """
        with self._changed:
            self._is_abandoned = not self._is_complete
            self._changed.notify_all()

    def close(self) -> None:
        """Let go of the learner, when this is over."""
        if self._before_write in self._state.changes.before_write:
            self._state.changes.before_write.remove(self._before_write)
        self._waits = {}

    def chunks(self) -> Iterator[RowChunk]:
        """The copies, in no particular order; waits for those that are not made yet.

        Raises:
            CaptureAbandoned: there will not be all of them.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self.is_over)
                if self._is_abandoned:
                    raise CaptureAbandoned("a newer state took its place")
                if not self._queue:
                    return
                chunk = self._queue.popleft()
                self._queued_bytes -= _size_bytes(chunk)
                self._changed.notify_all()
            yield chunk

    def _slices(self) -> Iterator[tuple[str, Rows]]:
        """The rows that are to copy when it is their turn, slice by slice."""
        for kind, waits in self._waits.items():
            for first in range(0, len(waits), WINDOW_ROWS):
                window = first + np.flatnonzero(waits[first : first + WINDOW_ROWS])
                done = 0
                while done < len(window):
                    rows = window[done : done + self._slice_rows[kind]]
                    yield kind, rows[waits[rows]]
                    done += len(rows)

    def _before_write(self, kind: str, rows: Rows) -> None:
        if self.is_over or (waits := self._waits.get(kind)) is None:
            return
        started = self._clock()
        rows = rows[rows < len(waits)]
        self._copy(kind, np.unique(rows[waits[rows]]))
        self.seconds += self._clock() - started

    def _copy(self, kind: str, rows: Rows) -> None:
        if not len(rows):
            return
        try:
            chunk = RowChunk(kind, rows, self._state.take(kind, rows))
        except BaseException:
            # whatever happens next, a snapshot without these rows must not
            self.abandon()
            raise
        self._waits[kind][rows] = False
        fitting = SLICE_BYTES * len(rows) // (_size_bytes(chunk) + 1)
        self._slice_rows[kind] = min(max(fitting, CHUNK_ROWS // 4), 8 * CHUNK_ROWS)
        with self._changed:
            self._queue.append(chunk)
            self._queued_bytes += _size_bytes(chunk)
            self._changed.notify_all()


def marked(rows: Rows) -> NDArray[np.bool_]:
    """True for these rows, which are ascending; as long as it takes."""
    found = np.zeros(rows[-1] + 1 if len(rows) else 0, np.bool_)
    found[rows] = True
    return found


def _size_bytes(chunk: RowChunk) -> int:
    return sum(array.nbytes for array in chunk.arrays.values())
