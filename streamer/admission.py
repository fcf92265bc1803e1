"""Which new ids get a row: those that have come often enough.

How often an id without a row has come is counted in a sketch of fixed size, two
counters an id, of which the smaller
holds: what shares a counter with others is admitted too early, never too late. After an
eighth as many events as there are counters everything is halved, so that what came once
long ago counts no more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows
from streamer.model.jit import njit_allocating, njit_borrowing
from streamer.model.rows.by_rows import Arrays, ByRows
from streamer.model.rows.id_table import Bytes, hash_of, packed

SLOTS = 1 << 20
MOST = 255
"""A counter counts no further."""


class Admission(ByRows):
    """Counts events of ids that have no row.

    Args:
        after: an id is admitted with this event of its own.
        slots: counters, a byte each; a power of two.

    Examples:
        >>> admission = Admission(after=2)
        >>> admission.admit(["bot-1", "tea", "bot-2", "tea"])
        array([False, False, False,  True])
    """

    def __init__(self, after: int, slots: int = SLOTS) -> None:
        self.after = after
        self.size = slots
        self.clear()

    def clear(self) -> None:
        self._counts = np.zeros(self.size, np.uint8)
        self._events = 0  # since everything was halved

    def slots_of(self, ids: Sequence[str]) -> Rows:
        """The counters of ids, two of each."""
        utf8, offsets = packed(ids)
        return _slots(utf8, offsets, self.size)

    def halves(self, events: int) -> bool:
        """Whether all counters change when this many further events come."""
        return self._events + events >= self.size // 8

    def admit(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Take in an event of each id, in order; returns which are admitted."""
        if self.halves(len(ids)):
            self._counts >>= 1
            self._events = 0
        self._events += len(ids)
        slots = self.slots_of(ids)
        admitted = np.empty(len(ids), np.bool_)
        _count(self._counts, slots, self.after, admitted)
        return admitted

    def rows(self) -> Rows:
        return np.flatnonzero(self._counts)

    @property
    def nbytes(self) -> int:
        return self.size

    def take(self, rows: Rows) -> Arrays:
        return {"counts": self._counts[rows]}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self._counts[rows] = arrays["counts"]

    def dense(self) -> Arrays:
        return {"events": np.array(self._events)}

    def load_dense(self, arrays: Arrays) -> None:
        self._events = int(arrays["events"])


@njit_allocating
def _slots(utf8: Bytes, offsets: Rows, slots: int) -> Rows:
    ids = len(offsets) - 1
    mask = np.uint64(slots - 1)
    found = np.empty(2 * ids, np.int64)
    for i in range(ids):
        low = hash_of(utf8, offsets[i], offsets[i + 1])
        high = low >> np.uint64(32)
        found[2 * i] = np.int64(low & mask)
        found[2 * i + 1] = np.int64(high & mask)
    return found


@njit_borrowing
def _count(
    counts: NDArray[np.uint8],
    slots: Rows,
    after: int,
    admitted: NDArray[np.bool_],
) -> None:
    for i in range(len(admitted)):
        one = slots[2 * i]
        two = slots[2 * i + 1]
        least = min(counts[one], counts[two])
        admitted[i] = least + 1 >= after
        if least < MOST:
            counts[one] = max(counts[one], least + 1)
            counts[two] = max(counts[two], least + 1)
