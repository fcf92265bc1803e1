"""The occurrence vector: how often each item was resampled, and drawing the cache from
it.

Drawing with weight o_j among N items must not look at all of them in a step: beside the
counters stand the sums of groups of them. A draw chooses a group, then an item of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Doubles, Floats, Rows
from streamer.model.jit import njit_borrowing
from streamer.model.rows.by_rows import Arrays, Columns, take_or_fill

_GROUP = 256
_LEAST = 1e-3


class Occurrence(Columns):
    """o_j, grown by what each step resampled: whole numbers, whose sums are exact.

    Examples:
        >>> o = Occurrence()
        >>> o.add(np.array([3, 5]), np.array([30.0, 10.0]))
        >>> o.values(np.array([3, 4, 5]))
        array([30.,  0., 10.])
        >>> set(o.draw(100, np.random.default_rng(0), known_items=6).tolist()) == {3, 5}
        True
    """

    def __init__(self) -> None:
        super().__init__({}, counts=np.zeros(0))
        self.clear()

    def clear(self) -> None:
        super().clear()
        self._add_up()

    @property
    def _counts(self) -> Doubles:
        return self.columns["counts"]

    def grow(self, size: int) -> None:
        """Make room for rows 0 .. size - 1."""
        capacity = len(self._counts)
        super().grow(size)
        if len(self._counts) > capacity:
            self._add_up()

    def _add_up(self) -> None:
        self._sums = self._by_group.sum(axis=1)

    @property
    def _by_group(self) -> Doubles:
        """[G, 256] all counters; a view."""
        return self._counts.reshape(-1, _GROUP)

    def add(self, rows: Rows, counts: NDArray[Any]) -> None:
        """Algorithm 2, line 13: o_j += how often j was resampled in this step."""
        self.grow(int(rows.max(initial=-1)) + 1)
        increments = counts.astype(np.float64, copy=False)
        np.add.at(self._counts, rows, increments)
        np.add.at(self._sums, rows // _GROUP, increments)

    def draw(self, count: int, rng: np.random.Generator, known_items: int) -> Rows:
        """Draw `count` item rows with weight o_j, with replacement; uniformly if
        nothing was counted yet.

        The draws come in ascending order: neighbours share their group.
        """
        if count <= 0 or known_items <= 0:
            return np.empty(0, np.int64)
        if self.total() <= 0:
            return rng.integers(0, known_items, count)
        ends = np.cumsum(self._sums)
        at = np.sort(rng.random(count)) * ends[-1]
        groups = np.searchsorted(ends, at, side="right")
        left = at - (ends[groups] - self._sums[groups])
        rows = np.empty(count, np.int64)
        _find_in_groups(self._counts, groups, left, rows)
        return rows

    def draw_among(self, rows: Rows, count: int, rng: np.random.Generator) -> Rows:
        """The authors' code: draw only among the items touched in this step, with
        weight 1 + o_j.

        An item that occurs twice among `rows` counts once.
        """
        if count <= 0 or not len(rows):
            return np.empty(0, np.int64)
        touched = np.unique(rows)
        bounds = np.cumsum(self.values(touched) + 1.0)
        uniform = rng.random(count) * bounds[-1]
        places = np.searchsorted(bounds, uniform, side="right")
        drawn: Rows = touched[places]
        return drawn

    def values(self, rows: Rows) -> Doubles:
        """o_j of these items."""
        return take_or_fill(self._counts, rows)

    def log_pop(self, rows: Rows) -> Floats:
        """log of the probability with which each item is drawn into the cache; finite
        also where o_j is 0.
        """
        values = np.maximum(self.values(rows), _LEAST)
        shares = values / max(self.total(), _LEAST)
        return np.log(shares).astype(np.float32)

    def total(self) -> float:
        """Sum of all o_j."""
        return float(self._sums.sum())

    def forget(self, rows: Rows) -> None:
        """Retire items. Sums are added up again: what subtraction may leave over would
        still be drawn.
        """
        super().forget(rows)
        groups = np.unique(rows[rows < self.size] // _GROUP)
        self._sums[groups] = self._by_group[groups].sum(axis=1)

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self._add_up()


@njit_borrowing
def _find_in_groups(
    counts: Doubles,
    groups: Rows,
    left: Doubles,
    found: Rows,
) -> None:
    """For each draw, the row of its group at which the sum of the counts exceeds what
    is left; never one that has none.
    """
    for i in range(len(groups)):
        rest = left[i]
        first = groups[i] * _GROUP
        for row in range(first, first + _GROUP):
            if counts[row] <= 0.0:
                continue
            found[i] = row
            if rest < counts[row]:
                break
            rest -= counts[row]
