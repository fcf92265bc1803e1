"""The sampler report: each figure against the slow obvious way to get it."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from line_harness import events, learn_all, micro_batch, small

from streamer.learner import OnlineLearner
from streamer.metrics.composition import Ranking, curve
from streamer.metrics.sampler_report import (
    CURVE_POINTS,
    LOOK_PAUSE,
    MIN_LOOK_PAUSE_S,
    SamplerReporter,
    entropy,
    turnover,
)

SLOTS = st.lists(st.integers(0, 12), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def learner() -> OnlineLearner:
    found = OnlineLearner(small())
    learn_all(found, events(800, users=60, items=300))
    return found


def rows(values) -> np.ndarray:
    return np.array(values, np.int64)


@given(SLOTS, SLOTS)
def test_turnover_is_one_minus_what_two_bags_have_in_common(before, after):
    common = (Counter(before) & Counter(after)).total()
    assert turnover(rows(before), rows(after)) == pytest.approx(1 - common / len(after))


@given(SLOTS)
def test_entropy_is_that_of_the_definition(values):
    counts = Counter(values)
    shares = [count / len(values) for count in counts.values()]
    assert entropy(rows(list(counts.values()))) == pytest.approx(-sum(p * math.log(p) for p in shares), abs=1e-12)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=500))
def test_the_curves_means_add_up_to_everything(amounts):
    popularity = np.sort(np.array(amounts))[::-1]
    points = curve(popularity, popularity, CURVE_POINTS)
    ranks = [point.rank for point in points]
    assert ranks == sorted(set(ranks))
    assert 1 <= ranks[0] <= ranks[-1] <= len(amounts)
    if popularity.sum() > 1e-6:
        assert points[0].popularity == pytest.approx(popularity[0] / popularity.sum())
        assert all(point.popularity == pytest.approx(point.occurrence) for point in points)


def test_a_curve_of_more_ranks_than_points_keeps_the_mass():
    popularity = 1 / np.arange(1.0, 5001)
    points = curve(popularity, np.ones(5000), CURVE_POINTS)
    assert len(points) <= 48
    assert all(point.occurrence == pytest.approx(1 / 5000) for point in points)
    assert points[-1].popularity < points[10].popularity < points[0].popularity


def test_shares_of_what_was_resampled_sum_to_one_and_follow_occurrence(learner):
    report = SamplerReporter(learner).report(learner.state.cache, learner.state.cache[:5])
    assert sum(report.occurrence_bands) == pytest.approx(1)
    ranking = Ranking.of(learner.state.item_counts)
    ours = learner.state.occurrence.values(ranking.order)
    assert report.curve[0].occurrence == pytest.approx(ours[0] / ours.sum())


def test_overlap_is_the_share_of_slots_whose_item_is_in_the_batch(learner):
    batch = np.unique(learner.state.cache)[:7]
    expected = sum(item in batch for item in learner.state.cache) / len(learner.state.cache)
    assert SamplerReporter(learner).report(learner.state.cache, batch).overlap == pytest.approx(expected)


def test_top_items_hold_the_most_slots_under_their_ids(learner):
    report = SamplerReporter(learner).report(learner.state.cache, learner.state.cache[:5])
    slots = Counter(learner.state.items.id_of(row) for row in learner.state.cache.tolist())
    assert [top.slots for top in report.top] == sorted(slots.values(), reverse=True)[:10]
    assert all(slots[top.item] == top.slots for top in report.top)
    counts = {item: learner.state.item_counts.counts(rows([k]))[0] for k, item in enumerate(learner.state.items.ids)}
    for top in report.top:
        assert sum(count > counts[top.item] for count in counts.values()) < top.popularity_rank


def test_age_grows_while_an_item_stays_and_starts_again_after_a_gap(learner, monkeypatch):
    now = [100.0]
    reporter = SamplerReporter(learner, lambda: now[0])
    for at, cache, expected in [(100, [1, 2], 0), (110, [1, 1, 2, 3], 7.5), (120, [3], 10), (130, [1, 3], 10)]:
        now[0] = at
        monkeypatch.setattr(learner.state, "cache", rows(cache))
        assert reporter.report(rows([]), rows([0])).age_s == pytest.approx(expected)


def test_a_learner_that_knows_nothing_can_be_looked_at():
    report = SamplerReporter(OnlineLearner(small())).report(rows([]), rows([]))
    assert (report.slots, report.distinct, report.items, report.top, report.curve) == (0, 0, 0, [], [])


def test_a_method_without_cache_has_none():
    learner = OnlineLearner(small("bir"))
    learn_all(learner, events(64))
    report = SamplerReporter(learner).report(learner.state.cache, rows([0, 1]))
    assert report.slots == report.distinct == report.turnover == report.overlap == 0
    assert sum(report.occurrence_bands) == pytest.approx(1)


def test_a_look_is_followed_by_a_pause_that_is_longer_the_longer_it_takes(learner, monkeypatch):
    now, takes_s = [0.0], [0.05]
    reporter = SamplerReporter(learner, lambda: now[0])
    first = reporter.latest()  # loads compiled loops, and so does not count

    def slow(*arguments):
        now[0] += takes_s[0]
        return SamplerReporter.report(reporter, *arguments)

    monkeypatch.setattr(reporter, "report", slow)
    now[0] += MIN_LOOK_PAUSE_S - 0.1
    assert reporter.latest() is first
    now[0] += 0.2
    second = reporter.latest()
    assert second is not first
    now[0] += LOOK_PAUSE * 0.05 - 0.1
    assert reporter.latest() is second
    assert reporter.latest(now=True) is not second


def test_turnover_and_overlap_are_those_of_the_latest_step_alone():
    learner, caches = OnlineLearner(small()), []
    reporter = SamplerReporter(learner)
    for start in (0, 16, 32):
        learned = learner.learn_batch(micro_batch(events(64)[start : start + 16]))
        reporter.learned(learned.items)
        caches.append(learner.state.cache)
    report = reporter.latest()
    assert report == SamplerReporter(learner).report(caches[1], learned.items)
    assert report.turnover == turnover(caches[1], caches[2]) > 0
