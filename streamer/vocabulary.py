"""Raw ids and table rows, without a Python object for any id.

The bytes of all ids lie in one arena, in the order in which they came; an
open-addressing hash table leads from an id to its row. About 25 bytes an id and its
text, where a dict of strings takes 130. Rows are given back and used again: a new id
gets the lowest row that is free, so that which rows are in use determines what comes
next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows
from streamer.model.jit import inlined, njit_allocating, njit_borrowing
from streamer.model.rows.by_rows import Arrays, ByRows, take_or_fill
from streamer.model.rows.growing import grown

Bytes = NDArray[np.uint8]

FREE = -1
RETIRED = -2
"""Lengths that stand for no id: the row may be used, or it waits until nothing refers
to it any more.
"""
_EMPTY = -1
_LEFT = -2
"""Slots of the hash table without a row: never used, or left by a forgotten id."""
_FIRST_SLOTS = 1024

# what `Ids.at` holds
_END = 0
_USED = 1
_FILLED = 2
_LOWEST = 3


class Ids(NamedTuple):
    """What the compiled loops work on.

    Args:
        arena: [A] the bytes of all ids.
        start: [R] where the id of each row begins.
        length: [R] its bytes; `FREE` or `RETIRED` if the row has no id.
        slots: [S] the hash table: rows, `_EMPTY` or `_LEFT`.
        at: [4] the end of the arena (`_END`), ids in use (`_USED`), slots that are not
            empty (`_FILLED`), and the lowest row that may be free (`_LOWEST`).
    """

    arena: Bytes
    start: Rows
    length: NDArray[np.int32]
    slots: NDArray[np.int32]
    at: Rows


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
            np.full(_FIRST_SLOTS, _EMPTY, np.int32),
            np.array([0, 0, 0, self.first]),
        )

    def __len__(self) -> int:
        return int(self._ids.at[_USED])

    @property
    def nbytes(self) -> int:
        ids = self._ids
        a_row = ids.start.itemsize + ids.length.itemsize
        return int(ids.at[_END]) + self.size * a_row + ids.slots.nbytes

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
        _find_all(self._ids, utf8, offsets, found, False)
        is_new = found < 0
        new = {ids[k] for k in np.flatnonzero(is_new).tolist()}
        if new:
            self._reserve(len(new), len(utf8))
            if before_write is not None:
                free = _free(self._ids, len(new))
                before_write(free)
            _find_all(self._ids, utf8, offsets, found, True)
            largest = int(found.max())
            self.size = max(self.size, largest + 1)
        return found

    def known(self, ids: Sequence[str]) -> Rows:
        """The row of each id, -1 if it has none."""
        found = np.full(len(ids), -1)
        _find_all(self._ids, *packed(ids), found, False)
        return found

    def _reserve(self, ids: int, utf8: int) -> None:
        """Make room for this many further ids with this many bytes; what forgotten ids
        left is used again.
        """
        rows = self.size + ids
        start = grown(self._ids.start, rows)
        length = grown(self._ids.length, rows, FREE)
        self._replace(start=start, length=length)

        end = int(self._ids.at[_END])
        if end + utf8 > len(self._ids.arena):
            in_use = _bytes_of(length[: self.size])
            if end > 2 * in_use:
                end = self._compact()
            arena = grown(self._ids.arena, end + utf8)
            self._replace(arena=arena)

        filled = int(self._ids.at[_FILLED]) + ids
        if 4 * filled > 3 * len(self._ids.slots):
            wanted = 2 * (len(self) + ids)
            size = max(wanted, _FIRST_SLOTS)
            slots = np.full(size, _EMPTY, np.int32)
            self._replace(slots=slots)
            _insert_all(self._ids, self.used)

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
        self._ids.at[_END] = len(utf8)
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

    @property
    def by_row(self) -> IdsByRow:
        """All ids, to be indexed by row."""
        return IdsByRow(self)

    def forget(self, rows: Rows) -> None:
        """Retire rows: their ids are not known any more."""
        length = FREE if self._reuse else RETIRED
        used = rows[self.is_used(rows)]
        _forget_all(self._ids, used, length)

    def give_back(self, rows: Rows) -> None:
        """Rows whose ids were forgotten may be used again."""
        _give_back(self._ids, rows)

    def take(self, rows: Rows) -> Arrays:
        """The bytes of the ids of some rows, one after the other, and the length of
        each; below 0 if it has none.
        """
        length = take_or_fill(self._ids.length, rows, FREE)
        utf8 = np.empty(_bytes_of(length), np.uint8)
        _copy_out(self._ids, rows, length, utf8)
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
        _forget_all(self._ids, used, FREE)
        new_rows = max(len(rows), size - self.size)
        self._reserve(new_rows, len(utf8))
        self.size = max(self.size, size)
        _copy_in(self._ids, rows, arrays["length"], utf8)
        self._ids.at[_LOWEST] = self.first


class IdsByRow(Sequence[str]):
    """The ids of a vocabulary by row, without a copy."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return self._vocabulary.size

    def __getitem__(self, row: Any) -> Any:
        return self._vocabulary.id_of(row)


def packed(ids: Sequence[str]) -> tuple[Bytes, Rows]:
    """The bytes of ids one after the other, and where each begins, with the end."""
    text = "".join(ids)
    if text.isascii():  # then characters are bytes: nothing is encoded one by one
        blob = text.encode()
        lengths = map(len, ids)
    else:
        encoded = [each.encode("utf-8", "surrogatepass") for each in ids]
        blob = b"".join(encoded)
        lengths = map(len, encoded)
    offsets = np.zeros(len(ids) + 1, np.int64)
    offsets[1:] = np.fromiter(lengths, np.int64, len(ids))
    np.cumsum(offsets, out=offsets)
    return np.frombuffer(blob, np.uint8), offsets


def _bytes_of(length: NDArray[np.int32]) -> int:
    """Bytes of all ids, of rows some of which have none."""
    return int(np.maximum(length, 0).sum())


@inlined
def hash_of(utf8: Bytes, start: int, stop: int) -> np.uint64:
    """FNV-1a, its bits mixed once more: the low ones choose the slot."""
    h = np.uint64(0xCBF29CE484222325)
    for k in range(start, stop):
        h ^= np.uint64(utf8[k])
        h *= np.uint64(0x100000001B3)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0x9E3779B97F4A7C15)
    h ^= h >> np.uint64(29)
    return h


@inlined
def _home(h: np.uint64, slots: int) -> np.int64:
    """The slot where an id belongs if it is free; there may be any number of slots."""
    h >>= np.uint64(32)
    h *= np.uint64(slots)
    h >>= np.uint64(32)
    return np.int64(h)


@inlined
def _next(slot: np.int64, slots: int) -> np.int64:
    slot += np.int64(1)
    return slot if slot < slots else np.int64(0)


@inlined
def _is_id(ids: Ids, row: int, utf8: Bytes, start: int, stop: int) -> bool:
    """Whether a row has the id of these bytes."""
    length = stop - start
    if ids.length[row] != length:
        return False
    begin = ids.start[row]
    k = 0
    while k < length and ids.arena[begin + k] == utf8[start + k]:
        k += 1
    return k == length


@njit_borrowing
def _slot(ids: Ids, utf8: Bytes, start: int, stop: int) -> int:
    """The slot that holds the row of an id; if none does, -1 minus the slot where it
    belongs.
    """
    h = hash_of(utf8, start, stop)
    slot = _home(h, len(ids.slots))
    left = np.int64(-1)
    while ids.slots[slot] != _EMPTY:
        row = ids.slots[slot]
        if row == _LEFT:
            if left < 0:
                left = slot
        elif _is_id(ids, row, utf8, start, stop):
            return int(slot)
        slot = _next(slot, len(ids.slots))
    if left < 0:
        left = slot
    return int(-1 - left)


@inlined
def _free_row(ids: Ids, row: int) -> int:
    """The first free row from this one on; there is one."""
    while ids.length[row] != FREE:
        row += 1
    return row


@njit_borrowing
def _find_all(ids: Ids, utf8: Bytes, offsets: Rows, found: Rows, add: bool) -> None:
    for i in range(len(found)):
        if found[i] >= 0:
            continue
        start = offsets[i]
        stop = offsets[i + 1]
        slot = _slot(ids, utf8, start, stop)
        if slot >= 0:
            found[i] = ids.slots[slot]
        elif add:
            row = _free_row(ids, ids.at[_LOWEST])
            ids.at[_LOWEST] = row + 1
            found[i] = row
            _set(ids, row, utf8, start, stop, -1 - slot)


@njit_allocating
def _free(ids: Ids, count: int) -> Rows:
    """The rows that the next new ids get; there is room for them."""
    found = np.empty(count, np.int64)
    row = ids.at[_LOWEST]
    for k in range(count):
        found[k] = _free_row(ids, row)
        row = found[k] + 1
    return found


@njit_borrowing
def _set(ids: Ids, row: int, utf8: Bytes, start: int, stop: int, slot: int) -> None:
    end = ids.at[_END]
    length = stop - start
    ids.start[row] = end
    ids.length[row] = length
    for k in range(length):
        ids.arena[end + k] = utf8[start + k]
    ids.at[_END] += length
    ids.at[_USED] += 1
    if ids.slots[slot] == _EMPTY:
        ids.at[_FILLED] += 1
    ids.slots[slot] = row


@njit_borrowing
def _insert_all(ids: Ids, rows: Rows) -> None:
    """Fill an empty hash table with rows that have ids."""
    ids.at[_FILLED] = len(rows)
    for row in rows:
        start = ids.start[row]
        stop = start + ids.length[row]
        h = hash_of(ids.arena, start, stop)
        slot = _home(h, len(ids.slots))
        while ids.slots[slot] != _EMPTY:
            slot = _next(slot, len(ids.slots))
        ids.slots[slot] = row


@njit_borrowing
def _forget_all(ids: Ids, rows: Rows, length: int) -> None:
    for row in rows:
        start = ids.start[row]
        stop = start + ids.length[row]
        slot = _slot(ids, ids.arena, start, stop)
        ids.slots[slot] = _LEFT
        ids.length[row] = length
        ids.at[_USED] -= 1
        if length == FREE:
            ids.at[_LOWEST] = min(ids.at[_LOWEST], row)


@njit_borrowing
def _give_back(ids: Ids, rows: Rows) -> None:
    for row in rows:
        ids.length[row] = FREE
        ids.at[_LOWEST] = min(ids.at[_LOWEST], row)


@njit_borrowing
def _copy_out(ids: Ids, rows: Rows, length: NDArray[np.int32], utf8: Bytes) -> None:
    to = 0
    for i in range(len(rows)):
        start = ids.start[rows[i]]
        for k in range(length[i]):
            utf8[to + k] = ids.arena[start + k]
        to += max(length[i], 0)


@njit_borrowing
def _copy_in(ids: Ids, rows: Rows, length: NDArray[np.int32], utf8: Bytes) -> None:
    start = 0
    for i in range(len(rows)):
        row = rows[i]
        if length[i] < 0:
            ids.length[row] = length[i]
            continue
        stop = start + length[i]
        slot = _slot(ids, utf8, start, stop)
        if slot < 0:
            slot = -1 - slot
        else:  # another row had it, whose own news have not come yet
            other = ids.slots[slot]
            ids.length[other] = FREE
            ids.at[_USED] -= 1
        _set(ids, row, utf8, start, stop, slot)
        start = stop
