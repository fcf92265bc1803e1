"""Ids get rows in order of first appearance, and keep them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamer.vocabulary import Vocabulary

IDS = st.lists(st.lists(st.text(max_size=3), max_size=20), max_size=10)


def slow_rows(batches: list[list[str]], first: int) -> list[list[int]]:
    """One id after the other."""
    seen: list[str] = []
    rows = []
    for batch in batches:
        for raw in batch:
            if raw not in seen:
                seen.append(raw)
        rows.append([first + seen.index(raw) for raw in batch])
    return rows


@given(IDS, st.sampled_from([0, 1]))
def test_rows_are_given_in_order_of_first_appearance(batches, first):
    vocabulary = Vocabulary(first)
    found = [vocabulary.rows(batch).tolist() for batch in batches]
    assert found == slow_rows(batches, first)
    distinct = list(dict.fromkeys(raw for batch in batches for raw in batch))
    assert vocabulary.ids == distinct
    assert len(vocabulary) == len(distinct)
    assert vocabulary.size == first + len(distinct)


@given(IDS)
def test_a_row_leads_back_to_its_id_and_an_unknown_id_has_none(batches):
    vocabulary = Vocabulary(first=1)
    for batch in batches:
        rows = vocabulary.rows(batch)
        assert [vocabulary.id_of(row) for row in rows] == batch
        assert [vocabulary.row_of(raw) for raw in batch] == rows.tolist()
    assert vocabulary.row_of("an id that never came") is None
    assert vocabulary.row_of("an id that never came") is None, "asking gives no row"


@given(IDS, IDS)
def test_a_loaded_vocabulary_goes_on_where_the_other_stopped(before, after):
    one, other = Vocabulary(first=1), Vocabulary(first=1)
    for batch in before:
        one.rows(batch)
    other.rows(["something else"])
    other.load(one.ids)
    for batch in after:
        assert np.array_equal(one.rows(batch), other.rows(batch))


def test_loading_copies():
    one, other = Vocabulary(), Vocabulary()
    one.rows(["a"])
    other.load(one.ids)
    other.rows(["b"])
    assert one.ids == ["a"]


def test_no_ids_are_no_rows():
    rows = Vocabulary().rows([])
    assert rows.dtype == np.int64
    assert len(rows) == 0
