"""What the sampled softmax takes, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from streamer.model.batch import Ints
from streamer.model.device import to_device

MASKED = -1e30
"""Added to a score, it takes the candidate out of the row."""


@dataclass(frozen=True, slots=True)
class SparseScores:
    """Sparse terms of the score matrix, sorted by row: the repeat bias, the nearness of
    candidates, and masks.

    Args:
        first: int32 [B + 1] where each row's entries begin.
        rows: int64 [nnz] the row of each entry.
        columns: int32 [nnz] the candidate of each entry; a pair (row, column) may occur
            more than once.
        values: [nnz] what is added to the score; may require a gradient.
    """

    first: Tensor
    rows: Tensor
    columns: Tensor
    values: Tensor

    @classmethod
    def masking(cls, own: Ints, like: Tensor) -> SparseScores:
        """Scores that take each query's own positive, at column `own`, out of its
        candidates; of the type and on the device of `like`.
        """
        rows = np.flatnonzero(own >= 0)
        first = np.searchsorted(rows, np.arange(len(own) + 1)).astype(np.int32)
        return cls(
            to_device(first, like.device),
            to_device(rows, like.device),
            to_device(own[rows], like.device),
            like.new_full((len(rows),), MASKED),
        )


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one candidate set is weighted and drawn from.

    Args:
        log_weight: [K] log(multiplicity) - log(proposal probability) of each candidate:
            the correction.
        draws: m, how often each query draws; None takes every candidate once, as plain
            in-batch softmax does.
        add_positive: the positive's e^s is added to the denominator (else it is already
            among the candidates).
        own: int32 [B] the column of each query's own positive, -1 where it is not a
            candidate.
        offsets: [B] one uniform number of each query, for systematic resampling.
        resampler: `systematic` or `multinomial`.
        generator: randomness of the multinomial draws.
    """

    log_weight: Tensor
    draws: int | None
    add_positive: bool
    own: Tensor
    offsets: Tensor | None = None
    resampler: str = "systematic"
    generator: torch.Generator | None = None


@dataclass(frozen=True, slots=True)
class Computed:
    """What a backend returns: losses, gradients of their mean, and what the draws
    looked like.
    """

    loss: Tensor  # [B]
    query_gradient: Tensor  # [B, d]
    item_gradient: Tensor  # [K, d]
    positive_gradient: Tensor  # [B]
    entry_gradient: Tensor | None  # [nnz]
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
