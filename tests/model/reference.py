"""The method written the slow, obvious way: one query at a time, candidates as plain lists, autograd for the rest."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from streamer.model import resampling
from streamer.model.batch import Batch, StreamState
from streamer.model.trainer import Trainer


class Reference:
    """Computes a step's loss and gradients from the same weights as a trainer, with nothing clever in it.

    Args:
        trainer: whose weights, settings and seeds are used; it must not have drawn anything yet.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.model = trainer, trainer.model
        self.leaves = {name: table.weight.double().requires_grad_() for name, table in self.model.tables.items()}
        self.dense = {name: p.detach().double().requires_grad_() for name, p in self.model.named_parameters()}
        self.draws = torch.Generator().manual_seed(trainer.settings.seed)
        self.host_draws = np.random.default_rng([trainer.settings.seed, 1])

    # vectors ---------------------------------------------------------------------------------------------------------

    def vector(self, side: str, row: int, extra: Tensor | None = None) -> Tensor:
        found = self.unscaled(side, row, extra)
        if temperature := self.model.settings.temperature:
            return found / found.square().sum().sqrt().clamp(min=1e-6) / temperature**0.5
        return found

    def unscaled(self, side: str, row: int, extra: Tensor | None) -> Tensor:
        tower = getattr(self.model, side)
        parts = []
        if tower.settings.ids:
            parts.append(self.leaves[f"{side}.id"][row])
        for k, feature in enumerate(tower.settings.categorical):
            code = int(tower.features.codes(np.array([row]))[0, k])
            parts.append(self.leaves[f"{side}.{feature}"][code])
        if tower.settings.numeric:
            numbers = torch.from_numpy(tower.features.numbers(np.array([row]))[0]).double()
            parts.append(self.dense[f"{side}.numeric.weight"] @ numbers + self.dense[f"{side}.numeric.bias"])
        if extra is not None:
            parts.append(extra)
        if not tower.settings.layers:
            return torch.stack(parts).sum(0)
        x = torch.cat(parts)
        for k in range(len(tower.settings.layers)):
            x = self.dense[f"{side}.layers.{k}.weight"] @ (x.relu() if k else x) + self.dense[f"{side}.layers.{k}.bias"]
        return x

    def query(self, user: int, recent: list[int]) -> Tensor:
        L = self.model.settings.recent_items
        if not L:
            return self.vector("user", user)
        pooled = torch.zeros(self.model.settings.item_tower.out_dim, dtype=torch.float64)
        total = sum(self.dense["recency"][k].exp() for k in range(len(recent[:L])))
        for k, item in enumerate(recent[:L]):
            pooled = pooled + self.dense["recency"][k].exp() / total * self.vector("item", item)
        return self.vector("user", user, pooled * self.dense["scale"])

    # loss ------------------------------------------------------------------------------------------------------------

    def loss(self, batch: Batch, view: StreamState) -> Tensor:
        method, sampler = self.trainer.method, self.trainer.settings
        B, N = len(batch), self.model.item.size
        batch_items = batch.items.tolist()
        m = sampler.draws or B
        if method.name in ("ssl", "ssl-pop", "g-tower"):
            corrected = method.name != "ssl"
            return self.softmax(batch, batch_items, lambda j: self.log_pop(view, j) if corrected else 0.0)
        if method.name == "mns":
            count = B if sampler.uniform_negatives is None else sampler.uniform_negatives
            uniform = self.host_draws.integers(0, N, count).tolist()
            a = B / (B + len(uniform))
            return self.softmax(
                batch,
                batch_items + uniform,
                lambda j: math.log(a * math.exp(self.log_pop(view, j)) + (1 - a) / N),
            )
        if method.name == "full-softmax":
            return self.softmax(batch, list(range(N)), lambda j: 0.0)
        if method.name == "bir":
            return self.resampled(batch, view, batch_items, m)
        assert method.name == "xir"
        cache = view.cache.tolist()
        lam = sampler.cache_weight
        order = batch_items + cache
        of_batch = self.resampled(batch, view, batch_items, m // 2)
        proposal = view.cache_draws if sampler.cache_correction == "occurrence" else view.popularity
        of_cache = self.resampled(batch, view, sorted(cache, key=order.index), m // 2, proposal)
        return (1 - lam) * of_batch + lam * of_cache

    def log_pop(self, view: StreamState, item: int) -> float:
        return float(view.popularity.log_pop(np.array([item]))[0])

    def rows(self, batch: Batch):
        """Each event: its score function and its own item."""
        for b in range(len(batch)):
            recent = [] if batch.recent is None else [int(i) for i in batch.recent[b] if i >= 0]
            q = self.query(int(batch.users[b]), recent)

            def score(item: int, q=q) -> Tensor:
                return q @ self.vector("item", item)

            yield score, int(batch.items[b])

    def softmax(self, batch: Batch, candidates: list[int], log_proposal) -> Tensor:
        losses = []
        for score, own in self.rows(batch):
            others = candidates
            positive = score(own) - log_proposal(own)
            if self.trainer.settings.mask_positive:
                others = [j for j in candidates if j != own]
            logits = [score(j) - log_proposal(j) for j in others]
            if self.trainer.settings.mask_positive:
                logits.append(positive)
            losses.append(torch.logsumexp(torch.stack(logits), 0) - positive)
        return torch.stack(losses).mean()

    def resampled(self, batch: Batch, view: StreamState, candidates: list[int], m: int, proposal=None) -> Tensor:
        distinct = list(dict.fromkeys(candidates))
        losses, weights, scores, owns = [], [], [], []
        for score, own in self.rows(batch):
            s = torch.stack([score(j) for j in distinct])
            source = proposal or view.popularity
            z = torch.stack([s[k] - float(source.log_pop(np.array([j]))[0]) for k, j in enumerate(distinct)]).detach()
            w = torch.exp(z - z.max()) * torch.tensor([float(candidates.count(j)) for j in distinct])
            if self.trainer.settings.mask_positive:
                w = torch.where(torch.tensor([j == own for j in distinct]), 0.0, w)
            weights.append(w)
            scores.append(s)
            owns.append(score(own))
        W = torch.stack(weights)
        if self.trainer.settings.resampler == "multinomial":
            n = resampling.multinomial(W.float(), m, self.draws).double()
        else:
            n = resampling.systematic(W, m, torch.rand(len(batch), generator=self.draws).double())
        for s, counts, own in zip(scores, n, owns, strict=True):
            if counts.sum() == 0:
                losses.append(own * 0)
                continue
            negatives = torch.logsumexp(torch.where(counts > 0, s + counts.clamp(min=1e-30).log(), -torch.inf), 0)
            losses.append(torch.logaddexp(own, negatives) - own)
        return torch.stack(losses).mean()
