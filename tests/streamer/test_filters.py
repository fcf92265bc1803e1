"""Filters, limits per category and the rules of the catalogue, against a slow reference: a walk over all items."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from line_harness import assert_same_learner, events, small
from serve_harness import Server, Trainer, served

import streamer
from streamer.errors import FilterError, SettingsError
from streamer.event import NO_USER
from streamer.ingest.batcher import MicroBatch
from streamer.learner import OnlineLearner
from streamer.model.retrieval import Retriever
from streamer.serve.vectors import KeptVectors

ATTRIBUTES: dict[str, Any] = {"item_features": ("brand",), "item_attributes": ("category", "price", "in_stock")}
ITEMS = 90
NEVER_HAD = 20
"""Items that the catalogue describes and nobody has had."""


def said_of(number: int) -> dict[str, str | float]:
    """Some of it is missing of some items; a price may be text."""
    said: dict[str, str | float] = {"category": ("tea", "coffee", "rare")[number % 7 // 3]}
    if number % 5:
        said["price"] = float(number % 11) if number % 2 else str(number % 11)
    if number % 3:
        said["in_stock"] = "true" if number % 4 else "false"
    return said | {"brand": f"b{number % 4}"} if number < ITEMS - NEVER_HAD else said


def learn_catalogue(learner: OnlineLearner, said: dict[str, Any]) -> None:
    """Catalogue events; None deletes."""
    batch = MicroBatch([NO_USER] * len(said), list(said), [1e9] * len(said), item_features=list(said.values()))
    for stretch in learner.split_catalogue_events(batch):
        learner.learn_batch(stretch)


def learned(**changes: Any) -> OnlineLearner:
    learner = OnlineLearner(small(**ATTRIBUTES | changes))
    had = [(user, f"i{number}") for number in range(ITEMS - NEVER_HAD) for user in ("u1", f"u{number % 9}")]
    streamer.Learner(learner).learn([*had, *events(300, users=9, items=ITEMS - NEVER_HAD)], batch_size=64)
    learn_catalogue(learner, {f"i{number}": said_of(number) for number in range(ITEMS)})
    return learner


shared = cache(learned)
TERMS = ["category:tea", "category:rare", "category:none", "brand:b1", "brand:", "in_stock:true", "in_stock:1"]
TERMS += [f"price{sign}{number}" for sign in ("<", "<=", ">", ">=", ":") for number in ("3", "5.0")]


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    of_several = st.one_of(st.just("and"), st.just("or")).flatmap(lambda word: several.map(lambda some: {word: some}))
    return st.one_of(several, of_several, inner.map(lambda one: {"not": one}))


FILTERS = st.recursive(st.sampled_from(TERMS), nested, max_leaves=8)


def matches(said: dict[str, str | float], wanted: Any) -> bool:
    """The obvious reading of a filter."""
    if isinstance(wanted, list):
        return all(matches(said, inner) for inner in wanted)
    if isinstance(wanted, dict):
        [(word, inner)] = wanted.items()
        if word == "not":
            return not matches(said, inner)
        return (all if word == "and" else any)(matches(said, one) for one in inner)
    for sign in ("<=", ">=", "<", ">", ":"):
        if sign in wanted:
            name, _, value = wanted.partition(sign)
            break
    ours = {"true": 1.0, "false": 0.0}.get(str(said.get(name)), said.get(name))
    if ours is None:
        return False
    if name not in ("price", "in_stock"):
        return str(ours) == value
    ours, number = float(ours), {"true": 1.0}.get(value) or float(value)
    compared = {"<": ours < number, "<=": ours <= number, ">": ours > number, ">=": ours >= number}
    return compared.get(sign, ours == number)


def group_of(item: str, name: str) -> str:
    value = said_of(int(item[1:])).get(name)
    return str(float(value)) if name == "price" and value is not None else str(value)


def ids(found: list[streamer.Recommendation]) -> list[str]:
    return [best.item for best in found]


@settings(max_examples=150)
@given(FILTERS, st.integers(1, 100), st.sampled_from(["u1", "nobody"]), st.booleans(), st.booleans())
def test_of_k_matching_items_k_come_back_ranked_as_those_items_alone(wanted, k, user, rerank, exclude_seen):
    online = shared(rerank=rerank)
    learner = streamer.Learner(online)
    all_matching = [item for item in (f"i{n}" for n in range(ITEMS)) if matches(said_of(int(item[1:])), wanted)]
    found = learner.recommend(user, k, filter=wanted, exclude_seen=exclude_seen)
    row = online.state.users.row_of(user)
    had = set() if row is None or not exclude_seen else set(online.state.items.ids_of(online.state.seen.of(row)))
    allowed = set(all_matching) - had
    assert set(ids(found)) <= allowed
    assert len(found) == min(k, len(allowed))
    if rerank and all_matching:
        alone = learner.recommend(user, 1000, among=all_matching, exclude_seen=exclude_seen)
        scores = {best.item: best.score for best in alone}
        assert [best.score for best in found] == sorted(scores.values(), reverse=True)[: len(found)]


@pytest.mark.parametrize("kept", [False, True], ids=["trainer", "server"])
def test_many_matching_items_are_found_among_all_as_those_scored_alone(monkeypatch, kept):
    """With a mask all are searched; both find the same, by every kind of retriever."""
    learner = learned(retrieved_items=ITEMS)
    if kept:
        learner.state.retriever = KeptVectors(learner.state.trainer, lambda: learner.state.items.unused)
        learner.state.retriever.renew(np.arange(ITEMS), ITEMS)
    else:
        assert type(learner.state.retriever) is Retriever
    wanted = {"not": "category:tea"}
    alone = streamer.Learner(learner).recommend("u1", 10, filter=wanted)
    monkeypatch.setattr("streamer.learner.filters.FEW_ITEMS", 0)
    monkeypatch.setattr("streamer.learner.filters.FEW_SHARE", 0)
    learner.state.changes.written["items"] += 1
    assert learner.filters.matching(wanted).few is None
    assert streamer.Learner(learner).recommend("u1", 10, filter=wanted) == alone


def test_an_index_searches_only_what_matches_and_a_rare_match_is_scored_exactly(monkeypatch):
    learner, count = learned(), 3000
    streamer.Learner(learner).learn([("u1", f"n{n}") for n in range(count)], batch_size=256)
    learn_catalogue(learner, {f"n{n}": {"category": "many" if n % 2 else "few"} for n in range(count)})
    vectors = KeptVectors(learner.state.trainer, lambda: learner.state.items.unused, exact_items=10)
    learner.state.retriever = vectors
    vectors.renew(np.arange(learner.state.items.size), learner.state.items.size)
    vectors._next.thread.join()
    monkeypatch.setattr("streamer.learner.filters.FEW_ITEMS", 0)
    monkeypatch.setattr("streamer.learner.filters.FEW_SHARE", 0)
    for wanted, least in (("category:many", 1500), ("category:rare", 1)):
        found = streamer.Learner(learner).recommend("u2", 40, filter=wanted)
        assert vectors.indexed_items > count
        mask = learner.filters.matching(wanted).mask
        assert len(found) == min(40, np.count_nonzero(mask)) >= min(40, least)
        assert mask[learner.state.items.known(ids(found))].all()


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 4), st.sampled_from(["category", "price", "brand"]), st.booleans())
def test_at_most_n_of_a_category_come_back_and_the_list_is_filled_up(k, most, name, filtered):
    learner = streamer.Learner(shared())
    wanted = {"not": "category:none"} if filtered else None
    found = ids(learner.recommend("u1", k, filter=wanted, max_per=f"{name}:{most}"))
    groups = Counter(group_of(item, name) for item in learner_items(learner, filtered))
    groups = {group: count if group == "None" else min(count, most) for group, count in groups.items()}
    taken = Counter(group_of(item, name) for item in found)
    assert all(taken[group] <= groups[group] for group in taken)
    assert len(found) == len(set(found)) == min(k, sum(groups.values()))


def learner_items(learner: streamer.Learner, filtered: bool) -> list[str]:
    """What may come back at all: what has events; with a filter, what is described."""
    return [f"i{n}" for n in range(ITEMS if filtered else ITEMS - NEVER_HAD)]


def test_what_is_hidden_or_not_available_stays_away_and_what_is_pinned_comes_first():
    learner, now_s = learned(), [1000.0]
    learner.filters.clock = lambda: now_s[0]
    api = streamer.Learner(learner)
    before = ids(api.recommend("u1", 8))
    last = ids(api.recommend("u1", 60))[-1]
    rules = {before[0]: {"hidden": 1.0}, before[1]: {"available_until": 1005.0}, before[2]: {"available_from": 1005.0}}
    learn_catalogue(learner, rules | {last: {"pinned": 1.0}})
    assert ids(api.recommend("u1", 6)) == [last, before[1], *before[3:7]]
    assert learner.filters.hidden() == [before[0]]
    now_s[0] = 1005.0
    assert ids(api.recommend("u1", 6)) == [last, *before[2:7]]
    learn_catalogue(learner, {before[0]: {"hidden": 0.0}, last: {"pinned": 0.0}})
    assert ids(api.recommend("u1", 7)) == [before[0], *before[2:8]]
    learn_catalogue(learner, {before[0]: {"hidden": 1.0}})
    learn_catalogue(learner, {before[0]: None})
    assert learner.filters.hidden() == []


def test_a_server_and_a_restored_learner_know_attributes_and_rules(tmp_path):
    trainer = Trainer(tmp_path / "points", learned())
    trainer.publish()
    server = Server(tmp_path / "points")
    server.reach(trainer)
    learn_catalogue(trainer.learner, {"i3": {"hidden": 1.0}, "i5": {"category": "new text"}, "i7": {"pinned": 1.0}})
    trainer.learn([("u1", "i9")])
    server.reach(trainer)
    again = Server(tmp_path / "points")
    again.reach(trainer)
    trainer.learner.save(tmp_path / "checkpoints")
    restored = OnlineLearner.load(tmp_path / "checkpoints")
    assert_same_learner(trainer.learner, restored)
    for wanted in (None, "category:new text", ["price<5", "in_stock:true"]):
        for learner in (trainer.learner, restored):
            best = streamer.Learner(learner).recommend("u1", 30, filter=wanted, exclude_seen=True)
            for one in (server, again):
                answer = served(one.service, "u1", 30, filter=wanted)
                assert [item for item, _ in answer] == ids(best)
        assert "i3" not in ids(best)
    for one in (server, again):
        assert one.service.hidden() == ["i3"]
        one.close()
    trainer.close()


def test_attributes_do_not_change_what_is_learned():
    with_attributes, without = learned(), learned(item_attributes=())
    for kind in without.state.kinds():
        theirs = with_attributes.state.take(kind, with_attributes.state.rows(kind))
        for name, array in without.state.take(kind, without.state.rows(kind)).items():
            if kind != "labels" and "attributes" not in name:
                np.testing.assert_array_equal(theirs[name], array)


def test_labels_stay_within_the_limit_of_categories_and_evicted_ones_match_nothing():
    learner = learned(max_categories=40)
    learn_catalogue(learner, {f"i{n}": {"category": f"c{n}"} for n in range(ITEMS)})
    learn_catalogue(learner, {"i0": {"category": "last"}})  # evicts what is over the limit, and adds one
    assert len(learner.state.vocabulary("labels")) <= 41
    api = streamer.Learner(learner)
    assert ids(api.recommend("u1", filter="category:last")) == ["i0"]
    assert ids(api.recommend("u1", filter="category:c89")) == ["i89"]
    assert api.recommend("u1", filter="category:c1") == []


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("colour:red", "known are brand, category, price, in_stock"),
        ("price", "cannot be read"),
        ("price<much", "no number"),
        ("brand<3", "brand is text"),
        ([], "cannot be read"),
        ({"and": []}, "cannot be read"),
        ({"and": ["price<3"], "or": ["price<3"]}, "cannot be read"),
        ({"not": 3}, "cannot be read"),
        (["price<3"] * 200, "more than 100 terms"),
    ],
    ids=str,
)
def test_a_filter_that_cannot_be_read_says_why(wanted, why):
    with pytest.raises(FilterError, match=why):
        streamer.Learner(shared()).recommend("u1", filter=wanted)


@pytest.mark.parametrize("max_per", ["category", "category:0", "category:-1", ":2", "colour:2"])
def test_a_limit_that_cannot_be_read_says_why(max_per):
    with pytest.raises(FilterError, match=r"max_per is|no attribute 'colour'"):
        streamer.Learner(shared()).recommend("u1", max_per=max_per)


@pytest.mark.parametrize("name", ["", "brand", "hidden", "a:b", "a<b"])
def test_an_attribute_that_could_not_be_asked_for_is_refused(name):
    with pytest.raises(SettingsError, match="item-attribute"):
        OnlineLearner(small(item_features=("brand",), item_attributes=(name,)))
