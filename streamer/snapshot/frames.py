"""Rows of a learner as bytes: a frame holds some rows of one kind, whole and checked by
itself.

    frame   = "STRM", CRC-32 of the payload (4 bytes), length of the payload (8 bytes), payload
    payload = msgpack: kind, values as JSON, and of each array its name, dtype, shape and bytes
            | the same compressed by zstd, with each array by planes: the first bytes of all its numbers, the second ...

Frames are put one after the other into a file or the records of a topic, and are sent
one by one between trainers. What is not rows goes into a frame of a kind of its own,
with no rows. Nothing is ever unpickled, so a frame from a stranger cannot run code.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from streamer.errors import CheckpointError, CorruptCheckpoint

Arrays = dict[str, NDArray[Any]]
Rows = NDArray[np.int64]

CHUNK_ROWS = 1024
"""Rows of a chunk: about a megabyte, which is copied in about a millisecond."""
NO_ROWS: Rows = np.empty(0, np.int64)
HEADER = struct.Struct("<4sIQ")
MAGIC = b"STRM"
COMPRESSION = 1
"""Level of zstd: higher ones are slower, and save nothing more of what is learned."""
ROWS = "rows"
"""The name of the array with a chunk's rows; no other may have it."""
STORED_KINDS = "fiub"
"""Kinds of dtypes that can be stored: numbers and truth values."""
UNREADABLE = (
    *(KeyError, TypeError, ValueError, zstandard.ZstdError),
    *(SyntaxError, RecursionError, MemoryError),
)
"""What numpy, JSON and zstd raise where a payload was not packed by us."""


class RowChunk(NamedTuple):
    """Some rows of one kind, and what they hold; or, without rows, arrays and JSON
    values of any sort.
    """

    kind: str
    rows: Rows
    arrays: Arrays
    values: Mapping[str, Any] = {}


class _Payload(msgspec.Struct, array_like=True):
    kind: str
    values: str
    arrays: dict[str, tuple[str, list[int], memoryview]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Payload).decode


def pack_chunk(
    kind: str,
    rows: Rows,
    arrays: Arrays,
    values: Mapping[str, Any] | None = None,
    *,
    compress: bool = False,
) -> bytes:
    """A frame that `unpack_chunk` turns back into the same chunk, bit for bit.

    Raises:
        CheckpointError: an array has a type that cannot be stored, or `values` are not
            JSON.
    """
    packed = {}
    for name, array in {ROWS: rows, **arrays}.items():
        if array.dtype.kind not in STORED_KINDS:
            raise CheckpointError(
                f"array {name!r} of dtype {array.dtype} cannot be stored"
            )
        block = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        planes = block.reshape(-1).view(np.uint8).reshape(-1, block.itemsize)
        held = np.ascontiguousarray(planes.T if compress else planes)
        packed[name] = (block.dtype.str, list(array.shape), held.data)
    try:
        text = json.dumps(values or {}, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"a checkpoint's values must be JSON: {error}") from error
    payload = _encode(_Payload(kind, text, packed))
    if compress:
        payload = zstandard.ZstdCompressor(COMPRESSION).compress(payload)
    return HEADER.pack(MAGIC, zlib.crc32(payload), len(payload)) + payload


def unpack_chunk(frame: bytes | bytearray | memoryview) -> RowChunk:
    """The chunk of a frame.

    Raises:
        CorruptCheckpoint: the frame is not as it was packed.
    """
    view = memoryview(frame)
    crc32, length = frame_header(view[: HEADER.size])
    payload = view[HEADER.size :]
    if len(payload) != length:
        raise CorruptCheckpoint(f"a frame has {len(payload)} bytes instead of {length}")
    return unpack_payload(payload, crc32)


def frame_header(header: bytes | bytearray | memoryview) -> tuple[int, int]:
    """CRC-32 and length of the payload that follows.

    Raises:
        CorruptCheckpoint: no frame begins here.
    """
    if len(header) < HEADER.size:
        raise CorruptCheckpoint("it ends inside a frame")
    magic, crc32, length = HEADER.unpack(header)
    if magic != MAGIC:
        raise CorruptCheckpoint("no frame begins where one should")
    return crc32, length


def check_payload(payload: bytes | memoryview, crc32: int) -> None:
    """See that a payload has this CRC-32.

    Raises:
        CorruptCheckpoint: it has another.
    """
    if zlib.crc32(payload) != crc32:
        raise CorruptCheckpoint("a frame does not match its checksum")


def unpack_payload(payload: bytes | memoryview, crc32: int) -> RowChunk:
    """The chunk of a frame's payload.

    Raises:
        CorruptCheckpoint: it is not as it was packed.
    """
    check_payload(payload, crc32)
    try:
        # nothing that was not compressed begins like this
        by_planes = bytes(payload[:4]) == zstandard.FRAME_HEADER
        if by_planes:
            payload = zstandard.ZstdDecompressor().decompress(payload)
        found = _decode(payload)
        arrays = {}
        for name, (dtype, shape, held) in found.arrays.items():
            stored = np.dtype(dtype)
            if stored.kind not in STORED_KINDS:
                raise ValueError(f"array {name!r} has the dtype {dtype!r}")
            block = np.frombuffer(held, np.uint8)
            planes = block.reshape(stored.itemsize, -1).T if by_planes else block
            whole = np.array(planes, order="C").reshape(-1).view(stored)
            arrays[name] = whole.reshape(shape)
        rows = arrays.pop(ROWS)
        return RowChunk(found.kind, rows, arrays, json.loads(found.values))
    except UNREADABLE as error:
        raise CorruptCheckpoint(
            f"a frame cannot be read: {type(error).__name__}: {error}"
        ) from error
