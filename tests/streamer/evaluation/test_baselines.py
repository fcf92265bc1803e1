"""Baselines against slow, obvious versions of themselves, event by event."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stream_cases import Moment, assert_ranked, in_order_of_appearance, moments, rank_in, streams, walked

from streamer.evaluation.baselines import LINE_BASELINES, Counting, LastItems, MostPopular
from streamer.evaluation.tally import MISS
from streamer.metrics.composition import Ranking
from streamer.model.popularity import ExactPopularity
from streamer.replay.evaluation.baselines import BASELINES, CoVisitation

delays = st.sampled_from([0, 1, 7])


def together(moment: Moment) -> Counter[tuple[int, int]]:
    """How often two items were seen together."""
    counts: Counter[tuple[int, int]] = Counter()
    for item, last, _ in moment.learned:
        for other in last:
            counts[other, item] += 1
            if other != item:
                counts[item, other] += 1
    return counts


def slow_co_visitation(moment: Moment) -> dict[int, Fraction]:
    """Exact scores of all that was seen together with the last items."""
    scores: dict[int, Fraction] = {}
    for rank, item in enumerate(moment.last, start=1):
        for (one, other), count in together(moment).items():
            if one == item:
                scores[other] = scores.get(other, Fraction(0)) + Fraction(count, rank)
    return scores


@settings(max_examples=60)
@given(streams(60), delays)
@example((np.array([0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]), np.array([0, 1, 0, 2, 0, 2, 0, 2, 1, 2, 1, 0]), [12]), 0)
def test_co_visitation_ranks_by_what_was_seen_together_with_the_last_ten(stream, delay):
    """Of equal scores the newer item is first; from thirds on they are rounded, and their order is free."""
    users, items, ends = stream
    ranks = walked(CoVisitation(), users, items, ends, delay)
    for t, moment in enumerate(moments(users, items, delay)):
        scores = slow_co_visitation(moment)
        assert_ranked(ranks, t, moment, scores)
        for found, left_out in ((ranks.among_all[t], set()), (ranks.among_new[t], moment.seen)):
            if found < MISS and len(moment.last) <= 2:
                own = (scores[moment.item], moment.item)
                ahead = [item for item, score in scores.items() if (score, item) > own and item not in left_out]
                assert found == len(ahead) + 1


def test_co_visitation_goes_on_when_its_memory_must_grow():
    rng = np.random.default_rng(0)
    users = in_order_of_appearance(rng.integers(0, 40, 3000).tolist())
    items = in_order_of_appearance(rng.integers(0, 300, 3000).tolist())
    at_once, in_parts = CoVisitation(), CoVisitation()
    whole = walked(at_once, users, items, [3000])
    parts = walked(in_parts, users, items, list(range(1, 3001)))
    np.testing.assert_array_equal(whole.among_all, parts.among_all)
    expected = together(Moment(0, 0, set(), [], [], [(m.item, m.last, []) for m in moments(users, items)]))
    for baseline in (at_once, in_parts):
        found = {(row, key): n for row in range(300) for key, n in baseline.pairs.of(row).items()}
        assert found == expected
    assert len(at_once.pairs.pool.keys) > 32_768


def slow_counting(moment: Moment, timed: bool) -> dict[int, float]:
    """Scores as the formula says, from all that was learned; 200 pairs are more than these streams have."""

    def weights(ages: list[float]) -> list[float]:
        ranks = [1] * len(ages)
        for k in range(1, len(ages)):
            ranks[k] = ranks[k - 1] if ages[k] == ages[k - 1] else k + 1
        faded = [(1 + age / 60) ** -0.15 if timed else 1.0 for age in ages]
        return [f / rank for f, rank in zip(faded, ranks, strict=True)]

    together: dict[int, dict[int, float]] = {}
    for item, last, ages in moment.learned:
        for other, weight in zip(last, weights(ages), strict=True):
            for one, two in {(item, other), (other, item)}:
                pairs = together.setdefault(one, {})
                pairs[two] = pairs.get(two, 0.0) + weight
    scores = {item: 1e-6 * n for item, n in counted(moment, 5000).items()}
    for item, weight in zip(moment.last, weights(moment.ages), strict=True):
        pairs = together.get(item, {})
        for other, count in pairs.items():
            scores[other] += weight * count / math.sqrt(sum(pairs.values()))
    return scores


@settings(max_examples=60)
@given(streams(60), st.data(), st.booleans(), delays)
def test_counting_ranks_by_the_weights_of_order_and_time(stream, data, timed, delay):
    """Scores that differ by rounding only may stand in any order."""
    users, items, ends = stream
    gaps = data.draw(
        st.lists(st.sampled_from([0, 0, 60, 9000, 200_000, -50]), min_size=len(users), max_size=len(users))
    )
    times = 1_000_000_000 + np.cumsum(gaps)
    ranks = walked(Counting(timed), users, items, ends, delay, times)
    for t, moment in enumerate(moments(users, items, delay, times)):
        assert_ranked(ranks, t, moment, slow_counting(moment, timed), share=1e-5)


@settings(max_examples=100)
@given(streams(), delays)
def test_last_items_are_the_users_last_ten_most_recent_first(stream, delay):
    users, items, ends = stream
    ranks = walked(LastItems(), users, items, ends, delay)
    expected = [rank_in(moment.last, moment.item) for moment in moments(users, items)]
    assert ranks.among_all.tolist() == expected
    assert (ranks.among_new == MISS).all()


def counted(moment: Moment, window: int | None) -> Counter[int]:
    return moment.counts if window is None else Counter(item for item, _, _ in moment.learned[-window:])


@settings(max_examples=100)
@given(streams(), st.sampled_from([None, 1, 3, 20]), delays)
def test_popular_items_are_ranked_by_their_number_of_events(stream, window, delay):
    """Between items with equal counts the order is free."""
    users, items, ends = stream
    ranks = walked(MostPopular(window), users, items, ends, delay)
    for t, moment in enumerate(moments(users, items, delay)):
        assert_ranked(ranks, t, moment, counted(moment, window))


@settings(max_examples=100)
@given(streams(), st.sampled_from([None, 3, 20]))
def test_popular_items_make_one_list_sorted_by_counts(stream, window):
    users, items, ends = stream
    baseline = MostPopular(window)
    walked(baseline, users, items, ends)
    counts = Counter(items.tolist() if window is None else items[-window:].tolist())
    listed = baseline.items().tolist()
    assert sorted(listed) == list(range(items.max() + 1))
    assert [counts[item] for item in listed] == sorted((counts[item] for item in listed), reverse=True)


def test_popular_goes_on_from_given_counts():
    baseline = MostPopular()
    baseline.start_from(np.array([3, 0, 5]))
    ranks = walked(baseline, np.zeros(4, np.int64), np.array([0, 0, 0, 0]), [4])
    assert ranks.among_all.tolist() == [2, 2, 2, 1]
    assert baseline.items().tolist() == [0, 2, 1]


@settings(max_examples=100)
@given(streams())
def test_bands_are_those_of_the_caches_composition(stream):
    """Up to ties: as many items and events in each band."""
    users, items, ends = stream
    baseline, popularity = MostPopular(), ExactPopularity()
    walked(baseline, users, items, ends)
    popularity.observe(items)
    known = np.arange(items.max() + 1)
    shares = np.bincount(baseline.bands(known), minlength=3) / len(known)
    assert shares == pytest.approx(Ranking.of(popularity).slot_shares(known))
    assert baseline.bands(np.array([items.max() + 1])).tolist() == [2]


def test_every_baseline_is_called_by_its_name():
    assert [make().name for make in BASELINES.values()] == list(BASELINES)
    assert set(LINE_BASELINES) < set(BASELINES)
