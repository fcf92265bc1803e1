"""The sampled softmax on a CPU: matrix products by torch, everything between them in
one compiled pass.

Row blocks are shared out to a few threads. Each thread computes its blocks from the
scores to the gradients on its own core, with buffers of its own; the threads' shares of
the item gradient are added in a fixed order, so that the same number of threads gives
the same bits.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from streamer.model.batch import Floats
from streamer.model.device import in_host_memory
from streamer.model.kernels.rows_numba import INPUTS, RowLines, block
from streamer.model.kernels.spec import Computed, Sampling
from streamer.model.resampling import safe_offsets

CACHE_CELLS = 1 << 18
"""A block of this many float32 cells (1 MiB) stays in a core's second-level cache."""


def fits(Q: Tensor, sampling: Sampling) -> bool:
    """Whether this backend can do it: float32 on a CPU, and systematic resampling if
    any.
    """
    plain = in_host_memory(Q) and Q.dtype == torch.float32
    if sampling.draws is None:
        return plain
    return plain and sampling.resampler == "systematic"


def block_rows(candidates: int) -> int:
    """Rows of a block: a multiple of the vector width that keeps the block in cache."""
    fitting = CACHE_CELLS // max(1, candidates)
    return max(16, min(256, fitting // 16 * 16))


def compute(
    Q: Tensor,
    E: Tensor,
    positive: Tensor,
    sampling: Sampling,
) -> Computed:
    """Losses and gradients of all rows."""
    Q = Q.contiguous()
    E = E.contiguous()
    B = len(Q)
    K, d = E.shape
    log_weight = sampling.log_weight.numpy()
    factor = np.exp(-log_weight)
    offsets = torch.zeros(B)
    if sampling.draws is not None:
        assert sampling.offsets is not None
        offsets = safe_offsets(sampling.offsets, sampling.draws)
    outputs = np.zeros((len(RowLines._fields) - INPUTS, B), np.float32)
    rows = RowLines(
        positive.contiguous().numpy(),
        offsets.numpy(),
        sampling.own.numpy(),
        sampling.weights_like(positive).numpy(),
        *outputs,
    )
    loss, factors, positive_gradient, _, total, squares, distinct, own_share = (
        torch.from_numpy(outputs)
    )
    scale = factors.unsqueeze(1)
    query_gradient = torch.empty_like(Q)
    size = block_rows(K)

    def run(span: range) -> tuple[Tensor, Floats]:
        """Some blocks; returns their share of the item gradient and of the counts."""
        cells = _workspace(K * min(size, B))
        item_gradient = torch.zeros(K, d)
        counts = np.zeros(K, np.float32)
        for start in span:
            part = slice(start, min(start + size, B))
            z = cells[: K * (part.stop - start)].view(K, -1)
            torch.mm(E, Q[part].T, out=z)
            block(
                z.numpy(),
                rows.only(part),
                log_weight,
                factor,
                sampling.draws or 0,
                sampling.add_positive,
                sampling.mask_own,
                counts,
                B,
            )
            torch.mm(z.T, E, out=query_gradient[part])
            item_gradient.addmm_(z, Q[part] * scale[part])
        return item_gradient, counts

    spans = _spans(B, size, torch.get_num_threads())
    run_each = map if len(spans) == 1 else _pool(len(spans)).map
    shares = list(run_each(run, spans))
    item_gradient, counts = shares[0]
    for other, other_counts in shares[1:]:
        item_gradient.add_(other)
        counts += other_counts
    return Computed(
        loss,
        query_gradient.mul_(scale),
        item_gradient,
        positive_gradient,
        counts=torch.from_numpy(counts),
        effective=total**2 / squares,
        distinct=distinct,
        own_share=own_share,
    )


def _spans(rows_total: int, size: int, threads: int) -> list[range]:
    """Where blocks begin, in at most `threads` runs."""
    blocks = -(-rows_total // size)
    runs = max(1, min(threads, blocks))
    per_thread = -(-blocks // runs) * size
    spans = []
    for start in range(0, rows_total, per_thread):
        stop = min(start + per_thread, rows_total)
        spans.append(range(start, stop, size))
    return spans


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="rows", initializer=_one_core)


def _one_core() -> None:
    """Products inside a worker stay on the worker's core (the setting belongs to the
    calling thread).
    """
    torch.set_num_threads(1)


_local = threading.local()


def _workspace(cells: int) -> Tensor:
    """Memory that a thread keeps from step to step: fresh pages cost more than the pass
    that fills them.
    """
    kept: Tensor | None = getattr(_local, "cells", None)
    if kept is None or len(kept) < cells:
        kept = torch.empty(cells)
        _local.cells = kept
    return kept
