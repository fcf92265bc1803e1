"""Ranks and top items against scores computed the slow, obvious way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import Reference
from test_step import ITEMS, MODELS, USERS, make_input, make_trainer

from model import ranking
from model.ranking import Ranker


def slow_scores(trainer, batch, view) -> np.ndarray:
    reference = Reference(trainer)
    rows = [[float(score(item)) for item in range(ITEMS)] for score, _ in reference.rows(batch, view)]
    return np.array(rows)


@pytest.mark.parametrize("model", MODELS)
def test_ranks_and_top_items_follow_the_score(model):
    trainer = make_trainer("xir", MODELS[model])
    batch, view = make_input(trainer)
    scores = slow_scores(trainer, batch, view)
    ranker = Ranker(trainer, view.prior)
    items = ranker.items()
    ranks = ranker.ranks(items, batch.users, batch.items, batch.recent)
    expected = [int((scores[b] >= scores[b, i]).sum()) for b, i in enumerate(batch.items)]
    assert ranks.tolist() == expected
    top, values = ranker.top(items, batch.users, 4, batch.recent)
    best = -np.sort(-scores, axis=1)[:, :4]
    np.testing.assert_allclose(np.take_along_axis(scores, top, axis=1), best, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(values, best, rtol=1e-4, atol=1e-4)


def test_excluded_items_are_left_out():
    trainer = make_trainer("xir", MODELS["all terms"])
    batch, view = make_input(trainer)
    scores = slow_scores(trainer, batch, view)
    excluded = [np.setdiff1d(np.arange(0, ITEMS, 2), [i]) for i in batch.items]
    for b, items in enumerate(excluded):
        scores[b, items] = -np.inf
    ranker = Ranker(trainer, view.prior)
    ranks = ranker.ranks(ranker.items(), batch.users, batch.items, batch.recent, excluded)
    assert ranks.tolist() == [int((scores[b] >= scores[b, i]).sum()) for b, i in enumerate(batch.items)]


def test_blocks_do_not_change_the_answer(monkeypatch):
    trainer = make_trainer("xir", MODELS["mlp"])
    batch, view = make_input(trainer)
    ranker = Ranker(trainer, view.prior)
    whole = ranker.ranks(ranker.items(), batch.users, batch.items, batch.recent)
    monkeypatch.setattr(ranking, "BLOCK_CELLS", 2 * ITEMS)
    monkeypatch.setattr(ranking, "CHUNK_ITEMS", 4)
    parts = ranker.ranks(ranker.items(), batch.users, batch.items, batch.recent)
    assert whole.tolist() == parts.tolist()


def test_an_item_that_is_not_known_yet_ranks_behind_all_others():
    trainer = make_trainer("xir", MODELS["plain"])
    ranker = Ranker(trainer)
    assert ranker.ranks(ranker.items(), np.array([0]), np.array([ITEMS + 3])).tolist() == [ITEMS + 1]


def test_a_user_that_is_not_known_yet_is_ranked_by_recent_items():
    trainer = make_trainer("xir", MODELS["recent items only"])
    ranker = Ranker(trainer)
    recent = np.array([[3, 1, -1, -1]], np.int32)
    top, values = ranker.top(ranker.items(), np.array([USERS + 5]), 3, recent)
    assert top.shape == (1, 3)
    assert np.isfinite(values).all()


def test_a_constant_model_ranks_nothing_first():
    trainer = make_trainer("ssl", MODELS["plain"])
    for table in trainer.model.tables.values():
        table.lines.zero_()
    ranker = Ranker(trainer)
    assert ranker.ranks(ranker.items(), np.arange(3), np.arange(3)).tolist() == [ITEMS] * 3


def test_ranking_leaves_no_gradient_behind():
    trainer = make_trainer("xir", MODELS["all terms"])
    batch, view = make_input(trainer)
    ranker = Ranker(trainer, view.prior)
    assert not ranker.items().vectors.requires_grad
    assert not torch.is_grad_enabled() or not ranker.queries(batch.users, batch.recent).requires_grad
