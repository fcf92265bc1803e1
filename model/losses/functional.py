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
from typing import NamedTuple

import torch
from torch import Tensor

from streamer.model.kernels import Sampling, SparseScores, sampled_softmax
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
    return _loss(
        queries,
        items,
        [_in_batch(items, ids, torch.zeros_like(ids, dtype=items.dtype), None)],
        mask_positive,
    )


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
        queries, items, [_in_batch(items, ids, log_popularity, None)], mask_positive
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
    share = len(ids) / (len(ids) + len(others))
    # [B + U]
    log_proposal = (
        share * log_popularity.exp() + (1 - share) / max(known_items, 1)
    ).log()
    term = _candidates(
        torch.cat([items, vectors]), torch.cat([ids, others]), log_proposal, None, ids
    )
    return _loss(
        queries,
        items,
        [term._replace(log_proposal=log_proposal[: len(ids)])],
        mask_positive,
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
    batch = _in_batch(items, ids, log_popularity, draws or len(queries))
    return _loss(queries, items, [batch], mask_positive, resampler, generator)


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
    half = max(1, (draws or len(queries)) // 2)
    batch = _in_batch(items, ids, log_popularity, half)
    if cache is None or not len(cache[1]):
        return _loss(queries, items, [batch], mask_positive, resampler, generator)
    cached = Cached(*cache)
    terms = [
        batch._replace(weight=1 - cache_weight),
        _candidates(
            cached.vectors, cached.ids, cached.log_probability, half, ids
        )._replace(weight=cache_weight),
    ]
    return _loss(queries, items, terms, mask_positive, resampler, generator)


class _Candidates(NamedTuple):
    """One candidate set, each id once."""

    vectors: Tensor  # [K, d]
    ids: Tensor  # [K]
    log_weight: Tensor  # [K] log multiplicity - log proposal probability
    own: (
        Tensor  # [B] int32 column of each query's positive, -1 if it is not a candidate
    )
    log_proposal: Tensor  # [B] of each query's positive, for sets without draws
    draws: int | None
    weight: float


def _in_batch(
    items: Tensor, ids: Tensor, log_proposal: Tensor, draws: int | None
) -> _Candidates:
    return _candidates(items, ids, log_proposal, draws, ids)._replace(
        log_proposal=log_proposal.to(items.dtype)
    )


def _candidates(
    vectors: Tensor,
    ids: Tensor,
    log_proposal: Tensor,
    draws: int | None,
    positives: Tensor,
) -> _Candidates:
    """Merge equal ids: their vectors are averaged (they are equal unless the tower is
    random), their copies counted.
    """
    # sorted
    distinct, place, count = torch.unique(ids, return_inverse=True, return_counts=True)
    scale = 1.0 / count.to(vectors.dtype)
    merged = torch.zeros(
        len(distinct), vectors.shape[1], dtype=vectors.dtype, device=vectors.device
    )
    merged = merged.index_add(0, place, vectors * scale[place].unsqueeze(1))
    proposal = torch.zeros_like(scale).index_add(
        0, place, log_proposal.detach().to(vectors.dtype) * scale[place]
    )
    column = torch.searchsorted(distinct, positives).clamp(max=len(distinct) - 1)
    own = torch.where(distinct[column] == positives, column, -1).to(torch.int32)
    log_weight = count.to(vectors.dtype).log() - proposal
    return _Candidates(
        merged,
        distinct,
        log_weight,
        own,
        torch.zeros_like(positives, dtype=vectors.dtype),
        draws,
        1.0,
    )


def _loss(
    queries: Tensor,
    items: Tensor,
    terms: Sequence[_Candidates],
    mask_positive: bool,
    resampler: str = "systematic",
    generator: torch.Generator | None = None,
) -> SampledLoss:
    positive = (queries * items).sum(1)  # [B]
    total = queries.new_zeros(())
    ids = []
    counts = []
    for term in terms:
        drawn = term.draws is not None
        offsets = (
            torch.rand(len(queries), generator=generator, device=queries.device)
            if drawn
            else None
        )
        sampling = Sampling(
            log_weight=term.log_weight,
            draws=term.draws,
            add_positive=mask_positive or drawn,
            own=term.own,
            offsets=offsets,
            resampler=resampler,
            generator=generator,
        )
        score = positive if drawn else positive - term.log_proposal
        masks = None
        if mask_positive:
            masks = SparseScores.masking(term.own.cpu().numpy(), queries)
        outcome = sampled_softmax(queries, term.vectors, score, sampling, masks)
        total = total + term.weight * outcome.loss
        if drawn:
            ids.append(term.ids)
            counts.append(outcome.counts.detach())
    if not ids:
        return SampledLoss(total, Draws(terms[0].ids[:0], queries.new_zeros(0)))
    return SampledLoss(total, Draws(torch.cat(ids), torch.cat(counts)))
