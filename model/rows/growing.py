"""Arrays that grow while the stream runs, without being copied.

The memory of an array is reserved for many times its size: pages that nobody wrote to
take none. Growing then means to use more of them, so that the old array is not held
beside the new one.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST_CAPACITY = 1024
RESERVED = 64
"""How many times an array may grow before it moves."""


def capacity_for(size: int, current: int) -> int:
    """The capacity that holds `size` rows: the current one if it does, else the next
    power of two.
    """
    if size <= current:
        return current
    return max(SMALLEST_CAPACITY, 1 << (size - 1).bit_length())


def grown(array: NDArray[Any], size: int, fill: float = 0) -> NDArray[Any]:
    """The array itself if it holds `size` rows, else a larger one whose new rows hold
    `fill`.

    The larger one may lie in the same memory: use the old one no more.
    """
    capacity = capacity_for(size, len(array))
    if capacity == len(array):
        return array
    shape = (capacity, *array.shape[1:])
    memory = array.base
    size = math.prod(shape) * array.itemsize
    fits = (
        memory is not None
        and _is_reserved(memory)
        and len(array) > 0
        and memory.nbytes >= size
    )
    if not fits:
        memory = _reserve(size)
    larger: NDArray[Any] = np.ndarray(shape, array.dtype, buffer=memory)
    if not fits:
        larger[: len(array)] = array
    if fill != 0:
        larger[len(array) :] = fill
    return larger


def _is_reserved(memory: Any) -> bool:
    return isinstance(memory, np.ndarray) and isinstance(
        getattr(memory.base, "obj", memory.base), mmap.mmap
    )


def _reserve(size: int) -> NDArray[np.uint8]:
    """Zeros, many times this number of bytes, that take no memory until they are
    written to.
    """
    flags = (
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    )
    try:
        return np.frombuffer(
            mmap.mmap(-1, max(RESERVED * size, 1), flags=flags), np.uint8
        )
    except (
        OSError,
        OverflowError,
    ):  # there is no such address space (ulimit -v, strict overcommit): move each time
        return np.zeros(size, np.uint8)
