"""How good the first k items of each user are. All items are ranked, a block of users
at a time to bound memory.

With r the rank of a hit (an item of the user's test set T among the first k), from 1:

    recall@k = hits / |T|
    ndcg@k   = sum over hits of 1 / log2(r + 1)  /  sum over r = 1 .. min(k, |T|) of 1 / log2(r + 1)

`authors-ndcg` is what the paper's code computes under the name of NDCG: it casts ranks
to the type of a bool tensor, so that every hit after the first place gets the discount
of the second, 1 / log2(3). It is larger than NDCG and good for one thing only, a
comparison with the paper's table.

Figures are means over the users that have a test item.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamer.model.batch import Rows
from streamer.replay.evaluation.results import Measure
from streamer.replay.evaluation.split import Split

BLOCK_CELLS = 1 << 22
"""Scores that are in memory at a time."""

Hits = NDArray[np.bool_]
"""[U, K] whether the item at each rank is one of the user's test items; best first."""
Figures = NDArray[np.float64]
"""[U] one figure a user."""


def recall(hits: Hits, relevant: Rows, k: int) -> Figures:
    """Share of each user's test items (`relevant`: their number) that is among the
    first k.
    """
    shares: Figures = hits[:, :k].sum(1) / relevant
    return shares


def ndcg(
    hits: Hits, relevant: Rows, k: int, discounts: Figures | None = None
) -> Figures:
    """Discounted gain of the first k, relative to that of a list that begins with all
    test items.
    """
    ideal: Figures = np.cumsum(_discounts(k))[np.minimum(relevant, k) - 1]
    hits = hits[:, :k]  # fewer than k if there are fewer items
    if discounts is None:
        discounts = _discounts(k)
    return hits @ discounts[: hits.shape[1]] / ideal


def authors_ndcg(hits: Hits, relevant: Rows, k: int) -> Figures:
    """What the paper's code computes: the discount of the second place for every later
    one; the ideal is right.
    """
    discounts = _discounts(k)
    discounts[1:] = discounts[1:2]
    return ndcg(hits, relevant, k, discounts)


def _discounts(count: int) -> Figures:
    return 1.0 / np.log2(np.arange(2, count + 2))


METRICS: dict[str, Callable[[Hits, Rows, int], Figures]] = {
    "recall": recall,
    "ndcg": ndcg,
    "authors-ndcg": authors_ndcg,
}


def evaluate(
    queries: Tensor, items: Tensor, split: Split, ks: Sequence[int]
) -> list[Measure]:
    """Every metric at every k of `ks`, over all items but those that the user trained;
    vectors as for `hits_of`.
    """
    relevant = split.test.counts
    users = np.flatnonzero(relevant)
    hits = hits_of(queries, items, users, max(ks), split)
    found = []
    for k in ks:
        for name, metric in METRICS.items():
            figures = metric(hits, relevant[users], k)
            value = float(figures.mean()) if len(users) else 0.0
            found.append(Measure(name, k, "all", value))
    return found


@torch.no_grad()
def hits_of(
    queries: Tensor,
    items: Tensor,
    users: Rows,
    count: int,
    split: Split,
    block_cells: int = BLOCK_CELLS,
) -> Hits:
    """Whether each of the best items of some users is a test item,
    [len(users), min(count, N)]; items that a user trained are left out.

    Args:
        queries: [U, d] vectors of all users.
        items: [N, d] vectors of all items.
        block_cells: scores that are in memory at a time; at least one row of them.
    """
    count = min(count, len(items))
    found = np.zeros((len(users), count), np.bool_)
    rows = max(1, block_cells // max(len(items), 1))
    for start in range(0, len(users), rows):
        part = users[start : start + rows]
        asked = queries[torch.from_numpy(part).to(queries.device)]
        scores = asked @ items.T  # [R, N]
        scores[split.train.pairs(part)] = -torch.inf
        tested = torch.zeros_like(scores, dtype=torch.bool)
        tested[split.test.pairs(part)] = True
        best = scores.topk(count, dim=1)
        hits = tested.gather(1, best.indices) & (best.values > -torch.inf)
        found[start : start + rows] = hits.cpu().numpy()
    return found
