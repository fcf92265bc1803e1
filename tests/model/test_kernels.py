"""The sampled softmax itself: gradients by finite differences, memory, devices, and one backend against the other."""

from __future__ import annotations

from dataclasses import replace

import graph_walk
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from streamer.model.batch import Batch, StreamState
from streamer.model.kernels import Sampling, blocks_numba, blocks_torch, sampled_softmax
from streamer.model.kernels.pooling import pooled
from streamer.model.losses import METHODS, Proposals
from streamer.model.plan import Planner
from streamer.model.popularity import ExactPopularity
from streamer.model.rows import tables
from streamer.model.settings import MethodSettings, id_towers
from streamer.model.trainer import Trainer

B, N, D = 9, 14, 5


def parts_of(method: str):
    """What a method asks of the kernel for a small batch with repeated items."""
    rng = np.random.default_rng(2)
    batch = Batch(np.arange(B), rng.integers(0, N, B))
    popularity = ExactPopularity()
    popularity.observe(rng.zipf(1.4, 300) % N)
    extra = {"none": np.empty(0, np.int64), "all": np.arange(N)}.get(METHODS[method].extra, rng.integers(0, N, 8))
    plan = Planner().plan(batch, extra, N)
    proposals = Proposals(popularity.log_pop(plan.items), None, N)
    return METHODS[method].terms(plan, proposals, MethodSettings(draws=6))


@pytest.mark.parametrize("mask_own", [False, True])
@pytest.mark.parametrize("resampler", ["systematic", "multinomial"])
@pytest.mark.parametrize("method", METHODS)
def test_gradients_equal_finite_differences(method, resampler, mask_own):
    """The draws are piecewise constant in the scores, so differences see only the gradient through the scores."""
    torch.manual_seed(0)
    parts = parts_of(method)
    for part in parts:
        c = part.candidates
        Q = torch.randn(B, D, dtype=torch.float64, requires_grad=True)
        E = torch.randn(len(c.count), D, dtype=torch.float64, requires_grad=True)
        positive = torch.randn(B, dtype=torch.float64, requires_grad=True)
        offsets = torch.rand(B, dtype=torch.float64)

        def loss(Q, E, positive, part=part, c=c, offsets=offsets):
            log_weight = torch.from_numpy(part.log_weight()).double()
            draws = torch.Generator().manual_seed(1)
            own = torch.from_numpy(c.own)
            weights = torch.linspace(0, 3, B).double()
            sampling = Sampling(log_weight, part.draws, own, mask_own, offsets, resampler, draws, weights)
            return sampled_softmax(Q, E, positive, sampling).loss

        assert torch.autograd.gradcheck(loss, (Q, E, positive), eps=1e-6, atol=1e-6)


def random_case(rows: int, columns: int, dim: int, draws: int | None, mask_own: bool):
    g = torch.Generator().manual_seed(0)
    Q, E = torch.randn(rows, dim, generator=g) * 0.6, torch.randn(columns, dim, generator=g) * 0.6
    own = torch.randint(-1, columns, (rows,), generator=g, dtype=torch.int32)
    log_weight = torch.rand(columns, generator=g) * 5
    sampling = Sampling(
        log_weight, draws, own, mask_own, torch.rand(rows, generator=g), weights=torch.arange(rows) % 4.0
    )
    return Q, E, (Q * E[torch.arange(rows) % columns]).sum(1), sampling


@pytest.mark.parametrize("mask_own", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "dim", "draws"),
    [
        (300, 500, 32, 250),
        (300, 500, 32, None),
        (1, 1, 1, 3),
        (5, 700, 33, 2),
        (129, 17, 8, 64),
        (64, 90, 16, 5000),
        (133, 700, 33, 5),
    ],
)
def test_compiled_backend_equals_the_torch_backend(rows, columns, dim, draws, mask_own):
    case = random_case(rows, columns, dim, draws, mask_own)
    assert blocks_numba.fits(case[0], case[3])
    fast, slow = blocks_numba.compute(*case), blocks_torch.compute(*case)
    # a draw may fall on the other side of a boundary by rounding; a handful of cells at most
    moved = (fast.counts - slow.counts).abs().sum()
    is_empty = mask_own and columns == 1
    assert fast.counts.sum() == slow.counts.sum() == (0 if is_empty else rows * (draws or 0))
    assert moved <= 2 + 1e-4 * rows * (draws or 0)
    for name in ("loss", "positive_gradient", "effective", "own_share"):
        torch.testing.assert_close(getattr(fast, name), getattr(slow, name), rtol=2e-3, atol=1e-5)
    for name in ("query_gradient", "item_gradient"):
        a, b = getattr(fast, name), getattr(slow, name)
        assert (a - b).norm() <= (1e-2 if draws else 1e-5) * b.norm() + 1e-7
    if draws:
        assert ((fast.distinct - slow.distinct).abs() <= 2).all()
        assert (fast.distinct <= min(draws, columns)).all()


def test_effective_sample_size_is_one_for_a_single_weight_and_k_for_equal_weights():
    own = torch.full((2,), -1, dtype=torch.int32)
    sampling = Sampling(torch.zeros(8), 4, own, offsets=torch.rand(2))
    equal = sampled_softmax(torch.zeros(2, 3), torch.randn(8, 3), torch.zeros(2), sampling)
    assert equal.effective.item() == pytest.approx(8)
    assert equal.distinct.item() == pytest.approx(4)
    peaked = Sampling(torch.tensor([50.0] + [0.0] * 7), 4, own, offsets=torch.rand(2))
    assert sampled_softmax(torch.zeros(2, 3), torch.randn(8, 3), torch.zeros(2), peaked).effective.item() == 1


def test_pooling_equals_the_obvious_sum_with_gradients():
    g = torch.Generator().manual_seed(0)
    at = torch.randint(-1, 6, (7, 4), generator=g, dtype=torch.int32)
    fast = [torch.randn(6, 3, generator=g, requires_grad=True), torch.rand(7, 4, generator=g, requires_grad=True)]
    slow = [t.detach().double().requires_grad_() for t in fast]
    out = pooled(fast[0], at, fast[1])
    expected = torch.stack(
        [
            sum((slow[1][b, k] * slow[0][i] for k, i in enumerate(at[b].tolist()) if i >= 0), torch.zeros(3).double())
            for b in range(7)
        ]
    )
    torch.testing.assert_close(out.double(), expected)
    weight = torch.randn(7, 3, generator=g)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(fast[0].grad.double(), slow[0].grad, rtol=1e-4, atol=1e-6)
    kept = torch.where(at >= 0, slow[1].grad, 0.0)
    torch.testing.assert_close(fast[1].grad.double(), kept, rtol=1e-4, atol=1e-6)


# memory --------------------------------------------------------------------------------------------------------------


class _LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.cells = max(self.cells, tensor.numel())
        return out


FULL = id_towers(dim=8, recent_items=3, mask_positive=True)


def big_step(method: str, size: int, device: str = "cpu", resampler: str = "systematic"):
    """A trainer and an input whose B x B matrix would be by far the largest tensor of the step."""
    rng = np.random.default_rng(0)
    items = 40 if method == "full-softmax" else size
    trainer = Trainer(replace(FULL, method=method, resampler=resampler), torch.device(device))
    trainer.model.grow(50, items)
    recent = rng.integers(0, items, (size, 3)).astype(np.int32)
    batch = Batch(rng.integers(0, 50, size), rng.permutation(size) % items, recent)
    popularity = ExactPopularity()
    popularity.observe(batch.items)
    cache = rng.permutation(size)[: size if items == size else 0]
    return trainer, batch, StreamState(popularity, cache)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["compiled", "torch"])
@pytest.mark.parametrize("method", [m for m in METHODS if m != "full-softmax"])
def test_no_matrix_of_batch_by_batch_is_ever_held(method, backend, monkeypatch):
    if backend == "torch":
        monkeypatch.setattr(blocks_numba, "fits", lambda *_: False)
    monkeypatch.setattr(blocks_numba, "_pool", _inline_pool)  # worker threads have dispatch modes of their own
    size = 2048
    trainer, batch, view = big_step(method, size)
    with _LargestTensor() as largest:
        trainer.step(batch, view)
    assert size * size / 16 >= blocks_numba.CACHE_CELLS
    assert 0 < largest.cells <= size * size / 8


class _inline_pool:  # noqa: N801
    def __init__(self, threads: int) -> None:
        pass

    def map(self, function, spans):
        return [function(span) for span in spans]


# devices -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resampler", ["systematic", "multinomial"])
@pytest.mark.parametrize("method", METHODS)
def test_a_step_on_a_gpu_neither_waits_for_the_host_nor_mixes_devices(method, resampler, monkeypatch):
    """Fake tensors know their device and have no data: a read from the host or a mix of devices raises."""
    monkeypatch.setattr(torch.Tensor, "backward", graph_walk.backward)
    tables._quantiles()  # made once, of real numbers
    with FakeTensorMode(allow_non_fake_inputs=False):
        trainer, batch, view = big_step(method, 300, "cuda", resampler)
        result = trainer.step(batch, view)
        assert result.loss.device.type == "cuda"
        assert all(g.gradient.device.type == "cuda" for g in result.gradients)


@pytest.mark.parametrize("method", METHODS)
def test_the_graph_walk_gives_the_gradients_of_torch(method, monkeypatch):
    trainer, batch, view = big_step(method, 60)
    expected = trainer.gradients(batch, view)
    dense = [p.grad for p in trainer.model.parameters()]
    monkeypatch.setattr(torch.Tensor, "backward", graph_walk.backward)
    trainer, batch, view = big_step(method, 60)
    found = trainer.gradients(batch, view)
    for a, b in zip(found.gradients, expected.gradients, strict=True):
        torch.testing.assert_close(a.gradient, b.gradient)
    for parameter, gradient in zip(trainer.model.parameters(), dense, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_the_fake_device_test_would_see_a_host_read_and_a_mix_of_devices():
    with FakeTensorMode(), pytest.raises(Exception, match="_local_scalar_dense"):
        torch.zeros(3, device="cuda").sum().item()
    with FakeTensorMode(), pytest.raises(RuntimeError, match="device"):
        torch.zeros(3, device="cuda") + torch.zeros(3)
