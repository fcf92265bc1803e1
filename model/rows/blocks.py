"""Many lists in one pool of memory, each in a block whose size is a power of two.

A list that outgrows its block moves to a larger one. The block that it leaves goes to
the next list that needs one of that size: blocks of one size that nobody uses are a
chain, in which the first place of each holds where the next one begins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Ints, Rows
from streamer.model.jit import inlined, njit_borrowing
from streamer.model.rows.growing import grown

_SIZES = 40


class Blocks(NamedTuple):
    """Which block of the pool each row has."""

    start: Ints  # [R] where it begins
    bits: NDArray[np.int8]  # [R] log2 of its size; 0 if the row has none
    # [40] by log2 of the size, where an unused block begins; -1 if none does
    free: Rows
    end: Rows  # [1] the first place of the pool that was never part of a block

    @classmethod
    def empty(cls) -> Blocks:
        """No row has a block."""
        return cls(
            np.empty(0, np.int32),
            np.empty(0, np.int8),
            np.full(_SIZES, -1),
            np.zeros(1, np.int64),
        )

    def reserve(self, rows: int) -> Blocks:
        """The same with room for this many rows."""
        start = grown(self.start, rows)
        bits = grown(self.bits, rows)
        return self._replace(start=start, bits=bits)


@inlined
def block_size(blocks: Blocks, row: int) -> int:
    """Places of a row's block."""
    return (1 << blocks.bits[row]) if blocks.bits[row] > 0 else 0


@inlined
def bits_for(places: int, smallest: int) -> int:
    """log2 of the size of the block that so many places need."""
    bits = smallest
    while (1 << bits) < places:
        bits += 1
    return bits


@njit_borrowing
def take_block(blocks: Blocks, pool: Ints, bits: int) -> int:
    """Where a block of this size begins that no row has; the pool has room for it."""
    start = blocks.free[bits]
    if start >= 0:
        blocks.free[bits] = pool[start]
    else:
        start = blocks.end[0]
        blocks.end[0] += 1 << bits
    return int(start)


@njit_borrowing
def free_block(
    blocks: Blocks,
    pool: Ints,
    start: int,
    bits: int,
) -> None:
    """A block, if it has any places, may be taken by others."""
    if bits > 0:
        pool[start] = blocks.free[bits]
        blocks.free[bits] = start


@njit_borrowing
def leave_block(blocks: Blocks, pool: Ints, row: int) -> None:
    """A row's block, if it has one, may be taken by others."""
    free_block(blocks, pool, blocks.start[row], blocks.bits[row])
    blocks.bits[row] = 0
