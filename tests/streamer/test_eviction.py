"""Limits: whatever comes, what is kept equals a slow model of dictionaries that forgets by the same rule."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from line_harness import assert_same_learner, events, learn_all, micro_batch, popularity_counts, small
from slow_candidates import SlowCoOccurrence

from streamer.accounting import Accounting
from streamer.errors import SettingsError
from streamer.event import EventDecoder, EventSettings
from streamer.learner import OnlineLearner
from streamer.learner.eviction import MAX_AT_ONCE
from streamer.model.ranking.windows import LONG_WINDOW
from streamer.model.rows.tables import EmbeddingTable
from streamer.model.settings import LearnerSettings

LIMITS = {"max_users": 5, "max_items": 7, "max_categories": 3}
EVENTS = st.lists(
    st.tuples(
        st.integers(0, 9).map("u{}".format),
        st.integers(0, 14).map("i{}".format),
        st.integers(0, 500),
        st.none() | st.integers(0, 5).map("c{}".format),
    ),
    min_size=1,
    max_size=6,
)


def limited(**changes: object) -> LearnerSettings:
    return small(item_features=("brand",), **LIMITS | changes)


def copy_of(learner: OnlineLearner) -> OnlineLearner:
    """Another learner, put together from rows in slices, and from what is dense."""
    other = OnlineLearner(learner.settings)
    other.state.retired.pace = learner.state.retired.pace
    for kind in learner.state.kinds():
        rows = learner.state.rows(kind)
        for part in (rows[1::2], rows[::2]):
            other.state.put(kind, part, learner.state.take(kind, part))
    other.state.load_dense(*learner.state.dense())
    return other


class Slow:
    """Dictionaries by id; what was not seen for longest goes first."""

    def __init__(self, settings: LearnerSettings) -> None:
        self.settings, self.now_s = settings, 0
        self.times_s: dict[int, int] = {}
        self.last: dict[str, dict[str, int]] = {"users": {}, "items": {}, "item.brand": {}}
        self.recent: dict[str, list[list]] = {}
        self.seen: dict[str, set[str]] = {}
        self.brand: dict[str, str | None] = {}
        self.counts, self.drawn, self.lately = Counter(), Counter(), deque(maxlen=LONG_WINDOW)
        self.pairs = SlowCoOccurrence(settings.co_occurring_items)

    def evict(self, learner: OnlineLearner) -> None:
        limits = {"users": LIMITS["max_users"], "items": LIMITS["max_items"], "item.brand": LIMITS["max_categories"]}
        ttl_s = {"users": self.settings.user_ttl_s, "items": self.settings.item_ttl_s}
        vocabulary = {
            "users": learner.state.users,
            "items": learner.state.items,
            "item.brand": learner.state.vocabulary("item.brand"),
        }
        for kind, limit in limits.items():
            last = self.last[kind]
            order = sorted(last, key=lambda raw: (last[raw], vocabulary[kind].row_of(raw)))
            gone = order[: max(len(order) - limit, 0)]
            if not gone and ttl_s.get(kind):
                gone = [raw for raw in order if self.times_s[last[raw]] + ttl_s[kind] < self.now_s]
            self.forget(kind, gone)

    def forget(self, kind: str, gone: list[str]) -> None:
        for raw in gone:
            del self.last[kind][raw]
            if kind == "users":
                del self.recent[raw], self.seen[raw]
            elif kind == "items":
                for recent in self.recent.values():
                    recent[:] = [entry for entry in recent if entry[0] != raw]
                for items in self.seen.values():
                    items.discard(raw)
                del self.counts[raw], self.brand[raw]
                self.drawn.pop(raw, None)
                self.lately = deque((None if item == raw else item for item in self.lately), LONG_WINDOW)
            else:
                self.brand = {item: None if brand == raw else brand for item, brand in self.brand.items()}
        if kind == "items":
            self.pairs.forget(set(gone))

    def learn(self, batch: list[tuple], step: int) -> None:
        self.now_s = max(self.now_s, int(np.median([time_s for *_, time_s, _ in batch])))
        self.times_s[step] = self.now_s
        for user, item, time_s, brand in batch:
            self.last["users"][user] = self.last["items"][item] = step
            before = self.recent.setdefault(user, [])
            self.pairs.observe(item, time_s, [(other, when) for other, when, _ in before])
            count = next((count for other, _, count in before if other == item), 0) + 1
            rest = [entry for entry in before if entry[0] != item]
            self.recent[user] = [[item, time_s, count], *rest][: self.settings.history]
            self.seen.setdefault(user, set()).add(item)
            self.counts[item] += 1
            self.lately.append(item)
            self.brand[item] = brand or self.brand.get(item)
        for _, item, _, _ in batch:
            if self.brand[item]:
                self.last["item.brand"][self.brand[item]] = step


class Eviction(RuleBasedStateMachine):
    @initialize(pace=st.sampled_from([1, 2, 32]), ttl_s=st.sampled_from([0, 0, 40]))
    def begin(self, pace, ttl_s):
        self.learner = OnlineLearner(limited(user_ttl_s=2 * ttl_s, item_ttl_s=ttl_s))
        self.learner.state.retired.pace = pace
        self.slow, self.twin = Slow(self.learner.settings), copy_of(self.learner)

    @rule(batch=EVENTS)
    def learn(self, batch):
        self.slow.evict(self.learner)
        features = [{"brand": brand} if brand else None for *_, brand in batch]
        columns = {"timestamps_s": [float(time_s) for *_, time_s, _ in batch], "item_features": features}
        stream = [(user, item) for user, item, *_ in batch]
        learned = self.learner.learn_batch(micro_batch(stream, **columns))
        self.twin.learn_batch(micro_batch(stream, **columns))
        self.slow.learn(batch, self.learner.state.clock.stamp)
        for row, count in zip(learned.drawn[0].tolist(), learned.drawn[1].tolist(), strict=True):
            self.slow.drawn[self.learner.state.items.id_of(row)] += count

    @rule(item=st.integers(0, 14).map("i{}".format))
    def delete(self, item):
        for learner in (self.learner, self.twin):
            learner.eviction.retire_items([item, "never seen", item])
        self.slow.forget("items", [item] if item in self.slow.last["items"] else [])

    @rule()
    def restart(self):
        self.twin = copy_of(self.learner)

    @rule()
    def follow_what_changed(self):
        """A reader that puts changed rows into a copy has the same in the end."""
        other, reader = (
            copy_of(self.learner),
            self.learner.state.changes.reader() if not hasattr(self, "reader") else None,
        )
        if reader is not None:
            self.reader, self.follower = reader, other
            return
        for kind in self.learner.state.kinds():
            rows = self.reader.take(kind)
            self.follower.state.put(kind, rows, self.learner.state.take(kind, rows))
        self.follower.state.load_dense(*self.learner.state.dense())
        assert_same_learner(self.follower, self.learner)

    @invariant()
    def same(self):
        if not hasattr(self, "learner"):
            return
        learner, slow, items, users = self.learner, self.slow, self.learner.state.items, self.learner.state.users
        assert set(users.ids) == set(slow.last["users"])
        assert set(items.ids) == set(slow.last["items"])
        assert set(learner.state.vocabulary("item.brand").ids) == set(slow.last["item.brand"])
        for row, user in zip(users.used.tolist(), users.ids, strict=True):
            history = learner.state.recent.of(np.array([row]))
            columns = zip(*(column[0].tolist() for column in history), strict=True)
            found = [[items.id_of(item), *rest] for item, *rest in columns if item >= 0]
            assert found == slow.recent[user]
            assert {items.id_of(item) for item in learner.state.seen.of(row)} == slow.seen[user]
        for row, item in zip(items.used.tolist(), items.ids, strict=True):
            neighbours = {
                items.id_of(other): weight
                for other, weight in learner.state.candidate_features.co_occurrence.of(row).items()
            }
            assert neighbours == {other: weight for other, (weight, _) in slow.pairs.of(item).items()}
            assert learner.state.item_counts.counts(np.array([row])) == slow.counts[item]
            assert learner.state.occurrence.values(np.array([row]))[0] == pytest.approx(slow.drawn[item])
            code = int(learner.state.trainer.model.item.features.codes(np.array([row]))[0, 0])
            brand = learner.state.vocabulary("item.brand").id_of(code) if code else None
            assert brand == slow.brand[item]
        lately = Counter(item for item in slow.lately if item)
        shares = learner.state.candidate_features.windows.share_in_long_window(items.used) * max(len(slow.lately), 1)
        assert dict(zip(items.ids, shares.round().astype(int).tolist(), strict=True)) == {
            item: lately[item] for item in items.ids
        }
        assert learner.state.items.is_used(learner.state.cache).all()
        for kind, table in (("users", "user.id"), ("items", "item.id"), ("item.brand", "item.brand")):
            unused = learner.state.vocabulary(kind).unused
            assert (
                learner.state.trainer.model.tables[table].take(unused)["lines"] == new_lines(learner, table, unused)
            ).all()

    def teardown(self):
        if hasattr(self, "learner"):
            assert_same_learner(self.twin, self.learner)


def new_lines(learner: OnlineLearner, name: str, rows: np.ndarray) -> np.ndarray:
    table = learner.state.trainer.model.tables[name]
    return EmbeddingTable(table.dim, table.slots, table.std, table.seed, table.lines.device).take(rows)["lines"]


TestEviction = Eviction.TestCase
TestEviction.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_rows_do_not_exceed_the_limits_by_more_than_a_little():
    learner = OnlineLearner(small(max_users=128, max_items=256))
    for k in range(200):
        learner.learn_batch(micro_batch([(f"u{k}-{n}", f"i{k}-{n}") for n in range(16)]))
    assert len(learner.state.users) <= learner.state.users.size <= 128 + 16
    assert len(learner.state.items) <= 256 + 16
    assert learner.state.items.size <= 1.1 * 256 + 32
    assert learner.eviction.evicted["users", "limit"] == 200 * 16 - len(learner.state.users)


def test_limits_of_a_checkpoint_hold_on_another_machine(monkeypatch):
    monkeypatch.setattr("streamer.limits.machine_memory", lambda: 10**9)
    learner = OnlineLearner(small())
    learn_all(learner, events(32))
    assert 10**5 < learner.state.limits.items < learner.state.limits.users < 10**7
    monkeypatch.setattr("streamer.limits.machine_memory", lambda: 10**12)
    assert copy_of(learner).state.limits == learner.state.limits
    assert OnlineLearner(small(max_users=7)).state.limits.users == 7


def test_many_ids_go_at_once_only_when_many_came():
    learner = OnlineLearner(small(max_items=10 * MAX_AT_ONCE, item_ttl_s=10))
    ids = [f"i{n}" for n in range(3 * MAX_AT_ONCE)]
    learner.learn_batch(micro_batch([("u", item) for item in ids], timestamps_s=[1.0] * len(ids)))
    for _ in range(4):
        learner.learn_batch(micro_batch([("u", "tea")], timestamps_s=[100.0]))
    assert learner.eviction.evicted == {("items", "ttl"): 3 * MAX_AT_ONCE}
    assert len(learner.state.items) == 1


def test_time_of_one_absurd_event_makes_nothing_go():
    learner = OnlineLearner(small(item_ttl_s=10))
    stream = [("u", item) for item in ("tea", "milk", "beer")]
    for k in range(3):
        learner.learn_batch(micro_batch(stream, timestamps_s=[k, 2**31 - 1, k]))
    assert not learner.eviction.evicted


class TestAdmission:
    def test_events_of_ids_that_came_once_are_left_out_and_counted(self):
        learner, accounting = OnlineLearner(small(admit_after=2)), Accounting()
        for k in range(20):
            batch = micro_batch([("ann", "tea"), *[(f"bot-{k}-{n}", f"junk-{k}-{n}") for n in range(10)]])
            for stretch in learner.split_catalogue_events(batch):
                learner.learn_batch(stretch)
            accounting.add(batch)
        assert (learner.state.users.ids, learner.state.items.ids) == (["ann"], ["tea"])
        assert (accounting.trained, accounting.not_admitted) == (19, 201)
        assert accounting.consumed == accounting.trained + accounting.filtered == 220
        assert Accounting.from_json(accounting.to_json()) == accounting

    def test_a_restart_admits_the_same(self):
        learner = OnlineLearner(small(admit_after=3))
        learn_all_admitted(learner, events(60, users=30, items=90))
        other = copy_of(learner)
        for one in (learner, other):
            learn_all_admitted(one, events(60, seed=1, users=30, items=90))
        assert len(learner.state.items)
        assert_same_learner(other, learner)


def learn_all_admitted(learner: OnlineLearner, stream: list[tuple[str, str]]) -> None:
    for start in range(0, len(stream), 8):
        for stretch in learner.split_catalogue_events(micro_batch(stream[start : start + 8])):
            learner.learn_batch(stretch)


class TestDeletions:
    def test_an_item_goes_after_what_came_before_and_is_new_after(self):
        learner, sizes = OnlineLearner(small()), []
        batch = micro_batch(
            [("ann", "tea"), ("bob", "milk"), ("", "tea"), ("ann", "beer"), ("ann", "tea"), ("", "beer")]
        )
        for stretch in learner.split_catalogue_events(batch):
            learner.learn_batch(stretch)
            sizes.append((stretch.users, stretch.items))
        assert sizes == [(["ann", "bob", "ann"], ["tea", "milk", "beer"]), (["ann"], ["tea"])]
        assert dict(popularity_counts(learner)) == {"milk": 1, "tea": 1}
        assert learner.state.recent.of(learner.state.users.known(["ann"])).items[0, 1] == -1
        assert (batch.catalogue, batch.learned) == (2, 4)
        assert learner.eviction.evicted == {("items", "deleted"): 2}

    def test_a_type_cannot_be_both(self):
        with pytest.raises(SettingsError, match="deletion-type"):
            EventDecoder(EventSettings(deletion_types=("click",), event_types=("click",)))
