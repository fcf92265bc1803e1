"""The host's part of a step: which item rows are touched, and which candidates stand in
which column.

Equal candidates share one column with a multiplicity c, which enters the weights as +
log c. Sums over candidates stay exactly the same, the matrices become smaller, and an
item has at most one column: what masks need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Batch, Floats, Ints, Recent, Rows
from streamer.model.jit import inlined, njit_allocating
from streamer.model.rows.growing import grown


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """One candidate set.

    Args:
        at: [K] place of each candidate in `Plan.items`; None means places 0 .. K - 1.
        count: [K] multiplicity of each candidate.
        own: [B] the column of each query's own positive, -1 if it is not a candidate.
    """

    at: Rows | None
    count: Floats
    own: Ints

    def take(self, values: NDArray[Any]) -> NDArray[Any]:
        """Per-item values [T], by candidate [K]."""
        if self.at is None:
            return values[: len(self.count)]
        return values[self.at]

    def places(self) -> Rows:
        """[K] place of each candidate in `Plan.items`."""
        if self.at is None:
            return np.arange(len(self.count))
        return self.at


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a step that does not depend on weights.

    Args:
        items: [T] distinct item rows: those of the batch, then other extra candidates,
            then other recent items.
        in_batch: how many of them are positives of the batch.
        in_pools: how many of them are candidates of any kind.
        positive: [B] place of each event's item in `items`.
        extra: [X] place of each extra candidate in `items`.
        recent: [B, L] place of each recent item in `items`, -1 where there is none.
    """

    items: Rows
    in_batch: int
    in_pools: int
    positive: Rows
    extra: Rows
    recent: Ints | None

    def batch_candidates(self) -> CandidateSet:
        """The positives of the batch."""
        times = np.bincount(self.positive, minlength=self.in_batch)
        return self._with_positives(times)

    def extra_candidates(self) -> CandidateSet:
        """The extra items alone."""
        times = np.bincount(self.extra, minlength=self.in_pools)
        at = np.flatnonzero(times)
        column = np.full(len(self.items), -1, np.int32)
        column[at] = np.arange(len(at), dtype=np.int32)
        count = times[at].astype(np.float32)
        own = column[self.positive]
        return CandidateSet(at, count, own)

    def all_candidates(self, *, once: bool = False) -> CandidateSet:
        """Batch and extra items in one set; `once` forgets how often each occurs."""
        both = np.concatenate([self.positive, self.extra])
        times = np.bincount(both, minlength=self.in_pools)
        if once:
            times = np.minimum(times, 1)
        return self._with_positives(times)

    def _with_positives(self, times: Rows) -> CandidateSet:
        own = self.positive.astype(np.int32)
        count = times.astype(np.float32)
        return CandidateSet(None, count, own)


class Planner:
    """Makes plans; keeps the scratch memory that makes them cheap."""

    def __init__(self) -> None:
        # place in the plan of each item row; -1 between plans
        self._place = np.full(0, -1, np.int32)

    def plan(self, batch: Batch, extra: Rows, known_items: int) -> Plan:
        """Lay out a step.

        Args:
            batch: the events.
            extra: [X] further candidates, with repetitions.
            known_items: all rows are below this.
        """
        self._place = grown(self._place, known_items, fill=-1)
        recent = batch.recent
        if recent is None:
            recent = np.empty((len(batch), 0), np.int32)
        plan = Plan(*_lay_out(batch.items, extra, recent, self._place))
        if batch.recent is None:
            return replace(plan, recent=None)
        return plan


@inlined
def _number(
    item: int,
    place: Ints,
    items: Rows,
    n: int,
) -> int:
    """Give an item the next place, if it has none yet; returns how many have one."""
    if place[item] < 0:
        place[item] = n
        items[n] = item
        n += 1
    return n


@njit_allocating
def _lay_out(
    positives: Rows,
    extra: Rows,
    recent: Recent,
    place: Ints,
) -> tuple[Rows, int, int, Rows, Rows, Ints]:
    """Number the distinct items in order of appearance; `place` is all -1 before and
    after.
    """
    B, L = recent.shape
    items = np.empty(len(positives) + len(extra) + B * L, np.int64)
    at_positive = np.empty(len(positives), np.int64)
    at_extra = np.empty(len(extra), np.int64)
    at_recent = np.empty((B, L), np.int32)
    n = 0
    for b in range(len(positives)):
        n = _number(positives[b], place, items, n)
        at_positive[b] = place[positives[b]]
    in_batch = n
    for x in range(len(extra)):
        n = _number(extra[x], place, items, n)
        at_extra[x] = place[extra[x]]
    in_pools = n
    for b in range(B):
        for k in range(L):
            item = recent[b, k]
            if item < 0:
                at_recent[b, k] = -1
                continue
            n = _number(item, place, items, n)
            at_recent[b, k] = place[item]
    for i in range(n):
        place[items[i]] = -1
    return items[:n].copy(), in_batch, in_pools, at_positive, at_extra, at_recent
