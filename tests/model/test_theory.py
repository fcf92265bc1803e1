"""What the estimators converge to, on a model so small that every expectation can be computed.

One query, N items with known scores and popularity. A batch is the query's positive and B - 1 items drawn by
popularity. Each test compares the expected gradient by the query vector (the part that the negatives contribute) with
that of a softmax over all items, for growing B.

What holds, and is tested:

* Theorem 3.1: the resampled items follow the softmax, with an error that falls like 1 / B.
* SSL-Pop's expected gradient approaches the full softmax's, with the same error: weighting the resampled items
  equally *is* SSL-Pop in expectation.
* BIR's loss weights the resampled items by e^s once more. Its gradient approaches that of a softmax at twice the
  scores: harder negatives, and a bias against the full softmax that does not vanish. The paper's Theorem 3.2 is about
  another estimator (each draw weighted by e^s / (m w)), not about the loss of its Algorithm 1.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch

from streamer.model.kernels import Sampling, blocks_torch

pytestmark = pytest.mark.slow
N, D = 12, 4
SIZES = (8, 32, 128)
BATCHES = 800


class SmallWorld:
    def __init__(self, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.e = rng.normal(size=(N, D)) * 0.7
        self.q = rng.normal(size=D) * 0.7
        self.s = self.e @ self.q
        self.p = 1 / np.arange(1, N + 1)
        self.p /= self.p.sum()
        self.own = N // 2

    def softmax_gradient(self, temperature: float = 1.0) -> np.ndarray:
        w = np.exp(self.s / temperature)
        return w / w.sum() @ self.e

    @functools.cache  # noqa: B019  (one world lives as long as the module's tests)
    def expected(self, size: int, draws: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Mean over many batches: the negatives' gradient by q, and the share of each item among the draws."""
        rng = np.random.default_rng(seed)
        drawn = np.concatenate([np.full((BATCHES, 1), self.own), rng.choice(N, (BATCHES, size - 1), p=self.p)], axis=1)
        gradient, share = np.zeros(D), np.zeros(N)
        E = torch.from_numpy(self.e)
        for batch in drawn:
            count = np.bincount(batch, minlength=N)
            present = np.flatnonzero(count)
            sampling = Sampling(
                torch.from_numpy(np.log(count[present]) - np.log(self.p[present])),
                size if draws else None,
                torch.tensor([int(np.searchsorted(present, self.own))], dtype=torch.int32),
                offsets=torch.from_numpy(rng.random(1)),
            )
            s_own = torch.tensor([self.s[self.own] - (0 if draws else np.log(self.p[self.own]))])
            rows = blocks_torch.compute(torch.from_numpy(self.q)[None], E[present], s_own, sampling)
            # -grad(positive) + sum over negatives: the share of the positive itself belongs to the softmax too
            own_share = 1 + float(rows.positive_gradient[0])
            gradient += rows.query_gradient[0].numpy() + (own_share * self.e[self.own] if draws else 0)
            share[present] += rows.counts.numpy()
        return gradient / BATCHES, share / max(share.sum(), 1)


@pytest.fixture(scope="module")
def world() -> SmallWorld:
    return SmallWorld()


def errors(world: SmallWorld, draws: bool, target: np.ndarray) -> list[float]:
    return [float(np.linalg.norm(world.expected(size, draws)[0] - target)) for size in SIZES]


def test_resampled_items_follow_the_softmax_as_the_batch_grows(world):
    softmax = np.exp(world.s) / np.exp(world.s).sum()
    distance = [0.5 * np.abs(world.expected(size, draws=True)[1] - softmax).sum() for size in SIZES]
    assert distance[-1] < 0.02
    for small, large in itertools.pairwise(distance):
        assert large < 0.45 * small  # four times the batch, about a quarter of the error


def test_the_corrected_in_batch_softmax_approaches_the_full_softmax_at_rate_one_over_b(world):
    error = errors(world, draws=False, target=world.softmax_gradient())
    assert error[-1] < 0.02
    assert error[1] < 0.45 * error[0]
    assert error[2] < 0.45 * error[1]


def test_bir_approaches_the_softmax_at_twice_the_scores_and_not_the_full_softmax_as_ssl_pop_does(world):
    harder = errors(world, draws=True, target=world.softmax_gradient(temperature=0.5))
    assert harder[-1] < 0.05
    assert harder[1] < 0.5 * harder[0]
    assert harder[2] < 0.5 * harder[1]
    full = world.softmax_gradient()
    bir, ssl_pop = errors(world, draws=True, target=full), errors(world, draws=False, target=full)
    assert bir[-1] > 3 * ssl_pop[-1]
