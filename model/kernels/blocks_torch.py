"""The sampled softmax in plain torch: any device, any float type, both resamplers.

Nothing here waits for a GPU: no `.item()`, no shape that depends on data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from streamer.model import resampling
from streamer.model.kernels.spec import Computed, Sampling, SparseScores

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
    entries: SparseScores | None,
) -> Computed:
    """Losses and gradients of all rows, a block at a time."""
    B = Q.shape[0]
    K = E.shape[0]
    rows = _empty_rows(Q, E, entries)
    factor = torch.exp(-sampling.log_weight)  # [K]
    size = block_rows(Q.device, K)
    for start in range(0, B, size):
        _block(
            rows,
            slice(start, min(start + size, B)),
            Q,
            E,
            positive,
            factor,
            sampling,
            entries,
        )
    return rows


def _empty_rows(Q: Tensor, E: Tensor, entries: SparseScores | None) -> Computed:
    B = Q.shape[0]
    K = E.shape[0]
    values = entries.values if entries is not None else None
    return Computed(
        loss=Q.new_empty(B),
        query_gradient=torch.empty_like(Q),
        item_gradient=torch.zeros_like(E),
        positive_gradient=Q.new_empty(B),
        entry_gradient=torch.zeros_like(values) if values is not None else None,
        counts=Q.new_zeros(K),
        effective=Q.new_empty(B),
        distinct=Q.new_zeros(B),
        own_share=Q.new_empty(B),
    )


def _block(
    out: Computed,
    part: slice,
    Q: Tensor,
    E: Tensor,
    positive: Tensor,
    factor: Tensor,
    sampling: Sampling,
    entries: SparseScores | None,
) -> None:
    B = Q.shape[0]
    K = E.shape[0]
    q = Q[part]  # [R, d]
    R = q.shape[0]

    # 1. corrected scores, sparse terms included
    z = torch.addmm(sampling.log_weight, q, E.T)  # [R, K]
    if entries is not None:
        _add_entries(z, entries, part)

    # 2. weights, and how they are spread
    top = z.amax(1, keepdim=True)  # [R, 1]
    present = top > EMPTY
    x = z.sub_(top).exp_()  # [R, K]
    total = x.sum(1, keepdim=True)
    out.effective[part] = (total * total / (x * x).sum(1, keepdim=True)).squeeze(1)
    own = sampling.own[part].long().unsqueeze(1)
    own_share = x.gather(1, own.clamp(min=0)) / total
    out.own_share[part] = torch.where(present & (own >= 0), own_share, 0.0).squeeze(1)

    # 3. draws: n e^s in place of the weights
    if sampling.draws is not None:
        n = _counts(x, present, part, sampling)  # [R, K]
        out.counts.add_(n.sum(0))
        out.distinct[part] = (n > 0).sum(1).to(x.dtype)
        x.mul_(n).mul_(factor)

    # 4. losses, and the factor of each row's gradient
    mass = x.sum(1, keepdim=True)  # [R, 1]
    t = (top + mass.log() - positive[part].unsqueeze(1)).squeeze(1)
    present = present & (mass > 0)
    loss, share = (
        (torch.nn.functional.softplus(t), t.sigmoid())
        if sampling.add_positive
        else (t, 1.0)
    )
    zero = torch.zeros_like(t)
    here = present.squeeze(1)
    share = torch.where(here, share / B, zero)
    out.loss[part] = torch.where(here, loss, zero)
    out.positive_gradient[part] = -share
    scale = torch.where(present, share.unsqueeze(1) / mass, zero.unsqueeze(1))  # [R, 1]

    # 5. gradients
    torch.mm(x, E, out=out.query_gradient[part])
    out.query_gradient[part].mul_(scale)
    out.item_gradient.addmm_(x.T, q * scale)
    if entries is not None and out.entry_gradient is not None:
        _take_entries(out.entry_gradient, x, scale, entries, part, R, K)


def _counts(x: Tensor, present: Tensor, part: slice, sampling: Sampling) -> Tensor:
    assert sampling.draws is not None
    weights = torch.where(present, x, torch.zeros_like(x[:, :1]))
    if sampling.resampler == "multinomial":
        return resampling.multinomial(weights, sampling.draws, sampling.generator)
    assert sampling.offsets is not None
    return resampling.systematic(weights, sampling.draws, sampling.offsets[part])


def _inside(entries: SparseScores, part: slice, columns: int) -> tuple[Tensor, Tensor]:
    """Flat places of all entries in a block, and which of them lie in it; those outside
    are sent to cell 0.
    """
    row = entries.rows - part.start
    inside = (row >= 0) & (row < part.stop - part.start)
    place = torch.where(inside, row * columns + entries.columns, 0)
    return place, inside


def _add_entries(z: Tensor, entries: SparseScores, part: slice) -> None:
    place, inside = _inside(entries, part, z.shape[1])
    z.view(-1).index_add_(
        0, place, torch.where(inside, entries.values.detach().to(z.dtype), 0.0)
    )


def _take_entries(
    out: Tensor,
    x: Tensor,
    scale: Tensor,
    entries: SparseScores,
    part: slice,
    rows: int,
    columns: int,
) -> None:
    place, inside = _inside(entries, part, columns)
    row = (entries.rows - part.start).clamp(0, rows - 1)
    gradient = x.view(-1)[place] * scale.squeeze(1)[row]
    out.copy_(torch.where(inside, gradient, out))
