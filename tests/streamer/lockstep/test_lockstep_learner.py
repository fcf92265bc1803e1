"""Several ranks train the same model as one, bit for bit, whatever their number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from streamer.event import NO_USER
from streamer.ingest.batcher import MicroBatch, Origin
from streamer.learner import OnlineLearner
from streamer.lockstep.learner import OF_USERS, LockstepLearner
from streamer.model.settings import LearnerSettings
from streamer.sources.base import Partition
from tests.streamer.lockstep.ranks import run_ranks

PARTITIONS, PARTS = 6, 4


def steps(count: int = 8, seed: int = 0) -> list[dict[int, MicroBatch]]:
    """Events of each step by partition; partition 5 is silent, and partition 0 has more than the others."""
    rng, found, at = np.random.default_rng(seed), [], dict.fromkeys(range(PARTITIONS), 0)
    for step in range(count):
        by_partition = {}
        for partition in range(PARTITIONS - 1):
            events = int(rng.integers(1, 12)) * (3 if partition == 0 else 1)
            users = [f"u{partition}.{k}" for k in rng.integers(0, 6, events)]
            items = [f"i{k}" for k in rng.zipf(1.3, events) % 60]
            times = (1_000_000 + 100 * step + np.sort(rng.integers(0, 100, events))).astype(float).tolist()
            features = [{"kind": f"k{item[-1]}"} for item in items]
            of_users = [{"town": f"t{len(user) * int(user[-1]) % 5}", "age": step + int(user[-1])} for user in users]
            if events > 6:  # not every event says all of its user
                of_users[0], of_users[3] = None, {"town": f"of step {step}"}
            weights = [None, 2.5, 0.0] * events
            by_partition[partition] = MicroBatch(
                users,
                items,
                times,
                user_features=of_users,
                item_features=features,
                types=[("view", "cart", None)[len(item) % 3] for item in items],
                weights=weights[:events] if partition == 2 else None,
            )
            at[partition] += events
        found.append(by_partition)
    return found


def with_catalogue(step: dict[int, MicroBatch], number: int) -> dict[int, MicroBatch]:
    """The same events, with those of a catalogue among them: items come, change, and go while others have them."""
    found = {}
    for partition, events in step.items():
        items = [f"i{number + partition}", f"only described {number % 3}.{partition}"]
        described = {"kind": f"k{number}", "title": f"of step {number}", "colour": f"c{number}", "hidden": number % 2.0}
        features: list = [None, described]
        if (number + partition) % 3 == 0:
            features.reverse()
        found[partition] = MicroBatch(
            [NO_USER, *events.users, NO_USER],
            [items[0], *events.items, items[1]],
            [events.timestamps_s[0], *events.timestamps_s, events.timestamps_s[-1]],
            user_features=[None, *events.user_features, None],
            item_features=[features[0], *events.item_features, features[1]],
        )
    return found


def own_batch(step: dict[int, MicroBatch], group, weighted: bool = False) -> MicroBatch:
    batch = MicroBatch.opened() if weighted else MicroBatch(user_features=[], item_features=[])
    for partition, events in step.items():
        if group.owner(group.part_of(partition)) == group.rank:
            batch.origins.append(Origin(Partition("t", partition), len(batch), len(batch) + len(events)))
            batch.users += events.users
            batch.items += events.items
            batch.timestamps_s += events.timestamps_s
            batch.user_features += events.user_features
            batch.item_features += events.item_features
            if weighted:
                batch.types += events.types
                batch.weights += events.weights or [None] * len(events)
    batch.step_events = sum(map(len, step.values()))
    return batch


def train(size: int, catalogue: bool = False, **settings) -> list[OnlineLearner]:
    settings = {"dim": 16, "cache_size": 32, "ranker_events": 16, "hash_slots": 64} | settings

    def work(group):
        torch.set_num_threads(1)
        learner = LockstepLearner(LearnerSettings(**settings), group)
        for number, step in enumerate(steps()):
            step = with_catalogue(step, number) if catalogue else step
            batch = own_batch(step, group, bool(learner.settings.event_weights))
            for stretch in learner.split_catalogue_events(batch):
                learner.learn_batch(stretch)
        return learner

    return run_ranks(size, PARTS, work)


def shared_state(learner: OnlineLearner) -> dict[str, np.ndarray]:
    """Everything that belongs to items, and what is dense."""
    found, _ = learner.state.dense()
    found = {name: array for name, array in found.items() if not name.startswith(OF_USERS)}
    for kind in learner.state.kinds():
        if kind != "users":
            found |= {f"{kind}/{name}": a for name, a in learner.state.take(kind, learner.state.rows(kind)).items()}
    return found


def differences(a: OnlineLearner, b: OnlineLearner) -> list[str]:
    ours, theirs = shared_state(a), shared_state(b)
    return [name for name in ours | theirs if not np.array_equal(ours[name], theirs[name], equal_nan=True)]


CASES = {
    "default": {},
    "local negatives": {"negatives": "local"},
    "features and layers": {"item_features": ("kind",), "item_layers": (12, 8), "user_layers": (8,)},
    "features of users": {"user_features": ("town",), "user_numeric_features": ("age",), "user_layers": (8, 16)},
    "limits of categories": {"user_features": ("town",), "max_categories": 8},
    "admission": {"admit_after": 3},
    "weights": {"event_weights": {"cart": 3.0, "view": 0.5}},
    "catalogue": {"catalogue": True, "item_features": ("kind",), "item_attributes": ("colour",)},
    "user ids": {"user_ids": True, "method": "ssl-pop"},
    "mns": {"method": "mns", "rerank": False, "recent_items": 0, "user_ids": True},
}


@pytest.mark.parametrize("case", CASES)
def test_every_number_of_ranks_trains_the_same_model(case):
    one = train(1, **CASES[case])[0]
    assert one.state.trainer.steps == 8
    for size in (2, 3, 4):
        ranks = train(size, **CASES[case])
        for rank in ranks:
            assert differences(rank, one) == []
            assert rank.state.cold_items.tolist() == one.state.cold_items.tolist()
        assert sum(len(rank.state.users) for rank in ranks) == len(one.state.users)
        of_users = {
            user: rank.state.take("users", rank.state.users.known([user]))
            for rank in ranks
            for user in rank.state.users.ids
        }
        for user, arrays in of_users.items():
            for name, array in one.state.take("users", one.state.users.known([user])).items():
                assert np.array_equal(arrays[name], array), (user, name)


def test_a_group_learns_from_a_catalogue_as_one_trainer_does():
    """But for the order: in a group it takes effect after the step."""
    learner = train(2, catalogue=True, item_features=("kind",))[1]
    described = {item for item in learner.state.items.ids if item.startswith("only described")}
    assert described
    assert {learner.state.items.id_of(row) for row in learner.state.cold_items.tolist()} == described
    titles = {learner.state.titles.of(learner.state.items.row_of(item)) for item in described}
    assert titles <= {f"of step {number}" for number in range(8)}
    assert learner.eviction.evicted["items", "deleted"] > 0


def test_what_a_catalogue_says_of_an_item_twice_in_a_step_is_learned_in_turn():
    said = [
        ("both", {"kind": "k1"}), ("both", {"title": "later"}),
        ("gone", {"kind": "k2"}), ("gone", None),
        ("back", {"kind": "k3", "title": "of the old one"}), ("back", None), ("back", {"kind": "k4"}),
    ]  # fmt: skip
    items, features = [item for item, _ in said], [of_item for _, of_item in said]

    def work(group):
        learner = LockstepLearner(
            LearnerSettings(dim=16, cache_size=32, ranker_events=16, hash_slots=64, item_features=("kind",)), group
        )
        nothing = [None] * len(said)
        events = MicroBatch([NO_USER] * len(said), items, [1.0] * len(said), nothing, features)
        for stretch in learner.split_catalogue_events(own_batch({1: events}, group)):
            learner.learn_batch(stretch)
        return learner

    for learner in run_ranks(2, PARTS, work):
        assert sorted(learner.state.items.ids) == ["back", "both"]
        assert learner.state.titles.of(learner.state.items.row_of("both")) == "later"
        assert learner.state.titles.of(learner.state.items.row_of("back")) is None
        kinds = learner.state.vocabulary("item.kind")
        codes = learner.state.trainer.model.item.features.codes(learner.state.items.known(["both", "back"]))[:, 0]
        assert [kinds.id_of(code) for code in codes.tolist()] == ["k1", "k4"]


def test_the_gradient_of_parts_is_that_of_the_whole_batch():
    """Against the step that computes everything at once: other sums, the same gradient."""
    learner = train(1)[0]
    whole = OnlineLearner(dim=16, cache_size=32, ranker_events=16, hash_slots=64)
    first = steps()[0]
    together = MicroBatch(
        [u for b in first.values() for u in b.users],
        [i for b in first.values() for i in b.items],
        [t for b in first.values() for t in b.timestamps_s],
    )
    whole.learn_batch(together)
    part = run_ranks(2, PARTS, lambda group: _one_step(group, first))[1]
    assert differences(learner, part) != []
    ours, theirs = shared_state(part), shared_state(whole)
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5, err_msg=name)


def _one_step(group, step):
    learner = LockstepLearner(LearnerSettings(dim=16, cache_size=32, ranker_events=16, hash_slots=64), group)
    learner.learn_batch(own_batch(step, group))
    return learner


def test_users_in_several_partitions_are_noticed_whichever_ranks_read_them(caplog):
    def work(group, keyed):
        learner = LockstepLearner(LearnerSettings(dim=4, cache_size=8, rerank=False, hash_slots=64), group)
        for partition in (0, 1):  # of rank 0 and of rank 1
            users = [f"u{k}.{partition * keyed}" for k in range(1000)]
            nothing = [None] * 1000
            events = MicroBatch(users, ["i"] * 1000, [1.0] * 1000, user_features=nothing, item_features=nothing)
            learner.learn_batch(own_batch({partition: events}, group))
        return learner.key_check.spread

    assert run_ranks(2, PARTS, lambda group: work(group, keyed=True)) == [0, 0]
    assert not caplog.records
    spread, _ = run_ranks(2, PARTS, lambda group: work(group, keyed=False))
    assert spread > 5  # of a sample of one in 64
    assert "several partitions" in caplog.text
