"""The methods as plain functions, for towers of your own: vectors in, a differentiable
loss and the draws out.

    loss, draws = xir_loss(users(u), items(i), i, popularity.log_share(i),
    cache=cache.sample(items)) loss.backward() cache.update(draws)

Every function takes the vectors of B queries, those of their B positives, and the
positives' ids. An id that occurs several times in a batch becomes one candidate with
that multiplicity, so that sums stay the same and matrices small. No B x B matrix is
ever stored, and everything runs on the device of the vectors. The formulas are in
docs/method.md; `streamer.model.streaming` has the popularity and the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamer.model.batch import Batch, Rows
from streamer.model.device import to_device
from streamer.model.losses.base import Proposals
from streamer.model.losses.methods import METHODS
from streamer.model.plan import Planner
from streamer.model.settings import MethodSettings


class Cached(NamedTuple):
    """Items of a cache as candidates.

    Args:
        vectors: [C, d] their vectors, from the item tower.
        ids: [C] their ids; an id may occur several times.
        log_probability: [C] log of the probability with which each was drawn into the
            cache.
    """

    vectors: Tensor
    ids: Tensor
    log_probability: Tensor


class Draws(NamedTuple):
    """How often candidates were drawn as negatives, summed over all queries: what the
    occurrence vector adds up.
    """

    ids: Tensor  # [K]; an id of batch and cache occurs twice
    counts: Tensor  # [K]


class SampledLoss(NamedTuple):
    """The mean loss of a batch, and what was drawn for it; methods that draw nothing
    have empty draws.
    """

    loss: Tensor  # []
    draws: Draws


def ssl_loss(
    queries: Tensor, items: Tensor, ids: Tensor, *, mask_positive: bool = False
) -> SampledLoss:
    """Plain in-batch softmax.

    Args:
        queries: [B, d] vectors of the queries.
        items: [B, d] vectors of their positives.
        ids: [B] ids of the positives.
        mask_positive: remove a query's own positive from its candidates; only the
            positive term of the loss remains.
    """
    zeros = torch.zeros_like(ids, dtype=items.dtype)
    return _loss("ssl", queries, items, ids, zeros, mask_positive=mask_positive)


def ssl_pop_loss(
    queries: Tensor,
    items: Tensor,
    ids: Tensor,
    log_popularity: Tensor,
    *,
    mask_positive: bool = False,
) -> SampledLoss:
    """In-batch softmax with the logQ correction: every logit minus the log of its
    item's popularity.

    Args:
        queries: [B, d] vectors of the queries.
        items: [B, d] vectors of their positives.
        ids: [B] ids of the positives.
        log_popularity: [B] log of each positive's share of the events.
        mask_positive: as in `ssl_loss`.
    """
    return _loss(
        "ssl-pop", queries, items, ids, log_popularity, mask_positive=mask_positive
    )


def mns_loss(
    queries: Tensor,
    items: Tensor,
    ids: Tensor,
    log_popularity: Tensor,
    uniform: Sequence[Tensor],
    known_items: int,
    *,
    mask_positive: bool = False,
) -> SampledLoss:
    """Mixed negative sampling: the batch and uniformly drawn items in one candidate
    set.

    Args:
        queries: [B, d] vectors of the queries.
        items: [B, d] vectors of their positives.
        ids: [B] ids of the positives.
        log_popularity: [B + U] log of the share of the events of each positive, then of
            each uniform item.
        uniform: vectors [U, d] and ids [U] of items drawn uniformly.
        known_items: N, among which they were drawn.
        mask_positive: as in `ssl_loss`.
    """
    vectors, others = uniform
    extra = Cached(vectors, others, log_popularity[len(ids) :])
    return _loss(
        "mns",
        queries,
        items,
        ids,
        log_popularity,
        extra,
        known_items=known_items,
        mask_positive=mask_positive,
    )


def bir_loss(
    queries: Tensor,
    items: Tensor,
    ids: Tensor,
    log_popularity: Tensor,
    *,
    draws: int | None = None,
    resampler: str = "systematic",
    generator: torch.Generator | None = None,
    mask_positive: bool = False,
) -> SampledLoss:
    """In-batch importance resampling: each query draws its own negatives from the
    batch.

    Args:
        queries: [B, d] vectors of the queries.
        items: [B, d] vectors of their positives.
        ids: [B] ids of the positives.
        log_popularity: [B] log of each positive's share of the events.
        draws: negatives that each query draws; None draws B.
        resampler: `systematic`, or `multinomial` as in the paper.
        generator: source of randomness, on the device of the vectors.
        mask_positive: as in `ssl_loss`.
    """
    return _loss(
        "bir",
        queries,
        items,
        ids,
        log_popularity,
        generator=generator,
        draws=draws,
        resampler=resampler,
        mask_positive=mask_positive,
    )


def xir_loss(
    queries: Tensor,
    items: Tensor,
    ids: Tensor,
    log_popularity: Tensor,
    cache: Cached | Sequence[Tensor] | None = None,
    *,
    cache_weight: float = MethodSettings.cache_weight,
    draws: int | None = None,
    resampler: str = "systematic",
    generator: torch.Generator | None = None,
    mask_positive: bool = False,
) -> SampledLoss:
    """Cache-augmented importance resampling: half of a query's negatives from the
    batch, half from a cache.

    Args:
        queries: [B, d] vectors of the queries.
        items: [B, d] vectors of their positives.
        ids: [B] ids of the positives.
        log_popularity: [B] log of each positive's share of the events.
        cache: vectors, ids and log probabilities of cached items; None or an empty one
            leaves the batch alone.
        cache_weight: lambda, the cache's share of the loss.
        draws: negatives that each query draws in all; None draws B.
        resampler: `systematic`, or `multinomial` as in the paper.
        generator: source of randomness, on the device of the vectors.
        mask_positive: as in `ssl_loss`.

    Raises:
        ValueError: `cache_weight` is not between 0 and 1.
    """
    if not 0 <= cache_weight <= 1:
        raise ValueError(f"cache_weight is {cache_weight}: choose a number from 0 to 1")
    return _loss(
        "xir",
        queries,
        items,
        ids,
        log_popularity,
        None if cache is None else Cached(*cache),
        generator=generator,
        draws=draws,
        resampler=resampler,
        cache_weight=cache_weight,
        mask_positive=mask_positive,
    )


def _loss(
    method: str,
    queries: Tensor,
    items: Tensor,
    ids: Tensor,
    log_popularity: Tensor,
    extra: Cached | None = None,
    *,
    generator: torch.Generator | None = None,
    known_items: int = 0,
    **options: Any,
) -> SampledLoss:
    """The loss of a method, as the trainer computes it; ids become rows of a plan."""
    if extra is None:
        extra = Cached(items[:0], ids[:0], log_popularity[:0])
    settings = MethodSettings(**options)
    all_ids = torch.cat([ids, extra.ids]).cpu().numpy()
    distinct, rows = np.unique(all_ids, return_inverse=True)
    batch, others = np.split(rows, [len(ids)])
    plan = Planner().plan(Batch(batch, batch), others, len(distinct))
    count = len(plan.items)

    # 1. what stands for each item: the mean of its copies
    vectors = {
        "batch": _means(items, plan.positive, count),
        "cache": _means(extra.vectors, plan.extra, count),
    }
    places = plan.positive
    if METHODS[method].extra == "uniform":
        places = np.concatenate([plan.positive, plan.extra])
        vectors["batch"] = _means(torch.cat([items, extra.vectors]), places, count)
    log_pop = _means(log_popularity.to(queries), places, count)
    log_cache = _means(extra.log_probability.to(queries), plan.extra, count)
    proposals = Proposals(_numpy(log_pop), _numpy(log_cache), known_items)

    # 2. the loss of each candidate set
    positive = (queries * items).sum(1)  # [B]
    total = queries.new_zeros(())
    drawn_ids = [ids[:0]]
    counts = [queries.new_zeros(0)]
    for term in METHODS[method].terms(plan, proposals, settings):
        offsets = None
        if term.draws is not None:
            offsets = torch.rand(len(ids), generator=generator, device=queries.device)
        outcome = term.loss(
            queries,
            vectors[term.name],
            positive,
            plan.positive,
            settings,
            offsets,
            generator,
        )
        total = total + term.weight * outcome.loss
        if term.draws is not None:
            drawn = distinct[term.candidates.take(plan.items)]
            drawn_ids.append(to_device(drawn, ids.device))
            counts.append(outcome.counts.detach())
    return SampledLoss(total, Draws(torch.cat(drawn_ids), torch.cat(counts)))


def _means(values: Tensor, places: Rows, count: int) -> Tensor:
    """[count, ...] the mean of the values at each place; zero where there are none."""
    copies = np.maximum(np.bincount(places, minlength=count), 1)
    at = to_device(places, values.device)
    scale = to_device(1.0 / copies[places], values.device).to(values)
    scaled = values * scale.view(-1, *[1] * (values.dim() - 1))
    return values.new_zeros(count, *values.shape[1:]).index_add(0, at, scaled)


def _numpy(values: Tensor) -> NDArray[Any]:
    return values.detach().cpu().numpy()
