"""Catalogue events: items are known, described and deleted before anyone has had them, in the order of arrival."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from line_harness import assert_same_learner, events, popularity_counts, small
from serve_harness import Server, Trainer, said, served, wait_until

import streamer
from streamer.event import NO_USER, Features
from streamer.ingest.batcher import MicroBatch
from streamer.learner import OnlineLearner
from streamer.serve.service import RecommendRequest
from streamer.settings import RunSettings

Said = tuple[str, str, Features | None]
"""User (none of a catalogue event), item, and what is said of it (None of a catalogue event: deleted)."""
DESCRIBED: dict[str, Any] = {"item_features": ("brand",), "recent_items": 4}


def learn(learner: OnlineLearner, stream: list[Said], batch_size: int = 16) -> None:
    for start in range(0, len(stream), batch_size):
        part = stream[start : start + batch_size]
        batch = MicroBatch(
            users=[user for user, _, _ in part],
            items=[item for _, item, _ in part],
            timestamps_s=[1e9 + start + k for k in range(len(part))],
            item_features=[features for _, _, features in part],
        )
        for stretch in learner.split_catalogue_events(batch):
            learner.learn_batch(stretch)


def interactions(count: int = 200) -> list[Said]:
    """Users keep to a brand; there are items of two."""
    return [(user, item, {"brand": f"b{int(user[1:]) % 2}"}) for user, item in events(count, users=10, items=20)]


def catalogue(*items: str, **features: str) -> list[Said]:
    return [(NO_USER, item, dict(features)) for item in items]


def vector(learner: OnlineLearner, item: str) -> np.ndarray:
    row = learner.state.items.row_of(item)
    assert row is not None
    return learner.state.retriever.items(row + 1).vectors[row].numpy().copy()


def recommended(learner: OnlineLearner, user: str = "u1") -> set[str]:
    return {found.item for found in streamer.Learner(learner).recommend(user, 1000)}


class TestUntouchedItems:
    def test_with_features_an_item_can_be_recommended_before_anyone_has_had_it(self):
        learner = OnlineLearner(small(**DESCRIBED))
        learn(learner, interactions())
        assert "new" not in recommended(learner)
        learn(learner, catalogue("new", brand="b1", title="New!"))
        assert "new" in recommended(learner)
        assert len(learner.state.cold_items) == 1
        learn(learner, [("u1", "new", None)])
        assert len(learner.state.cold_items) == 0
        assert "new" in recommended(learner)

    def test_it_has_the_vector_of_its_features_until_somebody_had_it(self):
        learner = OnlineLearner(small(**DESCRIBED))
        learn(learner, interactions())
        learn(learner, catalogue("one", "two", brand="b1") + catalogue("three", brand="b0"))
        row = learner.state.vocabulary("item.brand").row_of("b1")
        brand = learner.state.trainer.model.tables["item.brand"].weight[row].numpy()
        np.testing.assert_array_equal(vector(learner, "one"), brand)
        np.testing.assert_array_equal(vector(learner, "two"), vector(learner, "one"))
        assert not np.array_equal(vector(learner, "three"), vector(learner, "one"))
        learn(learner, [("u1", "one", None)] * 3)
        assert not np.array_equal(vector(learner, "two"), vector(learner, "one"))

    @pytest.mark.parametrize("said", [{}, {"title": "New!"}, {"colour": "red"}], ids=str)
    @pytest.mark.parametrize("rerank", [True, False])
    def test_without_features_that_the_model_uses_it_waits_for_its_first_event(self, said: Features, rerank: bool):
        learner = OnlineLearner(small(**DESCRIBED, rerank=rerank))
        learn(learner, [*interactions(), (NO_USER, "new", said)])
        assert "new" not in recommended(learner) | recommended(learner, "nobody")
        assert len(learner.state.cold_items) == 0
        learn(learner, [("u1", "new", None)])
        assert "new" in recommended(learner)

    def test_what_an_event_says_of_its_own_item_does_not_give_it_away(self):
        """An item that comes with its features in its first event was not known before it."""
        learner, seen = OnlineLearner(small(**DESCRIBED)), []

        class Look:
            def choose(self, count: int) -> np.ndarray:
                return np.arange(count)

            def __call__(self, batch: Any, chosen: Any, candidates: Any, due: Any = None) -> None:
                seen.append(candidates.target.tolist())

        learn(learner, interactions())
        learner.learn_batch(MicroBatch(["u1"], ["new"], [2e9], item_features=[{"brand": "b1"}]), Look())
        assert seen == [[-1]]

    def test_the_ranker_learns_from_first_events_of_described_items(self):
        with_catalogue, without = OnlineLearner(small(**DESCRIBED)), OnlineLearner(small(**DESCRIBED))
        stream = interactions()
        for learner, first in ((with_catalogue, catalogue(*(f"i{n}" for n in range(20)), brand="b1")), (without, [])):
            learn(learner, first + stream)
        ours, theirs = with_catalogue.state.ranker.weights[0].linear, without.state.ranker.weights[0].linear
        assert not np.allclose(ours, theirs)

    def test_limits_hold_while_a_catalogue_is_read(self):
        learner = OnlineLearner(small(**DESCRIBED, max_items=20))
        learn(learner, catalogue(*(f"n{k}" for k in range(200)), brand="b1"))
        assert len(learner.state.items) <= 20 + 16  # a batch of new ones comes before what is over the limit goes
        assert set(learner.state.items.ids) == {f"n{k}" for k in range(200 - len(learner.state.items), 200)}
        assert len(learner.state.cold_items) == len(learner.state.items)


IDS = st.integers(0, 5).map("i{}".format)
BRANDS = st.sampled_from(["b0", "b1"])
ONE: st.SearchStrategy[Said] = st.one_of(
    st.tuples(st.just("u1"), IDS, st.none() | st.fixed_dictionaries({"brand": BRANDS})),
    st.tuples(
        st.just(NO_USER), IDS, st.fixed_dictionaries({}, optional={"brand": BRANDS, "title": st.sampled_from("ab")})
    ),
    st.tuples(st.just(NO_USER), IDS, st.none()),
)


class Slow:
    """Dictionaries, one event after the other."""

    def __init__(self, stream: list[Said]) -> None:
        self.counts: dict[str, int] = {}
        self.said: dict[str, Features] = {}
        for user, item, features in stream:
            if user == NO_USER and features is None:
                self.counts.pop(item, None)
                self.said.pop(item, None)
                continue
            if user != NO_USER:
                self.counts[item] = self.counts.get(item, 0) + 1
            if user != NO_USER or features:
                self.said[item] = self.said.get(item, {}) | (features or {})


@settings(max_examples=60, deadline=None)
@given(st.lists(ONE, min_size=1, max_size=24), st.integers(1, 24))
def test_however_a_stream_is_cut_what_is_known_equals_event_by_event(stream: list[Said], batch_size: int):
    learner, slow = OnlineLearner(small(**DESCRIBED)), Slow(stream)
    learn(learner, stream, batch_size)
    assert set(learner.state.items.ids) == set(slow.said)
    assert +popularity_counts(learner) == slow.counts
    for item, said_of_it in slow.said.items():
        row = learner.state.items.row_of(item)
        assert learner.state.titles.of(row) == said_of_it.get("title")
        code = int(learner.state.trainer.model.item.features.codes(np.array([row]))[0, 0])
        assert (learner.state.vocabulary("item.brand").id_of(code) if code else None) == said_of_it.get("brand")
    untouched = {learner.state.items.id_of(row) for row in learner.state.cold_items.tolist()}
    assert untouched == {item for item, f in slow.said.items() if "brand" in f and item not in slow.counts}


@pytest.mark.parametrize("looked_at", [4096, 5])
def test_a_checkpoint_holds_the_catalogue_and_a_restart_goes_on_as_if_nothing_had_been(
    tmp_path, monkeypatch, looked_at: int
):
    monkeypatch.setattr("streamer.learner.candidates.MAX_COLD_ITEMS", looked_at)
    learner = OnlineLearner(small(**DESCRIBED))
    stream = [*interactions(), *catalogue(*(f"n{k}" for k in range(30)), brand="b1", title="Ünïcode")]
    learn(learner, stream)
    learner.save(tmp_path)
    again = OnlineLearner.load(tmp_path)
    np.testing.assert_array_equal(again.state.cold_items, learner.state.cold_items)
    assert len(again.state.titles) == 30
    assert_same_learner(again, learner)
    for one in (learner, again):
        learn(one, [*interactions(100), (NO_USER, "n3", None), ("u1", "n4", None)])
    assert_same_learner(again, learner)


class TestServing:
    @pytest.fixture
    def pair(self, tmp_path):
        trainer = Trainer(tmp_path / "points", **DESCRIBED)
        server = Server(tmp_path / "points")
        yield trainer, server
        server.close()
        trainer.close()

    def test_servers_get_items_titles_and_deletions_with_the_next_delta(self, pair):
        trainer, server = pair
        learn(trainer.learner, interactions())
        trainer.publish()
        server.reach(trainer)
        assert "new" not in {item for item, _ in served(server.service, "u1", 100)}
        learn(trainer.learner, catalogue("new", brand="b1", title="New!"))
        trainer.publish()
        wait_until(lambda: "new" in {item for item, _ in served(server.service, "u1", 100)}, "a new item")
        answer = server.service.recommend(RecommendRequest(user="u1", k=100))
        assert answer["titles"] == {"new": "New!"}
        assert served(server.service, "u1", 100) == said(trainer.learner, "u1", 100)
        learn(trainer.learner, [(NO_USER, "new", None)])
        trainer.publish()
        wait_until(lambda: "new" not in {item for item, _ in served(server.service, "u1", 100)}, "a deletion")
        assert server.service.recommend(RecommendRequest(user="u1", k=100))["titles"] == {}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"catalogue_topic": "interactions"}, "--catalogue-type"),
        ({"catalogue_topic": "items", "source": "events.jsonl"}, "a file has no topics"),
        ({"catalogue_topic": "items", "redis_url": "redis://localhost"}, "a part of the catalogue"),
        ({"catalogue_types": ("item",), "deletion_types": ("item",)}, "catalogue-type is"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], problem: str):
    assert any(problem in text for text in RunSettings(**changes).problems())
