"""Which row of the store each item has, against the names themselves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamer.cache_store.row_map import RowMap

IDS = [f"item-{k}" for k in range(6)]


@given(st.permutations(range(6)), st.data())
def test_rows_are_those_of_the_names_whatever_was_mapped_assigned_and_forgotten(order, data):
    """`order` are the store's rows of ours. Some ids are pulled and mapped, some rows assigned, and some forgotten."""
    row_map = RowMap()
    row_map.own_ids = IDS
    by_row = sorted(range(6), key=lambda own: order[own])
    pulled = data.draw(st.integers(0, 6))
    row_map.extend([IDS[own] for own in by_row[:pulled]], "")
    mapped = data.draw(st.integers(0, pulled))
    row_map.map(row_map.version, 0, np.array(by_row[:mapped], np.int64))
    known = set(by_row[:mapped])
    assigned = data.draw(st.lists(st.sampled_from(sorted(set(range(6)) - known)), unique=True)) if mapped < 6 else []
    row_map.assign(assigned, [order[own] for own in assigned])
    known |= set(assigned)
    confirmed = data.draw(st.integers(pulled, 6))
    row_map.extend([IDS[own] for own in by_row[pulled:confirmed]], "")
    if data.draw(st.booleans()):
        row_map.forget_unconfirmed()
        known = {own for own in known if order[own] < confirmed}
    wanted = [order[own] if own in known else -1 for own in range(6)]
    asked = data.draw(st.lists(st.integers(0, 5)))
    assert row_map.rows_of(np.array(asked, np.int64)).tolist() == [wanted[own] for own in asked]


def test_a_row_that_a_pull_shows_to_be_of_another_item_is_forgotten():
    row_map = RowMap()
    row_map.own_ids = IDS
    row_map.assign([4], [0])
    row_map.extend(["item-2"], "")
    assert row_map.rows_of(np.array([4])).tolist() == [-1]


def test_rows_of_an_outdated_version_are_not_mapped():
    row_map = RowMap()
    row_map.own_ids = IDS
    row_map.reset(["item-5"])
    row_map.map(row_map.version - 1, 0, np.array([0]))
    row_map.map(row_map.version, 0, np.array([5]))
    assert row_map.rows_of(np.arange(6)).tolist() == [-1, -1, -1, -1, -1, 0]


def test_a_checkpoint_gives_its_rows_back():
    row_map = RowMap()
    row_map.restore(IDS, np.array([3, 1]))
    assert row_map.ids == ["item-3", "item-1"]
    assert row_map.rows_of(np.arange(6)).tolist() == [-1, 1, -1, 0, -1, -1]
