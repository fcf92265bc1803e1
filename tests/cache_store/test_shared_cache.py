"""The cache that trainers share is drawn with the weights of what all of them have resampled.

Trainers draw it from what they see of the occurrence vector, as the learner does. The items that a third one receives
are compared with the weights by a chi-squared test with a fixed seed: a right store fails it with probability 0.001 for
a seed chosen blindly.
"""

from __future__ import annotations

import numpy as np
import torch
from contracts.store_trainer import Trainer
from numpy.typing import NDArray

from streamer.cache_store.contribution import Contribution, Increments, OffsetSpan
from streamer.cache_store.memory import MemoryServer
from streamer.cache_store.state import StoreSettings
from streamer.cache_store.store import CacheStore
from streamer.model.occurrence import Occurrence

SIGNIFICANCE = 0.001
ITEMS, CACHE, ROUNDS = 50, 400, 60


def p_value(found: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    """How likely draws from these weights deviate as much; 0 if something of weight zero was drawn."""
    if found[weights == 0].any():
        return 0.0
    expected = (weights / weights.sum() * found.sum())[weights > 0]
    assert expected.min() >= 5, "too few draws for the chi-squared test"
    statistic = ((found[weights > 0] - expected) ** 2 / expected).sum()
    halves = torch.tensor([(len(expected) - 1) / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(halves[0], halves[1]).item()


class Drawer:
    """A trainer that resamples given items once, and draws caches from what it believes that all have resampled."""

    def __init__(self, server: MemoryServer, name: str, weights: NDArray[np.int64], seed: int) -> None:
        self.trainer = Trainer(CacheStore(server, StoreSettings(), name), name)
        self.trainer.store.exchange()
        order = np.random.default_rng(seed).permutation(ITEMS)  # everybody has rows of its own
        self.trainer.rows(f"item-{k}" for k in order)
        self.weights = weights[order]
        self.rng = np.random.default_rng(seed)
        self.partition, self.offset = f"clicks-{name}", 0
        self.trainer.store.claim({self.partition: None}, 0)

    def contribute(self, drawn: bool, alone: bool) -> None:
        kept = np.flatnonzero(self.weights) if drawn else np.empty(0, np.int64)
        increments = Increments(kept, self.weights[kept])
        for row in kept.tolist():
            self.trainer.drawn[self.trainer.ids[row]] += int(self.weights[row])
        cache = None if drawn else self.cache(alone)
        span = OffsetSpan(self.partition, self.offset, self.offset + 1)
        one = np.zeros(1, np.int64)
        contribution = Contribution((span,), np.zeros(1, np.int32), one + self.offset, one, increments, cache)
        self.trainer.counts[self.trainer.ids[0]] += 1
        self.offset += 1
        self.trainer.store.contribute(contribution, self.trainer.ids)
        self.trainer.store.exchange()

    def cache(self, alone: bool) -> NDArray[np.int64]:
        occurrence = Occurrence()
        seen = [self.trainer.drawn[raw] for raw in self.trainer.ids]
        believed = self.weights if alone else np.array(seen, np.int64)
        occurrence.add(np.arange(len(believed)), believed)
        return occurrence.draw(CACHE, self.rng, len(believed))


def items_in_caches(alone: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """How often a third trainer saw each item in a cache, and with which weight it should have."""
    rng = np.random.default_rng(20)
    weights = rng.integers(0, 40, (2, ITEMS)) * (rng.random((2, ITEMS)) < 0.7)
    server = MemoryServer()
    drawers = [Drawer(server, name, w, seed) for seed, (name, w) in enumerate(zip("ab", weights, strict=True))]
    reader = Trainer(CacheStore(server), "reader")
    reader.store.exchange()
    for drawer in drawers:
        drawer.contribute(drawn=True, alone=alone)
    found = np.zeros(ITEMS, np.int64)
    for number in range(ROUNDS):
        drawer = drawers[number % 2]
        drawer.trainer.store.exchange()
        drawer.trainer.receive()
        drawer.contribute(drawn=False, alone=alone)
        reader.store.exchange()
        assert reader.receive().cache is not None
        np.add.at(found, [int(raw.removeprefix("item-")) for raw in reader.cache or []], 1)
    return found, weights.sum(axis=0).astype(np.float64)


def test_items_in_the_cache_follow_what_all_trainers_have_resampled() -> None:
    found, weights = items_in_caches(alone=False)
    assert found.sum() == ROUNDS * CACHE
    assert p_value(found, weights) > SIGNIFICANCE


def test_the_test_sees_caches_of_trainers_that_know_of_themselves_only() -> None:
    found, weights = items_in_caches(alone=True)
    assert p_value(found, weights) < SIGNIFICANCE
