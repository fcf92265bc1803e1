"""The occurrence vector: sums of groups against a dictionary, and its draws against the weights.

Draws are compared by a chi-squared test with a fixed seed. A right sampler fails it with probability 0.001 for a seed
chosen blindly; one that draws an item 10% too often fails it almost surely at the sizes used here.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamer.model.occurrence import Occurrence

SIGNIFICANCE = 0.001
DRAWS = 200_000

Increments = list[tuple[int, float]]
rows = st.one_of(st.integers(0, 200), st.integers(0, 300_000))
increments = st.lists(st.tuples(rows, st.integers(0, 1000)), max_size=30)


def occurrence_of(counts: dict[int, float]) -> Occurrence:
    found = Occurrence()
    add(found, list(counts.items()))
    return found


def add(o: Occurrence, pairs: Increments) -> None:
    o.add(np.array([row for row, _ in pairs], np.int64), np.array([count for _, count in pairs], np.float32))


def values(o: Occurrence, *at: int) -> list[float]:
    return o.values(np.array(at, np.int64)).tolist()


def draws(o: Occurrence, count: int = DRAWS, known_items: int = 100, seed: int = 0) -> NDArray[np.int64]:
    return o.draw(count, np.random.default_rng(seed), known_items)


def p_value(drawn: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    """How likely draws from these weights deviate as much; 0 if something of weight zero was drawn."""
    found = np.bincount(drawn, minlength=len(weights))
    if len(found) > len(weights) or found[weights == 0].any():
        return 0.0
    expected = (weights / weights.sum() * len(drawn))[weights > 0]
    assert expected.min() >= 5, "too few draws for the chi-squared test"
    statistic = ((found[weights > 0] - expected) ** 2 / expected).sum()
    halves = torch.tensor([(len(expected) - 1) / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(halves[0], halves[1]).item()


def assert_sums_fit(o: Occurrence) -> None:
    """Every group has the sum of its items."""
    np.testing.assert_array_equal(o._sums, o._by_group.sum(1))
    assert o.total() == o.values(np.arange(o.size)).sum()


class TestCounts:
    @given(calls=st.lists(increments, max_size=4))
    def test_values_are_those_of_a_dictionary(self, calls):
        o, slow = Occurrence(), dict[int, float]()
        for pairs in calls:
            add(o, pairs)
            for row, count in pairs:
                slow[row] = slow.get(row, 0.0) + count
        asked = [*slow, 0, 1, 300_001, 10**12]
        assert values(o, *asked) == [slow.get(row, 0.0) for row in asked]
        assert_sums_fit(o)

    @pytest.mark.parametrize("size", [1024, 1025, 4096, 4097, 262_145])
    def test_counts_survive_growth(self, size: int) -> None:
        o = occurrence_of({0: 1.0, 1000: 2.0})
        add(o, [(size - 1, 3.0)])
        assert values(o, 0, 1000, size - 1) == [1.0, 2.0, 3.0]
        assert_sums_fit(o)


class TestDraw:
    def test_follows_the_counts(self):
        weights = np.random.default_rng(1).integers(1, 50, 300).astype(float)
        assert p_value(draws(occurrence_of(dict(enumerate(weights)))), weights) > SIGNIFICANCE

    def test_follows_counts_that_are_far_apart(self):
        places = [0, 255, 256, 4095, 4096, 262_143, 262_144, 10_000_000 - 1]
        o = occurrence_of({row: k + 1.0 for k, row in enumerate(places)})
        drawn = np.searchsorted(places, draws(o))
        assert set(np.array(places)[drawn]) == set(draws(o))
        assert p_value(drawn, np.arange(1.0, 9.0)) > SIGNIFICANCE

    def test_chi_squared_test_sees_one_item_drawn_a_tenth_too_often(self):
        weights = np.full(50, 10.0)
        wrong = weights.copy()
        wrong[7] *= 1.1
        assert p_value(draws(occurrence_of(dict(enumerate(wrong)))), weights) < SIGNIFICANCE

    def test_items_without_counts_are_never_drawn(self):
        o = occurrence_of({5: 1e-9, 6: 0.0, 70: 1e9, 71: 0.0, 4097: 3.0})
        add(o, [(9000, 0.0)])
        assert set(draws(o).tolist()) <= {5, 70, 4097}

    def test_largest_uniform_number_stays_among_the_items(self):
        class Largest:
            def random(self, count: int) -> NDArray[np.float64]:
                return np.array([0.0, 1.0 - 2**-53])

        for last in (1.0, 3.0, 2.0**40 - 1, 0.7):
            assert occurrence_of({5: 0.1, 700: last}).draw(2, Largest(), 1000).tolist() == [5, 700]

    def test_uniform_before_anything_was_counted(self):
        assert p_value(draws(Occurrence(), known_items=50), np.ones(50)) > SIGNIFICANCE

    def test_draws_are_ascending_and_depend_on_the_generator_alone(self):
        o = occurrence_of(dict.fromkeys(range(300), 1.0))
        assert (np.diff(draws(o, 1000)) >= 0).all()
        np.testing.assert_array_equal(draws(o, 1000), draws(o, 1000))
        assert (draws(o, 1000) != draws(o, 1000, seed=1)).any()

    @pytest.mark.parametrize(("count", "known_items"), [(0, 10), (10, 0)])
    def test_nothing_to_draw(self, count, known_items):
        assert len(draws(Occurrence(), count, known_items)) == 0


class TestDrawAmong:
    def test_follows_one_plus_count_among_the_touched_only(self):
        o = occurrence_of({1: 9.0, 2: 4.0, 3: 100.0})
        drawn = o.draw_among(np.array([7, 2, 1, 5000]), DRAWS, np.random.default_rng(0))
        assert set(drawn.tolist()) == {1, 2, 7, 5000}
        place = {1: 0, 2: 1, 7: 2, 5000: 3}
        assert p_value(np.array([place[row] for row in drawn.tolist()]), np.array([10.0, 5, 1, 1])) > SIGNIFICANCE

    def test_item_that_was_touched_twice_counts_once(self):
        o = occurrence_of({1: 9.0})
        drawn = o.draw_among(np.array([2, 1, 2, 2]), DRAWS, np.random.default_rng(0)) - 1
        assert p_value(drawn, np.array([10.0, 1.0])) > SIGNIFICANCE

    @pytest.mark.parametrize(("touched", "count"), [([], 5), ([1], 0)])
    def test_nothing_to_draw(self, touched, count):
        among = np.array(touched, np.int64)
        assert len(Occurrence().draw_among(among, count, np.random.default_rng(0))) == 0


class TestForget:
    @given(pairs=increments, gone=st.lists(rows, max_size=10))
    def test_sums_stay_sums_of_what_is_left_and_what_is_gone_is_not_drawn(self, pairs, gone):
        o = Occurrence()
        add(o, pairs)
        gone = gone + [row for row, _ in pairs[::2]]
        o.forget(np.array(gone, np.int64))
        assert_sums_fit(o)
        assert values(o, *gone) == [0.0] * len(gone)
        assert o.total() == 0 or not set(draws(o, 100).tolist()) & set(gone)

    def test_no_rest_of_rounding_is_drawn_after_everything_was_retired(self):
        o = occurrence_of({3: 0.1, 70: 0.2, 5000: 0.7})
        o.forget(np.array([3, 70, 5000]))
        assert o.total() == 0
        assert p_value(draws(o, known_items=20), np.ones(20)) > SIGNIFICANCE


@pytest.mark.parametrize("size", [1, 1024, 5000])
def test_restart_draws_the_same_to_the_last_bit(size):
    o, rng = Occurrence(), np.random.default_rng(2)
    for _ in range(50):
        o.add(rng.integers(0, size, 40), rng.integers(0, 9, 40))
    restarted = Occurrence()
    restarted.load_state(o.state())
    for _ in range(3):
        np.testing.assert_array_equal(draws(restarted), draws(o))
        for each in (o, restarted):
            add(each, [(7, 3.0), (size + 3000, 1.0)])
