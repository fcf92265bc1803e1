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

from streamer.model.batch import Floats, Ints
from streamer.model.device import in_host_memory
from streamer.model.kernels import rows_numba as rows
from streamer.model.kernels.spec import Computed, Sampling, SparseScores
from streamer.model.resampling import safe_offsets

CACHE_CELLS = 1 << 18
"""A block of this many float32 cells (1 MiB) stays in a core's second-level cache."""


SPARSE_SHARE = 4096
"""With at most K d / 4096 draws a query, gradients are summed draw by draw: cheaper
than the matrix products then.
"""


def fits(Q: Tensor, sampling: Sampling) -> bool:
    """Whether this backend can do it: float32 on a CPU, and systematic resampling if
    any.
    """
    plain = in_host_memory(Q) and Q.dtype == torch.float32
    return plain and (sampling.draws is None or sampling.resampler == "systematic")


def block_rows(candidates: int) -> int:
    """Computed of a block: a multiple of the vector width that keeps the block in
    cache.
    """
    return max(16, min(256, CACHE_CELLS // max(1, candidates) // 16 * 16))


def compute(
    Q: Tensor,
    E: Tensor,
    positive: Tensor,
    sampling: Sampling,
    entries: SparseScores | None,
) -> Computed:
    """Losses and gradients of all rows."""
    job = _Job(Q.contiguous(), E.contiguous(), positive.contiguous(), sampling, entries)
    size = block_rows(E.shape[0])
    spans = _spans(Q.shape[0], size, torch.get_num_threads())
    if len(spans) == 1:
        shares = [job.run(spans[0], size)]
    else:
        shares = list(_pool(len(spans)).map(lambda span: job.run(span, size), spans))
    return job.collect(shares)


def _spans(rows_total: int, size: int, threads: int) -> list[tuple[int, int]]:
    """Split the rows into at most `threads` runs of whole blocks."""
    blocks = -(-rows_total // size)
    per_thread = -(-blocks // max(1, min(threads, blocks))) * size
    starts = range(0, rows_total, per_thread)
    return [(start, min(start + per_thread, rows_total)) for start in starts]


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


class _Job:
    """One call: inputs, outputs, and what a thread does with its rows."""

    def __init__(
        self,
        Q: Tensor,
        E: Tensor,
        positive: Tensor,
        sampling: Sampling,
        entries: SparseScores | None,
    ) -> None:
        self.Q = Q
        self.E = E
        self.sampling = sampling
        self.sparse = (
            sampling.draws is not None and sampling.draws * SPARSE_SHARE <= E.numel()
        )
        self.log_weight = sampling.log_weight.numpy()
        self.factor = np.exp(-self.log_weight)
        self.lines = np.zeros((len(rows.ROW_LINES), Q.shape[0]), np.float32)
        self.lines[0] = positive.numpy()
        if sampling.draws is not None:
            assert sampling.offsets is not None
            self.lines[1] = safe_offsets(sampling.offsets, sampling.draws).numpy()
        self.query_gradient = torch.empty_like(Q)
        self.first, self.columns, self.values = _arrays(entries)
        self.entry_gradient = np.zeros_like(self.values)

    def run(self, span: tuple[int, int], size: int) -> tuple[Tensor, Floats]:
        """A span of rows; returns this thread's share of the item gradient and of the
        counts.
        """
        start, stop = span
        K, d = self.E.shape
        cells = _workspace(K * min(size, stop - start))
        scaled = torch.empty(size, d)
        item_gradient = torch.zeros(K, d)
        counts = np.zeros(K, np.float32)
        with torch.no_grad():
            for lo in range(start, stop, size):
                hi = min(lo + size, stop)
                z = cells[: K * (hi - lo)].view(K, hi - lo)
                torch.mm(self.E, self.Q[lo:hi].T, out=z)
                self._pass(z.numpy(), lo, counts, scaled.numpy())
                if self.sparse:
                    self._sparse_gradients(z, lo, hi, scaled, item_gradient)
                else:
                    torch.mm(z.T, self.E, out=self.query_gradient[lo:hi])
                    item_gradient.addmm_(z, scaled[: hi - lo])
        return item_gradient, counts

    def _sparse_gradients(
        self, z: Tensor, lo: int, hi: int, scaled: Tensor, item_gradient: Tensor
    ) -> None:
        cells = z.numpy()
        gradient = self.query_gradient[lo:hi].zero_().numpy()
        room = (hi - lo) * (self.sampling.draws or 0) + 16
        columns, at = np.empty((2, room), np.int32)
        values = np.empty(room, np.float32)
        count = rows.collect_draws(cells, cells.view(np.int32), columns, at, values)
        rows.add_products(gradient, at, self.E.numpy(), columns, values, count)
        rows.add_products(
            item_gradient.numpy(), columns, scaled.numpy(), at, values, count
        )

    def _pass(
        self, z: Floats, start: int, counts: Floats, scaled_queries: Floats
    ) -> None:
        rows.block(
            z,
            start,
            self.log_weight,
            self.factor,
            self.sampling.draws or 0,
            self.sampling.add_positive,
            self.lines,
            self.sampling.own.numpy(),
            self.first,
            self.columns,
            self.values,
            self.entry_gradient,
            counts,
            self.Q.numpy(),
            scaled_queries,
        )

    def collect(self, shares: list[tuple[Tensor, Floats]]) -> Computed:
        """Add the threads' shares in the order of their rows."""
        item_gradient, counts = shares[0]
        for other, other_counts in shares[1:]:
            item_gradient.add_(other)
            counts += other_counts
        line = dict(zip(rows.ROW_LINES, torch.from_numpy(self.lines), strict=True))
        return Computed(
            loss=line["loss"],
            query_gradient=self.query_gradient.mul_(line["scale"].unsqueeze(1)),
            item_gradient=item_gradient,
            positive_gradient=line["positive_gradient"],
            entry_gradient=torch.from_numpy(self.entry_gradient)
            if len(self.values)
            else None,
            counts=torch.from_numpy(counts),
            effective=line["total"] ** 2 / line["squares"],
            distinct=line["distinct"],
            own_share=line["own_share"],
        )


def _arrays(entries: SparseScores | None) -> tuple[Ints, Ints, Floats]:
    if entries is None:
        return np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)
    return (
        entries.first.numpy(),
        entries.columns.numpy(),
        entries.values.detach().numpy(),
    )
