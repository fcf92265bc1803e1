"""The occurrence vector: how often each item was resampled, and drawing the cache from
it.

Drawing with weight o_j among N items must not cost O(N) a step. The counters are the
leaves of a tree of sums with 64 children a node: adding touches one node a level,
drawing descends from the root, and ten million items are four levels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Doubles, Floats, Rows
from streamer.model.jit import njit_borrowing
from streamer.model.rows.by_rows import Arrays, ByRows, take_or_fill
from streamer.model.rows.growing import SMALLEST_CAPACITY, capacity_for

_BITS = 6
_FAN = 1 << _BITS
_LEAST = 1e-3
_LARGEST_GROWTH = 2.0**200


class Occurrence(ByRows):
    """o_j, grown by what each step resampled.

    With a half-life, what was resampled that many steps ago counts half. Nothing is
    scaled down for that: new increments weigh more and more instead, and only ratios
    are ever used.

    Args:
        half_life_steps: None keeps every count for ever.

    Raises:
        ValueError: the half-life is not positive.

    Examples:
        >>> o = Occurrence()
        >>> o.add(np.array([3, 5]), np.array([30.0, 10.0]))
        >>> o.values(np.array([3, 4, 5]))
        array([30.,  0., 10.])
        >>> set(o.draw(100, np.random.default_rng(0), known_items=6).tolist()) == {3, 5}
        True
    """

    def __init__(self, half_life_steps: float | None = None) -> None:
        if half_life_steps is not None and not half_life_steps > 0:
            raise ValueError(
                f"half_life_steps is {half_life_steps}: choose a positive number, or None for no ageing"
            )
        self.half_life_steps = half_life_steps
        self._growth = 1.0
        if half_life_steps is not None:
            self._growth = 2.0 ** (1.0 / half_life_steps)
        self.before_rescaling: Callable[[], None] = lambda: None
        """Called when all rows are about to be written at once."""
        self._weight = 1.0  # of an increment that comes now
        self.clear()

    def add(self, rows: Rows, counts: NDArray[Any]) -> None:
        """Algorithm 2, line 13: o_j += how often j was resampled in this step."""
        if not len(rows):
            return
        self._grow(int(rows.max()) + 1)
        increments = counts.astype(np.float64, copy=False)
        _add(self._tree, self._starts, rows, increments, self._weight)

    def replace(self, rows: Rows, counts: NDArray[Any]) -> None:
        """Forget everything, and take in so much of each row."""
        self.size = 0
        self._weight = 1.0
        size = int(rows.max(initial=-1)) + 1
        leaves = np.zeros(capacity_for(size, SMALLEST_CAPACITY))
        np.add.at(leaves, rows, counts)
        self._tree, self._starts = _tree_of(leaves)
        self.size = size

    def step(self) -> None:
        """One step has passed: what was counted so far ages."""
        self._weight *= self._growth
        if self._weight > _LARGEST_GROWTH:
            self.before_rescaling()
            self._tree, self._starts = _tree_of(self._leaves / self._weight)
            self._weight = 1.0

    def draw(self, count: int, rng: np.random.Generator, known_items: int) -> Rows:
        """Draw `count` item rows with weight o_j, with replacement; uniformly if
        nothing was counted yet.

        The draws come in ascending order: neighbours share their way down the tree.
        """
        if count <= 0 or known_items <= 0:
            return np.empty(0, np.int64)
        if self._tree[-1] <= 0:
            return rng.integers(0, known_items, count)
        rows = np.empty(count, np.int64)
        uniform = np.sort(rng.random(count))
        _descend(self._tree, self._starts, uniform, rows)
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
        """o_j of these items, in counts of today."""
        known = rows < self.size
        places = np.where(known, rows, 0)
        weighted = np.where(known, self._leaves[places], 0.0)
        return weighted / self._weight

    def log_pop(self, rows: Rows) -> Floats:
        """log of the probability with which each item is drawn into the cache; finite
        also where o_j is 0.
        """
        values = np.maximum(self.values(rows), _LEAST)
        shares = values / max(self.total(), _LEAST)
        return np.log(shares).astype(np.float32)

    def total(self) -> float:
        """Sum of all o_j, in counts of today."""
        return float(self._tree[-1] / self._weight)

    def forget(self, rows: Rows) -> None:
        """Retire items. Sums above them are added up anew: what subtraction leaves over
        would still be drawn.
        """
        rows = rows[rows < self.size]
        self._leaves[rows] = 0.0
        _sum_up(self._tree, self._starts, rows)

    @property
    def _leaves(self) -> Doubles:
        """The counters, weighted; a view of the tree's lowest level."""
        return self._tree[: self._starts[1]]

    def _grow(self, size: int) -> None:
        if size > len(self._leaves):
            leaves = np.zeros(capacity_for(size, len(self._leaves)))
            leaves[: self.size] = self._leaves[: self.size]
            self._tree, self._starts = _tree_of(leaves)
        self.size = max(self.size, size)

    @property
    def nbytes(self) -> int:
        return self._tree.itemsize * self.size * _FAN // (_FAN - 1)

    def take(self, rows: Rows) -> Arrays:
        return {"counts": take_or_fill(self._leaves, rows)}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self._grow(int(rows.max(initial=-1)) + 1)
        self._leaves[rows] = arrays["counts"]

    def dense(self) -> Arrays:
        """The sums too, so that a restart draws the same to the last bit."""
        found = super().dense()
        found["sums"] = self._tree[self._starts[1] :].copy()
        found["weight"] = np.array([self._weight])
        return found

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self._weight = float(arrays["weight"][0])
        capacity = capacity_for(self.size, SMALLEST_CAPACITY)
        if capacity != len(self._leaves):
            leaves = np.zeros(capacity)
            leaves[: self.size] = take_or_fill(self._leaves, np.arange(self.size))
            self._tree, self._starts = _tree_of(leaves)
        self._tree[self._starts[1] :] = arrays["sums"]

    def clear(self) -> None:
        self.size = 0
        self._weight = 1.0
        self._tree, self._starts = _tree_of(np.zeros(SMALLEST_CAPACITY))


def _tree_of(leaves: Doubles) -> tuple[Doubles, Rows]:
    """All levels in one array, leaves first, root last; and where each level starts."""
    sizes = [len(leaves)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // _FAN))
    starts = np.cumsum([0, *sizes])
    tree = np.zeros(starts[-1])
    tree[: len(leaves)] = leaves
    for below, start, end in zip(starts, starts[1:], starts[2:], strict=False):
        firsts = np.arange(0, start - below, _FAN)
        tree[start:end] = np.add.reduceat(tree[below:start], firsts)
    return tree, starts


@njit_borrowing
def _add(
    tree: Doubles,
    starts: Rows,
    rows: Rows,
    counts: Doubles,
    weight: float,
) -> None:
    """What comes in a row under one node is added up before it is carried on; rows in
    ascending order are the best.
    """
    parent = -1
    carried = 0.0
    for i in range(len(rows)):
        if rows[i] >> _BITS != parent:
            _carry(tree, starts, parent, carried)
            parent = rows[i] >> _BITS
            carried = 0.0
        tree[rows[i]] += weight * counts[i]
        carried += weight * counts[i]
    _carry(tree, starts, parent, carried)


@njit_borrowing
def _carry(
    tree: Doubles,
    starts: Rows,
    node: int,
    weight: float,
) -> None:
    """Add to a node of the second level, and to all above it."""
    if node >= 0:
        for level in range(1, len(starts) - 1):
            tree[starts[level] + node] += weight
            node >>= _BITS


@njit_borrowing
def _sum_up(tree: Doubles, starts: Rows, rows: Rows) -> None:
    """Add up all nodes above these leaves."""
    for level in range(1, len(starts) - 1):
        below = starts[level] - starts[level - 1]
        for row in rows:
            node = row >> (_BITS * level)
            first = node << _BITS
            total = 0.0
            for k in range(first, min(first + _FAN, below)):
                total += tree[starts[level - 1] + k]
            tree[starts[level] + node] = total


@njit_borrowing
def _descend(
    tree: Doubles,
    starts: Rows,
    uniform: Doubles,
    out: Rows,
) -> None:
    """For each uniform number, the leaf at that share of the total; never a leaf of
    weight zero.
    """
    depth = len(starts) - 1
    for i in range(len(uniform)):
        left = uniform[i] * tree[starts[depth] - 1]
        node = 0
        for level in range(depth - 2, -1, -1):
            child = node << _BITS
            end = min(child + _FAN, starts[level + 1] - starts[level])
            chosen = child
            for k in range(child, end):
                weight = tree[starts[level] + k]
                if weight <= 0.0:
                    continue
                chosen = k
                if left < weight:
                    break
                left -= weight
            node = chosen
        out[i] = node
