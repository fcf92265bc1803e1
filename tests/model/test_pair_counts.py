"""Pair counts in a pool, and what users had: against dictionaries and sets."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_cases import moments, streams

from streamer.model.rows.pair_counts import PairCounts, add_one
from streamer.model.rows.seen_items import SeenBefore, UserItems

PAIR = st.tuples(st.integers(0, 12), st.integers(0, 200))


def count(pairs: PairCounts, batch: list[tuple[int, int]]) -> None:
    pairs.reserve(1 + max((row for row, _ in batch), default=-1))
    for row, key in batch:
        while not add_one(pairs.pool, row, key, 1.0):
            pairs.extend()


@settings(max_examples=100)
@given(st.lists(st.lists(PAIR, max_size=150), max_size=4))
def test_pairs_are_counted_as_a_dictionary_would(batches):
    pairs, expected = PairCounts(), Counter()
    for batch in batches:
        count(pairs, batch)
        expected.update(batch)
    for row in range(15):
        assert pairs.of(row) == {key: n for (r, key), n in expected.items() if r == row}


def test_tables_that_are_left_are_given_to_the_next():
    pairs = PairCounts()
    for row in range(64):
        count(pairs, [(row, key) for key in range(400)])
    tables = 64 * 512  # 400 keys need 512 slots, of which four fifths may be used
    assert pairs.pool.blocks.end[0] < 1.05 * tables
    assert all(len(pairs.of(row)) == 400 for row in range(64))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), max_size=150), st.integers(1, 12))
def test_in_a_full_row_a_new_pair_takes_the_place_of_one_with_the_lowest_count(additions, most):
    pairs, expected = PairCounts(most), {}
    for key, times in additions:
        count(pairs, [(5, key)] * times)
        found = pairs.of(5)
        if len(expected) == most and key not in expected:
            (gone,) = expected.keys() - found.keys()
            assert expected.pop(gone) <= min(expected.values(), default=np.inf)
        expected[key] = expected.get(key, 0) + times
        assert found == expected


@settings(max_examples=100)
@given(streams(), st.integers(1, 5))
def test_each_event_sees_what_its_user_had_before_it(stream, every):
    users, items, ends = stream
    known, expected = UserItems(), list(moments(users, items))
    for start, end in zip([0, *ends], ends, strict=False):
        ranked = np.arange(0, end - start, every)
        seen = known.before(users[start:end], items[start:end], ranked)
        every_item = np.arange(items.max() + 1, dtype=np.int32)
        first, candidates = np.arange(len(ranked) + 1) * len(every_item), np.tile(every_item, len(ranked))
        had = known.contains(users[start:end], items[start:end], ranked, first, candidates).reshape(len(ranked), -1)
        known.observe(users[start:end], items[start:end])
        for k, event in enumerate(ranked + start):
            moment = expected[event]
            listed = seen.items[seen.first[k] : seen.first[k + 1]].tolist()
            assert seen.fresh[k] == (moment.item not in moment.seen)
            assert len(listed) == len(set(listed))
            assert set(listed) == (moment.seen if seen.fresh[k] else set())
            assert set(np.flatnonzero(had[k]).tolist()) == moment.seen


def test_where_nobody_knows_what_users_had_no_event_is_new():
    seen = SeenBefore.unknown(3)
    assert not seen.fresh.any()
    assert seen.first.tolist() == [0, 0, 0, 0]


@settings(max_examples=50)
@given(st.dictionaries(st.integers(0, 40), st.sets(st.integers(0, 2000), max_size=120), max_size=8))
def test_what_is_put_equals_what_came_one_by_one(had):
    one_by_one, put = UserItems(), UserItems()
    observe(one_by_one, [(user, item) for user, items in had.items() for item in items])
    rows = np.arange(45)
    taken = one_by_one.take(rows)
    assert taken["items"].tolist() == [item for user in rows for item in sorted(had.get(user, ()))]
    for _ in range(2):  # into empty rows, and in the place of what they have
        put.put(rows, taken)
        assert all(set(put.of(user).tolist()) == had.get(user, set()) for user in rows)


def observe(had: UserItems, pairs: list[tuple[int, int]]) -> None:
    had.observe(np.array([user for user, _ in pairs], np.int64), np.array([item for _, item in pairs], np.int64))
