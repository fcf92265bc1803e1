"""Rows of a learner as bytes: a frame holds some rows of one kind, whole and checked by
itself.

    frame   = "STRM", CRC-32 of the payload (4 bytes), length of the payload (8 bytes), payload
    payload = length of the header (8 bytes), header, arrays one after the other
            | the same compressed by zstd, with each array by planes: the first bytes of all its numbers, the second ...
    header  = JSON: dtype, shape and place of each array by its name; `kind` and `values` as `__metadata__`

Frames are put one after the other into a file or the records of a topic, and are sent
one by one between trainers. What is not rows goes into a frame of a kind of its own,
with no rows. Nothing is ever unpickled, so a frame from a stranger cannot run code.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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

_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


class RowChunk(NamedTuple):
    """Some rows of one kind, and what they hold; or, without rows, arrays and JSON
    values of any sort.
    """

    kind: str
    rows: Rows
    arrays: Arrays
    values: Mapping[str, Any] = {}


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
    header: dict[str, Any] = {
        "__metadata__": {"kind": kind, "values": _to_json(values or {})}
    }
    parts: list[Any] = []
    end = 0
    named = {ROWS: rows, **arrays}
    # the widest numbers come first, so that each array is aligned
    for name in sorted(named, key=lambda name: -named[name].dtype.itemsize):
        array = np.asarray(named[name])
        block = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        if block.dtype not in _NAMES:
            raise CheckpointError(
                f"array {name!r} of dtype {array.dtype} cannot be stored"
            )
        header[name] = {
            "dtype": _NAMES[block.dtype],
            "shape": array.shape,
            "data_offsets": [end, end + block.nbytes],
        }
        planes = block.reshape(-1).view(np.uint8).reshape(-1, block.itemsize)
        parts.append(np.ascontiguousarray(planes.T if compress else planes))
        end += block.nbytes
    described = _to_json(header).encode()
    described += b" " * (-len(described) % 8)
    parts[:0] = [len(described).to_bytes(8, "little"), described]
    if compress:
        parts = [zstandard.ZstdCompressor(COMPRESSION).compress(b"".join(parts))]
    crc32 = length = 0
    for part in parts:
        crc32 = zlib.crc32(part, crc32)
        length = length + memoryview(part).nbytes
    return b"".join([HEADER.pack(MAGIC, crc32, length), *parts])


def unpack_chunk(frame: bytes | bytearray | memoryview) -> RowChunk:
    """The chunk of a frame. Unless it is compressed, its arrays are views of it: they
    can be written to only if it can.

    Raises:
        CorruptCheckpoint: the frame is not as it was packed.
    """
    view = memoryview(frame)
    crc32, length = frame_header(view[: HEADER.size])
    if len(view) != HEADER.size + length:
        raise CorruptCheckpoint(
            f"a frame has {len(view)} bytes instead of {HEADER.size + length}"
        )
    if zlib.crc32(view[HEADER.size :]) != crc32:
        raise CorruptCheckpoint("a frame does not match its checksum")
    return unpack_payload(view[HEADER.size :])


def split_frames(run: bytes | memoryview) -> Iterator[memoryview]:
    """The frames of a run of them.

    Raises:
        CorruptCheckpoint: it does not consist of frames.
    """
    view = memoryview(run)
    while view:
        _, length = frame_header(view[: HEADER.size])
        yield view[: HEADER.size + length]
        view = view[HEADER.size + length :]


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


def unpack_payload(payload: bytearray | memoryview) -> RowChunk:
    """The chunk of a frame's payload, which was checked before; see `unpack_chunk`.

    Raises:
        CorruptCheckpoint: it is none.
    """
    try:
        # no header is as long as these bytes would mean
        by_planes = bytes(payload[:4]) == zstandard.FRAME_HEADER
        blob = payload
        if by_planes:
            blob = bytearray(zstandard.ZstdDecompressor().decompress(payload))
        begin = 8 + int.from_bytes(blob[:8], "little")
        header = json.loads(bytes(blob[8:begin]))
        about = header.pop("__metadata__")
        arrays = {
            name: _array(blob, begin, entry, by_planes)
            for name, entry in header.items()
        }
        return RowChunk(
            about["kind"], arrays.pop(ROWS), arrays, json.loads(about["values"])
        )
    except (KeyError, TypeError, ValueError, zstandard.ZstdError) as error:
        raise CorruptCheckpoint(
            f"a frame cannot be read: {type(error).__name__}: {error}"
        ) from error


def _array(
    blob: bytearray | memoryview, begin: int, entry: dict[str, Any], by_planes: bool
) -> NDArray[Any]:
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    first, last = entry["data_offsets"]
    at = begin + first if last > first else 0
    held = np.frombuffer(blob, np.uint8, last - first, at)
    if by_planes:
        held = np.ascontiguousarray(held.reshape(dtype.itemsize, -1).T).reshape(-1)
    return held.view(dtype).reshape(entry["shape"])


def _to_json(value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"a checkpoint's values must be JSON: {error}") from error
