"""Ranks and top items against scores computed the slow, obvious way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Reference
from test_step import ITEMS, MODELS, USERS, make_input, make_trainer

from streamer.model import retrieval
from streamer.model.retrieval import COSINE, LARGEST_PRODUCT, RUN, Retriever, _top, compare, lengths_of


def slow_scores(trainer, batch) -> np.ndarray:
    reference = Reference(trainer)
    rows = [[score(item).item() for item in range(ITEMS)] for score, _ in reference.rows(batch)]
    return np.array(rows)


def ranks_of(retriever, *arguments) -> np.ndarray:
    return retriever.ranks_with_and_without(*arguments)[0]


@pytest.mark.parametrize("blocks", ["one block", "many blocks"])
@pytest.mark.parametrize("model", MODELS)
def test_ranks_and_top_items_follow_the_score(model, blocks, monkeypatch):
    trainer = make_trainer("xir", MODELS[model])
    batch, _ = make_input(trainer)
    scores = slow_scores(trainer, batch)
    if blocks == "many blocks":
        monkeypatch.setattr(retrieval, "BLOCK_CELLS", 2 * ITEMS)
        monkeypatch.setattr(retrieval, "CHUNK_ITEMS", 4)
    retriever = Retriever(trainer)
    items = retriever.items()
    assert not items.vectors.requires_grad
    assert not retriever.queries(batch.users, batch.recent).requires_grad
    ranks = ranks_of(retriever, items, batch.users, batch.items, batch.recent)
    expected = [int((scores[b] >= scores[b, i]).sum()) for b, i in enumerate(batch.items)]
    assert ranks.tolist() == expected
    top, values = retriever.top(items, batch.users, 4, batch.recent)
    best = -np.sort(-scores, axis=1)[:, :4]
    np.testing.assert_allclose(np.take_along_axis(scores, top, axis=1), best, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(values, best, rtol=1e-4, atol=1e-4)


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 400))
def test_the_best_of_many_scores_are_those_of_a_sort(seed, count, distinct):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, distinct, (3, count * RUN + int(rng.integers(0, 100)))).astype(np.float32)
    scores[1, rng.random(scores.shape[1]) < 0.9] = -np.inf  # left out
    scores[2] = -np.inf
    rows, values = np.empty((3, count), np.int64), np.empty((3, count), np.float32)
    _top(scores, rows, values)
    np.testing.assert_array_equal(values, -np.sort(-scores, axis=1)[:, :count])
    np.testing.assert_array_equal(np.take_along_axis(scores, rows, axis=1), values)
    assert all(len(set(of_user)) == count for of_user in rows.tolist())


def test_a_user_that_is_not_known_yet_is_ranked_by_recent_items():
    trainer = make_trainer("xir", MODELS["recent items only"])
    retriever = Retriever(trainer)
    recent = np.array([[3, 1, -1, -1]], np.int32)
    top, values = retriever.top(retriever.items(), np.array([USERS + 5]), 3, recent)
    assert top.shape == (1, 3)
    assert np.isfinite(values).all()


def test_a_constant_model_ranks_nothing_first():
    trainer = make_trainer("ssl", MODELS["plain"])
    for table in trainer.model.tables.values():
        table.lines.zero_()
    retriever = Retriever(trainer)
    assert ranks_of(retriever, retriever.items(), np.arange(3), np.arange(3)).tolist() == [ITEMS] * 3


def test_one_pass_gives_the_ranks_with_and_without_what_is_left_out():
    trainer = make_trainer("xir", MODELS["recent items"])
    batch, _ = make_input(trainer)
    retriever = Retriever(trainer)
    items = retriever.items()
    rng = np.random.default_rng(0)
    left_out = [np.setdiff1d(np.flatnonzero(rng.random(ITEMS + 4) < 0.4), [i]) for i in batch.items]
    left_out[1] = np.empty(0, np.int64)
    arguments = (items, batch.users, batch.items, batch.recent)
    with_all, without = retriever.ranks_with_and_without(*arguments, left_out)
    scores = slow_scores(trainer, batch)
    for b, item in enumerate(batch.items):
        better = {j for j in range(ITEMS) if scores[b, j] >= scores[b, item]}
        assert (with_all[b], without[b]) == (len(better), len(better - set(left_out[b].tolist())))
    assert (without < with_all).any()


def test_unknown_targets_among_known_ones_do_not_shift_the_others():
    trainer = make_trainer("xir", MODELS["recent items"])
    batch, _ = make_input(trainer)
    retriever = Retriever(trainer)
    items = retriever.items()
    expected = ranks_of(retriever, items, batch.users, batch.items, batch.recent)
    targets = batch.items.copy()
    targets[::2] = ITEMS + 1
    left_out = [np.array([], np.int64) if b % 2 else np.arange(ITEMS) for b in range(len(targets))]
    for ranks in retriever.ranks_with_and_without(items, batch.users, targets, batch.recent, left_out):
        assert ranks[1::2].tolist() == expected[1::2].tolist()
        assert (ranks[::2] == ITEMS + 1).all()


@pytest.mark.parametrize("model", ["plain", "recent items", "mlp"])
def test_similarities_are_inner_products_and_cosines(model):
    trainer = make_trainer("xir", MODELS[model])
    batch, _ = make_input(trainer)
    retriever = Retriever(trainer)
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, ITEMS, len(batch.users))
    first = np.concatenate([[0], np.cumsum(sizes)])
    items = np.concatenate([rng.permutation(ITEMS)[:n] for n in sizes]).astype(np.int32)
    found = retriever.similarities(batch.users, batch.recent, first, items)
    vectors = retriever.items().vectors.numpy()
    queries = retriever.queries(batch.users, batch.recent).numpy()
    for q, (begin, end) in enumerate(itertools.pairwise(first)):
        for c, item in enumerate(items[begin:end], begin):
            recent = [] if batch.recent is None else [r for r in batch.recent[q] if r >= 0]
            expected = [
                queries[q] @ vectors[item],
                COSINE * cosine(queries[q], vectors[item]),
                COSINE * max([0.0, *(cosine(vectors[r], vectors[item]) for r in recent)]),
            ]
            np.testing.assert_allclose(found[c], expected, rtol=1e-4, atol=1e-4)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12))


def test_vectors_that_are_no_numbers_or_too_large_do_not_reach_a_ranker():
    vectors = np.array([[np.nan, 1], [1e30, 0], [0, 0]], np.float32)
    found = np.empty((3, 3), np.float32)
    first, at = np.array([0, 3]), np.arange(3)
    compare(np.ones((1, 2), np.float32), vectors, lengths_of(vectors), np.array([[0, 1]]), first, at, found)
    assert np.isfinite(found).all()
    assert found[1, 0] == LARGEST_PRODUCT
    assert found[0].tolist() == found[2].tolist() == [0, 0, 0]
