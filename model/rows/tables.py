"""Embedding tables that grow, each row with its optimizer state beside its weights.

A step touches a few thousand rows out of perhaps ten million, in no order. Weights and
optimizer state of a row therefore stand together in one line of memory: one miss
instead of three. A new row's weights depend only on the table's seed and the row's
number, not on when the table grew, so that a restart or another trainer makes the same
row.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from streamer.model.batch import Floats, Rows
from streamer.model.device import in_host_memory, to_device
from streamer.model.jit import mixed, njit_borrowing
from streamer.model.rows.by_rows import Arrays, ByRows
from streamer.model.rows.growing import capacity_for, grown

_AT_ONCE = 1 << 16
"""New rows whose weights are made together."""


class EmbeddingTable(ByRows):
    """A growing matrix of weights with room for per-row optimizer state.

    Args:
        dim: numbers in a row's vector.
        slots: how many vectors of optimizer state stand behind the weights.
        numbers: how many single numbers of optimizer state stand behind those.
        std: standard deviation of new weights; 0 starts at zero.
        seed: determines all new rows.
        device: where the table lives.
    """

    def __init__(
        self,
        dim: int,
        slots: int,
        std: float,
        seed: int,
        device: torch.device,
        numbers: int = 0,
    ) -> None:
        self.dim = dim
        self.slots = slots
        self.std = std
        self.seed = seed
        self.size = 0
        self._key = seed % (1 << 63)
        self.steps = 0  # of an optimizer that moves all rows at every step
        # [capacity, width]
        self.lines = torch.zeros(0, (1 + slots) * dim + numbers, device=device)

    @property
    def weight(self) -> Tensor:
        """The weights of all rows, [size, dim]; a view."""
        return self.lines[: self.size, : self.dim]

    def slot(self, slot: int) -> Tensor:
        """One vector of optimizer state of all rows, [size, dim]; a view."""
        start = (1 + slot) * self.dim
        return self.lines[: self.size, start : start + self.dim]

    def grow(self, size: int) -> None:
        """Make room for rows 0 .. size - 1. Existing rows keep weights and optimizer
        state.
        """
        if size <= self.size:
            return
        self._reserve(size)
        new = np.arange(self.size, size)
        self.size = size
        self.begin(new, new)

    def _reserve(self, size: int) -> None:
        """Memory for this many rows, which is not touched yet."""
        if size <= len(self.lines):
            return
        if in_host_memory(self.lines):
            self.lines = torch.from_numpy(grown(self.lines.numpy(), size))
            return
        capacity = capacity_for(size, len(self.lines))
        lines = self.lines.new_zeros(capacity, self.lines.shape[1])
        lines[: self.size] = self.lines[: self.size]
        self.lines = lines

    def begin(self, rows: Rows, numbers: Rows) -> None:
        """First weights, and no optimizer state.

        Args:
            rows: of the table.
            numbers: which weights depend on: the same wherever a row stands.
        """
        for k in range(0, len(rows), _AT_ONCE):
            some = numbers[k : k + _AT_ONCE]
            lines = np.zeros((len(some), self.lines.shape[1]), np.float32)
            weights = lines[:, : self.dim]
            _first_weights(
                weights,
                some,
                np.float32(self.std),
                self._key,
                _quantiles(),
            )
            self._write(rows[k : k + _AT_ONCE], lines)

    def begin_at_zero(self, rows: Rows) -> None:
        """First weights of zero, and no optimizer state."""
        shape = (len(rows), self.lines.shape[1])
        self._write(rows, np.zeros(shape, np.float32))

    def _write(self, rows: Rows, lines: Floats) -> None:
        if in_host_memory(self.lines):
            self.lines.numpy()[rows] = lines
        else:
            at = to_device(rows, self.lines.device)
            self.lines[at] = to_device(lines, self.lines.device)

    def forget(self, rows: Rows) -> None:
        """Retire rows: their weights are those of a new row again, their optimizer
        state is gone.
        """
        known = rows[rows < self.size]
        self.begin(known, known)

    @property
    def nbytes(self) -> int:
        return 4 * self.lines.shape[1] * self.size

    def take(self, rows: Rows) -> Arrays:
        """A copy of rows with their optimizer state; rows that the table does not have
        yet are made.
        """
        self.grow(int(rows.max(initial=-1)) + 1)
        if in_host_memory(self.lines):  # a few rows: do not wake torch's threads
            return {"lines": self.lines.numpy()[rows]}
        at = to_device(rows, self.lines.device)
        return {"lines": self.lines.index_select(0, at).cpu().numpy()}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        """Make rows hold what `take` returned of them.

        Raises:
            ValueError: those rows are of another shape.
        """
        lines = arrays["lines"]
        width = self.lines.shape[1]
        if lines.shape[1] != width:
            raise ValueError(self._misfit(f"rows of width {lines.shape[1]}"))
        known = self.size
        self._reserve(int(rows.max(initial=-1)) + 1)
        self.size = max(known, int(rows.max(initial=-1)) + 1)
        between = np.setdiff1d(np.arange(known, self.size), rows)
        self.begin(between, between)
        self._write(rows, lines)

    def dense(self) -> Arrays:
        return super().dense() | {
            "dim": np.array(self.dim),
            "steps": np.array(self.steps),
        }

    def load_dense(self, arrays: Arrays) -> None:
        """Take over what `dense` returned, when all rows are there.

        Raises:
            ValueError: it is of a table of another dimension.
        """
        if int(arrays["dim"]) != self.dim:
            raise ValueError(self._misfit(f"rows of dimension {int(arrays['dim'])}"))
        self.steps = int(arrays["steps"])
        self.grow(int(arrays["size"]))

    def _misfit(self, what: str) -> str:
        shape = f"dimension {self.dim} and width {self.lines.shape[1]}"
        return f"{what} do not fit a table of {shape}: the dimension or the optimizer differs"

    def clear(self) -> None:
        self.size = 0
        self.steps = 0
        self.lines = self.lines.new_zeros(0, self.lines.shape[1])


@functools.cache
def _quantiles() -> Floats:
    """[65536] the standard normal distribution in equal shares."""
    shares = (torch.arange(1 << 16, dtype=torch.float64) + 0.5) / (1 << 16)
    found: Floats = torch.special.ndtri(shares).float().numpy()
    return found


@njit_borrowing
def _first_weights(
    weights: Floats,
    rows: Rows,
    std: np.float32,
    key: int,
    normal: Floats,
) -> None:
    """Write the weights of new rows: normal numbers by key, row and place in it;
    splitmix64, four numbers of each.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    dim = weights.shape[1]
    for i in range(len(rows)):
        of_row = np.uint64(rows[i] + 1) * np.uint64(0xD1B54A32D192ED03)
        state = (np.uint64(key) * golden) ^ of_row
        for k in range(0, dim, 4):
            state += golden
            z = mixed(state)
            for m in range(k, min(k + 4, dim)):
                weights[i, m] = std * normal[np.int64(z & np.uint64(0xFFFF))]
                z >>= np.uint64(16)
