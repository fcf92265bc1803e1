"""Ids and rows against a dictionary that gives the lowest free row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamer.vocabulary import Vocabulary

IDS = st.text(st.characters(exclude_categories=()), max_size=6) | st.sampled_from(["", "a", "aa", "ü", "\ud800"])


class AgainstDictionary(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.vocabulary, self.rows, self.retired = Vocabulary(first=1, reuse=False), {}, set()

    def _free(self):
        taken = {*self.rows.values(), *self.retired}
        return next(row for row in range(1, len(taken) + 2) if row not in taken)

    @rule(ids=st.lists(IDS, max_size=8))
    def come(self, ids):
        before = list(self.rows.values())
        expected = [self.rows.get(raw) or self.rows.setdefault(raw, self._free()) for raw in ids]
        said = []
        assert self.vocabulary.rows(ids, said.extend).tolist() == expected
        assert said == sorted(set(expected) - set(before))

    @rule(data=st.data())
    def forget(self, data):
        gone = data.draw(st.lists(st.sampled_from(sorted(self.rows)), unique=True)) if self.rows else []
        rows = [self.rows.pop(raw) for raw in gone]
        self.vocabulary.forget(np.array(rows, np.int64))
        self.retired |= set(rows)

    @rule()
    def give_back(self):
        self.vocabulary.give_back(np.array(sorted(self.retired), np.int64))
        self.retired = set()

    @rule()
    def go_on_in_another(self):
        every, other = np.arange(1, self.vocabulary.size), Vocabulary(first=1, reuse=False)
        for part in (every[::2], every[1::2]):
            other.put(part, self.vocabulary.take(part))
        self.vocabulary = other

    @rule()
    def put_back_what_was_taken(self):
        every = np.arange(1, self.vocabulary.size)
        self.vocabulary.put(every, self.vocabulary.take(every))

    @invariant()
    def same(self):
        found = zip(self.vocabulary.used.tolist(), self.vocabulary.ids, strict=True)
        assert dict(found) == {row: raw for raw, row in self.rows.items()}
        assert len(self.vocabulary) == len(self.rows)
        assert all(self.vocabulary.row_of(raw) == row for raw, row in self.rows.items())
        assert self.vocabulary.row_of("an id that never came") is None


TestAgainstDictionary = AgainstDictionary.TestCase


def test_memory_stays_the_same_while_ids_come_and_go():
    vocabulary, seen = Vocabulary(), []
    for k in range(200):
        rows = vocabulary.rows([f"id-{k:03}-{n}" for n in range(500)])
        vocabulary.forget(rows)
        seen.append(vocabulary.nbytes)
    assert max(seen[100:]) <= max(seen[:100])
    assert vocabulary.size == 500


def test_a_row_without_an_id_has_no_name():
    vocabulary = Vocabulary(first=1)
    vocabulary.forget(vocabulary.rows(["tea"]))
    for row in (0, 1, 2):
        with pytest.raises(IndexError, match=f"row {row} has no id"):
            vocabulary.id_of(row)
