"""Features by row: the last word stays, what is unknown is zero; numbers are standardised."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.model.rows.features import LIMIT, SAMPLE, FeatureStore
from streamer.model.rows.growing import SMALLEST_CAPACITY

FAR = 5 * SMALLEST_CAPACITY


def store_of(codes: dict[int, list[int]] | None = None, numbers: dict[int, list[float]] | None = None) -> FeatureStore:
    store = FeatureStore(("genre", "country"), ("price",))
    if codes:
        store.set(np.array(list(codes)), np.array(list(codes.values())))
    if numbers:
        store.set(np.array(list(numbers)), None, np.array(list(numbers.values()), np.float32))
    return store


def genres(store: FeatureStore, *rows: int) -> list[int]:
    return store.codes(np.array(rows))[:, 0].tolist()


def prices(store: FeatureStore, *rows: int) -> list[float]:
    """As they were given, 0 where they are unknown."""
    given = store.state()["numbers"][:, 0].tolist()
    return [given[row] if row < len(given) else 0.0 for row in rows]


def test_features_are_found_by_row_and_name_and_one_kind_leaves_the_other():
    store = store_of({4: [1, 7], 2: [3, 9]}, {2: [0.5]})
    assert genres(store, 2, 4) == [3, 1]
    assert store.codes(np.array([2, 4]))[:, 1].tolist() == [9, 7]
    assert prices(store, 2, 4) == [0.5, 0.0]
    store.set(np.array([2]), np.array([[6, 6]]))
    assert (genres(store, 2), prices(store, 2)) == ([6], [0.5])
    store.set(np.array([2]), None, np.array([[3.0]], np.float32))
    assert (genres(store, 2), prices(store, 2)) == ([6], [3.0])


def test_rows_never_described_are_zero_whether_there_is_room_for_them_or_not():
    store = store_of({1: [5, 5]}, {1: [2.0]})
    assert genres(store, 0, 1, 2, FAR) == [0, 5, 0, 0]
    assert prices(store, 0, 1, 2, FAR) == [0, 2, 0, 0]
    store.grow(FAR)
    assert store.size == FAR
    assert genres(store, 1, FAR - 1) == [5, 0]
    without_features = FeatureStore()
    without_features.grow(10)
    assert without_features.size == 10
    assert without_features.numbers(np.array([3])).shape == (1, 0)


class TestStandardised:
    def test_a_tower_gets_standard_deviations_from_the_mean_and_zero_for_what_is_unknown(self):
        rng = np.random.default_rng(0)
        given = rng.normal(500.0, 20.0, 1000).astype(np.float32)
        store = FeatureStore((), ("price",))
        store.set(np.arange(1000), None, given[:, None])
        store.grow(1001)
        found = store.numbers(np.arange(1002))[:, 0]
        assert np.allclose(found[:1000], (given - given.mean()) / given.std(), rtol=0.1, atol=0.05)
        assert found[1000:].tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("absurd", [1e5, -3e38])
    def test_an_absurd_number_is_cut_off_and_changes_no_other(self, absurd):
        given = np.random.default_rng(0).normal(20.0, 5.0, (1000, 1)).astype(np.float32)
        given[7] = absurd
        store = FeatureStore((), ("price",))
        store.set(np.arange(1000), None, given)
        found = store.numbers(np.arange(1000))[:, 0]
        assert found[7] == np.copysign(LIMIT, absurd)
        assert np.allclose(np.delete(found, 7), np.delete((given[:, 0] - 20) / 5, 7), atol=0.2)

    def test_a_rare_flag_stays_a_difference(self):
        store = FeatureStore((), ("on sale",))
        store.set(np.arange(1000), None, (np.arange(1000) == 3)[:, None].astype(np.float32))
        found = store.numbers(np.arange(1000))[:, 0]
        assert found[3] == LIMIT
        assert np.abs(np.delete(found, 3)).max() < 0.1

    def test_a_drift_is_followed(self):
        store = FeatureStore((), ("price",))
        for mean in (10.0, 1000.0):
            given = np.random.default_rng(0).normal(mean, 1.0, (2 * SAMPLE, 1)).astype(np.float32)
            store.set(np.arange(len(given)), None, given)
        assert abs(store.numbers(np.arange(SAMPLE)).mean()) < 0.1


def test_retired_rows_are_unknown_again():
    store = store_of({1: [5, 5], 2: [6, 6]}, {1: [1.0], 2: [2.0]})
    store.forget(np.array([1, FAR]))
    assert (genres(store, 1, 2), prices(store, 1, 2)) == ([0, 6], [0.0, 2.0])


def test_other_features_are_refused():
    other = FeatureStore(("genre",), ("price",))
    with pytest.raises(ValueError, match="2 categorical and 1 numeric features do not fit 1 and 1"):
        other.load_state(store_of({1: [5, 5]}).state())
