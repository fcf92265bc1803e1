"""The losses as plain functions: against the obvious formula, and in a training loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.model import resampling
from streamer.model.losses.functional import Cached, bir_loss, mns_loss, ssl_pop_loss, xir_loss
from streamer.model.streaming import OccurrenceCache, StreamingPopularity

B, C, D, N = 11, 7, 5, 6


def vectors(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed))


class Case:
    """Vectors, ids and popularity; equal ids have equal vectors, as one item tower gives them."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        rng = np.random.default_rng(seed)
        self.table = vectors(N, seed).to(dtype).requires_grad_()
        self.queries = vectors(B, seed + 1).to(dtype).requires_grad_()
        self.ids = torch.from_numpy(rng.integers(0, N, B))
        self.cached = torch.from_numpy(rng.integers(0, N, C))
        self.log_pop = torch.from_numpy(np.log(rng.dirichlet(np.ones(N)))).to(dtype)
        self.log_cache = torch.from_numpy(np.log(rng.dirichlet(np.ones(N)))).to(dtype)

    @property
    def batch(self):
        return self.queries, self.table[self.ids], self.ids, self.log_pop[self.ids]

    @property
    def cache(self) -> Cached:
        return Cached(self.table[self.cached], self.cached, self.log_cache[self.cached])


def resampled(case: Case, candidates: torch.Tensor, log_proposal: torch.Tensor, draws: int, offsets: torch.Tensor):
    """The loss of one candidate set by its formula, candidates one by one with their copies; and their counts by id."""
    order = list(dict.fromkeys([*case.ids.tolist(), *candidates.tolist()]))  # columns stand as items come
    distinct = torch.tensor([j for j in order if j in candidates])
    multiplicity = torch.stack([(candidates == j).sum() for j in distinct])
    scores = case.queries @ case.table[distinct].T  # [B, K]
    weights = (scores + multiplicity.log() - log_proposal[distinct]).softmax(1).detach()
    counts = resampling.systematic(weights.float(), draws, offsets)
    positive = (case.queries * case.table[case.ids]).sum(1)
    losses = -torch.log(positive.exp() / (positive.exp() + (counts * scores.exp()).sum(1)))
    return losses.mean(), dict(zip(distinct.tolist(), counts.sum(0).tolist(), strict=True))


def by_id(draws) -> dict[int, float]:
    found: dict[int, float] = {}
    for item, count in zip(draws.ids.tolist(), draws.counts.tolist(), strict=True):
        found[item] = found.get(item, 0.0) + count
    return found


@pytest.mark.parametrize("seed", range(3))
def test_xir_is_its_formula_loss_gradients_and_draws(seed):
    case = Case(seed)
    loss, draws = xir_loss(
        *case.batch, case.cache, cache_weight=0.3, draws=20, generator=torch.Generator().manual_seed(9)
    )
    found = torch.autograd.grad(loss, [case.queries, case.table])
    generator = torch.Generator().manual_seed(9)
    offsets = [torch.rand(B, generator=generator) for _ in range(2)]
    in_batch, drawn = resampled(case, case.ids, case.log_pop, 10, offsets[0])
    in_cache, cached = resampled(case, case.cached, case.log_cache, 10, offsets[1])
    expected = 0.7 * in_batch + 0.3 * in_cache
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    for ours, slow in zip(found, torch.autograd.grad(expected, [case.queries, case.table]), strict=True):
        torch.testing.assert_close(ours, slow, rtol=1e-3, atol=1e-5)
    assert by_id(draws) == {j: drawn.get(j, 0.0) + cached.get(j, 0.0) for j in drawn.keys() | cached.keys()}


def test_without_a_cache_xir_is_bir_which_draws_from_the_batch_alone():
    case = Case()
    empty = Cached(case.table[:0], case.cached[:0], case.log_cache[:0])
    formula, _ = resampled(case, case.ids, case.log_pop, 4, torch.rand(B, generator=torch.Generator().manual_seed(1)))
    for cache in (None, empty):
        loss, draws = xir_loss(*case.batch, cache, draws=8, generator=torch.Generator().manual_seed(1))
        expected, _ = bir_loss(*case.batch, draws=4, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(loss, formula, rtol=1e-4, atol=1e-5)
        assert draws.counts.sum() == 4 * B
    with pytest.raises(ValueError, match=r"cache_weight is 1.5: choose a number from 0 to 1"):
        xir_loss(*case.batch, cache_weight=1.5)


@pytest.mark.parametrize("mask_positive", [False, True])
def test_ssl_pop_is_its_formula(mask_positive):
    case = Case()
    loss, draws = ssl_pop_loss(*case.batch, mask_positive=mask_positive)
    logits = case.queries @ case.table[case.ids].T - case.log_pop[case.ids]  # [B, B]
    positive = (case.queries * case.table[case.ids]).sum(1) - case.log_pop[case.ids]
    if mask_positive:
        same = case.ids.unsqueeze(1) == case.ids.unsqueeze(0)
        total = positive.exp() + logits.masked_fill(same, float("-inf")).exp().sum(1)
    else:
        total = logits.exp().sum(1)
    torch.testing.assert_close(loss, (total.log() - positive).mean(), rtol=1e-5, atol=1e-6)
    assert len(draws.ids) == 0


def test_mns_is_its_formula():
    case = Case()
    queries, items, ids, _ = case.batch
    everything = torch.cat([ids, case.cached])
    loss, _ = mns_loss(queries, items, ids, case.log_pop[everything], (case.table[case.cached], case.cached), N)
    mixture = B / (B + C) * case.log_pop.exp() + C / (B + C) / N
    logits = queries @ case.table[everything].T - mixture[everything].log()
    positive = (queries * items).sum(1) - mixture[ids].log()
    torch.testing.assert_close(loss, (logits.exp().sum(1).log() - positive).mean(), rtol=1e-5, atol=1e-6)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), copies=st.integers(1, 4))
def test_copies_of_an_event_change_nothing_but_its_weight(seed, copies):
    """Deduplication is inside: a batch repeated k times has the same loss without draws."""
    case = Case(seed)
    once = ssl_pop_loss(*case.batch).loss
    again = ssl_pop_loss(*(part.repeat_interleave(copies, 0) for part in case.batch)).loss
    torch.testing.assert_close(again, once + torch.tensor(float(copies)).log(), rtol=1e-4, atol=1e-4)


def test_double_precision_and_another_resampler():
    case = Case(dtype=torch.float64)
    found = bir_loss(*case.batch, resampler="multinomial", generator=torch.Generator().manual_seed(0))
    assert found.loss.dtype == torch.float64
    assert found.draws.counts.sum() == B * B


class TestLoop:
    def test_towers_of_ones_own_learn(self):
        """Users like the item of their own number; a few steps with cache and popularity find that out."""
        torch.manual_seed(0)
        users, items = torch.nn.Embedding(20, 8), torch.nn.Embedding(20, 8)
        optimizer = torch.optim.Adagrad([*users.parameters(), *items.parameters()], lr=0.3)
        popularity, cache = StreamingPopularity(), OccurrenceCache(size=16)
        for _ in range(150):
            ids = torch.randint(0, 20, (32,))
            popularity.observe(ids)
            loss, draws = xir_loss(users(ids), items(ids), ids, popularity.log_share(ids), cache.sample(items))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cache.update(draws)
        assert (users.weight @ items.weight.T).argmax(1).tolist() == list(range(20))
        assert len(cache.ids) == 16

    @pytest.mark.parametrize("arguments", [{}, {"half_life": 50.0}, {"hash_slots": 512}])
    def test_popularity_goes_on_from_its_state(self, arguments):
        ids = torch.arange(200) % 7
        first = StreamingPopularity(**arguments)
        first.observe(ids)
        second = StreamingPopularity(**arguments)
        second.load_state_dict(first.state_dict())
        for popularity in (first, second):
            popularity.observe(ids[:13])
        assert torch.equal(first.log_share(ids), second.log_share(ids))
