"""The hash table of ids: from the bytes of an id to its row.

The bytes of all ids lie in one arena, in the order in which they came; an
open-addressing hash table leads from an id to its row. About 25 bytes an id and its
text, where a dict of strings takes 130.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows
from streamer.model.jit import inlined, njit_allocating, njit_borrowing

Bytes = NDArray[np.uint8]

FREE = -1
RETIRED = -2
"""Lengths that stand for no id: the row may be used, or it waits until nothing refers
to it any more.
"""
EMPTY = -1
_LEFT = -2
"""Slots of the hash table without a row: never used, or left by a forgotten id."""

# what `Ids.at` holds
END = 0
USED = 1
FILLED = 2
LOWEST = 3


class Ids(NamedTuple):
    """What the compiled loops work on.

    Args:
        arena: [A] the bytes of all ids.
        start: [R] where the id of each row begins.
        length: [R] its bytes; `FREE` or `RETIRED` if the row has no id.
        slots: [S] the hash table: rows, `EMPTY` or `_LEFT`.
        at: [4] the end of the arena (`END`), ids in use (`USED`), slots that are not
            empty (`FILLED`), and the lowest row that may be free (`LOWEST`).
    """

    arena: Bytes
    start: Rows
    length: NDArray[np.int32]
    slots: NDArray[np.int32]
    at: Rows


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


def bytes_of(length: NDArray[np.int32]) -> int:
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
    while ids.slots[slot] != EMPTY:
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
def find_all(ids: Ids, utf8: Bytes, offsets: Rows, found: Rows, add: bool) -> None:
    for i in range(len(found)):
        if found[i] >= 0:
            continue
        start = offsets[i]
        stop = offsets[i + 1]
        slot = _slot(ids, utf8, start, stop)
        if slot >= 0:
            found[i] = ids.slots[slot]
        elif add:
            row = _free_row(ids, ids.at[LOWEST])
            ids.at[LOWEST] = row + 1
            found[i] = row
            _set(ids, row, utf8, start, stop, -1 - slot)


@njit_allocating
def next_free_rows(ids: Ids, count: int) -> Rows:
    """The rows that the next new ids get; there is room for them."""
    found = np.empty(count, np.int64)
    row = ids.at[LOWEST]
    for k in range(count):
        found[k] = _free_row(ids, row)
        row = found[k] + 1
    return found


@njit_borrowing
def _set(ids: Ids, row: int, utf8: Bytes, start: int, stop: int, slot: int) -> None:
    end = ids.at[END]
    length = stop - start
    ids.start[row] = end
    ids.length[row] = length
    for k in range(length):
        ids.arena[end + k] = utf8[start + k]
    ids.at[END] += length
    ids.at[USED] += 1
    if ids.slots[slot] == EMPTY:
        ids.at[FILLED] += 1
    ids.slots[slot] = row


@njit_borrowing
def insert_all(ids: Ids, rows: Rows) -> None:
    """Fill an empty hash table with rows that have ids."""
    ids.at[FILLED] = len(rows)
    for row in rows:
        start = ids.start[row]
        stop = start + ids.length[row]
        h = hash_of(ids.arena, start, stop)
        slot = _home(h, len(ids.slots))
        while ids.slots[slot] != EMPTY:
            slot = _next(slot, len(ids.slots))
        ids.slots[slot] = row


@njit_borrowing
def forget_all(ids: Ids, rows: Rows, length: int) -> None:
    for row in rows:
        start = ids.start[row]
        stop = start + ids.length[row]
        slot = _slot(ids, ids.arena, start, stop)
        ids.slots[slot] = _LEFT
        ids.length[row] = length
        ids.at[USED] -= 1
        if length == FREE:
            ids.at[LOWEST] = min(ids.at[LOWEST], row)


@njit_borrowing
def give_back(ids: Ids, rows: Rows) -> None:
    for row in rows:
        ids.length[row] = FREE
        ids.at[LOWEST] = min(ids.at[LOWEST], row)


@njit_borrowing
def copy_out(ids: Ids, rows: Rows, length: NDArray[np.int32], utf8: Bytes) -> None:
    to = 0
    for i in range(len(rows)):
        start = ids.start[rows[i]]
        for k in range(length[i]):
            utf8[to + k] = ids.arena[start + k]
        to += max(length[i], 0)


@njit_borrowing
def copy_in(ids: Ids, rows: Rows, length: NDArray[np.int32], utf8: Bytes) -> None:
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
            ids.at[USED] -= 1
        _set(ids, row, utf8, start, stop, slot)
        start = stop
