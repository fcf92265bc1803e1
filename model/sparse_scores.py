"""Sparse terms of the score matrix, made one by one and merged into the one list that the kernels read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamer.model.batch import Rows
from streamer.model.device import to_device
from streamer.model.kernels import SparseScores


class SparseTerm(NamedTuple):
    """One term, sorted by row.

    Args:
        rows: [nnz] the query of each entry.
        columns: [nnz] its candidate.
        values: [nnz] what is added to the score, on the step's device; may require a gradient.
    """

    rows: Rows
    columns: NDArray[np.int32]
    values: Tensor


def merge_terms(terms: list[SparseTerm], queries: int, device: torch.device) -> SparseScores | None:
    """All terms of these queries in one list, sorted by row; None if it is empty."""
    rows = np.concatenate([term.rows for term in terms]) if terms else np.empty(0, np.int64)
    if not len(rows):
        return None
    columns, values = np.concatenate([term.columns for term in terms]), torch.cat([term.values for term in terms])
    if len(terms) > 1:
        order = np.argsort(rows, kind="stable")
        rows, columns, values = rows[order], columns[order], values.index_select(0, to_device(order, device))
    first = np.searchsorted(rows, np.arange(queries + 1)).astype(np.int32)
    return SparseScores(to_device(first, device), to_device(rows, device), to_device(columns, device), values)
