"""CoOccurrence: the compiled lists against dictionaries, event by event."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamer.model.co_occurrence import REACH, CoOccurrence, Nearness

from streamer.model.batch import Recent
from streamer.model.growing import SMALLEST_CAPACITY

ITEMS = 9
Event = tuple[int, list[int]]
"""An item, and its user's recent items."""
rows = st.integers(0, ITEMS - 1)
events = st.lists(st.tuples(rows, st.lists(rows, max_size=4, unique=True)), max_size=40)
lengths = st.integers(1, 4)


class SlowCoOccurrence:
    """A dictionary an item."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.lists: list[dict[int, float]] = [{} for _ in range(ITEMS)]
        self.totals = [0.0] * ITEMS

    def observe(self, stream: list[Event]) -> None:
        for item, recent in stream:
            for k, other in enumerate(recent[:REACH], start=1):
                if other != item:
                    self.add(other, item, 1 / k)
                    self.add(item, other, 1 / k)

    def add(self, item: int, companion: int, weight: float) -> None:
        self.totals[item] += weight
        mine = self.lists[item]
        if companion in mine:
            mine[companion] += weight
            return
        if len(mine) < self.length:
            mine[companion] = weight
            return
        lightest = min(mine, key=lambda other: mine[other])  # the first of several
        self.lists[item] = {companion if k == lightest else k: weight if k == lightest else v for k, v in mine.items()}

    def nearness(self, recent: list[int], candidate: int) -> float:
        sums = [
            self.lists[other].get(candidate, 0.0) / (k * math.sqrt(max(self.totals[other], 1.0)))
            for k, other in enumerate(recent[:REACH], start=1)
        ]
        return math.log(1 + 30 * sum(sums))


def lines(recent: list[list[int]], length: int | None = None) -> Recent:
    found = np.full((len(recent), max(map(len, recent), default=0) if length is None else length), -1, np.int32)
    for line, items in zip(found, recent, strict=True):
        line[: len(items)] = items
    return found


def observe(co_occurrence: CoOccurrence, stream: list[Event]) -> None:
    co_occurrence.observe(np.array([item for item, _ in stream], np.int64), lines([recent for _, recent in stream]))


def after(stream: list[Event], length: int = 4) -> CoOccurrence:
    co_occurrence = CoOccurrence(length)
    observe(co_occurrence, stream)
    return co_occurrence


def cells(near: Nearness) -> dict[tuple[int, int], tuple[float, int]]:
    """Value and `known` of each place; checks that none occurs twice and that rows ascend."""
    places = list(zip(near.rows.tolist(), near.columns.tolist(), strict=True))
    assert len(set(places)) == len(places)
    assert near.rows.tolist() == sorted(near.rows.tolist())
    return dict(zip(places, zip(near.values.tolist(), near.is_recent.tolist(), strict=True), strict=True))


class TestObserve:
    @given(stream=events, length=lengths)
    def test_lists_hold_what_was_had_together(self, stream: list[Event], length: int) -> None:
        co_occurrence, slow = after(stream, length), SlowCoOccurrence(length)
        slow.observe(stream)
        for item in range(ITEMS):
            assert list(co_occurrence.of(item)) == list(slow.lists[item])
            assert co_occurrence.of(item) == pytest.approx(slow.lists[item])
            assert co_occurrence.total(item) == pytest.approx(slow.totals[item], abs=1e-5)

    @given(stream=events, length=lengths, cut=st.integers(0, 40))
    def test_where_the_stream_is_cut_into_calls_does_not_matter(
        self, stream: list[Event], length: int, cut: int
    ) -> None:
        parts = after(stream[:cut], length)
        observe(parts, stream[cut:])
        whole = after(stream, length)
        assert [parts.of(item) for item in range(ITEMS)] == [whole.of(item) for item in range(ITEMS)]

    def test_pairs_weigh_less_the_longer_ago_the_other_was(self) -> None:
        co_occurrence = after([(7, [5, 6])])
        assert co_occurrence.of(7) == {5: 1.0, 6: 0.5}
        assert co_occurrence.of(6) == {7: 0.5}

    def test_an_item_is_no_companion_of_itself(self) -> None:
        assert after([(7, [7, 6])]).of(7) == {6: 0.5}

    def test_newcomer_takes_the_place_of_the_lightest(self) -> None:
        assert after([(7, [5]), (7, [4, 6]), (7, [4])], length=2).of(7) == {4: 2.0, 6: 0.5}

    def test_items_beyond_the_reach_are_not_paired(self) -> None:
        co_occurrence = after([(0, list(range(1, REACH + 3)))], length=2 * REACH)
        assert set(co_occurrence.of(0)) == set(range(1, REACH + 1))
        assert co_occurrence.of(REACH + 1) == {}

    def test_lists_survive_growth(self) -> None:
        co_occurrence = after([(7, [5])])
        observe(co_occurrence, [(4 * SMALLEST_CAPACITY, [7])])
        assert co_occurrence.of(7) == {5: 1.0, 4 * SMALLEST_CAPACITY: 1.0}

    def test_length_zero_keeps_nothing(self) -> None:
        co_occurrence = after([(7, [5])], length=0)
        assert co_occurrence.of(7) == {}
        assert cells(co_occurrence.nearness(lines([[5]]), np.array([7]))) == {}


class TestAmong:
    @given(
        stream=events,
        length=lengths,
        recent=st.lists(st.lists(rows, max_size=5, unique=True), max_size=4),
        candidates=st.lists(st.integers(0, ITEMS + 2), unique=True),
    )
    def test_candidates_are_as_near_as_the_slow_formula_says(
        self, stream: list[Event], length: int, recent: list[list[int]], candidates: list[int]
    ) -> None:
        co_occurrence, slow = after(stream, length), SlowCoOccurrence(length)
        slow.observe(stream)
        expected = {}
        for b, mine in enumerate(recent):
            for c, candidate in enumerate(candidates):
                if nearness := slow.nearness(mine, candidate):
                    expected[b, c] = (pytest.approx(nearness, rel=1e-5), int(candidate in mine))
        for _ in range(2):  # the second call finds nothing left over by the first
            assert cells(co_occurrence.nearness(lines(recent, 5), np.array(candidates, np.int64))) == expected

    def test_recent_items_beyond_the_reach_bring_no_neighbours_but_are_known(self) -> None:
        co_occurrence = after([(0, [20]), (1, [21])])
        recent = [20, *range(30, 30 + REACH - 1), 21, 0]
        found = cells(co_occurrence.nearness(lines([recent]), np.array([0, 1])))
        assert {place: known for place, (_, known) in found.items()} == {(0, 0): 1}

    def test_items_never_seen_have_no_neighbours(self) -> None:
        far = 3 * SMALLEST_CAPACITY
        found = cells(after([(7, [5])]).nearness(lines([[far, 5]]), np.array([far + 1, 7])))
        assert list(found) == [(0, 1)]

    def test_no_users_and_no_candidates_are_no_error(self) -> None:
        co_occurrence = after([(7, [5])])
        assert cells(co_occurrence.nearness(lines([], 3), np.array([7]))) == {}
        assert cells(co_occurrence.nearness(lines([[5]]), np.empty(0, np.int64))) == {}


class TestNear:
    near = Nearness(
        np.array([0, 0, 2]),
        np.array([1, 3, 0], np.int32),
        np.array([0.5, 0.25, 2.0], np.float32),
        np.array([0, 1, 1]),
    )

    def test_places_move_to_other_columns_and_those_without_one_vanish(self) -> None:
        moved = self.near.to_columns(np.array([4, -1, 0, 2], np.int32))
        assert cells(moved) == {(0, 2): (0.25, 1), (2, 4): (2.0, 1)}

    def test_one_column_of_each_row(self) -> None:
        values, known = self.near.at(np.array([3, 1, 1]))
        assert values.tolist() == [0.25, 0, 0]
        assert known.tolist() == [1, 0, 0]


class TestForget:
    def test_retired_items_have_no_neighbours_and_are_none(self) -> None:
        co_occurrence = after([(7, [5, 6]), (8, [7, 5])])
        co_occurrence.forget_items(np.array([5, 700]))
        assert [co_occurrence.of(5), co_occurrence.total(5)] == [{}, 0.0]
        assert co_occurrence.of(7) == {6: 0.5, 8: 1.0}
        assert co_occurrence.of(8) == {7: 1.0}

    def test_a_row_that_is_used_again_starts_anew(self) -> None:
        co_occurrence = after([(7, [5])])
        co_occurrence.forget_items(np.array([7]))
        observe(co_occurrence, [(7, [6])])
        assert [co_occurrence.of(7), co_occurrence.of(5), co_occurrence.total(7)] == [{6: 1.0}, {}, 1.0]


class TestState:
    @given(stream=events, further=events, length=lengths)
    def test_restart_goes_on_as_if_it_had_not_happened(
        self, stream: list[Event], further: list[Event], length: int
    ) -> None:
        co_occurrence, restarted = after(stream, length), CoOccurrence(length)
        restarted.load_state({name: array.copy() for name, array in co_occurrence.state().items()})
        for one in (co_occurrence, restarted):
            observe(one, further)
        for name, array in co_occurrence.state().items():
            np.testing.assert_array_equal(restarted.state()[name], array)

    def test_loading_copies_and_replaces_what_was_there(self) -> None:
        co_occurrence, other = after([(7, [5])]), after([(8, [6])])
        other.load_state(co_occurrence.state())
        observe(co_occurrence, [(7, [5])])
        assert [other.of(8), other.of(7)] == [{}, {5: 1.0}]

    def test_lists_of_another_length_are_refused(self) -> None:
        with pytest.raises(ValueError, match="lists of 4 neighbours are not lists of 3"):
            CoOccurrence(3).load_state(after([(7, [5])]).state())
