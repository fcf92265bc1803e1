"""Slices of the stream, and every event of a log counted by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from line_harness import Event, Watch, events, micro_batch, small
from slow_ranking import had_before, slow_hits
from stream_cases import streams

from streamer.model.batch import Batch
from streamer.model.ranking.candidates import Candidates
from streamer.replay.evaluation.baselines import BASELINES
from streamer.replay.evaluation.delay import Delay, DelayedLearner
from streamer.replay.evaluation.settings import PrequentialSettings
from streamer.replay.evaluation.slices import (
    AMONG_NEW,
    RETRIEVED,
    SLICES,
    SPLITS,
    WHOLE,
    FirstEvents,
    SlicedPrequential,
    members,
)


@given(streams(40))
def test_rows_beyond_all_earlier_ones_are_new(stream):
    users, _, ends = stream
    seen, found = FirstEvents(), []
    for start, end in zip([0, *ends], ends, strict=False):
        found += seen.first(users[start:end]).tolist()
    assert found == [user not in users[:t] for t, user in enumerate(users.tolist())]


@given(st.lists(st.tuples(*[st.booleans()] * 4, st.integers(0, 2)), max_size=20))
def test_slices_split_events_without_gaps_and_overlaps(rows):
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    new_user, new_item, fresh, late = columns[:4].astype(bool)
    band = columns[4]
    found = dict(zip(SLICES, members(new_user, new_item, band, fresh, late).T, strict=True))
    for begin, whole in (("", found["all"]), ("new/", found["new"])):
        users = (found[f"{begin}new-users"], found[f"{begin}returning-users"])
        items = (found[f"{begin}{name}"] for name in ("new-items", "head", "torso", "tail"))
        for parts in (users, items):
            assert np.array_equal(np.sum(list(parts), axis=0), whole)
    assert np.array_equal(found["all"], np.ones(len(rows)))
    assert np.array_equal(found["new"], fresh)
    assert np.array_equal(found["new-users"], new_user)
    assert np.array_equal(found["returning-items"], ~new_item)
    assert np.array_equal(found["torso"], (band == 1) & ~new_item)
    for name in WHOLE:
        assert np.array_equal(found[f"second-half/{name}"], found[name] & late)


def test_only_slices_of_new_events_look_at_the_lists_without_known_items():
    assert [name for name in WHOLE if name in AMONG_NEW] == ["new", *(f"new/{split}" for split in SPLITS)]
    assert "second-half/new/tail" in AMONG_NEW
    assert not {"new-users", "second-half/new-items"} & set(AMONG_NEW)


def sliced(learner: DelayedLearner, half: int = 0, **changes: Any) -> SlicedPrequential:
    return SlicedPrequential(learner, PrequentialSettings(**{"retrieve_every": 0, **changes}), half)


def make_learner(*arguments: Any, **changes: Any) -> DelayedLearner:
    return DelayedLearner(small(*arguments, **changes), Delay())


def ranked_by(learner: DelayedLearner, stream: list[Event], *evaluators: Any, size: int = 40) -> None:
    """Learn a stream, each batch ranked before."""
    for start in range(0, len(stream), size):
        (evaluator,) = evaluators
        learner.learn_batch(micro_batch(stream[start : start + size]), evaluator)


def test_events_new_to_their_user_are_ranked_without_what_the_user_had():
    learner, stream = make_learner(rerank=False), events(400)
    test = sliced(learner, ks=(5,), baselines=())
    seen: dict[int, set[int]] = {}
    expected: list[bool] = []

    def look(batch: Batch, _: Candidates | None) -> None:
        known, before = learner.state.item_counts.size, had_before(batch, seen)
        hits = zip(slow_hits(learner, batch, known, 5, before), batch.items, before, strict=True)
        expected.extend(hit for hit, item, items in hits if item not in items)

    ranked_by(learner, stream, Watch(look, test))
    new = test.tally.figure("model", "new", k=5)
    assert new.events == len(expected) == len(set(stream))
    assert new.hits == sum(expected)
    assert 0 < new.hits < new.events < test.model.events == 400


def test_every_nth_event_is_looked_for_in_the_towers_own_list():
    learner, stream, (short, _) = make_learner(), events(900, items=300), RETRIEVED
    test = sliced(learner, retrieve_every=3, baselines=())
    seen: dict[int, set[int]] = {}
    expected: dict[str, list[bool]] = {"all": [], "new": []}

    def look(batch: Batch, _: Candidates | None) -> None:
        known, before, begin = learner.state.item_counts.size, had_before(batch, seen), test.events
        hits = slow_hits(learner, batch, known, short)
        hits_of_new = slow_hits(learner, batch, known, short, before)
        for n in range(-begin % 3, len(batch), 3):
            expected["all"].append(hits[n])
            expected["new"] += [hits_of_new[n]] if batch.items[n] not in before[n] else []

    ranked_by(learner, stream, Watch(look, test), size=100)
    assert test.retrieved.events() == 300
    for slice_, hits in expected.items():
        assert 0 < sum(hits) < len(hits)
        assert test.retrieved.figure("model", slice_).overall == pytest.approx(np.mean(hits))


@pytest.mark.parametrize("rerank", [False, True])
def test_in_the_first_batch_the_towers_miss_and_whoever_counts_event_by_event_may_hit(rerank):
    learner = make_learner(rerank=rerank)
    test = sliced(learner)
    ranked_by(learner, [("u", "a"), ("u", "a"), ("v", "a"), ("v", "b"), ("w", "a"), ("w", "b")], test)
    hits = {name: (test.figure(name).events, test.figure(name).hits) for name in test.names}
    expected = {
        "model": (6, 2 if rerank else 0),  # as last items and co-visitation together
        "model-without-towers": (6, 2),
        "most-popular": (6, 4),  # all but the first a and the first b
        "recently-popular": (6, 4),
        "last-items": (6, 1),  # u's second a
        "co-visitation": (6, 1),  # w's b, as v had it after a
        "counting": (6, 4),  # as the most popular
        "counting-no-time": (6, 4),
        "sequential-rules": (6, 1),  # w's b, as v had it after a
        "session-neighbours": (6, 1),
    }
    assert hits == {name: expected[name] for name in test.names}
    assert test.model.overall == test.model.recent == (2 / 6 if rerank else 0.0)
    new = test.tally.figure("model", "new")
    assert (new.events, new.hits) == (5, int(rerank))
    ranked_by(learner, [("x", "a"), ("x", "b")], test)
    assert (test.model.events, test.model.hits) == (8, 4 if rerank else 2)


class TestEvents:
    """How many events of each slice are counted."""

    def counts(self, test: SlicedPrequential) -> dict[str, int]:
        return {name: test.tally.events(name) for name in SLICES}

    def test_new_users_and_items_are_those_of_first_events_within_a_batch_too(self):
        learner = make_learner()
        test = sliced(learner, baselines=())
        ranked_by(learner, [("u0", "a"), ("u1", "b")], test)
        ranked_by(learner, [("u0", "a"), ("u2", "c"), ("u2", "c"), ("u1", "a"), ("u3", "c")], test)
        counts = self.counts(test)
        assert counts["all"] == 7
        assert (counts["new-users"], counts["returning-users"]) == (4, 3)
        assert (counts["new-items"], counts["returning-items"]) == (3, 4)
        assert counts["new"] == 5  # u0 a, u1 b; u2 c, u1 a, u3 c
        assert counts["new/new-users"] == 4
        assert counts["head"] + counts["torso"] + counts["tail"] == 4

    def test_in_the_first_batch_nothing_is_popular_yet(self):
        learner = make_learner()
        test = sliced(learner, baselines=())
        ranked_by(learner, [("u0", "a")] * 5, test)
        counts = self.counts(test)
        assert (counts["new-items"], counts["head"], counts["torso"], counts["tail"]) == (1, 0, 0, 4)
        ranked_by(learner, [("u0", "a")] * 5, test)
        assert self.counts(test)["head"] == 5


def test_nobody_predicts_an_item_that_was_never_seen():
    learner = make_learner()
    test = sliced(learner, ks=(50,))
    ranked_by(learner, events(400, items=200), test)
    assert set(test.names) > set(BASELINES)
    assert test.tally.events("new-items") > 10
    for name in test.names:
        assert test.tally.figure(name, "new-items", k=50).overall == 0, name


def test_a_stream_of_returning_users_is_predicted_by_their_last_items():
    learner = make_learner()
    test = sliced(learner, baselines=("last-items",))
    for _ in range(5):
        ranked_by(learner, [(f"u{n}", f"i{n}") for n in range(20)], test)
    for metric in ("hr", "mrr"):
        found = [
            test.tally.figure("last-items", slice_, metric).overall
            for slice_ in ("returning-users", "new-users", "all")
        ]
        assert found == [1.0, 0.0, 80 / 100]
