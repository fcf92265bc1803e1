"""Plans: the compiled layout against sets, lists and loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.model.batch import Batch, Recent
from streamer.model.plan import CandidateSet, Plan, Planner

ITEMS = 12


@dataclass(frozen=True)
class Case:
    """A step's inputs, as plain lists."""

    items: list[int]
    extra: list[int]
    recent: list[list[int]]  # of each event, distinct
    length: int

    def plan(self, planner: Planner | None = None) -> Plan:
        batch = Batch(np.zeros(len(self.items), np.int64), np.array(self.items, np.int64), self._lines())
        return (planner or Planner()).plan(batch, np.array(self.extra, np.int64), ITEMS)

    def _lines(self) -> Recent:
        lines = np.full((len(self.items), self.length), -1, np.int32)
        for line, items in zip(lines, self.recent, strict=True):
            line[: len(items)] = items
        return lines


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows = st.integers(0, ITEMS - 1)
    items = draw(st.lists(rows, min_size=1, max_size=8))
    length = draw(st.integers(0, 4))
    lists = st.lists(rows, max_size=length, unique=True)
    recent = [draw(lists) for _ in items]
    return Case(items, draw(st.lists(rows, max_size=8)), recent, length)


def pools_of(case: Case) -> dict[str, list[int]]:
    """The candidates of each set, with repetitions."""
    return {"batch": case.items, "extra": case.extra, "all": case.items + case.extra}


def candidates_of(plan: Plan) -> dict[str, CandidateSet]:
    return {"batch": plan.batch_candidates(), "extra": plan.extra_candidates(), "all": plan.all_candidates()}


def rows_of(candidates: CandidateSet, plan: Plan) -> list[int]:
    """The item row of each column."""
    at = np.arange(len(candidates.count)) if candidates.at is None else candidates.at
    return plan.items[at].tolist()


class TestItems:
    @given(case=cases())
    def test_batch_then_extra_then_recent_each_item_once_and_places_lead_back_to_them(self, case):
        plan, flat = case.plan(), [item for line in case.recent for item in line]
        assert plan.items.tolist() == list(dict.fromkeys(case.items + case.extra + flat))
        assert plan.in_batch == len(set(case.items))
        assert plan.in_pools == len(set(case.items + case.extra))
        assert plan.items[plan.positive].tolist() == case.items
        assert plan.items[plan.extra].tolist() == case.extra
        assert plan.recent is not None
        found = [[plan.items[at].item() for at in line if at >= 0] for line in plan.recent]
        assert found == case.recent

    @given(first=cases(), second=cases())
    def test_planner_remembers_nothing_of_the_plan_before(self, first, second):
        planner = Planner()
        first.plan(planner)
        assert (planner._place == -1).all()
        found, fresh = second.plan(planner), second.plan()
        for name in ("items", "positive", "extra", "recent"):
            np.testing.assert_array_equal(getattr(found, name), getattr(fresh, name))

    def test_planner_makes_room_for_items_that_come_later(self):
        planner = Planner()
        for known in (3, 5000, 100_000):
            batch = Batch(np.zeros(2, np.int64), np.array([known - 1, 0]))
            plan = planner.plan(batch, np.array([known - 2]), known)
            assert plan.items.tolist() == [known - 1, 0, known - 2]
            assert plan.recent is None, "the batch has no recent items"


@pytest.mark.parametrize("pool", ["batch", "extra", "all"])
class TestCandidates:
    @given(case=cases())
    def test_each_item_has_one_column_that_counts_how_often_it_occurs(self, pool, case):
        plan = case.plan()
        candidates = candidates_of(plan)[pool]
        rows = rows_of(candidates, plan)
        assert len(rows) == len(set(rows)) == len(candidates.count)
        assert dict(zip(rows, candidates.count.tolist(), strict=True)) == Counter(pools_of(case)[pool])
        assert candidates.own.tolist() == [rows.index(i) if i in rows else -1 for i in case.items]
        assert candidates.take(plan.items.astype(np.float32)).tolist() == rows


class TestEdges:
    def test_once_forgets_how_often_candidates_occur(self):
        plan = Case([1, 1, 2], [1, 3, 3], [[], [], []], 1).plan()
        assert plan.all_candidates(once=True).count.tolist() == [1, 1, 1]
        assert plan.all_candidates().count.tolist() == [3, 1, 2]

    def test_gap_in_a_list_of_recent_items_is_skipped(self):
        batch = Batch(np.zeros(1, np.int64), np.array([1]), np.array([[-1, 1]], np.int32))
        plan = Planner().plan(batch, np.empty(0, np.int64), ITEMS)
        assert plan.recent is not None
        assert plan.recent.tolist() == [[-1, 0]]

    def test_empty_batch(self):
        plan = Case([], [3, 3], [], 2).plan()
        assert plan.items.tolist() == [3]
        assert len(plan.batch_candidates().count) == 0
        assert plan.extra_candidates().count.tolist() == [2]
