"""The public learner: events in any form, ids as they went in, questions, and evaluation on a frame."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from line_harness import assert_same_learner, events, small

from streamer import EventError, Learner, StreamerError
from streamer.api.ids import IdForms
from streamer.evaluation import EventSampler, Prequential
from streamer.recommender import Recommender

NOON = 1_700_000_000
DESCRIBED = {"item_features": ("brand",), "item_numeric_features": ("price",), "event_weights": {"cart": 3.0, "7": 0.5}}
STREAM = [(user, item, NOON + 60 * n) for n, (user, item) in enumerate(events(300, users=12, items=25))]

texts = st.text("abc0", min_size=1, max_size=3)
columns = st.sampled_from([texts, st.integers(-5, 30)])


@st.composite
def streams(draw: Any) -> list[dict[str, Any]]:
    """Events by their times, with features of which some are missing."""
    users, items = draw(columns), draw(columns)
    brands, prices = st.none() | draw(columns), st.none() | st.floats(0, 9)
    types = st.none() | draw(st.sampled_from([st.sampled_from(["cart", "view"]), st.just(7)]))
    weights = st.none() | st.floats(0, 1000, width=32)
    count = draw(st.integers(1, 40))
    times_s = sorted(draw(st.lists(st.integers(0, 10**6), min_size=count, max_size=count)))
    found = []
    for time_s in times_s:
        event = {"user_id": draw(users), "item_id": draw(items), "timestamp": NOON + time_s}
        said = {"brand": draw(brands), "price": draw(prices), "event_type": draw(types), "weight": draw(weights)}
        found.append(event | said)
    return found


def nested(event: dict[str, Any]) -> dict[str, Any]:
    plain = {name: event[name] for name in ("user_id", "item_id", "timestamp", "event_type", "weight")}
    return plain | {"item_features": {name: event[name] for name in ("brand", "price")}}


def as_polars(stream: list[dict[str, Any]]) -> pl.DataFrame:
    times = pl.from_epoch("timestamp", time_unit="s")
    return pl.DataFrame(stream, infer_schema_length=None).with_columns(times)


def as_pandas(stream: list[dict[str, Any]]) -> pd.DataFrame:
    times = pd.to_datetime([event["timestamp"] for event in stream], unit="s", utc=True)
    return pd.DataFrame(stream).assign(timestamp=times)


def renamed(event: dict[str, Any]) -> dict[str, Any]:
    rest = {name: event[name] for name in ("brand", "price", "weight")} | {"action": event["event_type"]}
    return {"uid": event["user_id"], "item": event["item_id"], "ts": event["timestamp"]} | rest


def in_numpy(event: dict[str, Any]) -> dict[str, Any]:
    return event | {name: np.array(event[name])[()] for name in ("user_id", "item_id", "timestamp")}


FORMS = {
    "an iterator": iter,
    "nested features": lambda stream: list(map(nested, stream)),
    "named otherwise": lambda stream: list(map(renamed, stream)),
    "numpy": lambda stream: list(map(in_numpy, stream)),
    "pandas": as_pandas,
    "polars": as_polars,
    "named tuples": lambda stream: pd.DataFrame(stream, dtype=object).itertuples(),
}


@settings(max_examples=25, deadline=None)
@given(streams(), st.integers(1, 50))
def test_any_form_of_the_same_events_gives_the_same_model(stream, batch_size):
    expected = Learner(small(**DESCRIBED))
    assert expected.learn(stream, batch_size=batch_size) == len(stream)
    every = expected.recommend(stream[0]["user_id"], k=100)
    given_ids = {(type(event["item_id"]), event["item_id"]) for event in stream}
    assert {(type(found.item), found.item) for found in every} == given_ids
    for name, form in FORMS.items():
        learner = Learner(small(**DESCRIBED))
        assert learner.learn(form(stream), batch_size=batch_size) == len(stream), name
        assert_same_learner(learner._online, expected._online)
        assert learner.recommend(stream[0]["user_id"], k=100) == every, name


def test_tuples_are_events_without_features_and_a_frame_is_sorted_by_time():
    by_tuples, by_frame, unsorted = Learner(small()), Learner(small()), Learner(small())
    by_tuples.learn(STREAM)
    frame = pd.DataFrame(STREAM, columns=["visitor", "product", "time"]).sample(frac=1, random_state=1)
    by_frame.learn(frame, fields={"user_id": "visitor", "item_id": "product"})
    assert_same_learner(by_frame._online, by_tuples._online)
    unsorted.learn(list(frame.itertuples(index=False, name=None)))  # a list has an order of its own
    assert unsorted.recommend("u1") != by_tuples.recommend("u1")


def test_events_count_by_their_weight_or_else_by_their_type():
    weighed, typed, plain = (Learner(small(event_weights={"cart": 3.0})) for _ in range(3))
    stream = [{"user": user, "item": item, "time": time} for user, item, time in STREAM]
    weighed.learn([event | {"event_type": "view", "weight": 3} for event in stream])
    typed.learn([event | {"event_type": "cart"} for event in stream])
    plain.learn(stream)
    assert_same_learner(typed._online, weighed._online)
    assert typed.recommend("u1") != plain.recommend("u1")


@pytest.mark.parametrize(
    "time",
    [
        NOON,
        float(NOON),
        NOON * 1000,
        np.int64(NOON),
        dt.datetime(2023, 11, 14, 22, 13, 20),
        dt.datetime(2023, 11, 14, 23, 13, 20, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        pd.Timestamp("2023-11-14 22:13:20"),
        np.datetime64("2023-11-14T22:13:20"),
        "2023-11-14T22:13:20Z",
        "2023-11-14 22:13:20",
    ],
    ids=str,
)
def test_a_time_may_have_any_of_these_forms(time):
    found, expected = Learner(small()), Learner(small())
    found.learn([("ann", "tea", NOON - 7), ("ann", "milk", time)])
    expected.learn([("ann", "tea", NOON - 7.0), ("ann", "milk", float(NOON))])
    assert_same_learner(found._online, expected._online)


ROWS: dict[str, tuple[list[Any], str]] = {
    "None": ([("ann", "tea"), (None, "tea")], "row 1: the user is missing"),
    "empty": ([("ann", "tea"), ("ann", "")], "row 1: the item is empty"),
    "NaN": ([("ann", float("nan"))], "row 0: the item is missing"),
    "pandas.NA": ([{"user": "ann", "item": pd.NA}], "row 0: the item is missing"),
    "a fraction": ([("ann", 1.5)], r"row 0: the item is 1.5 \(float\): an id is text or a whole number"),
    "truth": ([(True, "tea")], r"row 0: the user is True \(bool\)"),
    "no time": ([("ann", "tea", "yesterday")], "row 0: timestamp 'yesterday' is not ISO 8601"),
    "nanoseconds": ([("ann", "tea", NOON * 10**9)], "row 0: time 17.* is not between 1970 and 2200"),
    "a list as time": ([("ann", "tea", [])], "row 0: time .* is a list"),
    "a weight": ([{"user": "ann", "item": "tea", "weight": -1}], "row 0: weight -1 is no number from 0 to 1,000"),
    "text": (["ann", "tea"], "row 0: 'ann' is not an event"),
    "four values": ([("ann", "tea", 1, 2)], "row 0: .* is not an event"),
    "a key is missing": ([{"user": "ann", "item": "tea"}, {"user": "ann"}], "row 1: the item is missing"),
    "other keys": (
        [{"customer": "ann", "product": "tea"}],
        "have no user: they have customer, product. Try fields={'user_id': 'customer'}",
    ),
}


@pytest.mark.parametrize(("rows", "message"), ROWS.values(), ids=ROWS)
def test_what_is_no_event_is_an_error_that_names_the_row_and_nothing_is_learned(rows, message):
    learner = Learner(small())
    with pytest.raises(EventError, match=message):
        learner.learn(rows)
    assert not learner.popular()


def test_an_iterator_is_learned_up_to_the_batch_with_the_error():
    learner = Learner(small())
    with pytest.raises(EventError, match="row 30: the item is empty"):
        learner.learn(iter([*STREAM[:30], ("ann", "")]), batch_size=8)
    assert sum(one.events for one in learner.popular(100)) == 24


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_missing_id_in_a_frame_is_named_by_its_row(frame):
    learner = Learner(small())
    with pytest.raises(EventError, match="row 2: the user is missing"):
        learner.learn(frame({"user": ["ann", "bob", None], "item": [1, 2, 3], "time": [3, 2, 1]}))
    with pytest.raises(EventError, match="row 1: the item is missing"):
        learner.learn(frame({"user": ["ann", "bob"], "item": [1.0, float("nan")]}))
    with pytest.raises(EventError, match="have no timestamp 'when': they have user, item"):
        learner.learn(frame({"user": ["ann"], "item": [1]}), fields={"timestamp": "when"})
    assert not learner.popular()


@pytest.mark.parametrize("other", ["events.csv", {"user": ["ann"], "item": ["tea"]}, b"ann"])
def test_what_is_no_list_of_events_is_refused(other):
    with pytest.raises(EventError, match="events come as a frame, or as a list"):
        Learner(small()).learn(other)


@given(st.lists(st.lists(texts | st.integers(-3, 3) | st.sampled_from(["1", "-1", "01"]), max_size=6), max_size=6))
def test_an_id_comes_back_in_the_form_in_which_it_was_learned_last(batches):
    forms, last = IdForms(), {}
    for batch in batches:
        learned = forms.learn(batch)
        last |= dict(zip(learned, batch, strict=True))
    again = IdForms(**forms.to_json())
    for text, id_ in last.items():
        for found in (forms.id_of(text), again.id_of(text)):
            assert (type(found), found) == (type(id_), id_)


@pytest.fixture(scope="module", params=[True, False], ids=["ranker", "towers alone"])
def learned(request) -> Learner:
    learner = Learner(small(rerank=request.param))
    learner.learn([(int(user[1:]), item, time) for user, item, time in STREAM], batch_size=32)
    return learner


class TestQuestions:
    def test_many_users_get_what_each_one_gets(self, learned):
        users = [3, 999, 5, 3]
        found = learned.recommend(np.array(users), k=4)
        assert list(found) == [3, 999, 5]
        for user in users:
            expected = learned.recommend(user, k=4)
            assert [one.item for one in found[user]] == [one.item for one in expected]

    def test_excluded_items_are_left_out_and_others_are_not_moved(self, learned):
        every = learned.recommend(3, k=100)
        left_out = {every[0].item, every[2].item}
        found = learned.recommend(3, k=100, exclude=[*left_out, "never seen"])
        assert found == [one for one in every if one.item not in left_out]

    def test_among_some_items_their_order_stays(self, learned):
        every = learned.recommend(3, k=100)
        some = [one.item for one in every[::-3]]
        found = learned.recommend(3, k=100, among=[*some, "never seen"])
        assert [one.item for one in found] == some[::-1]
        assert learned.recommend(3, k=2, among=some) == found[:2]
        assert learned.recommend(3, among=["never seen"]) == []

    def test_similar_items_are_those_of_a_session_of_one_item(self, learned):
        session = learned.recommend(recent=["i3"], k=5, exclude_seen=True)
        assert learned.similar("i3", k=5) == session
        assert "i3" not in {one.item for one in session}

    def test_popular_items_are_those_with_the_most_events(self, learned):
        counts = pd.Series([item for _, item, _ in STREAM]).value_counts()
        found = learned.popular(k=100)
        assert {one.item: one.events for one in found} == counts.to_dict()
        assert [one.events for one in found] == sorted(counts, reverse=True)
        assert learned.popular(3) == found[:3]

    def test_reasons_add_up_to_the_differences_of_scores(self, learned):
        first, *_, last = learned.recommend(3, k=10)
        parts = [sum(learned.explain(one.item, user=3).parts.values()) for one in (first, last)]
        if learned.settings.rerank:
            assert parts[0] - parts[1] == pytest.approx(first.score - last.score, abs=1e-3)
        session = learned.explain("i4", recent=["i3"])
        assert {item for item, _ in session.recent} <= {"i3"}

    def test_unknown_items_and_wrong_questions_are_refused(self, learned):
        for ask in (learned.similar, lambda item: learned.explain(item, user=3)):
            with pytest.raises(StreamerError, match="no event of the item 'rum' has been learned"):
                ask("rum")
        for wrong in ({}, {"user": 3, "recent": ["i1"]}):
            with pytest.raises(ValueError, match="give either a user or the recent items"):
                learned.recommend(**wrong)
        with pytest.raises(ValueError, match="k is 0"):
            learned.recommend(3, k=0)
        for one in ({"recent": "i1"}, {"user": 3, "exclude": "i1"}, {"user": 3, "among": "i1"}):
            with pytest.raises(ValueError, match=r"'i1' is one id: give a list of them, \['i1'\]"):
                learned.recommend(**one)

    def test_it_is_shown_with_what_it_knows_and_how_it_differs(self):
        learner = Learner(dim=8, method="bir")
        learner.learn(STREAM)
        assert repr(learner) == "<Learner(method='bir', dim=8): 12 users, 25 items, 1 steps>"

    def test_a_saved_learner_gives_the_same_answers(self, learned, tmp_path):
        learned.save(tmp_path)
        again = Learner.load(tmp_path)
        assert again.recommend([3, 5]) == learned.recommend([3, 5])
        learned._online.save(tmp_path / "of a run")
        assert Learner.load(tmp_path / "of a run").recommend("3") == learned.recommend(3)


class TestEvaluation:
    FRAME = pd.DataFrame(STREAM, columns=["user", "item", "time"])

    def test_test_then_train_gives_the_figures_of_the_line_and_leaves_the_learner_as_it_is(self):
        learner, twin = Learner(small()), Learner(small())
        for one in (learner, twin):
            one.learn(STREAM[:100])
        found = learner.evaluate(self.FRAME[100:], k=5, batch_size=32)
        assert_same_learner(learner._online, twin._online)

        test = Prequential(twin._online, EventSampler(time_share=None, max_events=None))
        for batch in twin._batches(STREAM[100:], None, 32, IdForms(), IdForms()):
            twin._online.learn_batch(batch, test)
        assert (found.events, found.known_before) == (200, 100)
        wide = learner.evaluate(self.FRAME[100:], batch_size=32)
        for name in ("model", "most-popular", "last-items", "counting"):
            for metric in ("hr", "mrr", "ndcg"):
                figure = test.figure(name, metric)
                assert getattr(wide[name], metric) == figure.overall
                assert getattr(wide[name], f"{metric}_error") == figure.error
            assert found[name].hr <= wide[name].hr

    @pytest.mark.parametrize("rerank", [True, False])
    def test_frozen_everything_is_ranked_by_what_was_learned_before_the_split(self, rerank):
        split_s = STREAM[200][2]
        learner = Learner(small(rerank=rerank))
        found = learner.evaluate(self.FRAME, k=5, freeze_after=pd.Timestamp(split_s, unit="s"), batch_size=32)
        learner.learn(STREAM[:201], batch_size=32)
        recommender = Recommender(learner._online)
        hits = []
        for n in range(201, len(STREAM)):
            user, item, _ = STREAM[n]
            since = [(i, t) for u, i, t in STREAM[201:n] if u == user]
            best = recommender.recommend([recommender.user(user, since)], 5)[0]
            hits.append(item in {one.item for one in best})
        assert found.events == len(hits)
        assert found["model"].hr == pytest.approx(np.mean(hits), abs=0.021)  # ties count against the model
        assert sum(hits) > 5

    def test_frozen_baselines_learn_nothing_either(self):
        split_s = STREAM[200][2]
        late = [(u, i, t + 10**6) for u, i, t in STREAM[201:]]
        once = Learner(small()).evaluate(STREAM, freeze_after=split_s)
        twice = Learner(small()).evaluate(STREAM + late, freeze_after=split_s)
        assert twice.events == 2 * once.events
        assert twice["most-popular"].hr == once["most-popular"].hr > 0

    def test_it_prints_as_a_table_with_a_verdict_and_becomes_a_frame(self):
        found = Learner(small()).evaluate(self.FRAME)
        text = repr(found)
        assert "300 events ranked" in text
        assert all(f"{one.recommender:<14}" in text and f"{one.hr:.4f} ± {one.hr_error:.4f}" in text for one in found)
        assert "the best baseline" in text.splitlines()[-1]
        frame = pd.DataFrame(found)
        assert list(frame["recommender"]) == ["model", "most-popular", "last-items", "counting"]
        assert list(frame.columns[1:]) == ["hr", "hr_error", "mrr", "mrr_error", "ndcg", "ndcg_error"]
        with pytest.raises(KeyError, match="choose among model, most-popular"):
            found["nobody"]

    def test_nothing_to_rank_and_no_time_are_errors(self):
        with pytest.raises(EventError, match="nothing to rank"):
            Learner(small()).evaluate(STREAM, freeze_after="2100-01-01")
        with pytest.raises(EventError, match="freeze_after: timestamp 'soon' is not ISO 8601"):
            Learner(small()).evaluate(STREAM, freeze_after="soon")
