"""How entries of the log, snapshots and caches are packed: a header in JSON, then plain little-endian arrays.

    4 bytes: length of the header | header | array | array | ...

An array takes 1, 2, 4 or 8 bytes a number, as its largest needs: most counts of an entry fit into one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.base import Counts, Increments, Rows, Span

FORMAT = 1
_TYPES = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<i8"}


class Entry(msgspec.Struct, frozen=True):
    """One addition to the shared state, as the log holds it. Rows are the store's.

    Args:
        trainer: who sent it; a name that lives as long as a process.
        last: the number of the last contribution of that trainer that is in it.
        events: how many events it counts.
        spans: where they come from.
        items: events of each item, by ascending rows.
        drawn: how often each item was resampled, by ascending rows.
    """

    trainer: str
    last: int
    events: int
    spans: tuple[Span, ...]
    items: Increments
    drawn: Increments


class _Header(msgspec.Struct):
    v: int
    lengths: list[int]
    widths: list[int]
    meta: dict[str, Any]


class Malformed(ValueError):  # noqa: N818
    """These bytes were not packed by this version of the store."""


def pack(meta: dict[str, Any], arrays: Sequence[NDArray[np.int64]]) -> bytes:
    """A header and some arrays of numbers that are not negative."""
    widths = [_width(int(a.max(initial=0))) for a in arrays]
    header = msgspec.json.encode(_Header(FORMAT, [len(a) for a in arrays], widths, meta))
    body = [a.astype(_TYPES[width], copy=False).tobytes() for a, width in zip(arrays, widths, strict=True)]
    return b"".join([len(header).to_bytes(4, "little"), header, *body])


def _width(largest: int) -> int:
    """Bytes that this number needs."""
    return next(width for width in _TYPES if width == 8 or largest < 1 << (8 * width))


def unpack(packed: bytes) -> tuple[dict[str, Any], list[NDArray[np.int64]]]:
    """What `pack` was given.

    Raises:
        Malformed: it was not packed by us.
    """
    try:
        at = 4 + int.from_bytes(packed[:4], "little")
        header = msgspec.json.decode(packed[4:at], type=_Header)
        if header.v != FORMAT:
            raise Malformed(f"format {header.v}, this version reads {FORMAT}")
        if min(header.lengths, default=0) < 0 or set(header.widths) - _TYPES.keys():
            raise Malformed(f"arrays of lengths {header.lengths} and widths {header.widths}")
        arrays = []
        for length, width in zip(header.lengths, header.widths, strict=True):
            found = np.frombuffer(packed, _TYPES[width], length, at)
            arrays.append(found.astype(np.int64))
            at += length * width
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise Malformed(str(error)) from error
    if at != len(packed):
        raise Malformed(f"{len(packed)} bytes where its header says {at}")
    if any(len(a) and int(a.min()) < 0 for a, width in zip(arrays, header.widths, strict=True) if width == 8):
        raise Malformed("numbers below zero")
    return header.meta, arrays


def pack_entry(entry: Entry) -> bytes:
    """An entry of the log. Instead of rows it has their differences, which are small."""
    meta = {"t": entry.trainer, "n": entry.last, "e": entry.events, "s": entry.spans}
    items, drawn = entry.items, entry.drawn
    return pack(meta, [_differences(items.rows), items.counts, _differences(drawn.rows), drawn.counts])


def _differences(rows: Rows) -> Rows:
    """Of each row to the one before; the first stays."""
    found = rows.copy()
    found[1:] -= rows[:-1]
    return found


def unpack_entry(packed: bytes) -> Entry:
    """What `pack_entry` was given.

    Raises:
        Malformed: it was not packed by us.
    """
    meta, arrays = unpack(packed)
    try:
        spans = tuple(Span(str(p), int(a), int(b)) for p, a, b in meta["s"])
        differences, counts, drawn_differences, drawn_counts = arrays
        items, drawn = _increments(differences, counts), _increments(drawn_differences, drawn_counts)
        return Entry(str(meta["t"]), int(meta["n"]), int(meta["e"]), spans, items, drawn)
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise Malformed(f"not an entry: {error}") from error


def _increments(differences: Rows, counts: Counts) -> Increments:
    if len(differences) != len(counts):
        raise ValueError(f"{len(differences)} rows with {len(counts)} counts")
    rows = np.cumsum(differences)
    if int(rows.min(initial=0)) < 0:
        raise ValueError("rows beyond all bounds")
    return Increments(rows, counts)


def pack_rows(rows: Rows) -> bytes:
    """A cache."""
    return pack({}, [rows])


def unpack_rows(packed: bytes) -> Rows:
    """What `pack_rows` was given.

    Raises:
        Malformed: it was not packed by us.
    """
    _, arrays = unpack(packed)
    if len(arrays) != 1:
        raise Malformed("not a cache")
    return arrays[0]


def fingerprint(ids: Iterable[str], before: str = "") -> str:
    """Of item ids in the order of their rows; `before` is that of the ids before these."""
    for raw in ids:
        before = hashlib.sha1(before.encode() + raw.encode(), usedforsecurity=False).hexdigest()
    return before


def summed(parts: Sequence[Increments]) -> Increments:
    """Increments with distinct rows, in ascending order: the sum of all of them."""
    rows = np.concatenate([p.rows for p in parts]) if parts else np.empty(0, np.int64)
    counts = np.concatenate([p.counts for p in parts]) if parts else np.empty(0, np.int64)
    distinct, place = np.unique(rows, return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, place, counts)
    keep = total > 0
    return Increments(distinct[keep], total[keep])
