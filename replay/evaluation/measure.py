"""One figure of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure, and what it is about.

    Args:
        metric: `recall`, `ndcg`, `authors-ndcg`, `hr` or `mrr`.
        k: length of the list that it looks at.
        slice: over which events or users: `all`, `new`, ..., `second-half/all`, ...
        value: the figure.
        floor: the trivial recommender that it belongs to; None if it is the method's own.
    """

    metric: str
    k: int
    slice: str
    value: float
    floor: str | None = None
