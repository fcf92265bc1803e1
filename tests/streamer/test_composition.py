"""Shares of the cache by popularity band."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.metrics.composition import Composition, Ranking
from streamer.model.popularity import ExactPopularity


def popularity_of(counts: list[int]) -> ExactPopularity:
    popularity = ExactPopularity()
    popularity.add(np.arange(len(counts)), np.array(counts, np.float64))
    return popularity


def composition(cache: np.ndarray, popularity: ExactPopularity) -> Composition:
    return Ranking.of(popularity).slot_shares(cache)


def slow_composition(cache: list[int], counts: list[int]) -> tuple[float, float, float]:
    """Walk down the items from the most popular one; an item is where its first event is."""
    bands: dict[int, int] = {}
    seen = 0
    for item in sorted(range(len(counts)), key=lambda j: -counts[j]):
        share = seen / sum(counts)
        bands[item] = 0 if share < 0.5 else 1 if share < 0.8 else 2
        seen += counts[item]
    slots = [bands[item] for item in cache]
    return tuple(slots.count(band) / len(slots) for band in range(3))  # type: ignore[return-value]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.data())
def test_bands_agree_with_a_walk_down_the_items(counts, data):
    cache = data.draw(st.lists(st.integers(0, len(counts) - 1), min_size=1, max_size=50))
    found = composition(np.array(cache), popularity_of(counts))
    assert found == pytest.approx(slow_composition(cache, counts))
    assert sum(found) == pytest.approx(1)


def test_an_empty_cache_has_no_composition():
    assert composition(np.array([], np.int64), popularity_of([1, 2])) == (0, 0, 0)
    assert composition(np.array([0]), ExactPopularity()) == (0, 0, 0)
