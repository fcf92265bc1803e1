"""A small ranker, learned online: which evidence counts, and for whom.

    score(u, j) = <w[b], x> + <v, relu(U x + c[b])>

with x the features of a candidate and b the user's bucket of history length. It is trained by softmax over exactly the
candidates among which it decides. There are two of them: one ranks all items; one ranks discoveries, items that the
user never had, and is trained on such events alone, against such candidates alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Floats, Rows
from streamer.model.jit import compiled
from streamer.model.ranking.evidence import BUCKETS, FEATURES, Candidates

ALL, DISCOVERY = 0, 1
"""Purposes: rank everything, or what is new to the user."""
HIDDEN = 16
_FIRST = {"near log": 1.0, "events lately": 0.3, "tower": 0.3}
_NEGLIGIBLE = np.float32(1e-5)


class Weights(NamedTuple):
    """What is learned for one purpose; also the shape of its gradients."""

    linear: Floats  # [buckets, features]
    hidden: Floats  # [hidden, features]
    bias: Floats  # [buckets, hidden]
    out: Floats  # [hidden]

    def zeros(self) -> Weights:
        """The same shapes, empty."""
        return Weights(*(np.zeros_like(part) for part in self))


class Ranker:
    """Two small networks, Adagrad.

    Args:
        learning_rate: of the linear weights; the others have a third of it.
        seed: determines the first weights of the hidden units.
    """

    def __init__(self, learning_rate: float = 0.3, seed: int = 0) -> None:
        self.learning_rate = learning_rate
        rng = np.random.default_rng([seed, 3])
        self.weights = [_first_weights(rng) for _ in (ALL, DISCOVERY)]
        self._squares = [Weights(*(part + np.float32(1e-6) for part in w.zeros())) for w in self.weights]

    def scores(self, candidates: Candidates, purpose: int = ALL) -> Floats:
        """[c] of all candidates."""
        found = np.empty(len(candidates.items), np.float32)
        _scores(self.weights[purpose], candidates.first, candidates.features, candidates.bucket, found)
        return found

    def learn(self, candidates: Candidates, events: Rows) -> None:
        """Learn from some events, given by their places among those that have candidates."""
        for purpose, (weights, squares) in enumerate(zip(self.weights, self._squares, strict=True)):
            gradient, counts = weights.zeros(), np.zeros(len(BUCKETS), np.float32)
            described = (candidates.first, candidates.features, candidates.bucket, candidates.target, candidates.seen)
            _add_gradients(weights, *described, events, purpose == DISCOVERY, gradient, counts)
            if not counts.any():
                continue
            by_bucket = np.maximum(counts, 1)[:, None]
            means = (gradient.linear / by_bucket, gradient.hidden / counts.sum(), gradient.bias / by_bucket)
            for part, square, mean, rate in zip(
                weights, squares, (*means, gradient.out / counts.sum()), (1.0, 1 / 3, 1 / 3, 1 / 3), strict=True
            ):
                square += mean**2
                part -= np.float32(rate * self.learning_rate) * mean / np.sqrt(square)

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights and optimizer state."""
        both = {"weights": self.weights, "squares": self._squares}
        return {
            f"{purpose}.{kind}.{name}": array
            for kind, parts in both.items()
            for purpose, part in zip(("all", "discovery"), parts, strict=True)
            for name, array in part._asdict().items()
        }

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over what `state` returned.

        Raises:
            ValueError: it describes candidates by other features.
        """
        for name, array in self.state().items():
            if state[name].shape != array.shape:
                raise ValueError(f"a ranker whose {name} has the shape {state[name].shape} is not one of {array.shape}")
            array[:] = state[name]


def _first_weights(rng: np.random.Generator) -> Weights:
    linear = np.array([_FIRST.get(name, 0.0) for name in FEATURES], np.float32)
    hidden = rng.standard_normal((HIDDEN, len(FEATURES)), np.float32) / np.float32(len(FEATURES) ** 0.5)
    shape = (len(BUCKETS), HIDDEN)
    return Weights(
        np.tile(linear, (len(BUCKETS), 1)), hidden, np.zeros(shape, np.float32), np.zeros(HIDDEN, np.float32)
    )


@compiled
def _scores(weights: Weights, first: Rows, features: Floats, bucket: Rows, found: Floats) -> None:
    units = np.empty(HIDDEN, np.float32)
    for e in range(len(first) - 1):
        for c in range(first[e], first[e + 1]):
            found[c] = _score(weights, features[c], bucket[e], units)


@compiled
def _score(weights: Weights, x: Floats, b: int, units: Floats) -> np.float32:
    """The score of a candidate; `units` gets the hidden units before the ReLU."""
    score = np.float32(0)
    for f in range(len(x)):
        score += weights.linear[b, f] * x[f]
    for h in range(HIDDEN):
        unit = weights.bias[b, h]
        for f in range(len(x)):
            unit += weights.hidden[h, f] * x[f]
        units[h] = unit
        score += weights.out[h] * max(unit, np.float32(0))
    return score


@compiled
def _add_gradients(
    weights: Weights,
    first: Rows,
    features: Floats,
    bucket: Rows,
    target: Rows,
    seen: NDArray[np.bool_],
    events: Rows,
    discovery: bool,
    gradient: Weights,
    counts: Floats,
) -> None:
    """Sums of d(-log softmax at the target); events whose target is no candidate teach nothing."""
    most = 0
    for e in events:
        most = max(most, first[e + 1] - first[e])
    scores, units = np.empty(most, np.float32), np.empty((most, HIDDEN), np.float32)
    for e in events:
        own, b, begin, end = target[e], bucket[e], first[e], first[e + 1]
        if own < 0 or (discovery and seen[own]):
            continue
        counts[b] += 1
        best = np.float32(-np.inf)
        for c in range(begin, end):
            if discovery and seen[c]:
                scores[c - begin] = -np.inf
                continue
            scores[c - begin] = _score(weights, features[c], b, units[c - begin])
            best = max(best, scores[c - begin])
        total = np.float32(0)
        for c in range(end - begin):
            scores[c] = np.exp(scores[c] - best)
            total += scores[c]
        for c in range(begin, end):
            g = scores[c - begin] / total - np.float32(c == own)
            if abs(g) < _NEGLIGIBLE:
                continue
            x, line = features[c], units[c - begin]
            gradient.linear[b] += g * x
            for h in range(HIDDEN):
                if line[h] > 0:
                    gradient.out[h] += g * line[h]
                    inner = g * weights.out[h]
                    gradient.bias[b, h] += inner
                    gradient.hidden[h] += inner * x
