"""Arrays that grow while the stream runs: capacity doubles, so that growth costs O(1) a row on average."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST_CAPACITY = 1024


def capacity_for(size: int, current: int) -> int:
    """The capacity that holds `size` rows: the current one if it does, else the next power of two."""
    if size <= current:
        return current
    return max(SMALLEST_CAPACITY, 1 << (size - 1).bit_length())


def grown(array: NDArray[Any], size: int, fill: float = 0) -> NDArray[Any]:
    """The array itself if it holds `size` rows, else a larger copy whose new rows hold `fill`."""
    capacity = capacity_for(size, len(array))
    if capacity == len(array):
        return array
    shape = (capacity, *array.shape[1:])
    larger = np.zeros(shape, array.dtype) if fill == 0 else np.full(shape, fill, array.dtype)
    larger[: len(array)] = array
    return larger
