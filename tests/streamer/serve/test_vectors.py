"""The vectors of a server: as exact as a trainer's up to a limit, nearly so with an index, and renewed by deltas."""

from __future__ import annotations

import numpy as np
import pytest
from line_harness import events, learn_all, small
from serve_harness import Server, Trainer, served

from streamer.learner import OnlineLearner
from streamer.model.retrieval import Retriever
from streamer.serve.vectors import KeptVectors

STREAM = events(9000, users=300, items=2500, seed=3)
USERS = [f"u{n}" for n in range(0, 300, 3)]


def recall(found: list[list[str]], exact: list[list[str]]) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, exact, strict=True)]))


@pytest.mark.parametrize("rerank", [True, False])
def test_an_index_finds_what_scoring_all_items_finds_also_of_what_changed_since(tmp_path, rerank):
    trainer = Trainer(tmp_path / "points", rerank=rerank, init_std=0.3, retrieved_items=50)
    trainer.learn(STREAM[:8000], batch_size=500)
    exact, indexed = Server(tmp_path / "points"), Server(tmp_path / "points", exact_items=100)

    def found(server: Server) -> list[list[str]]:
        server.reach(trainer)
        building = server.service.replica.vectors._next
        if building is not None:  # the next request takes it over
            building.thread.join()
        return [[item for item, _ in served(server.service, user)] for user in USERS]

    assert recall(found(indexed), found(exact)) >= 0.99
    assert indexed.service.status()["indexed_items"] > 1000
    assert exact.service.status()["indexed_items"] == 0
    before = indexed.service.status()["indexed_items"]
    new = [(f"u{n % 300}", f"brand new {n % 40}") for n in range(1000)]
    trainer.learn(new, batch_size=500)
    assert recall(found(indexed), found(exact)) >= 0.99
    assert any(item.startswith("brand new") for items in found(exact) for item in items)
    trainer.learn(STREAM[8000:], batch_size=500)  # enough has changed for another index
    found(indexed)
    assert indexed.service.status()["indexed_items"] >= before + 40
    assert recall(found(indexed), found(exact)) >= 0.99
    for each in (exact, indexed, trainer):
        each.close()


@pytest.mark.parametrize("settings", [{}, {"user_ids": True}, {"item_layers": (8,), "user_layers": (8,)}], ids=str)
def test_kept_vectors_give_what_computing_them_gives(settings):
    learner = OnlineLearner(small(**settings))
    learn_all(learner, STREAM[:2000], batch_size=200)
    kept, slow = KeptVectors(learner.state.trainer), Retriever(learner.state.trainer)
    kept.renew(np.arange(learner.state.items.size), learner.state.items.size)
    users = np.array([3, 7, 3, learner.state.users.size])  # one of them twice, and one that is new
    recent = learner.candidates.recent_items(learner.state.recent.of(users))
    first, items = np.array([0, 5, 6, 6, 40]), np.random.default_rng(0).integers(0, 500, 40).astype(np.int32)
    for _ in range(2):  # the second time from what was kept of the first
        np.testing.assert_allclose(kept.queries(users, recent), slow.queries(users, recent), rtol=1e-5, atol=1e-6)
        found = kept.similarities(users, recent, first, items)
        np.testing.assert_allclose(found, slow.similarities(users, recent, first, items), rtol=1e-4, atol=1e-5)
    learn_all(learner, STREAM[2000:2200], batch_size=200)
    kept.renew(np.arange(learner.state.items.size), learner.state.items.size)
    np.testing.assert_allclose(kept.queries(users, recent), slow.queries(users, recent), rtol=1e-5, atol=1e-6)
