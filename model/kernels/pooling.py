"""The weighted mean of a few rows of a matrix for each query, without ever forming the
[B, L, d] tensor on a CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from streamer.model.batch import Floats, Ints
from streamer.model.device import in_host_memory
from streamer.model.jit import njit_borrowing


def pooled(items: Tensor, at: Tensor, weight: Tensor) -> Tensor:
    """sum_l weight[b, l] items[at[b, l]], [B, d]; places of -1 are left out (their
    weights must be 0).

    Args:
        items: [T, d] vectors.
        at: int32 [B, L] places, -1 for none.
        weight: [B, L].
    """
    if in_host_memory(items) and items.dtype == torch.float32:
        result: Tensor = _Pooled.apply(items, at, weight)  # type: ignore[no-untyped-call]
        return result
    places = at.clamp(min=0).view(-1).long()
    chosen = items.index_select(0, places).view(*at.shape, -1)  # [B, L, d]
    return torch.einsum("bl,bld->bd", weight, chosen)


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor, at: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(items, at, weight)
        out = np.zeros((at.shape[0], items.shape[1]), np.float32)
        _gather(
            items.detach().contiguous().numpy(),
            at.numpy(),
            weight.detach().contiguous().numpy(),
            out,
        )
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        items, at, weight = ctx.saved_tensors
        of_items = np.zeros(items.shape, np.float32)
        of_weight = np.zeros(weight.shape, np.float32)
        _scatter(
            items.detach().contiguous().numpy(),
            at.numpy(),
            weight.detach().contiguous().numpy(),
            gradient.contiguous().numpy(),
            of_items,
            of_weight,
        )
        return torch.from_numpy(of_items), None, torch.from_numpy(of_weight)


@njit_borrowing
def _gather(
    items: Floats,
    at: Ints,
    weight: Floats,
    out: Floats,
) -> None:
    for b in range(at.shape[0]):
        for k in range(at.shape[1]):
            if at[b, k] >= 0:
                w = weight[b, k]
                for j in range(items.shape[1]):
                    out[b, j] += w * items[at[b, k], j]


@njit_borrowing
def _scatter(
    items: Floats,
    at: Ints,
    weight: Floats,
    gradient: Floats,
    of_items: Floats,
    of_weight: Floats,
) -> None:
    for b in range(at.shape[0]):
        for k in range(at.shape[1]):
            t = at[b, k]
            if t >= 0:
                w = weight[b, k]
                dot = np.float32(0)
                for j in range(items.shape[1]):
                    dot += gradient[b, j] * items[t, j]
                    of_items[t, j] += w * gradient[b, j]
                of_weight[b, k] = dot
