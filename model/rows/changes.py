"""Which rows were written, recorded once for everybody who copies what changed:
checkpoints, and servers that follow.

Everything that is learned belongs to rows of a kind (`users`, `items`, `pairs`, ...),
but for a little that is copied whole. Whoever writes rows marks them *before*, so that
a copy under way can take what they held.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows
from streamer.model.jit import njit_borrowing
from streamer.model.rows.growing import grown

MAX_READERS = 8


class RowChanges:
    """One byte for each row of each kind, one bit of it for each reader.

    Examples:
        >>> changes = RowChanges()
        >>> reader = changes.reader()
        >>> changes.mark("items", np.array([5, 2, 5]))
        >>> reader.take("items"), reader.take("items")
        (array([2, 5]), array([], dtype=int64))
    """

    def __init__(self) -> None:
        self.before_write: list[Callable[[str, Rows], None]] = []
        """Called with rows that are about to be written; they may repeat."""
        self._flags: dict[str, NDArray[np.uint8]] = defaultdict(
            lambda: np.zeros(0, np.uint8)
        )
        self.written: Counter[str] = Counter()
        """How often rows of a kind were written, or may have been."""
        self._readers = 0

    def mark(self, kind: str, rows: Rows) -> None:
        """These rows, which may repeat, are about to be written."""
        if not len(rows):
            return
        self.written[kind] += 1
        for hook in self.before_write:
            hook(kind, rows)
        if self._readers:
            flags = grown(self._flags[kind], int(rows.max()) + 1)
            flags[rows] = 0xFF
            self._flags[kind] = flags

    def reader(self) -> ChangedRows:
        """A new reader, for which nothing has changed yet."""
        if self._readers == MAX_READERS:
            raise ValueError(f"there are {MAX_READERS} readers of changes already")
        self._readers += 1
        return ChangedRows(self._flags, np.uint8(1 << (self._readers - 1)))


class ChangedRows:
    """What has changed for one reader since it last looked."""

    def __init__(self, flags: dict[str, NDArray[np.uint8]], bit: np.uint8) -> None:
        self._flags = flags
        self._bit = bit
        for marked in flags.values():
            marked &= ~bit

    def take(self, kind: str) -> Rows:
        """The rows of a kind that were marked since the last call, ascending."""
        flags = self._flags[kind]
        rows = np.empty(_count(flags, self._bit), np.int64)
        _take(
            flags,
            flags[: len(flags) // 8 * 8].view(np.uint64),
            self._bit,
            rows,
        )
        return rows

    def put_back(self, kind: str, rows: Rows) -> None:
        """Rows that were taken and could not be used: they come again with the next."""
        self._flags[kind][rows] |= self._bit


@njit_borrowing
def _count(flags: NDArray[np.uint8], bit: np.uint8) -> int:
    """Rows that have the bit; sixteen million are counted in a few milliseconds, while
    training waits.
    """
    count = 0
    for row in range(len(flags)):
        count += (flags[row] & bit) != 0
    return count


@njit_borrowing
def _take(
    flags: NDArray[np.uint8],
    eights: NDArray[np.uint64],
    bit: np.uint8,
    rows: Rows,
) -> None:
    """Write the rows that have the bit, as many as `rows` takes, and clear it; most
    eights of rows have none.
    """
    found = 0
    for eight in range(len(eights) + 1):
        if eight == len(eights) or eights[eight]:
            for row in range(8 * eight, min(8 * eight + 8, len(flags))):
                if flags[row] & bit:
                    rows[found] = row
                    flags[row] &= ~bit
                    found += 1
