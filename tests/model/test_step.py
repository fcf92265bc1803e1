"""Every method's fast step against the slow obvious formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from reference import Reference

from streamer.model.batch import Batch, StreamState
from streamer.model.kernels import blocks_numba
from streamer.model.losses import METHODS
from streamer.model.occurrence import Occurrence
from streamer.model.popularity import ExactPopularity, HashPopularity
from streamer.model.settings import LearnerSettings, id_towers
from streamer.model.trainer import Trainer

CPU = torch.device("cpu")


def small(**changes) -> LearnerSettings:
    return id_towers(**({"dim": 6, "init_std": 0.7} | changes))


PAPER = {"cache_weight": 0.2, "cache_correction": "popularity"}
MODELS = {
    "plain": small(),
    "recent items": small(recent_items=4),
    "recent items only": small(user_ids=False, recent_items=4),
    "cosine": small(temperature=0.3),
    "cosine of recent items": small(recent_items=4, temperature=0.3),
    "features": small(
        user_features=("city",), item_features=("seller", "category"), item_numeric_features=("price", "age")
    ),
    "mlp": small(user_layers=(5,), item_layers=(8, 5), item_features=("seller",), recent_items=3),
}
USERS, ITEMS, B, L = 7, 15, 12, 5


def make_trainer(method: str, model: LearnerSettings, **changes) -> Trainer:
    trainer = Trainer(replace(model, method=method, seed=3, **(PAPER | changes)), CPU)
    trainer.model.grow(USERS, ITEMS)
    rng = np.random.default_rng(5)
    for tower, size in ((trainer.model.user, USERS), (trainer.model.item, ITEMS)):
        codes = rng.integers(0, 4, (size, len(tower.settings.categorical)))
        numbers = rng.normal(size=(size, len(tower.settings.numeric))).astype(np.float32)
        tower.features.set(np.arange(size), codes, numbers)
        for name, table in tower.tables.items():
            if not name.endswith(".id"):
                table.grow(4)
    with torch.no_grad():
        if (recency := trainer.model.recency) is not None:
            recency.copy_(torch.from_numpy(rng.normal(size=len(recency)).astype(np.float32)) * 0.5)
    return trainer


def make_input(trainer: Trainer, seed: int = 0, size: int = B, items: int = ITEMS) -> tuple[Batch, StreamState]:
    rng = np.random.default_rng(seed)
    recent = np.full((size, L), -1, np.int32)
    for b in range(size):
        length = rng.integers(0, L + 1)
        recent[b, :length] = rng.permutation(ITEMS)[:length]
    needed = trainer.model.settings.recent_items
    batch = Batch(rng.integers(0, USERS, size), rng.integers(0, items, size), recent if needed else None)
    popularity = HashPopularity() if trainer.method.popularity == "hash" else ExactPopularity()
    popularity.observe(rng.zipf(1.5, 500) % ITEMS)
    occurrence = Occurrence()
    occurrence.add(np.arange(ITEMS), rng.integers(1, 200, ITEMS))
    return batch, StreamState(popularity, rng.integers(0, ITEMS, 9), occurrence)


def assert_step_equals_reference(trainer: Trainer, batch: Batch, view: StreamState, tolerance: float = 2e-5) -> None:
    reference = Reference(trainer)
    expected = reference.loss(batch, view)
    expected.backward()
    result = trainer.gradients(batch, view)
    torch.testing.assert_close(result.loss.double(), expected.detach(), rtol=tolerance, atol=tolerance)
    seen = set()
    for g in result.gradients:
        seen.add(g.table)
        wanted = reference.leaves[g.table].grad
        torch.testing.assert_close(g.gradient.double(), wanted[g.rows], rtol=1e-3, atol=tolerance)
        untouched = torch.ones(len(wanted), dtype=torch.bool)
        untouched[g.rows] = False
        assert (wanted[untouched] == 0).all(), "a row that the step did not touch has a gradient"
    assert seen == set(reference.leaves)
    for name, parameter in trainer.model.named_parameters():
        wanted = reference.dense[name].grad
        if not parameter.requires_grad:
            continue
        found = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        wanted = wanted if wanted is not None else torch.zeros_like(found, dtype=torch.float64)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(params=["compiled", "torch"])
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(blocks_numba, "fits", lambda *_: False)
    return request.param


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_loss_and_gradients_equal_the_slow_formula(method, model, backend):
    trainer = make_trainer(method, MODELS[model])
    assert_step_equals_reference(trainer, *make_input(trainer))


VARIANTS = {
    "cache by occurrence": {"cache_correction": "occurrence"},
    "masked": {"mask_positive": True},
    "multinomial": {"resampler": "multinomial"},
    "few draws": {"draws": 2, "cache_weight": 0.7},
    "many draws": {"draws": 40, "cache_weight": 0.7},
}


@pytest.mark.parametrize("model", ["plain", "recent items"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_settings_equal_the_slow_formula(method, model, variant, backend):
    trainer = make_trainer(method, MODELS[model], **VARIANTS[variant])
    assert_step_equals_reference(trainer, *make_input(trainer))


@pytest.mark.parametrize("mask_positive", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_one_and_a_batch_of_one_item_train_without_nan(method, mask_positive):
    for size in (1, 6):
        trainer = make_trainer(method, MODELS["recent items"], mask_positive=mask_positive)
        batch, view = make_input(trainer, size=size, items=1)
        assert torch.isfinite(trainer.step(batch, view).loss)
        for weight in (*trainer.model.parameters(), *(table.weight for table in trainer.model.tables.values())):
            assert torch.isfinite(weight).all()


def cut(monkeypatch, rows: int, threads: int) -> None:
    """Cut batches into blocks of some rows, which some threads compute."""
    monkeypatch.setattr(blocks_numba, "block_rows", lambda _: rows)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)


@pytest.mark.parametrize("method", METHODS)
def test_many_blocks_equal_one_block(method, monkeypatch):
    results = []
    for rows, threads in ((256, 1), (16, 1), (16, 3)):
        cut(monkeypatch, rows, threads)
        trainer = make_trainer(method, MODELS["recent items"])
        results.append(trainer.gradients(*make_input(trainer, size=117)))
    for many in results[1:]:
        torch.testing.assert_close(many.loss, results[0].loss)
        for a, b in zip(many.gradients, results[0].gradients, strict=True):
            torch.testing.assert_close(a.gradient, b.gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_large_scores_do_not_overflow(method, backend):
    trainer = make_trainer(method, small(init_std=12.0))
    batch, view = make_input(trainer)
    result = trainer.gradients(batch, view)
    assert torch.isfinite(result.loss)
    assert all(torch.isfinite(g.gradient).all() for g in result.gradients)


@pytest.mark.parametrize("method", ["bir", "xir"])
def test_occurrence_increments_add_up_to_the_draws(method, backend):
    trainer = make_trainer(method, MODELS["recent items"], draws=10)
    batch, view = make_input(trainer)
    items, counts = trainer.step(batch, view).occurrence()
    assert counts.sum() == len(batch) * 10
    assert (counts >= 0).all()
    assert set(items.tolist()) <= set(batch.items.tolist()) | set(view.cache.tolist())


def test_methods_without_draws_have_no_occurrence():
    trainer = make_trainer("ssl-pop", MODELS["plain"])
    items, counts = trainer.step(*make_input(trainer)).occurrence()
    assert len(items) == len(counts) == 0


def test_xir_without_a_cache_is_its_batch_part():
    trainer = make_trainer("xir", MODELS["plain"])
    batch, view = make_input(trainer)
    result = trainer.gradients(batch, StreamState(view.popularity, np.empty(0, np.int64)))
    assert set(result.parts) == {"batch"}
    torch.testing.assert_close(result.loss, result.parts["batch"].loss)


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_gives_the_same_bits(method, monkeypatch):
    cut(monkeypatch, rows=64, threads=3)
    runs = []
    for _ in range(2):
        trainer = make_trainer(method, MODELS["recent items"])
        for k in range(4):
            trainer.step(*make_input(trainer, seed=k, size=300))
        runs.append({name: table.lines.clone() for name, table in trainer.model.tables.items()})
    for name in runs[0]:
        assert torch.equal(runs[0][name], runs[1][name])


def test_training_lowers_the_loss_and_ranks_the_positive_first():
    trainer = make_trainer("xir", MODELS["plain"], mask_positive=True)
    rng = np.random.default_rng(0)
    popularity = ExactPopularity()
    popularity.observe(np.arange(ITEMS))
    first = last = 0.0
    for k in range(150):
        users = rng.integers(0, USERS, 64)
        result = trainer.step(Batch(users, users * 2), StreamState(popularity, rng.integers(0, ITEMS, 16)))
        first = float(result.loss) if k == 0 else first
        last = float(result.loss)
    assert last < 0.5 * first
    scores = trainer.model.tables["user.id"].weight @ trainer.model.tables["item.id"].weight.T
    assert scores.argmax(1).tolist() == [2 * u for u in range(USERS)]


def test_step_decay_lowers_the_rate_every_so_many_steps():
    rates = {"learning_rate": 1.0, "learning_rate_decay": 0.5, "decay_every": 2}
    moved = []
    trainer = Trainer(small(method="ssl", optimizer="sgd", **rates), CPU)
    trainer.model.grow(USERS, ITEMS)
    gradient = trainer.gradients(*make_input(trainer)).gradients
    for _ in range(4):
        before = trainer.model.tables["item.id"].weight.clone()
        trainer.apply(gradient)
        moved.append((trainer.model.tables["item.id"].weight - before).abs().sum().item())
    assert moved[1] == pytest.approx(moved[0], rel=1e-4)
    assert moved[2] == pytest.approx(moved[0] / 2, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"user_ids": False, "item_ids": False, "draws": 0, "cache_weight": 2.0},
            r"(?s)cache-weight is 2.0.*draws is 0.*user tower has no input.*item tower",
        ),
        ({"user_layers": (4,), "item_layers": (3,)}, "user tower's vectors have 4 numbers, the item tower's 3"),
        ({"method": "xri"}, r"method is 'xri': choose ssl, .* xir or full-softmax"),
    ],
)
def test_wrong_settings_are_reported_all_at_once(changes, problem):
    with pytest.raises(ValueError, match=problem):
        Trainer(small(**changes), CPU)
