"""What the cache is made of: shares of its slots by popularity band."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from model.batch import Rows
from model.popularity import ExactPopularity

HEAD, TORSO = 0.5, 0.8
"""Items sorted by popularity: the head begins in the first half of all events, the torso in the next 30%, the tail in
the rest. So the most popular item is always in the head, however popular it is."""


class Composition(NamedTuple):
    """Shares of the cache's slots; they sum to one, or are all zero for an empty cache."""

    head: float
    torso: float
    tail: float


def composition(cache: Rows, popularity: ExactPopularity) -> Composition:
    """The cache by popularity band. Looks at all items: not for every step."""
    if not len(cache) or not popularity.size:
        return Composition(0.0, 0.0, 0.0)
    counts = popularity.counts(np.arange(popularity.size))
    order = np.argsort(-counts, kind="stable")
    before = (np.cumsum(counts[order]) - counts[order]) / max(counts.sum(), 1e-12)
    band = np.empty(len(counts), np.int64)
    band[order] = np.searchsorted((HEAD, TORSO), before, side="right")
    shares = np.bincount(band[cache[cache < len(band)]], minlength=3) / len(cache)
    return Composition(*(float(x) for x in shares))
