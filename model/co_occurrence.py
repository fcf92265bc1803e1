"""Each item's neighbours: what users had shortly before or after it, and how near that brings a candidate to a user.

Vectors of a few dozen numbers cannot hold which of ten thousand items go together with which; a short list of each
item's neighbours can, from the first time that a user has both. With c(r, j) the weight of j among the neighbours of r,
C(r) the weight of all pairs of r, and r_1, r_2, ... the user's recent items, most recent first:

    nearness(u, j) = log(1 + 30 sum_k c(r_k, j) / (k sqrt(C(r_k))))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Floats, Recent, Rows
from streamer.model.growing import grown
from streamer.model.jit import compiled

Ints = NDArray[np.int32]

REACH = 10
"""An event is paired with this many of its user's recent items."""
_SHARPNESS = np.float32(30)


@dataclass(frozen=True, slots=True)
class Nearness:
    """Sparse places of a [B, K] matrix of candidates, sorted by row, and what is known of each.

    Args:
        rows: [nnz] the query.
        columns: [nnz] the candidate.
        values: [nnz] its nearness, above 0.
        is_recent: [nnz] 1 if it is among the user's recent items itself, else 0.
    """

    rows: Rows
    columns: Ints
    values: Floats
    is_recent: Rows

    def to_columns(self, column: Ints) -> Nearness:
        """The same places in another matrix: `column` says where each candidate stands in it, -1 if nowhere."""
        columns = column[self.columns]
        kept = columns >= 0
        return Nearness(self.rows[kept], columns[kept], self.values[kept], self.is_recent[kept])

    def at(self, columns: Rows) -> tuple[Floats, Rows]:
        """`values` and `is_recent` at one column of each row, [B] both; 0 where nothing is."""
        values, known = np.zeros(len(columns), np.float32), np.zeros(len(columns), np.int64)
        found = self.columns == columns[self.rows]
        values[self.rows[found]], known[self.rows[found]] = self.values[found], self.is_recent[found]
        return values, known


class CoOccurrence:
    """The heaviest neighbours of each item, at most `length`.

    An event of item i adds 1 / k to the pair of i and its user's k-th recent item, in the lists of both. Where a list
    is full, a newcomer takes the place of the lightest.

    Args:
        length: neighbours kept of each item.

    Examples:
        >>> co_occurrence = CoOccurrence(length=4)
        >>> co_occurrence.observe(np.array([7, 8]), np.array([[5, 6], [7, 5]], np.int32))
        >>> co_occurrence.of(7)
        {5: 1.0, 6: 0.5, 8: 1.0}
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._column = np.full(0, -1, np.int32)  # of each candidate; -1 between calls
        self._clear()

    def _clear(self) -> None:
        self.size = 0
        self._items = np.full((0, self.length), -1, np.int32)
        self._weights = np.zeros((0, self.length), np.float32)
        self._totals = np.zeros(0, np.float32)  # weight of all pairs of an item, those that no list holds any more too

    def observe(self, items: Rows, recent: Recent) -> None:
        """Take in events.

        Args:
            items: [B] item rows.
            recent: [B, L] recent items of each event's user, as of the event.
        """
        near = np.ascontiguousarray(recent[:, :REACH])
        self._grow(int(max(items.max(initial=-1), near.max(initial=-1))) + 1)
        if self.length:
            _observe(self._items, self._weights, self._totals, items, near)

    def nearness(self, recent: Recent, candidates: Rows) -> Nearness:
        """Which candidates are neighbours of each user's recent items.

        Args:
            recent: [B, L] recent items of each user.
            candidates: [K] distinct item rows.
        """
        size = max(self.size, int(candidates.max(initial=-1)) + 1, int(recent.max(initial=-1)) + 1)
        self._column = grown(self._column, size, fill=-1)
        self._column[candidates] = np.arange(len(candidates), dtype=np.int32)
        lists = self._items[: self.size], self._weights[: self.size], self._totals[: self.size]
        rows, columns, sums, known = _among(*lists, recent, self._column, len(candidates))
        self._column[candidates] = -1
        return Nearness(rows, columns, np.log1p(_SHARPNESS * sums), known)

    def of(self, item: int) -> dict[int, float]:
        """An item's neighbours and their weights."""
        if item >= self.size:
            return {}
        pairs = zip(self._items[item].tolist(), self._weights[item].tolist(), strict=True)
        return {other: weight for other, weight in pairs if other >= 0}

    def total(self, item: int) -> float:
        """The weight of all pairs that an item was ever part of."""
        return float(self._totals[item]) if item < self.size else 0.0

    def _grow(self, size: int) -> None:
        self._items, self._weights = grown(self._items, size, fill=-1), grown(self._weights, size)
        self._totals = grown(self._totals, size)
        self.size = max(self.size, size)

    def forget_items(self, items: Rows) -> None:
        """Retire items: they have no neighbours any more, and are none (looks at all lists)."""
        items = items[items < self.size]
        if not len(items):
            return
        gone = np.zeros(self.size, np.bool_)
        gone[items] = True
        self._items[items], self._weights[items], self._totals[items] = -1, 0, 0
        _remove(self._items[: self.size], self._weights[: self.size], gone)

    def state(self) -> dict[str, NDArray[Any]]:
        """All lists, as arrays; a view."""
        size = self.size
        return {"items": self._items[:size], "weights": self._weights[:size], "totals": self._totals[:size]}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over what `state` returned.

        Raises:
            ValueError: those lists are of another length.
        """
        if state["items"].shape[1] != self.length:
            raise ValueError(f"lists of {state['items'].shape[1]} neighbours are not lists of {self.length}")
        self._clear()
        self._grow(len(state["items"]))
        self._items[: self.size], self._weights[: self.size] = state["items"], state["weights"]
        self._totals[: self.size] = state["totals"]


@compiled
def _observe(lists: Ints, weights: Floats, totals: Floats, items: Rows, recent: Recent) -> None:
    for b in range(len(items)):
        item = np.int32(items[b])
        for k in range(recent.shape[1]):
            other = recent[b, k]
            if other < 0:
                break
            if other == item:
                continue
            weight = np.float32(1) / np.float32(k + 1)
            _add(lists[other], weights[other], item, weight)
            _add(lists[item], weights[item], other, weight)
            totals[other] += weight
            totals[item] += weight


@compiled
def _add(line: Ints, weights: Floats, item: np.int32, weight: np.float32) -> None:
    """More weight for a neighbour; a new one takes the first free place, else that of the lightest."""
    lightest = 0
    for m in range(len(line)):
        if line[m] == item:
            weights[m] += weight
            return
        if line[m] < 0:
            lightest = m
            break
        if weights[m] < weights[lightest]:
            lightest = m
    line[lightest], weights[lightest] = item, weight


@compiled
def _among(
    lists: Ints, weights: Floats, totals: Floats, recent: Recent, column: Ints, width: int
) -> tuple[Rows, Ints, Floats, Rows]:
    """Sums over the recent items, of candidates that are neighbours of any."""
    B, L = recent.shape
    reach = min(L, REACH)
    most = B * reach * lists.shape[1]
    rows, columns = np.empty(most, np.int64), np.empty(most, np.int32)
    sums, known = np.empty(most, np.float32), np.empty(most, np.int64)
    place = np.full(width, -1, np.int64)  # of a candidate's entry; before `first` if it is another row's
    owner = np.full(width, -1, np.int64)  # the last row that has a candidate among its recent items
    n = 0
    for b in range(B):
        first = n
        for k in range(L):
            if recent[b, k] >= 0 and column[recent[b, k]] >= 0:
                owner[column[recent[b, k]]] = b
        for k in range(reach):
            r = recent[b, k]
            if r < 0:
                break
            if r >= len(lists):
                continue
            share = np.float32(1) / (np.float32(k + 1) * np.sqrt(max(totals[r], np.float32(1))))
            for m in range(lists.shape[1]):
                if lists[r, m] < 0:
                    break
                c = column[lists[r, m]]
                if c < 0:
                    continue
                if place[c] < first:
                    place[c] = n
                    rows[n], columns[n], sums[n] = b, c, np.float32(0)
                    known[n] = owner[c] == b
                    n += 1
                sums[place[c]] += share * weights[r, m]
    return rows[:n].copy(), columns[:n].copy(), sums[:n].copy(), known[:n].copy()


@compiled
def _remove(lists: Ints, weights: Floats, gone: NDArray[np.bool_]) -> None:
    """Take marked items out of every list; the others move up in their order."""
    for i in range(len(lists)):
        left = 0
        for m in range(lists.shape[1]):
            item, weight = lists[i, m], weights[i, m]
            if item >= 0 and gone[item]:
                continue
            lists[i, left], weights[i, left] = item, weight
            left += 1
        for m in range(left, lists.shape[1]):
            lists[i, m], weights[i, m] = -1, 0
