"""CoOccurrence: the compiled lists against dictionaries, event by event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_candidates import SlowCoOccurrence

from streamer.model.ranking.candidates import CandidateFeatures
from streamer.model.ranking.co_occurrence import MAX_PAIR_DISTANCE, CoOccurrence, Weight
from streamer.model.rows.growing import SMALLEST_CAPACITY
from streamer.model.rows.recent_items import UserHistory
from streamer.model.rows.retired import is_retired

ITEMS = 15
Event = tuple[int, int, list[tuple[int, int]]]
"""An item, its time, and its user's recent items with their times."""
rows, seconds = st.integers(0, ITEMS - 1), st.sampled_from([0, 1, 2, 3, 9_000, 90_000])
recents = st.lists(st.tuples(rows, seconds), max_size=MAX_PAIR_DISTANCE + 3, unique_by=lambda pair: pair[0])
streams = st.lists(st.tuples(rows, seconds, recents), max_size=40)
lengths = st.integers(0, 9)


def observe(co_occurrence: CoOccurrence, stream: list[Event]) -> None:
    shape = (len(stream), max((len(recent) for *_, recent in stream), default=0))
    items, times_s = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
    for b, (_, _, recent) in enumerate(stream):
        for k, (item, time_s) in enumerate(recent):
            items[b, k], times_s[b, k] = item, time_s
    mine, when = (np.array([event[column] for event in stream], np.int64) for column in (0, 1))
    features = CandidateFeatures(co_occurrence.length, co_occurrence.retired)
    features.co_occurrence = co_occurrence
    features.observe(mine, when, UserHistory(items, times_s, np.ones(shape, np.uint8)), np.empty(0, np.int64))


def after(stream: list[Event], length: int = 4) -> CoOccurrence:
    co_occurrence = CoOccurrence(length)
    observe(co_occurrence, stream)
    return co_occurrence


def slow_after(stream: list[Event], length: int) -> SlowCoOccurrence:
    slow = SlowCoOccurrence(length)
    for event in stream:
        slow.observe(*event)
    return slow


def assert_same(found: CoOccurrence, slow: SlowCoOccurrence) -> None:
    flags = found.retired.flags
    for item in range(ITEMS):
        expected = slow.of(item)
        assert list(found.of(item)) == list(expected)
        assert found.of(item) == {other: weight for other, (weight, _) in expected.items()}
        if item < found.size:
            lists = found.take(np.array([item]))
            kept = [not is_retired(flags, i) for i in lists["items"].tolist()]
            came_next = dict(zip(lists["items"][kept].tolist(), lists["next"][kept].tolist(), strict=True))
            assert came_next == pytest.approx(slow.followers.get(item, {}), rel=1e-5)
            timed = lists["weights"][kept, Weight.TIMED]
            assert timed.tolist() == pytest.approx([t for _, t in expected.values()], rel=1e-5, abs=1e-7)
            assert lists["timed_total"][0] == pytest.approx(slow.timed_totals[item], rel=1e-5, abs=1e-6)
        assert found.total(item) == pytest.approx(slow.totals[item], rel=1e-5, abs=1e-6)


@given(stream=streams, length=lengths, cut=st.integers(0, 40))
def test_lists_hold_what_was_had_together_wherever_the_stream_is_cut(stream, length, cut):
    co_occurrence = after(stream[:cut], length)
    observe(co_occurrence, stream[cut:])
    assert_same(co_occurrence, slow_after(stream, length))


@given(stream=streams, further=streams, length=lengths)
def test_restart_goes_on_as_if_it_had_not_happened(stream, further, length):
    co_occurrence, restarted = after(stream, length), CoOccurrence(length)
    restarted.load_state({name: array.copy() for name, array in co_occurrence.state().items()})
    assert_same(restarted, slow_after(stream, length))
    for one in (co_occurrence, restarted):
        observe(one, further)
    for name, array in co_occurrence.state().items():
        np.testing.assert_array_equal(restarted.state()[name], array)


@given(stream=streams, further=streams, length=lengths, gone=st.sets(st.integers(0, ITEMS + 5)))
def test_retired_items_have_no_neighbours_and_are_none_until_they_come_again(stream, further, length, gone):
    co_occurrence, slow = after(stream, length), slow_after(stream, length)
    rows = np.array(sorted(gone), np.int64)
    co_occurrence.retired.forget(rows)
    co_occurrence.forget(rows)
    slow.forget(gone)
    assert_same(co_occurrence, slow)
    others = [event for event in further if not gone & {event[0], *(item for item, _ in event[2])}]
    observe(co_occurrence, others)
    for event in others:
        slow.observe(*event)
    assert_same(co_occurrence, slow)
    co_occurrence.sweep(np.arange(ITEMS + 9))
    assert not len(co_occurrence.with_retired(np.arange(ITEMS + 9)))
    co_occurrence.retired.clear()
    assert_same(co_occurrence, slow)
    observe(co_occurrence, further)
    for event in further:
        slow.observe(*event)
    assert_same(co_occurrence, slow)


def test_pairs_weigh_less_the_longer_ago_the_other_was_and_ties_share_the_rank_of_the_first():
    co_occurrence = after([(7, 30, [(5, 9), (6, 8), (4, 8), (3, 8), (2, 7)])], length=8)
    assert co_occurrence.of(7) == {5: 1.0, 6: 0.5, 4: 0.5, 3: 0.5, 2: pytest.approx(0.2)}
    assert co_occurrence.of(3) == {7: 0.5}


def test_lists_survive_growth_of_items_and_of_the_pool():
    """Every list grows from 4 places to 64, and all of them together over several lengths of the pool."""
    many, length = 2 * SMALLEST_CAPACITY, 64
    rng = np.random.default_rng(0)
    stream: list[Event] = [(item, 0, [(other, 0)]) for item, other in rng.integers(0, many, (60_000, 2)).tolist()]
    co_occurrence, slow = after(stream, length), slow_after(stream, length)
    assert len(co_occurrence.lists.pool.items) > 1 << 16
    assert all(co_occurrence.of(i) == {j: w for j, (w, _) in slow.of(i).items()} for i in range(many))
