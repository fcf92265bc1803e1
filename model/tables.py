"""Embedding tables that grow, each row with its optimizer state beside its weights.

A step touches a few thousand rows out of perhaps ten million, in no order. Weights and optimizer state of a row
therefore stand together in one line of memory: one miss instead of three. A new row's weights depend only on the
table's seed and the row's number, not on when the table grew, so that a restart or another trainer makes the same row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.growing import capacity_for

PAGE = 1024
"""Rows that are initialised together, by one generator."""


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
        """How often each row was updated, [size]; a view."""
        return self.lines[: self.size, -1]

    def grow(self, size: int) -> None:
        """Make room for rows 0 .. size - 1. Existing rows keep weights and optimizer state."""
        if size <= self.size:
            return
        capacity = capacity_for(size, len(self.lines))
        if capacity > len(self.lines):
            # 1. a larger table whose new memory is not touched yet
            lines = torch.zeros(capacity, self.lines.shape[1], device=self.lines.device)
            lines[: self.size] = self.lines[: self.size]
            self.lines = lines
        # 2. weights of the new rows, page by page
        previous, self.size = self.size, size
        self._initialise(previous, size)

    def _initialise(self, start: int, stop: int) -> None:
        if self.std == 0:
            return
        for page in range(start // PAGE, -(-stop // PAGE)):
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + page)
            values = torch.randn(PAGE, self.dim, generator=generator) * self.std
            lo, hi = max(start, page * PAGE), min(stop, (page + 1) * PAGE)
            self.lines[lo:hi, : self.dim] = values[lo - page * PAGE : hi - page * PAGE].to(self.lines.device)

    def clear(self, rows: Tensor) -> None:
        """Retire rows: their weights are those of a new row again, their optimizer state is gone."""
        self.lines[rows] = 0
        for row in rows.tolist():
            self._initialise(row, row + 1)

    def state_dict(self) -> dict[str, Tensor]:
        """All rows with their optimizer state; a view."""
        return {"lines": self.lines[: self.size], "steps": torch.tensor(self.steps)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over rows that `state_dict` answered."""
        lines = state["lines"]
        if lines.shape[1] != self.lines.shape[1]:
            raise ValueError(
                f"a table of width {lines.shape[1]} does not fit one of width {self.lines.shape[1]}: "
                "the dimension or the optimizer differs"
            )
        capacity = capacity_for(len(lines), 0) if len(lines) else 0
        self.lines = torch.zeros(capacity, self.lines.shape[1], device=self.lines.device)
        self.size, self.steps = len(lines), int(state["steps"])
        self.lines[: self.size] = lines
