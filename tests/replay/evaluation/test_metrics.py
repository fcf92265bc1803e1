from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.retrieval import retrieval_normalized_dcg, retrieval_recall

from streamer.model.retrieval import Retriever
from streamer.model.settings import LearnerSettings
from streamer.model.trainer import Trainer
from streamer.replay.evaluation.metrics import evaluate
from streamer.replay.evaluation.split import ItemsByUser, Split, split_by_user

USERS, ITEMS, DIM = 40, 50, 8


class World:
    """A model with random vectors, or given ones, and a random log, split."""

    def __init__(self, seed: int, events: int = 600, queries: np.ndarray | None = None) -> None:
        rng = np.random.default_rng(seed)
        users, items = rng.integers(0, USERS, events), rng.integers(0, ITEMS, events)
        self.split = split_by_user(users, items, USERS, 0.4, rng)
        self.queries, self.items = rng.normal(size=(USERS, DIM)), rng.normal(size=(ITEMS, DIM))
        if queries is not None:
            self.queries, self.items = queries, np.eye(queries.shape[1])

    def values(self, *ks: int) -> dict[tuple[str, int], float]:
        settings = LearnerSettings(dim=self.items.shape[1], user_ids=True, recent_items=0, rerank=False, device="cpu")
        trainer = Trainer(settings, torch.device("cpu"))
        trainer.model.grow(len(self.queries), len(self.items))
        for name, vectors in (("user.id", self.queries), ("item.id", self.items)):
            trainer.model.tables[name].weight[: len(vectors)] = torch.from_numpy(vectors)
        found = evaluate(Retriever(trainer), self.split, ks)
        assert {m.slice for m in found} == {"all"}
        return {(m.metric, m.k): m.value for m in found}

    def slow(self, user: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Probabilities of all items that the user did not train, and which of them are in the test.

        They are the softmax of the scores, in the same order: torchmetrics takes probabilities, and its recall
        passes over an item whose prediction is not positive.
        """
        kept = np.setdiff1d(np.arange(ITEMS), self.split.train.lists()[user])
        scores = torch.from_numpy((self.queries[user] @ self.items.T)[kept])
        return scores.softmax(0), torch.from_numpy(np.isin(kept, self.split.test.lists()[user]))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 3, 10, 20, ITEMS]), st.sampled_from([30, 200, 600]))
def test_recall_and_ndcg_agree_with_torchmetrics(seed, k, events):
    world = World(seed, events)
    cases = [world.slow(user) for user in np.flatnonzero(world.split.test.counts)]
    found = world.values(k)
    slow_recall = np.mean([float(retrieval_recall(s, t, top_k=k)) for s, t in cases] or [0])
    slow_ndcg = np.mean([float(retrieval_normalized_dcg(s, t, top_k=k)) for s, t in cases] or [0])
    assert found["recall", k] == pytest.approx(slow_recall, abs=1e-6)
    assert found["ndcg", k] == pytest.approx(slow_ndcg, abs=1e-6)


def by_hand(ranks: list[int], items: int = 8) -> World:
    """One user, whose test items have these ranks; a second one has none."""
    world = World(0, queries=np.stack([-np.arange(items, dtype=float), np.zeros(items)]))
    tested, nobody = np.array(ranks) - 1, np.empty(0, np.int64)
    world.split = Split(ItemsByUser.of(nobody, nobody, 2), ItemsByUser.of(np.zeros_like(tested), tested, 2))
    return world


def test_figures_that_can_be_checked_by_hand_and_users_without_a_test_item_do_not_count():
    second, third = 1 / np.log2(3), 1 / 2
    found = by_hand([1, 3, 7, 8]).values(2, 3, 5)
    assert [found["recall", k] for k in (2, 3)] == [0.25, 0.5]
    assert found["ndcg", 2] == pytest.approx(1 / (1 + second))
    assert found["ndcg", 3] == pytest.approx(1.5 / (1 + second + third))
    # their code makes 0, 1, 1, 1, ... of the ranks: every later hit has the discount of the second place
    found = by_hand([1, 4, 5, 8]).values(5)
    ranks = torch.arange(5).type_as(torch.zeros(1, dtype=torch.bool))
    gains = 1 / torch.log2(ranks + 2.0)
    ideal = 1 + second + third + 1 / np.log2(5)
    assert found["authors-ndcg", 5] == pytest.approx(float(gains[[0, 3, 4]].sum()) / ideal)
    # and while no hit is after the second place, it is NDCG
    found = by_hand([1, 2, 7]).values(3)
    assert found["authors-ndcg", 3] == pytest.approx(found["ndcg", 3])


def test_a_list_that_begins_with_all_test_items_is_perfect():
    world = World(0, queries=np.zeros((USERS, ITEMS)))
    world.queries[world.split.test.users, world.split.test.items] = np.linspace(1, 2, len(world.split.test))
    found = world.values(3, ITEMS)
    assert found["recall", ITEMS] == 1.0
    assert found["ndcg", 3] == pytest.approx(1.0)


def test_scores_that_are_no_numbers_are_no_hits():
    world = World(3)
    world.queries[:] = np.nan
    assert set(world.values(3).values()) == {0.0}
