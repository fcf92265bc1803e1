"""The order of a stream: by time, equal times shuffled by a seed.

The shuffle is ours, not the database's, so that a seed means the same order for ever. A row's key is its number, mixed
twice by a bijection of 32 bits; rows beyond 2^32 share keys, and then stand in the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASK = 0xFFFFFFFF
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B  # of a multiply-xorshift mixer with little bias


def keyed_sql(table: str, seed: int) -> str:
    """SQL of a table that has the number of each row in `n`, with its key in `k` besides.

    A step a subquery: written as one expression, each step would hold the one before several times. The product of two
    numbers of 32 bits fits in 64.
    """
    low, high = _salts(seed)
    sql = f"SELECT *, xor(xor(n::UBIGINT & {_MASK}, n::UBIGINT >> 32), {low}::UBIGINT) AS k FROM {table}"
    mix = (
        f"(xor(k, k >> 16) * {_FIRST}::UBIGINT) & {_MASK}",
        f"(xor(k, k >> 15) * {_SECOND}::UBIGINT) & {_MASK}",
        "xor(k, k >> 16)",
    )
    for step in (*mix, f"(k + {high}::UBIGINT) & {_MASK}", *mix):
        sql = f"SELECT * REPLACE ({step} AS k) FROM ({sql})"
    return sql


def keys(rows: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    """The same keys in numpy."""
    low, high = _salts(seed)
    x = rows.astype(np.uint64)
    mask = np.uint64(_MASK)
    folded = (x & mask) ^ (x >> np.uint64(32))
    return _mixed((_mixed(folded ^ np.uint64(low)) + np.uint64(high)) & mask)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mask = np.uint64(_MASK)
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(_FIRST)) & mask
    x = ((x ^ (x >> np.uint64(15))) * np.uint64(_SECOND)) & mask
    return x ^ (x >> np.uint64(16))


def _salts(seed: int) -> tuple[int, int]:
    """Two numbers of 32 bits that neighbouring seeds do not share."""
    salt = next(splitmix64(seed))
    return salt & _MASK, salt >> 32


def splitmix64(seed: int) -> Iterator[int]:
    """Numbers of 64 bits."""
    state, mask = seed, (1 << 64) - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)
