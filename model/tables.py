"""Embedding tables that grow, each row with its optimizer state beside its weights.

A step touches a few thousand rows out of perhaps ten million, in no order. Weights and optimizer state of a row
therefore stand together in one line of memory: one miss instead of three. A new row's weights depend only on the
table's seed and the row's number, not on when the table grew, so that a restart or another trainer makes the same row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from streamer.model.growing import capacity_for

PAGE = 64
"""Rows that are initialised together, by one generator: many enough to share its cost, few enough to redo one row."""


class Table:
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

    def state(self, slot: int) -> Tensor:
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
        capacity = capacity_for(size, len(self.lines))
        if capacity > len(self.lines):
            # 1. a larger table whose new memory is not touched yet
            lines = torch.zeros(capacity, self.lines.shape[1], device=self.lines.device)
            lines[: self._ready] = self.lines[: self._ready]
            self.lines = lines
        # 2. weights of the new rows
        self.size = size
        self._fill(size)

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

    def clear(self, rows: Tensor) -> None:
        """Retire rows: their weights are those of a new row again, their optimizer state is gone."""
        self.lines[rows] = 0
        if self.std == 0:
            return
        ordered = rows.sort().values
        pages, counts = torch.unique_consecutive(ordered // PAGE, return_counts=True)
        for page, of_page in zip(pages.tolist(), torch.split(ordered, counts.tolist()), strict=True):
            self.lines[of_page, : self.dim] = self._page(page)[of_page - page * PAGE]

    def state_dict(self) -> dict[str, Tensor]:
        """All rows with their optimizer state; a view."""
        return {
            "lines": self.lines[: self.size],
            "dim": torch.tensor(self.dim),
            "steps": torch.tensor(self.steps),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over rows that `state_dict` returned.

        Raises:
            ValueError: those rows are of another shape.
        """
        lines, width = state["lines"], self.lines.shape[1]
        if lines.shape[1] != width or int(state["dim"]) != self.dim:
            raise ValueError(
                f"rows of dimension {int(state['dim'])} and width {lines.shape[1]} do not fit a table of "
                f"dimension {self.dim} and width {width}: the dimension or the optimizer differs"
            )
        self.lines = torch.zeros(capacity_for(len(lines), 0), width, device=self.lines.device)
        self.size = self._ready = len(lines)
        self.steps = int(state["steps"])
        self.lines[: self.size] = lines
