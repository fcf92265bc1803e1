from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics.functional.retrieval import retrieval_normalized_dcg, retrieval_recall

from streamer.replay.evaluation.metrics import authors_ndcg, evaluate, hits_of, ndcg, recall
from streamer.replay.evaluation.split import ItemsByUser, Split, split_by_user

USERS, ITEMS, DIM = 40, 50, 8


class World:
    """Random vectors and a random log, split."""

    def __init__(self, seed: int, events: int = 600) -> None:
        rng = np.random.default_rng(seed)
        users, items = rng.integers(0, USERS, events), rng.integers(0, ITEMS, events)
        self.split = split_by_user(users, items, USERS, 0.4, rng)
        self.queries = torch.from_numpy(rng.normal(size=(USERS, DIM)))
        self.items = torch.from_numpy(rng.normal(size=(ITEMS, DIM)))

    def slow(self, user: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Probabilities of all items that the user did not train, and which of them are in the test.

        They are the softmax of the scores, in the same order: torchmetrics takes probabilities, and its recall
        passes over an item whose prediction is not positive.
        """
        trained = set(items_of(self.split.train, user))
        kept = [i for i in range(ITEMS) if i not in trained]
        tested = set(items_of(self.split.test, user))
        scores = (self.queries[user] @ self.items.T)[kept]
        return scores.softmax(0), torch.tensor([i in tested for i in kept])

    def hits(self, count: int, block_cells: int = 1 << 20) -> np.ndarray:
        return hits_of(self.queries, self.items, np.arange(USERS), count, self.split, block_cells)


def items_of(held: ItemsByUser, user: int) -> list[int]:
    return held.items[held.first[user] : held.first[user + 1]].tolist()


def values(world: World, ks: tuple[int, ...]) -> dict[tuple[str, int], float]:
    return {(m.metric, m.k): m.value for m in evaluate(world.queries, world.items, world.split, ks)}


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.sampled_from([1, 3, 10, 20, ITEMS]), st.sampled_from([30, 200, 600]))
def test_recall_and_ndcg_agree_with_torchmetrics(seed, k, events):
    world = World(seed, events)
    cases = [world.slow(user) for user in np.flatnonzero(world.split.test.counts)]
    found = values(world, (k,))
    slow_recall = np.mean([float(retrieval_recall(s, t, top_k=k)) for s, t in cases] or [0])
    slow_ndcg = np.mean([float(retrieval_normalized_dcg(s, t, top_k=k)) for s, t in cases] or [0])
    assert found["recall", k] == pytest.approx(slow_recall, abs=1e-6)
    assert found["ndcg", k] == pytest.approx(slow_ndcg, abs=1e-6)


def test_authors_ndcg_gives_every_later_hit_the_discount_of_the_second_place():
    hits = np.array([[True, False, False, True, True], [False, False, True, False, False]])
    relevant = np.array([4, 1])
    ranks = torch.arange(5).type_as(torch.zeros(1, dtype=torch.bool))  # what their code makes of 0, 1, 2, ...
    gains = torch.from_numpy(hits) / torch.log2(ranks + 2.0)
    ideal = [1 + 1 / np.log2(3) + 1 / 2 + 1 / np.log2(5), 1.0]
    assert authors_ndcg(hits, relevant, 5) == pytest.approx(gains.sum(1).numpy() / ideal)
    assert authors_ndcg(hits, relevant, 5) == pytest.approx([(1 + 2 / np.log2(3)) / ideal[0], 1 / np.log2(3)])


def test_authors_ndcg_is_ndcg_while_no_hit_is_after_the_second_place():
    hits = np.array([[True, True, False], [False, True, False], [True, False, False]])
    relevant = np.array([3, 1, 2])
    assert authors_ndcg(hits, relevant, 3) == pytest.approx(ndcg(hits, relevant, 3))


def test_figures_of_lists_that_can_be_checked_by_hand():
    hits = np.array([[True, False, True], [False, False, False]])
    relevant = np.array([4, 1])
    assert recall(hits, relevant, 3).tolist() == [0.5, 0.0]
    assert recall(hits, relevant, 2).tolist() == [0.25, 0.0]
    assert ndcg(hits, relevant, 2) == pytest.approx([1 / (1 + 1 / np.log2(3)), 0.0])
    assert ndcg(hits, relevant, 3) == pytest.approx([1.5 / (1.5 + 1 / np.log2(3)), 0.0])


def test_a_list_that_begins_with_all_test_items_is_perfect():
    world = World(0)
    world.queries = torch.zeros(USERS, ITEMS, dtype=torch.float64)
    world.queries[torch.from_numpy(world.split.test.users), torch.from_numpy(world.split.test.items)] = 1.0
    world.items = torch.eye(ITEMS, dtype=torch.float64)
    assert values(world, (ITEMS,))["recall", ITEMS] == 1.0
    assert values(world, (3,))["ndcg", 3] == pytest.approx(1.0)


@pytest.mark.parametrize("block_cells", [1, ITEMS, 7 * ITEMS + 3, 1 << 20])
def test_the_best_items_are_those_of_a_full_sort_whatever_the_block(block_cells):
    world = World(1)
    for count in (10, ITEMS):
        hits = world.hits(count, block_cells)
        for user in range(USERS):
            trained = items_of(world.split.train, user)
            scores = world.queries[user] @ world.items.T
            scores[trained] = -torch.inf
            best = scores.argsort(descending=True)[:count].tolist()
            assert hits[user].tolist() == [item in items_of(world.split.test, user) for item in best]


def test_scores_that_are_no_numbers_are_no_hits():
    world = World(3)
    world.queries[:] = torch.nan
    assert set(values(world, (10,)).values()) == {0.0}


def test_users_without_a_test_item_do_not_count():
    queries, items = torch.eye(2), torch.eye(2)
    nobody = np.empty(0, np.int64)
    test = ItemsByUser.of(np.array([0]), np.array([0]), 2)
    found = evaluate(queries, items, Split(ItemsByUser.of(nobody, nobody, 2), test), (1,))
    assert {m.metric: m.value for m in found} == {"recall": 1.0, "ndcg": 1.0, "authors-ndcg": 1.0}
    assert {m.slice for m in found} == {"all"}


class Largest(TorchDispatchMode):
    """Watches how large a tensor becomes."""

    cells = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        answer = function(*arguments, **(keywords or {}))
        for tensor in answer if isinstance(answer, tuple | list) else [answer]:
            if isinstance(tensor, torch.Tensor):
                self.cells = max(self.cells, tensor.numel())
        return answer


def test_no_more_scores_than_a_block_are_held():
    world = World(4)
    with Largest() as largest:
        world.hits(5, block_cells=10 * ITEMS)
    assert largest.cells == 10 * ITEMS  # and not USERS * ITEMS
