"""Raw ids and table rows, without a Python object for any id.

Rows are given back and used again: a new id gets the lowest row that is free, so that
which rows are in use determines what comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows
from streamer.model.rows.by_rows import Arrays, ByRows, take_or_fill
from streamer.model.rows.growing import grown
from streamer.model.rows.id_table import (
    EMPTY,
    END,
    FILLED,
    FREE,
    LOWEST,
    RETIRED,
    USED,
    Ids,
    bytes_of,
    copy_in,
    copy_out,
    find_all,
    forget_all,
    give_back,
    insert_all,
    next_free_rows,
    packed,
)

_FIRST_SLOTS = 1024


class Vocabulary(ByRows):
    """Gives every raw id a row: the lowest free one. The same stream gives the same
    rows.

    Args:
        first: the first row to give; rows below it are reserved.
        reuse: whether the row of an id that was forgotten is free at once; else when
            `give_back` says so.

    Examples:
        >>> items = Vocabulary()
        >>> items.rows(["tea", "milk", "tea"])
        array([0, 1, 0])
        >>> items.id_of(1)
        'milk'
        >>> items.forget(np.array([0]))
        >>> items.rows(["beer", "tea"])
        array([0, 2])
    """

    def __init__(self, first: int = 0, *, reuse: bool = True) -> None:
        self.first = first
        self._reuse = reuse
        self.clear()

    def clear(self) -> None:
        self.size = self.first
        self._ids = Ids(
            np.empty(0, np.uint8),
            np.zeros(0, np.int64),
            np.full(0, FREE, np.int32),
            np.full(_FIRST_SLOTS, EMPTY, np.int32),
            np.array([0, 0, 0, self.first]),
        )

    def __len__(self) -> int:
        return int(self._ids.at[USED])

    @property
    def nbytes(self) -> int:
        ids = self._ids
        a_row = ids.start.itemsize + ids.length.itemsize
        return int(ids.at[END]) + self.size * a_row + ids.slots.nbytes

    def rows(  # type: ignore[override]
        self, ids: Sequence[str], before_write: Callable[[Rows], None] | None = None
    ) -> Rows:
        """The row of each id; a new id gets the lowest free row.

        Args:
            ids: they may repeat.
            before_write: called with the rows that new ids get, before they do.
        """
        utf8, offsets = packed(ids)
        found = np.full(len(ids), -1)
        find_all(self._ids, utf8, offsets, found, False)
        is_new = found < 0
        new = {ids[k] for k in np.flatnonzero(is_new).tolist()}
        if new:
            self._reserve(len(new), len(utf8))
            if before_write is not None:
                free = next_free_rows(self._ids, len(new))
                before_write(free)
            find_all(self._ids, utf8, offsets, found, True)
            largest = int(found.max())
            self.size = max(self.size, largest + 1)
        return found

    def known(self, ids: Sequence[str]) -> Rows:
        """The row of each id, -1 if it has none."""
        found = np.full(len(ids), -1)
        find_all(self._ids, *packed(ids), found, False)
        return found

    def _reserve(self, ids: int, utf8: int) -> None:
        """Make room for this many further ids with this many bytes; what forgotten ids
        left is used again.
        """
        rows = self.size + ids
        start = grown(self._ids.start, rows)
        length = grown(self._ids.length, rows, FREE)
        self._replace(start=start, length=length)

        end = int(self._ids.at[END])
        if end + utf8 > len(self._ids.arena):
            in_use = bytes_of(length[: self.size])
            if end > 2 * in_use:
                end = self._compact()
            arena = grown(self._ids.arena, end + utf8)
            self._replace(arena=arena)

        filled = int(self._ids.at[FILLED]) + ids
        if 4 * filled > 3 * len(self._ids.slots):
            wanted = 2 * (len(self) + ids)
            size = max(wanted, _FIRST_SLOTS)
            slots = np.full(size, EMPTY, np.int32)
            self._replace(slots=slots)
            insert_all(self._ids, self.used)

    def _replace(self, **arrays: Any) -> None:
        self._ids = self._ids._replace(**arrays)

    def _compact(self) -> int:
        """Leave out of the arena what forgotten ids left; returns its new end."""
        rows = self.used
        utf8, length = self.take(rows).values()
        ends = np.cumsum(length, dtype=np.int64)
        start = np.zeros_like(self._ids.start)
        start[rows] = ends - length
        self._replace(arena=utf8, start=start)
        self._ids.at[END] = len(utf8)
        return len(utf8)

    def row_of(self, raw: str) -> int | None:
        """The row of an id, None if it is not known."""
        row = int(self.known([raw])[0])
        return None if row < 0 else row

    def id_of(self, row: int) -> str:
        """The id of a row.

        Raises:
            IndexError: the row has none.
        """
        return self.ids_of([row])[0]

    def ids_of(self, rows: Sequence[int]) -> list[str]:
        """The ids of some rows, in their order.

        Raises:
            IndexError: a row has none.
        """
        ids = self._ids
        at = np.array(rows, np.int64)
        used = self.is_used(at)
        if not used.all():
            raise IndexError(f"row {at[~used][0]} has no id")
        arena = ids.arena.data
        starts = ids.start[at].tolist()
        lengths = ids.length[at].tolist()
        found = []
        for begin, length in zip(starts, lengths, strict=True):
            utf8 = arena[begin : begin + length]
            found.append(str(utf8, "utf-8", "surrogatepass"))
        return found

    @property
    def used(self) -> Rows:
        """Rows that have an id, ascending."""
        length = self._ids.length[: self.size]
        return np.flatnonzero(length >= 0)

    def is_used(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether each row has an id."""
        length = take_or_fill(self._ids.length, rows, FREE)
        return (rows >= 0) & (length >= 0)

    @property
    def unused(self) -> Rows:
        """Rows without an id below the largest that was ever in use, ascending."""
        length = self._ids.length[self.first : self.size]
        return self.first + np.flatnonzero(length < 0)

    @property
    def ids(self) -> list[str]:
        """All ids in the order of their rows; those of rows without an id are left out."""
        return self.ids_of(self.used.tolist())

    def forget(self, rows: Rows) -> None:
        """Retire rows: their ids are not known any more."""
        length = FREE if self._reuse else RETIRED
        used = rows[self.is_used(rows)]
        forget_all(self._ids, used, length)

    def give_back(self, rows: Rows) -> None:
        """Rows whose ids were forgotten may be used again."""
        give_back(self._ids, rows)

    def take(self, rows: Rows) -> Arrays:
        """The bytes of the ids of some rows, one after the other, and the length of
        each; below 0 if it has none.
        """
        length = take_or_fill(self._ids.length, rows, FREE)
        utf8 = np.empty(bytes_of(length), np.uint8)
        copy_out(self._ids, rows, length, utf8)
        return {"utf8": utf8, "length": length}

    def state(self) -> Arrays:
        rows = np.arange(self.size)
        return {"rows": rows, **self.dense(), **self.take(rows)}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        if not len(rows):
            return
        utf8 = arrays["utf8"]
        size = int(rows.max()) + 1
        used = rows[self.is_used(rows)]
        forget_all(self._ids, used, FREE)
        new_rows = max(len(rows), size - self.size)
        self._reserve(new_rows, len(utf8))
        self.size = max(self.size, size)
        copy_in(self._ids, rows, arrays["length"], utf8)
        self._ids.at[LOWEST] = self.first
