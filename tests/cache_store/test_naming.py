"""Which row of the store each item has, and where nothing need be translated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.cache_store.naming import Naming, agreed

IDS = [f"item-{k}" for k in range(6)]


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 4097, 8191, 9999, None])
@pytest.mark.parametrize("known", [0, 1, 4000])
def test_rows_agree_up_to_the_first_that_does_not(at, known):
    rows = np.arange(10_000)
    if at is not None:
        rows[at] = -1
    wanted = 10_000 if at is None else at
    assert agreed(rows, min(known, wanted)) == wanted


@given(st.one_of(st.just(range(6)), st.permutations(range(6))), st.data())
def test_translation_is_that_of_the_names_whatever_was_told_given_and_forgotten(order, data):
    """`order` are the store's rows of ours. The store has named some items, told of others, and forgets some again."""
    naming = Naming()
    naming.own_ids = IDS
    by_row = sorted(range(6), key=lambda own: order[own])
    pulled = data.draw(st.integers(0, 6))
    naming.extend([IDS[own] for own in by_row[:pulled]], "")
    told = data.draw(st.integers(0, pulled))
    naming.tell(naming.turn, 0, np.array(by_row[:told], np.int64))
    naming.take_in_told()
    given_rows = data.draw(st.one_of(st.just(list(range(6))), st.lists(st.sampled_from(range(6)), unique=True)))
    naming.give(given_rows, [order[own] for own in given_rows])
    known = {*by_row[:told], *given_rows}
    if data.draw(st.booleans()):
        naming.forget_unsure()
        known = {own for own in known if order[own] < pulled}
    if data.draw(st.booleans()):
        naming.forget_others()
        known = {own for own in known if order[own] < pulled}
    wanted = [order[own] if own in known else -1 for own in range(6)]
    asked = data.draw(st.lists(st.integers(0, 5)))
    assert naming.rows_of(np.array(asked, np.int64)).tolist() == [wanted[own] for own in asked]


def test_what_is_told_of_an_earlier_turn_is_not_used():
    naming = Naming()
    naming.own_ids = IDS
    naming.begin_anew(["item-5"])
    naming.tell(naming.turn - 1, 0, np.array([0]))
    naming.tell(naming.turn, 0, np.array([5]))
    naming.take_in_told()
    assert naming.rows_of(np.arange(6)).tolist() == [-1, -1, -1, -1, -1, 0]
