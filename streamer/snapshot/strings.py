"""Many strings as two arrays: how id maps of millions of ids go into a checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamer.errors import CorruptCheckpoint


def pack_strings(strings: Sequence[str], name: str) -> dict[str, np.ndarray]:
    """Two arrays, which a checkpoint stores far faster than JSON. Any string survives,
    lone surrogates included.

    `NAME.utf8`: uint8, all strings one after the other; `NAME.offsets`: int64, where
    each begins, and the end.
    """
    text = "".join(strings)
    if (
        text.isascii()
    ):  # then characters are bytes, and nothing needs to be encoded one by one
        blob = text.encode()
        lengths = map(len, strings)
    else:
        encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
        blob = b"".join(encoded)
        lengths = map(len, encoded)
    offsets = np.zeros(len(strings) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(lengths, dtype=np.int64, count=len(strings)), out=offsets[1:])
    return {
        f"{name}.utf8": np.frombuffer(blob, dtype=np.uint8),
        f"{name}.offsets": offsets,
    }


def unpack_strings(tensors: Mapping[str, Any], name: str) -> list[str]:
    """The strings that `pack_strings` packed under this name.

    Raises:
        CorruptCheckpoint: the arrays are missing, or do not fit each other.
    """
    try:
        blob = np.asarray(tensors[f"{name}.utf8"], dtype=np.uint8).tobytes()
        offsets = np.asarray(tensors[f"{name}.offsets"], dtype=np.int64)
    except KeyError as error:
        raise CorruptCheckpoint(
            f"there is no array {error} in the checkpoint"
        ) from error
    if (
        not len(offsets)
        or offsets[0] != 0
        or offsets[-1] != len(blob)
        or (np.diff(offsets) < 0).any()
    ):
        raise CorruptCheckpoint(
            f"the offsets of the strings {name!r} do not fit their bytes"
        )
    pairs = itertools.pairwise(offsets.tolist())
    if blob.isascii():
        text = blob.decode()
        return [text[start:end] for start, end in pairs]
    try:
        return [
            blob[start:end].decode("utf-8", "surrogatepass") for start, end in pairs
        ]
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(
            f"the strings {name!r} are not UTF-8: {error}"
        ) from error
