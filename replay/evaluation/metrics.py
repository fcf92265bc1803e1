"""How good the first k items of each user are, among all items that the user did not
train.

With r the rank of each item of the user's test set T, from 1, and a hit if r <= k:

    recall@k = hits / |T|
    ndcg@k   = sum over hits of 1 / log2(r + 1)  /  sum over r = 1 .. min(k, |T|) of 1 / log2(r + 1)

`authors-ndcg` is what the paper's code computes under the name of NDCG: it casts ranks
to the type of a bool tensor, so that every hit after the first place gets the discount
of the second, 1 / log2(3). It is larger than NDCG and good for one thing only, a
comparison with the paper's table.

Figures are means over the users that have a test item.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamer.evaluation.tally import Doubles
from streamer.model.batch import Rows
from streamer.model.retrieval import Retriever
from streamer.replay.evaluation.results import Measure, stretches_of
from streamer.replay.evaluation.split import Split


def evaluate(retriever: Retriever, split: Split, ks: Sequence[int]) -> list[Measure]:
    """Every metric at every k of `ks`; user and item codes are rows of the model."""
    users = split.test.users
    trained = split.train.lists()
    _, ranks = retriever.ranks_with_and_without(
        retriever.items(),
        users,
        split.test.items,
        left_out=[trained[user] for user in users.tolist()],
    )
    relevant = split.test.counts
    tested = np.flatnonzero(relevant)
    found = []
    for k in ks:
        best = np.cumsum(discounts(np.arange(1, k + 1)))
        ideal = best[np.minimum(relevant, k) - 1]
        gains = {
            "recall": (np.ones(len(ranks)), relevant),
            "ndcg": (discounts(ranks), ideal),
            "authors-ndcg": (discounts(np.minimum(ranks, 2)), ideal),
        }
        for name, (gain, most) in gains.items():
            hits = np.where(ranks <= k, gain, 0.0)
            shares = np.bincount(users, hits, len(relevant))[tested] / most[tested]
            value = float(shares.mean()) if len(tested) else 0.0
            stretches = stretches_of(shares)
            found.append(Measure(name, k, "all", value, stretches=stretches))
    return found


def discounts(ranks: Rows) -> Doubles:
    """What a hit at each rank is worth."""
    found: Doubles = 1.0 / np.log2(1.0 + ranks)
    return found
