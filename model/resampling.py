"""Drawing with replacement from each row of a weight matrix, as counts.

Both resamplers are unbiased: the expected count of column j is m w_j / sum(w). A row
whose weights are all zero draws nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor


def systematic(weights: Tensor, draws: int, offsets: Tensor) -> Tensor:
    """m equally spaced draws a row, shifted by one uniform number: n_j = floor(m c_j +
    r) - floor(m c_{j-1} + r).

    Every count stays within one of its expectation, which no independent draws can do,
    and a single pass over the row is enough: no search, no index tensor.

    Args:
        weights: [R, K] non-negative; need not be normalised.
        draws: m.
        offsets: [R] uniform numbers in [0, 1).

    Returns:
        [R, K] counts; each row sums to m.

    Examples:
        >>> w = torch.tensor([[1.0, 2.0, 1.0]])
        >>> systematic(w, 4, torch.tensor([0.5]))
        tensor([[1., 2., 1.]])
    """
    c = weights.cumsum(1)  # [R, K]
    total = c[:, -1:]
    scale = torch.where(total > 0, draws / total, 0.0)
    upto = (
        c.mul_(scale)
        .add_(safe_offsets(offsets, draws).unsqueeze(1))
        .floor_()
        .clamp_(max=draws)
    )
    if weights.is_cuda:  # a parallel scan is not monotone to the last bit
        upto = upto.cummax(1).values
    return torch.diff(upto, dim=1, prepend=torch.zeros_like(total))


def safe_offsets(offsets: Tensor, draws: int) -> Tensor:
    """Keep uniform numbers so far from 0 and 1 that rounding of m c cannot lose or add
    a draw at a row's end.
    """
    rounding = 2 * draws * torch.finfo(offsets.dtype).eps
    return offsets * (1 - 2 * rounding) + rounding


def multinomial(
    weights: Tensor, draws: int, generator: torch.Generator | None = None
) -> Tensor:
    """m independent draws a row, as in the paper.

    Args:
        weights: [R, K] non-negative; need not be normalised.
        draws: m.
        generator: source of randomness.

    Returns:
        [R, K] counts; each row sums to m.
    """
    c = weights.cumsum(1)  # [R, K]
    total = c[:, -1:]
    u = torch.rand(
        weights.shape[0],
        draws,
        dtype=weights.dtype,
        device=weights.device,
        generator=generator,
    )
    # the last column that can be drawn
    last = (weights > 0).to(torch.uint8).cumsum(1).argmax(1, keepdim=True)
    drawn = torch.minimum(torch.searchsorted(c, u * total, right=True), last)  # [R, m]
    ones = (total > 0).to(weights.dtype).expand_as(u)
    return torch.zeros_like(weights).scatter_add_(1, drawn, ones)
