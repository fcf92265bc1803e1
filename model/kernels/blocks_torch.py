"""The sampled softmax in plain torch: any device, any float type, both resamplers.

Nothing here waits for a GPU: no `.item()`, no shape that depends on data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from streamer.model import resampling
from streamer.model.kernels.spec import MASKED, Computed, Sampling

EMPTY = -1e29
"""A row whose best corrected score is below this has no candidates."""


def block_rows(device: torch.device, candidates: int) -> int:
    """How many rows to compute at once: what stays in a core's cache, or what keeps a
    GPU busy.
    """
    cells = 1 << 24 if device.type == "cuda" else 1 << 18
    return max(16, min(8192, cells // max(1, candidates)))


def compute(
    Q: Tensor,
    E: Tensor,
    positive: Tensor,
    sampling: Sampling,
) -> Computed:
    """Losses and gradients of all rows, a block at a time."""
    B = Q.shape[0]
    K = E.shape[0]
    rows = Computed(
        loss=Q.new_empty(B),
        query_gradient=torch.empty_like(Q),
        item_gradient=torch.zeros_like(E),
        positive_gradient=Q.new_empty(B),
        counts=Q.new_zeros(K),
        effective=Q.new_empty(B),
        distinct=Q.new_zeros(B),
        own_share=Q.new_empty(B),
    )
    size = block_rows(Q.device, K)
    for start in range(0, B, size):
        part = slice(start, min(start + size, B))
        _block(rows, part, Q, E, positive, sampling)
    return rows


def _block(
    out: Computed,
    part: slice,
    Q: Tensor,
    E: Tensor,
    positive: Tensor,
    sampling: Sampling,
) -> None:
    q = Q[part]  # [R, d]
    own = sampling.own[part].long().unsqueeze(1)  # [R, 1]
    own_column = own.clamp(min=0)

    # 1. corrected scores
    z = torch.addmm(sampling.log_weight, q, E.T)  # [R, K]
    if sampling.mask_own:
        z.scatter_add_(1, own_column, torch.where(own >= 0, MASKED, 0.0).to(z.dtype))

    # 2. weights, and how they are spread
    top = z.amax(1, keepdim=True)  # [R, 1]
    present = top > EMPTY
    x = z.sub_(top).exp_()  # [R, K]
    total = x.sum(1, keepdim=True)
    out.effective[part] = (total * total / (x * x).sum(1, keepdim=True)).squeeze(1)
    own_share = x.gather(1, own_column) / total
    out.own_share[part] = torch.where(present & (own >= 0), own_share, 0.0).squeeze(1)

    # 3. draws: n e^s in place of the weights
    if sampling.draws is not None:
        n = _counts(x, present, part, sampling)  # [R, K]
        out.counts.add_(n.sum(0))
        out.distinct[part] = (n > 0).sum(1).to(x.dtype)
        x.mul_(n).mul_(torch.exp(-sampling.log_weight))

    # 4. losses, and the factor of each row's gradient
    mass = x.sum(1, keepdim=True)  # [R, 1]
    present = present & (mass > 0)
    t = top + mass.log() - positive[part].unsqueeze(1)
    loss = t
    share = torch.ones_like(t)
    if sampling.add_positive:
        loss = torch.nn.functional.softplus(t)
        share = t.sigmoid()
    weights = sampling.weights_like(positive)[part].unsqueeze(1)  # [R, 1]
    share = torch.where(present, weights * share / len(Q), 0.0)
    out.loss[part] = torch.where(present, weights * loss, 0.0).squeeze(1)
    out.positive_gradient[part] = -share.squeeze(1)
    scale = torch.where(present, share / mass, 0.0)

    # 5. gradients
    torch.mm(x, E, out=out.query_gradient[part])
    out.query_gradient[part].mul_(scale)
    out.item_gradient.addmm_(x.T, q * scale)


def _counts(
    x: Tensor,
    present: Tensor,
    part: slice,
    sampling: Sampling,
) -> Tensor:
    assert sampling.draws is not None
    weights = torch.where(present, x, torch.zeros_like(x[:, :1]))
    if sampling.resampler == "multinomial":
        return resampling.multinomial(weights, sampling.draws, sampling.generator)
    assert sampling.offsets is not None
    return resampling.systematic(weights, sampling.draws, sampling.offsets[part])
