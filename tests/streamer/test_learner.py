"""The learner: what a micro-batch changes, and that all of it survives a restart."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from line_harness import (
    Watch,
    assert_same_learner,
    events,
    learn_all,
    micro_batch,
    newest,
    popularity_counts,
    small,
    whole_state,
)

import streamer
from streamer.errors import IncompatibleCheckpoint, SettingsError
from streamer.learner import OnlineLearner
from streamer.model.losses import METHODS
from streamer.model.settings import LearnerSettings
from streamer.model.towers import TouchedTable

STREAMING = [name for name in METHODS if name != "full-softmax"]

FEATURES = {
    "user_ids": False,
    "user_features": ("country",),
    "user_numeric_features": ("age",),
    "user_layers": (8,),
    "item_features": ("brand", "colour"),
    "item_numeric_features": ("price",),
    "item_layers": (8,),
    "recent_items": 3,
}


def featured(stream: list[tuple[str, str]], seed: int = 0) -> Any:
    """A batch in which some events have features of users and items."""
    rng = np.random.default_rng(seed)
    users = [
        {"country": str(rng.integers(4)), "age": float(rng.random())} if rng.random() < 0.5 else None for _ in stream
    ]
    items = [
        {"brand": str(rng.integers(6)), "price": float(rng.random())} if rng.random() < 0.7 else None for _ in stream
    ]
    return micro_batch(stream, user_features=users, item_features=items)


def all_finite(learner: OnlineLearner) -> bool:
    return all(np.isfinite(array).all() for array in whole_state(learner)[0].values())


class TestLearning:
    def test_new_ids_are_learned_from_their_first_event(self):
        learner = OnlineLearner(small())
        first = learner.learn_batch(micro_batch([("ann", "tea"), ("bob", "milk"), ("ann", "milk")]))
        assert (first.new_users, first.new_items) == (2, 2)
        assert learner.state.users.ids == ["ann", "bob"]
        assert learner.state.items.ids == ["tea", "milk"]
        weights = learner.state.trainer.model.tables["item.id"].weight.clone()
        assert len(weights) == 2
        second = learner.learn_batch(micro_batch([("eve", "milk"), ("ann", "rum")]))
        assert (second.new_users, second.new_items) == (1, 1)
        squares = learner.state.trainer.model.tables["item.id"].slot(0)
        assert (squares.sum(1) > 0).all(), "each item has been moved by its first event already"
        assert not torch.equal(learner.state.trainer.model.tables["item.id"].weight[:2], weights)

    def test_an_event_sees_its_users_earlier_events_also_of_the_same_batch(self):
        learner, seen = OnlineLearner(small()), []
        learner.learn_batch(micro_batch([("ann", "tea")]))
        look = Watch(lambda batch, _: seen.append(batch))
        learner.learn_batch(micro_batch([("ann", "milk"), ("bob", "tea"), ("ann", "rum")]), look)
        tea, milk = learner.state.items.row_of("tea"), learner.state.items.row_of("milk")
        assert [row[row >= 0].tolist() for row in seen[0].recent] == [[tea], [], [milk, tea]]

    def test_it_learns(self):
        """What follows what is learned: the loss on a pattern falls far below that of guessing."""
        pairs = [(f"u{k}", f"{side}{k % 8}") for k in range(600) for side in "ab"]
        learner, losses = OnlineLearner(small("ssl-pop")), []
        for start in range(0, len(pairs), 40):
            losses.append(float(learner.learn_batch(micro_batch(pairs[start : start + 40])).step.loss))
        assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:2])

    def test_the_cache_holds_what_was_resampled(self):
        learner = OnlineLearner(small("xir", cache_size=16))
        learn_all(learner, events(200))
        assert len(learner.state.cache) == 16
        assert learner.state.cache.max() < len(learner.state.items)
        assert len(OnlineLearner(small("bir")).state.cache) == 0

    @pytest.mark.parametrize("method", STREAMING)
    def test_batches_of_one_event_or_of_one_item_train_without_nan(self, method):
        learner = OnlineLearner(small(method))
        only_item = [micro_batch([(f"u{k}", "the only one") for k in range(16)])] * 5
        batches = [*only_item, micro_batch([("u", "another")] * 16), *(micro_batch([event]) for event in events(40))]
        losses = [float(learner.learn_batch(batch).step.loss) for batch in batches]
        assert np.isfinite(losses).all()
        assert all_finite(learner)

    def test_all_wrong_settings_are_reported_at_once(self):
        wrong = small(cache_size=-1, cache_scope="some", popularity="guess", history=0)
        with pytest.raises(SettingsError) as caught:
            OnlineLearner(wrong)
        for name in ("cache-size", "cache-scope", "popularity", "history"):
            assert name in str(caught.value)


class TestNotFinite:
    """A number that is not finite stays where it is, is counted, and is never saved."""

    @pytest.mark.parametrize("method", STREAMING)
    def test_it_does_not_spread_and_the_next_step_learns_again(self, method):
        learner = OnlineLearner(small(method))
        learn_all(learner, events(200))
        learner.state.trainer.model.tables["item.id"].weight[3, 1] = float("nan")
        losses = [float(learner.learn_batch(micro_batch(events(40, seed=k))).step.loss) for k in range(5)]
        assert all_finite(learner)
        assert int(learner.state.trainer.not_finite) > 0
        assert np.isfinite(losses[1:]).all()
        assert min(losses[1:]) > 0

    def test_a_gradient_whose_square_is_infinite_leaves_its_row_as_it_is(self):
        learner = OnlineLearner(small())
        learn_all(learner, events(100))
        table, before = (
            learner.state.trainer.model.tables["item.id"],
            learner.state.trainer.model.tables["item.id"].lines.clone(),
        )
        gradient = torch.ones(2, table.dim)
        gradient[1] = 1e30
        learner.state.trainer.dense_adam.clear_gradients()
        rows = np.array([4, 5])
        touched = TouchedTable("item.id", torch.from_numpy(rows), rows, table.weight[4:6].clone())
        touched.weight.grad = gradient
        learner.state.trainer.apply([touched])
        assert not torch.equal(table.weight[4], before[4, : table.dim])
        assert all_finite(learner)
        assert int(learner.state.trainer.not_finite) == 1


class TestFeatures:
    def codes(self, learner: OnlineLearner, item: str) -> dict[str, str | None]:
        """What is known of an item's categories."""
        row = np.array([learner.state.items.row_of(item)])
        found = {}
        for k, name in enumerate(("brand", "colour")):
            code = int(learner.state.trainer.model.item.features.codes(row)[0, k])
            found[name] = learner.state.vocabulary(f"item.{name}").id_of(code) if code else None
        return found

    def price(self, learner: OnlineLearner, item: str) -> float:
        return float(learner.state.trainer.model.item.features.state()["numbers"][learner.state.items.row_of(item), 0])

    def learn_batch(self, learner: OnlineLearner, *given: tuple[str, dict[str, Any] | None]) -> None:
        learner.learn_batch(micro_batch([("u", item) for item, _ in given], item_features=[f for _, f in given]))

    def test_what_an_event_says_is_known_and_what_it_does_not_say_stays(self):
        learner = OnlineLearner(small(**FEATURES))
        self.learn_batch(learner, ("tea", None))
        assert self.codes(learner, "tea") == {"brand": None, "colour": None}
        self.learn_batch(learner, ("tea", {"brand": "x", "price": 2.5}))
        assert self.codes(learner, "tea") == {"brand": "x", "colour": None}
        self.learn_batch(learner, ("tea", {"something else": "1"}), ("tea", None), ("tea", {"colour": "red"}))
        assert self.codes(learner, "tea") == {"brand": "x", "colour": "red"}
        assert self.price(learner, "tea") == 2.5
        self.learn_batch(learner, ("tea", {"brand": "y", "colour": "blue"}), ("rum", None), ("tea", {"brand": "z"}))
        assert self.codes(learner, "tea") == {"brand": "z", "colour": "blue"}
        assert self.codes(learner, "rum") == {"brand": None, "colour": None}

    @pytest.mark.parametrize(("value", "number"), [(2.5, 2.5), ("7", 7.0), ("true", 1.0), ("false", 0.0)])
    def test_a_numeric_feature_is_a_number_or_left_as_it_was(self, value, number):
        """Integers come as text, as they may be categories; what is no finite number must not reach a tower."""
        learner = OnlineLearner(small(**FEATURES))
        for price in (0.5, value):
            self.learn_batch(learner, ("tea", {"price": price}))
        for no_number in ("red", "nan", "1e999", 1e300):
            self.learn_batch(learner, ("tea", {"price": no_number}))
            assert self.price(learner, "tea") == number

    def test_large_numbers_do_not_ruin_the_model(self):
        learner = OnlineLearner(small(**FEATURES))
        for k in range(5):
            self.learn_batch(learner, *((f"i{n}", {"price": 1e38 * (-1) ** n}) for n in range(8 + k)))
        assert all_finite(learner)

    @pytest.mark.parametrize("absurd", [0.0, 1e5])
    def test_one_absurd_number_does_not_ruin_the_towers(self, absurd):
        """Users and items of ten groups, known by one number each: an item without events is found by its price."""
        towers = {"item_ids": False, "item_layers": (16, 8), "user_layers": (16, 8), "recent_items": 0, "rerank": False}
        numbers = {"item_numeric_features": ("price",), "user_numeric_features": ("age",)}
        learner, rng = OnlineLearner(small("ssl-pop", user_ids=False, **towers, **numbers)), random.Random(1)
        for k in range(150):
            groups = [rng.randrange(10) for _ in range(64)]
            users, items = ([{name: g + rng.uniform(-0.1, 0.1)} for g in groups] for name in ("age", "price"))
            pairs = [(f"u{g}", f"i{g}-{rng.randrange(3)}") for g in groups]
            if k == 120 and absurd:
                pairs[0], items[0] = ("u0", "poison"), {"price": absurd}
            learner.learn_batch(micro_batch(pairs, user_features=users, item_features=items))
        found = [streamer.Learner(learner).recommend(f"u{g}", 3) for g in range(10)]
        right = sum(one.item.startswith(f"i{g}-") for g, three in enumerate(found) for one in three)
        assert right / 30 > 0.8


SETTINGS_BY_ROWS = [
    small(**FEATURES, popularity_half_life=0.05),  # rescaled all the time
    small("mns", user_ids=True),
    small("xir", optimizer="dense-adam", cache_scope="touched"),
    small("g-tower", rerank=False),
]


class TestChanges:
    """Rows are marked before they are written, all of them."""

    @pytest.mark.parametrize("settings", SETTINGS_BY_ROWS)
    def test_what_changed_makes_a_copy_equal(self, settings):
        learner, copied = OnlineLearner(settings), OnlineLearner(settings)
        changed = learner.state.changes.reader()
        for k in range(6):
            learner.learn_batch(featured(events(30, seed=k), seed=k))
            for kind in learner.state.kinds():
                rows = changed.take(kind)
                copied.state.put(kind, rows, learner.state.take(kind, rows))
            copied.state.load_dense(*learner.state.dense())
            assert_same_learner(copied, learner)

    @pytest.mark.parametrize("settings", SETTINGS_BY_ROWS)
    def test_a_hook_sees_rows_as_they_were(self, settings):
        learner = OnlineLearner(settings)
        for k in range(3):
            learner.learn_batch(featured(events(30, seed=k), seed=k))
        before, rows = {kind: learner.state.take(kind, learner.state.rows(kind)) for kind in learner.state.kinds()}, {}
        as_they_were = OnlineLearner(settings)
        learner.state.changes.before_write.append(
            lambda kind, marked: self.save(learner, as_they_were, kind, marked, rows.setdefault(kind, set()))
        )
        known = {kind: learner.state.rows(kind) for kind in learner.state.kinds()}
        learner.learn_batch(featured(events(30, seed=9), seed=9))
        for kind, kept in known.items():
            others = np.setdiff1d(kept, list(rows.get(kind, ())))
            if kind in ("users", "items", "pairs", "hash"):
                assert rows[kind]
                self.save(learner, as_they_were, kind, others, rows[kind])
                found = as_they_were.state.take(kind, kept)
                assert found.keys() == before[kind].keys()
                for name, array in before[kind].items():
                    np.testing.assert_array_equal(found[name], array, name)

    def save(self, learner: OnlineLearner, to: OnlineLearner, kind: str, rows: Any, saved: set[int]) -> None:
        new = np.setdiff1d(rows, list(saved))
        known = new[np.isin(new, learner.state.rows(kind))]
        to.state.put(kind, known, learner.state.take(kind, known))
        saved.update(new.tolist())


class TestRestart:
    """A learner that is saved, loaded and goes on ends as one that was never disturbed: to the last bit."""

    def reloaded(self, learner: OnlineLearner, directory: Any) -> OnlineLearner:
        """As a checkpoint has it, the settings too."""
        learner.save(directory)
        found = OnlineLearner.from_checkpoint(newest(directory))
        assert found.settings == learner.settings
        return found

    @pytest.mark.parametrize("method", STREAMING)
    def test_it_goes_on_with_the_same_bits(self, method, tmp_path):
        undisturbed, stream = OnlineLearner(small(method, popularity_half_life=50.0)), events(480)
        learn_all(undisturbed, stream[:240])
        restarted = self.reloaded(undisturbed, tmp_path)
        assert_same_learner(restarted, undisturbed)
        for learner in (undisturbed, restarted):
            learn_all(learner, stream[240:])
        assert_same_learner(restarted, undisturbed)

    @pytest.mark.parametrize("settings", [small(**FEATURES), small(cache_scope="touched"), small(popularity="hash")])
    def test_so_do_features_and_other_settings(self, settings, tmp_path):
        undisturbed = OnlineLearner(settings)
        for k in range(6):
            undisturbed.learn_batch(featured(events(30, seed=k), seed=k))
        restarted = self.reloaded(undisturbed, tmp_path)
        for k in range(6, 12):
            batch = featured(events(30, seed=k), seed=k)
            results = [learner.learn_batch(batch) for learner in (undisturbed, restarted)]
            assert torch.equal(results[0].step.loss, results[1].step.loss)
        assert_same_learner(restarted, undisturbed)

    def test_the_checkpoint_of_a_small_model_is_small(self, tmp_path):
        learner = self.reloaded(OnlineLearner(), tmp_path)  # one that never learned
        learn_all(learner, events(100))
        assert learner.save(tmp_path).stat().st_size < 500_000


SAVED = small(**FEATURES)


def changed(**changes: Any) -> LearnerSettings:
    return dataclasses.replace(SAVED, **changes)


class TestIncompatible:
    @pytest.mark.parametrize(
        ("settings", "named"),
        [
            (changed(dim=16), ["dim was 8 and is 16 now"]),
            (changed(item_features=("colour", "brand")), ["item_features was"]),
            (changed(item_numeric_features=()), ["item_numeric_features was"]),
            (changed(item_ids=False), ["item_ids was True and is False now"]),
            (changed(rerank=False), ["rerank was True and is False now"]),
            (changed(recent_items=7, history=9), ["recent_items was 3", "history was 6"]),
            (changed(co_occurring_items=9), ["co_occurring_items was 8 and is 9 now"]),
            (changed(hash_slots=128), ["hash_slots was 64 and is 128 now"]),
            (changed(hash_clock="batch"), ["hash_clock"]),
            (changed(optimizer="sgd"), ["optimizer was adagrad and is sgd now"]),
        ],
    )
    def test_settings_that_do_not_fit_are_refused_with_what_differs(self, settings, named):
        learner = OnlineLearner(SAVED)
        learner.learn_batch(featured(events(40)))
        arrays, values = learner.state.dense()
        with pytest.raises(IncompatibleCheckpoint) as caught:
            OnlineLearner(settings).state.restore(learner.state.chunks(), arrays, json.loads(json.dumps(values)))
        for text in [*named, "--checkpoint-dir"]:
            assert text in str(caught.value)

    @pytest.mark.parametrize(
        "settings",
        [
            changed(cache_size=8),
            changed(popularity_half_life=100.0),
            changed(learning_rate=0.2, method="bir"),
            changed(ranker_learning_rate=0.1, ranker_events=3, retrieved_items=5),
        ],
    )
    def test_rates_method_and_cache_may_change(self, settings):
        learner = OnlineLearner(SAVED)
        learner.learn_batch(featured(events(40)))
        arrays, values = learner.state.dense()
        other = OnlineLearner(settings)
        other.state.restore(learner.state.chunks(), arrays, json.loads(json.dumps(values)))
        other.learn_batch(featured(events(40, seed=1)))
        assert all_finite(other)

    def test_a_state_without_a_part_is_refused(self):
        learner = OnlineLearner(SAVED)
        learner.learn_batch(featured(events(40)))
        arrays, values = learner.state.dense()
        parts = ("recent.items", "lists.items", "seen.items", "ranker.discovery.squares.out")
        for name in ("cache", "table.lines", "item_counts.counts", "ids.utf8", *parts):
            assert name in arrays or any(name in chunk.arrays for chunk in learner.state.chunks())
            without = {key: value for key, value in arrays.items() if key != name}
            chunks = [
                c._replace(arrays={k: v for k, v in c.arrays.items() if k != name}) for c in learner.state.chunks()
            ]
            with pytest.raises(Exception, match=r"checkpoint|array") as caught:
                OnlineLearner(SAVED).state.restore(chunks, without, values)
            assert type(caught.value).__name__ in ("IncompatibleCheckpoint", "CorruptCheckpoint")


class TestWeights:
    STREAM = events(200)
    TYPES = ("view", "cart", None, "unknown")

    def learned(self, **columns: Any) -> OnlineLearner:
        learner = OnlineLearner(small(event_weights=columns.pop("by_type", {})))
        for start in range(0, len(self.STREAM), 20):
            part = slice(start, start + 20)
            some = {name: column[part] for name, column in columns.items()}
            learner.learn_batch(micro_batch(self.STREAM[part], **some))
        return learner

    def test_weights_of_one_are_the_model_without_weights_to_the_last_bit(self):
        plain = self.learned()
        types = list(self.TYPES) * 50
        assert_same_learner(self.learned(weights=[1.0] * 200), plain)
        assert_same_learner(self.learned(types=types, by_type={"view": 1.0, "cart": 1.0}), plain)
        assert_same_learner(self.learned(types=types), plain)

    def test_an_event_counts_by_its_own_weight_or_else_by_its_type(self):
        types, own = list(self.TYPES) * 50, [None, None, 7.0, 2.0, 0.5] * 40
        by_type = {"view": 0.25, "cart": 3.0}
        told = [by_type.get(t, 1.0) if w is None else w for t, w in zip(types, own, strict=True)]
        learner = self.learned(types=types, weights=own, by_type=by_type)
        assert_same_learner(learner, self.learned(weights=told))
        plain = self.learned()
        assert popularity_counts(learner) == popularity_counts(plain)  # what trainers share counts events
        for name in ("items/windows.long_window", "pairs/lists.weights", "items/table.lines", "ranker.all.weights.out"):
            assert not np.array_equal(whole_state(learner)[0][name], whole_state(plain)[0][name]), name

    def test_an_event_that_weighs_nothing_is_history_and_teaches_nothing(self):
        learner = self.learned()
        before = whole_state(learner)[0]
        learner.learn_batch(micro_batch([("u1", "i1"), ("u2", "i3"), ("u1", "i2")], weights=[0.0] * 3))
        after = whole_state(learner)[0]
        for name in before:
            if "weights" in name and ("ranker" in name or "pairs" in name):
                np.testing.assert_array_equal(after[name], before[name])
        dim = learner.settings.dim
        np.testing.assert_array_equal(after["items/table.lines"][:, :dim], before["items/table.lines"][:, :dim])
        assert learner.state.recent.of(learner.state.users.known(["u1"])).items[0, :2].tolist() == [
            learner.state.items.row_of(item) for item in ("i2", "i1")
        ]

    def test_weights_that_make_no_sense_are_refused(self):
        with pytest.raises(SettingsError, match=r"event-weight is view=-1.0.*from 0 to 1,000"):
            OnlineLearner(event_weights={"view": -1.0})
