"""How entries of the log, snapshots and caches are packed into bytes: a JSON header,
then little-endian arrays.

    4 bytes: length of the header | header | array | array | ...

A number takes 1, 2, 4 or 8 bytes, as the largest of its array needs: most counts of an
entry fit into one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.contribution import (
    NO_ROWS,
    Counts,
    Increments,
    OffsetSpan,
    Rows,
)

FORMAT = 1
_TYPES = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<i8"}


class StoreDelta(msgspec.Struct, frozen=True):
    """What one entry of the log adds to the shared state. Rows are the store's."""

    trainer: str  # who sent it; a name that lives as long as a process
    last: int  # the number of that trainer's last contribution that is in it
    events: int  # that it counts
    spans: tuple[OffsetSpan, ...]  # where they come from
    items: Increments  # events of each item, by ascending rows
    drawn: Increments  # how often each item was resampled, by ascending rows
    retired: Rows = msgspec.field(
        default_factory=lambda: NO_ROWS
    )  # rows that have no item from here on, ascending


class _Header(msgspec.Struct):
    v: int
    lengths: list[int]
    widths: list[int]
    meta: dict[str, Any]


class MalformedEntry(ValueError):  # noqa: N818
    """This version of the store has not packed these bytes."""


def pack(meta: dict[str, Any], arrays: Sequence[NDArray[np.int64]]) -> bytes:
    """A header and arrays of numbers, none of them negative, as bytes."""
    largest = [int(array.max(initial=0)) for array in arrays]
    widths = [
        next(width for width in _TYPES if width == 8 or most < 1 << (8 * width))
        for most in largest
    ]
    header = msgspec.json.encode(
        _Header(FORMAT, [len(a) for a in arrays], widths, meta)
    )
    body = [
        a.astype(_TYPES[width], copy=False).tobytes()
        for a, width in zip(arrays, widths, strict=True)
    ]
    return b"".join([len(header).to_bytes(4, "little"), header, *body])


def unpack(packed: bytes) -> tuple[dict[str, Any], list[NDArray[np.int64]]]:
    """The header and the arrays that `pack` has packed; `Malformed` if it has not
    packed this.
    """
    try:
        at = 4 + int.from_bytes(packed[:4], "little")
        header = msgspec.json.decode(packed[4:at], type=_Header)
        if header.v != FORMAT:
            raise MalformedEntry(f"format {header.v}, this version reads {FORMAT}")
        if min(header.lengths, default=0) < 0 or set(header.widths) - _TYPES.keys():
            raise MalformedEntry(
                f"arrays of lengths {header.lengths} and widths {header.widths}"
            )
        arrays = []
        for length, width in zip(header.lengths, header.widths, strict=True):
            arrays.append(
                np.frombuffer(packed, _TYPES[width], length, at).astype(np.int64)
            )
            at += length * width
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedEntry(str(error)) from error
    if at != len(packed):
        raise MalformedEntry(f"{len(packed)} bytes; its header says {at}")
    if any(int(array.min(initial=0)) < 0 for array in arrays):
        raise MalformedEntry("numbers below zero")
    return header.meta, arrays


def pack_delta(delta: StoreDelta) -> bytes:
    """An entry of the log. Instead of rows it has their differences, which are small."""
    meta = {"t": delta.trainer, "n": delta.last, "e": delta.events, "s": delta.spans}
    items = delta.items
    drawn = delta.drawn
    arrays = [
        np.diff(items.rows, prepend=0),
        items.counts,
        np.diff(drawn.rows, prepend=0),
        drawn.counts,
    ]
    return pack(
        meta,
        [*arrays, np.diff(delta.retired, prepend=0)] if len(delta.retired) else arrays,
    )


def unpack_delta(packed: bytes, items: int) -> StoreDelta:
    """The delta that `pack_delta` has packed; `Malformed` if it has not packed this for
    that number of items.
    """
    meta, arrays = unpack(packed)
    try:
        spans = tuple(OffsetSpan(str(p), int(a), int(b)) for p, a, b in meta["s"])
        row_steps, counts, drawn_row_steps, drawn_counts, *more = arrays
        retired = _of_items(np.cumsum(more.pop()), items) if more else NO_ROWS
        if more:
            raise ValueError(f"{len(arrays)} arrays")
        added = _increments(row_steps, counts, items)
        drawn = _increments(drawn_row_steps, drawn_counts, items)
        return StoreDelta(
            str(meta["t"]), int(meta["n"]), int(meta["e"]), spans, added, drawn, retired
        )
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise MalformedEntry(f"not an entry of the log: {error}") from error


def _increments(row_steps: Rows, counts: Counts, items: int) -> Increments:
    if len(row_steps) != len(counts):
        raise ValueError(f"{len(row_steps)} rows with {len(counts)} counts")
    return Increments(_of_items(np.cumsum(row_steps), items), counts)


def _of_items(rows: Rows, items: int) -> Rows:
    """Rows of whoever wrote them: nobody may make us allocate memory for rows that no
    item has.
    """
    if int(rows.min(initial=0)) < 0 or int(rows.max(initial=-1)) >= items:
        raise ValueError(
            f"it names row {int(rows.max()):,}, and there are {items:,} items"
        )
    return rows


def pack_rows(rows: Rows) -> bytes:
    """A cache as bytes."""
    return pack({}, [rows])


def unpack_rows(packed: bytes, items: int) -> Rows:
    """The rows that `pack_rows` has packed; `Malformed` if it has not packed this for
    that number of items.
    """
    _, arrays = unpack(packed)
    if len(arrays) != 1:
        raise MalformedEntry("not a cache")
    try:
        return _of_items(arrays[0], items)
    except ValueError as error:
        raise MalformedEntry(str(error)) from error


def fingerprint(ids: Iterable[str], before: str = "") -> str:
    """A hash of item ids in the order of their rows; `before` is the hash of the ids
    before these.
    """
    for raw in ids:
        before = hashlib.sha1(
            before.encode() + raw.encode(), usedforsecurity=False
        ).hexdigest()
    return before
