"""Adding up without sorting, against adding up with it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamer.cache_store.adding import Adder, add_to
from streamer.cache_store.base import Increments
from streamer.cache_store.codec import summed

PARTS = st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2**40))), max_size=4)


def increments(pairs: list[tuple[int, int]]) -> Increments:
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    return Increments(columns[:, 0].copy(), columns[:, 1].copy())


@given(st.lists(PARTS, max_size=4))
def test_sums_are_those_of_the_slow_way_again_and_again(sums):
    adder = Adder()
    for parts in sums:
        found, wanted = adder.summed(list(map(increments, parts))), summed(list(map(increments, parts)))
        assert found.rows.tolist() == wanted.rows.tolist()
        assert found.counts.tolist() == wanted.counts.tolist()


def test_rows_ascend_and_those_that_nothing_is_added_to_are_left_out():
    found = Adder().summed([increments([(9, 1), (2, 1)]), increments([(2, 1), (5, 0), (1, 1)])])
    assert (found.rows.tolist(), found.counts.tolist()) == ([1, 2, 9], [1, 2, 1])


@given(PARTS)
def test_totals_grow_by_what_is_added(parts):
    totals = np.arange(41)
    for part in map(increments, parts):
        add_to(totals, *part)
    wanted = np.arange(41)
    for part in parts:
        for row, count in part:
            wanted[row] += count
    assert totals.tolist() == wanted.tolist()


def test_what_it_answers_stays_when_it_adds_up_more():
    adder = Adder()
    first = adder.summed([increments([(3, 4)])])
    adder.summed([increments([(3, 9), (1000, 1)])])
    assert (first.rows.tolist(), first.counts.tolist()) == ([3], [4])
