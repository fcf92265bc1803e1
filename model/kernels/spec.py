"""What the sampled softmax takes, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MASKED = -1e30
"""Added to a score, it takes the candidate out of the row."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one candidate set is weighted and drawn from.

    Args:
        log_weight: [K] log(multiplicity) - log(proposal probability) of each candidate:
            the correction.
        draws: m, how often each query draws; None takes every candidate once, as plain
            in-batch softmax does.
        own: int32 [B] the column of each query's own positive, -1 where it is not a
            candidate.
        mask_own: take that column out of the query's candidates.
        offsets: [B] one uniform number of each query, for systematic resampling.
        resampler: `systematic` or `multinomial`.
        generator: randomness of the multinomial draws.
        weights: [B] how much each query's loss counts; None: 1 each.
    """

    log_weight: Tensor
    draws: int | None
    own: Tensor
    mask_own: bool = False
    offsets: Tensor | None = None
    resampler: str = "systematic"
    generator: torch.Generator | None = None
    weights: Tensor | None = None

    @property
    def add_positive(self) -> bool:
        """Whether the positive's e^s is added to the denominator; else it is already
        among the candidates.
        """
        return self.mask_own or self.draws is not None

    def weights_like(self, losses: Tensor) -> Tensor:
        """[B] how much each query's loss counts."""
        return torch.ones_like(losses) if self.weights is None else self.weights


@dataclass(frozen=True, slots=True)
class Computed:
    """What a backend returns: losses times their weights, gradients of their mean, and
    what the draws looked like.
    """

    loss: Tensor  # [B]
    query_gradient: Tensor  # [B, d]
    item_gradient: Tensor  # [K, d]
    positive_gradient: Tensor  # [B]
    counts: Tensor  # [K] draws of each candidate; zeros if nothing is drawn
    effective: Tensor  # [B] effective sample size of the weights
    distinct: Tensor  # [B] candidates drawn at least once
    own_share: Tensor  # [B] weight of the query's own positive among its candidates


@dataclass(frozen=True, slots=True)
class LossOutcome:
    """The mean loss (differentiable) and what the draws looked like (not
    differentiable).
    """

    loss: Tensor  # []
    counts: Tensor  # [K]
    effective: Tensor  # []
    distinct: Tensor  # []
    own_share: Tensor  # []
