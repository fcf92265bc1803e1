"""The loss of a candidate set and its gradient, computed block by block.

For a query u with positive i, candidates j, s the score and b the correction
(`Sampling.log_weight`):

    w(j|u) = softmax over j of (s(u, j) + b(j))
    n(u, j) = how often j is drawn in m draws from w(.|u)
    loss(u) = -log( e^s(u,i) / (e^s(u,i) + sum_j n(u, j) e^s(u,j)) )              with draws
    loss(u) = -log( e^positive / sum_j e^(s(u,j) + b(j)) )                         without

Gradients flow through s only, never through w or n. The forward pass computes them
while a block of rows is in the cache; the backward pass only scales them. No B x K
matrix is ever stored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from streamer.model.kernels import blocks_numba, blocks_torch
from streamer.model.kernels.spec import LossOutcome, Sampling


def sampled_softmax(
    queries: Tensor,
    items: Tensor,
    positive: Tensor,
    sampling: Sampling,
) -> LossOutcome:
    """Mean loss of B queries over K candidates.

    Args:
        queries: [B, d] query vectors.
        items: [K, d] candidate vectors.
        positive: [B] score of each query's own positive (corrected, if nothing is
            drawn).
        sampling: correction and draws.
    """
    loss, counts, effective, distinct, own_share = _SampledSoftmax.apply(  # type: ignore[no-untyped-call]
        queries,
        items,
        positive,
        sampling,
    )
    return LossOutcome(
        loss,
        counts,
        effective.mean(),
        distinct.mean(),
        own_share.mean(),
    )


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        items: Tensor,
        positive: Tensor,
        sampling: Sampling,
    ) -> tuple[Tensor, ...]:
        compute = blocks_torch.compute
        if blocks_numba.fits(queries, sampling):
            compute = blocks_numba.compute
        rows = compute(
            queries.detach(),
            items.detach(),
            positive.detach(),
            sampling,
        )
        ctx.save_for_backward(
            rows.query_gradient,
            rows.item_gradient,
            rows.positive_gradient,
        )
        extras = (rows.counts, rows.effective, rows.distinct, rows.own_share)
        ctx.mark_non_differentiable(*extras)
        return (rows.loss.mean(), *extras)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale = outputs[0]
        query, item, positive = ctx.saved_tensors
        return query * scale, item * scale, positive * scale, None
