from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from streamer.errors import SettingsError, SourceError
from streamer.model.losses import METHODS
from streamer.model.popularity import ExactPopularity, HashPopularity
from streamer.replay.datasets import Interactions
from streamer.replay.evaluation.offline import OfflineRun
from streamer.replay.evaluation.settings import OfflineSettings
from streamer.replay.evaluation.split import ItemsByUser

USERS, ITEMS, TASTES = 120, 60, 4
SMALL = OfflineSettings(epochs=4, batch_size=64, dim=8, learning_rate=0.03, ks=(5, 10), device="cpu")


def log(seed: int = 0) -> Interactions:
    """Users of four tastes, each with half of the items of its own taste."""
    rng = np.random.default_rng(seed)
    of_taste = [np.arange(t, ITEMS, TASTES) for t in range(TASTES)]
    liked = [rng.choice(of_taste[u % TASTES], ITEMS // TASTES // 2 + 1, replace=False) for u in range(USERS)]
    users = np.repeat(np.arange(USERS), [len(items) for items in liked])
    return Interactions(users, np.concatenate(liked), [f"u{k}" for k in range(USERS)], [f"i{k}" for k in range(ITEMS)])


def run(**changes: object) -> OfflineRun:
    return OfflineRun(log(), replace(SMALL, **changes))  # type: ignore[arg-type]


def drawn(offline: OfflineRun) -> np.ndarray:
    """How often each item was resampled."""
    return offline.state.occurrence.values(np.arange(ITEMS))


def figures(result) -> dict[tuple[str, int], float]:
    return {(m.metric, m.k): m.value for m in result.measures if m.metric != "step-ms"}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_the_tastes(method):
    result = run(method=method, epochs=12).run()
    assert figures(result)["recall", 10] > 0.8  # items at random: 10 of the 54 that are left, 0.19


@pytest.mark.parametrize("method", ["xir", "mns", "g-tower"])
def test_the_seed_determines_everything(method):
    runs = [run(method=method) for _ in range(2)]
    first, second = (figures(one.run()) for one in runs)
    assert first == second != figures(run(method=method, seed=1).run())
    assert (drawn(runs[0]) == drawn(runs[1])).all()


def test_an_epoch_trains_every_training_pair_once_in_an_order_of_its_own():
    offline = run()
    train = sorted(zip(offline.split.train.users, offline.split.train.items, strict=True))
    orders = []
    for epoch in (1, 2):
        batches = list(offline._batches(epoch))
        assert {len(b) for b in batches[:-1]} == {64}
        orders.append([pair for b in batches for pair in zip(b.users, b.items, strict=True)])
        assert sorted(orders[-1]) == train
    assert orders[0] != orders[1]


def test_progress_is_reported_after_every_epoch():
    progress: list[tuple[float, str]] = []
    run(method="bir", epochs=5).run(lambda *said: progress.append(said))
    assert [share for share, _ in progress] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert [re.sub(r"loss [0-9.]+", "loss", text) for _, text in progress] == [f"epoch {n}, loss" for n in range(1, 6)]


def test_times_come_from_the_clock():
    ticks = iter(range(10_000))
    offline = OfflineRun(log(), SMALL, clock=lambda: float(next(ticks)))
    assert offline.run().value("step-ms", 0) == 1000.0


def test_popularity_is_the_share_of_training_pairs_from_the_first_step_on():
    offline = run(method="ssl-pop")
    counts = np.bincount(offline.split.train.items, minlength=ITEMS)
    assert isinstance(offline.state.popularity, ExactPopularity)
    expected = np.log(np.maximum(counts, 1) / counts.sum())
    assert offline.state.popularity.log_pop(np.arange(ITEMS)) == pytest.approx(expected, abs=1e-6)
    offline.run()
    assert offline.state.popularity.log_pop(np.arange(ITEMS)) == pytest.approx(expected, abs=1e-6)


def test_g_tower_estimates_popularity_while_it_trains():
    offline = run(method="g-tower")
    assert isinstance(offline.state.popularity, HashPopularity)
    before = offline.state.popularity.log_pop(np.arange(ITEMS))
    offline.run()
    counts = np.bincount(offline.split.train.items, minlength=ITEMS)
    error = offline.state.popularity.log_pop(np.arange(ITEMS)) - np.log(counts / counts.sum())
    assert (before == 0).all()
    assert np.abs(error).mean() < 0.3


def test_occurrence_counts_every_draw():
    offline = run(method="bir", draws=10)
    offline.run()
    assert drawn(offline).sum() == 10 * len(offline.split.train) * 4
    plain = run(method="ssl")
    plain.run()
    assert drawn(plain).tolist() == [0] * ITEMS


def test_xir_draws_half_from_the_batch_and_half_from_a_cache_of_the_batch_size():
    offline = run(draws=10, epochs=2)
    pairs = len(offline.split.train)
    offline.run()
    assert drawn(offline).sum() == 5 * pairs * 2 + 5 * (pairs * 2 - 64)  # the first step has no cache yet
    assert len(offline.state.cache) == 64


def steps_with_a_stranger(offline: OfflineRun) -> int:
    """How many steps of an epoch left an item in the cache that was neither in the batch nor in the cache before."""
    found = 0
    for batch in offline._batches(1):
        touched = set(batch.items.tolist()) | set(offline.state.cache.tolist())
        offline._step(batch)
        found += not set(offline.state.cache.tolist()) <= touched
    return found


def test_a_cache_is_drawn_among_all_items_or_those_touched_in_the_step():
    assert steps_with_a_stranger(run(cache_scope="touched", cache_size=5, batch_size=8)) == 0
    assert steps_with_a_stranger(run(cache_scope="all", cache_size=5, batch_size=8)) > 10


def test_ssl_pop_is_a_plain_torch_loop_of_the_papers_protocol():
    """Embeddings, whole score matrix, Adam with L2, the rate times 0.95 every epoch."""
    changes = {"method": "ssl-pop", "l2": 1e-3, "decay_every_epochs": 1}
    offline = run(**changes)
    tables = offline.state.trainer.model.tables
    users, items = (tables[n].weight.clone().requires_grad_() for n in ("user.id", "item.id"))
    adam = torch.optim.Adam([users, items], lr=SMALL.learning_rate, weight_decay=1e-3)
    counts = np.bincount(offline.split.train.items, minlength=ITEMS)
    log_pop = torch.from_numpy(np.log(counts / counts.sum())).float()
    for epoch in range(1, SMALL.epochs + 1):
        for batch in run(**changes)._batches(epoch):
            u, i = torch.from_numpy(batch.users), torch.from_numpy(batch.items)
            loss = cross_entropy(users[u] @ items[i].T - log_pop[i], torch.arange(len(i)))
            adam.zero_grad()
            loss.backward()
            adam.step()
        adam.param_groups[0]["lr"] *= 0.95
    offline.run()
    assert torch.allclose(tables["user.id"].weight, users, atol=1e-3)
    assert torch.allclose(tables["item.id"].weight, items, atol=1e-3)


def test_a_validation_split_is_of_the_training_items_and_leaves_the_test_items_alone():
    def pairs(part: ItemsByUser) -> set[tuple[int, int]]:
        return set(zip(part.users.tolist(), part.items.tolist(), strict=True))

    tested, validated = run().split, run(validation_share=0.25).split
    assert pairs(validated.train) | pairs(validated.test) == pairs(tested.train)
    assert len(validated.train) + len(validated.test) == len(tested.train)
    assert len(validated.test) > USERS


def test_users_and_items_without_a_training_pair_have_vectors_too():
    few = Interactions(np.array([0, 0, 0]), np.array([0, 1, 2]), ["a", "b"], list("vwxyz"))
    result = OfflineRun(few, replace(SMALL, ks=(10,))).run()
    assert figures(result)["recall", 10] == 1.0
    assert result.about["ranked"] == 1


def test_all_problems_are_reported_at_once():
    wrong = replace(
        SMALL, method="magic", epochs=0, learning_rate=0.0, l2=-1.0, test_share=1.0, ks=(), cache_weight=2.0
    )
    wrong = replace(
        wrong, cache_scope="some", popularity="none", optimizer="lion", learning_rate_decay=0.0, cache_size=-1
    )
    with pytest.raises(SettingsError) as raised:
        OfflineRun(log(), wrong)
    for name in ("magic", "epochs", "learning-rate is", "l2", "test-share", "ks", "cache-weight", "cache-scope"):
        assert any(name in problem for problem in raised.value.problems), name
    for name in ("popularity", "optimizer", "learning-rate-decay", "cache-size"):
        assert any(name in problem for problem in raised.value.problems), name
    assert len(raised.value.problems) == 12


def test_a_given_test_is_asked_for_without_ids_that_are_not_trained_and_without_pairs_that_are():
    train = Interactions(np.array([0, 0, 1]), np.array([0, 1, 2]), ["a", "b"], ["v", "w", "x"])
    test = Interactions(np.array([0, 1, 2, 0]), np.array([0, 1, 2, 1]), ["b", "a", "new"], ["v", "x", "unknown"])
    split = OfflineRun(train, SMALL, test).split
    assert (split.train.users.tolist(), split.train.items.tolist()) == ([0, 0, 1], [0, 1, 2])
    assert (split.test.users.tolist(), split.test.items.tolist()) == ([0, 1], [2, 0])
    others = Interactions(np.array([0]), np.array([0]), ["nobody"], ["v"])
    with pytest.raises(SourceError, match="no user and item of the log"):
        OfflineRun(train, SMALL, others)
