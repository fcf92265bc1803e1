"""The slow, obvious ranking of events by the towers alone."""

from __future__ import annotations

import numpy as np

from streamer.learner import OnlineLearner
from streamer.model.batch import Batch


def slow_hits(
    learner: OnlineLearner, batch: Batch, known: int, k: int, excluded: list[set[int]] | None = None
) -> list[bool]:
    """One event after the other: score every known item, look where the event's item stands."""
    hits = []
    vectors = learner.state.retriever.items(known).vectors
    for n in range(len(batch)):
        recent = batch.recent[n : n + 1]
        scores = (learner.state.retriever.queries(batch.users[n : n + 1], recent) @ vectors.T)[0].double().numpy()
        item = int(batch.items[n])
        if excluded is not None:
            scores[[j for j in excluded[n] if j < known]] = -np.inf
        better = sum(score > scores[item] - 1e-6 for j, score in enumerate(scores) if j != item) if item < known else k
        hits.append(better < k)
    return hits


def had_before(batch: Batch, seen: dict[int, set[int]]) -> list[set[int]]:
    """What each event's user had before it; takes the events in."""
    found = []
    for user, item in zip(batch.users.tolist(), batch.items.tolist(), strict=True):
        found.append(set(seen.setdefault(user, set())))
        seen[user].add(item)
    return found
