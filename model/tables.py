"""Embedding tables that grow, each row with its optimizer state beside its weights.

A step touches a few thousand rows out of perhaps ten million, in no order. Weights and optimizer state of a row
therefore stand together in one line of memory: one miss instead of three. A new row's weights depend only on the
table's seed and the row's number, not on when the table grew, so that a restart or another trainer makes the same row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from streamer.model.batch import Rows
from streamer.model.by_rows import Arrays, ByRows
from streamer.model.device import to_device
from streamer.model.growing import capacity_for

PAGE = 64
"""Rows that are initialised together, by one generator: many enough to share its cost, few enough to redo one row."""


class Table(ByRows):
    """A growing matrix of weights with room for per-row optimizer state.

    Args:
        dim: numbers in a row's vector.
        slots: how many vectors of optimizer state stand behind the weights.
        std: standard deviation of new weights; 0 starts at zero.
        seed: determines all new rows.
        device: where the table lives.
    """

    def __init__(self, dim: int, slots: int, std: float, seed: int, device: torch.device) -> None:
        self.dim, self.slots, self.std, self.seed = dim, slots, std, seed
        self.size = 0
        self.steps = 0  # of an optimizer that moves all rows at every step
        self._ready = 0  # rows whose first weights are there: whole pages, ahead of the size
        self.lines = torch.zeros(0, (1 + slots) * dim + 1, device=device)  # [capacity, width]

    @property
    def weight(self) -> Tensor:
        """The weights of all rows, [size, dim]; a view."""
        return self.lines[: self.size, : self.dim]

    def slot(self, slot: int) -> Tensor:
        """One vector of optimizer state of all rows, [size, dim]; a view."""
        start = (1 + slot) * self.dim
        return self.lines[: self.size, start : start + self.dim]

    @property
    def updates(self) -> Tensor:
        """How often each row was updated on its own, [size]; a view. Counts to 2^24, where float32 stops."""
        return self.lines[: self.size, -1]

    def grow(self, size: int) -> None:
        """Make room for rows 0 .. size - 1. Existing rows keep weights and optimizer state."""
        if size <= self.size:
            return
        self._reserve(size)
        self.size = size
        self._fill(size)

    def _reserve(self, size: int) -> None:
        """Memory for so many rows, which is not touched yet."""
        capacity = capacity_for(size, len(self.lines))
        if capacity > len(self.lines):
            lines = torch.zeros(capacity, self.lines.shape[1], device=self.lines.device)
            lines[: self._ready] = self.lines[: self._ready]
            self.lines = lines

    def _fill(self, size: int) -> None:
        """First weights for rows up to `size` at least; a page is made once, however the table grows."""
        if self.std == 0:
            self._ready = size
        while self._ready < size:
            page, place = divmod(self._ready, PAGE)
            stop = (page + 1) * PAGE  # within the capacity, which is a multiple of the page
            self.lines[self._ready : stop, : self.dim] = self._page(page)[place:]
            self._ready = stop

    def _page(self, page: int) -> Tensor:
        """The first weights of a page's rows, [PAGE, dim]."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + page) % (1 << 63))
        values = torch.randn(PAGE, self.dim, generator=generator) * self.std
        return values.to(self.lines.device)

    def forget(self, rows: Tensor) -> None:
        """Retire rows: their weights are those of a new row again, their optimizer state is gone."""
        self.lines[rows] = 0
        if self.std == 0:
            return
        ordered = rows.sort().values
        pages, counts = torch.unique_consecutive(ordered // PAGE, return_counts=True)
        for page, of_page in zip(pages.tolist(), torch.split(ordered, counts.tolist()), strict=True):
            self.lines[of_page, : self.dim] = self._page(page)[of_page - page * PAGE]

    def take(self, rows: Rows) -> Arrays:
        """A copy of rows with their optimizer state; rows that the table does not have yet are made."""
        self.grow(int(rows.max(initial=-1)) + 1)
        if self.lines.device.type == "cpu":  # a few rows: not worth waking torch's threads
            return {"lines": self.lines.numpy()[rows]}
        return {"lines": self.lines.index_select(0, to_device(rows, self.lines.device)).cpu().numpy()}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        """Make rows hold what `take` returned of them.

        Raises:
            ValueError: those rows are of another shape.
        """
        lines, width = arrays["lines"], self.lines.shape[1]
        if lines.shape[1] != width:
            raise ValueError(self._misfit(f"rows of width {lines.shape[1]}"))
        if len(rows) and rows[0] == self.size and rows[-1] - rows[0] + 1 == len(rows):  # no first weights are needed
            self._reserve(int(rows[-1]) + 1)
            self.size, self._ready = int(rows[-1]) + 1, max(self._ready, int(rows[-1]) + 1)
        self.grow(int(rows.max(initial=-1)) + 1)
        self.lines[to_device(rows, self.lines.device)] = to_device(lines, self.lines.device)

    def dense(self) -> Arrays:
        return super().dense() | {"dim": np.array(self.dim), "steps": np.array(self.steps)}

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
        self.size = self.steps = self._ready = 0
        self.lines = self.lines.new_zeros(0, self.lines.shape[1])
