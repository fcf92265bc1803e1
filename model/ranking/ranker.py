"""A small ranker, learned online: which evidence counts, and for whom.

    score(u, j) = <w[b], x> + <v, relu(U x + c[b])>

with x the features of a candidate and b the user's bucket of history length. It is
trained by softmax over the candidates among which it decides, or an even sample of
them. There are two of them: one ranks all items; one ranks discoveries, items that the
user never had, and is trained on such events alone, against such candidates alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from streamer.model.batch import Bools, Doubles, Floats, Rows
from streamer.model.jit import njit_allocating, njit_borrowing
from streamer.model.ranking.candidates import Candidates
from streamer.model.ranking.features import (
    BUCKET_NAMES,
    BUCKETS,
    FEATURES,
    KINDS,
    Feature,
)

ALL = 0
DISCOVERY = 1
"""Purposes: rank everything, or what is new to the user."""
HIDDEN = 16
HIDDEN_RATE = 1 / 3
"""Learning rate of everything but the linear weights, as a share of theirs."""
_FIRST_WEIGHTS = {
    Feature.NEAR_LOG: 1.0,
    Feature.EVENTS_LONG_WINDOW: 0.3,
    Feature.TOWER: 0.3,
}
_NEGLIGIBLE = np.float32(1e-5)


class Weights(NamedTuple):
    """What is learned for one purpose, as views of one vector; also the shape of its
    gradients.
    """

    linear: Floats  # [buckets, features]
    hidden: Floats  # [hidden, features]
    bias: Floats  # [buckets, hidden]
    out: Floats  # [hidden]


_SHAPES = (
    (len(BUCKETS), len(FEATURES)),
    (HIDDEN, len(FEATURES)),
    (len(BUCKETS), HIDDEN),
    (HIDDEN,),
)
_ENDS = np.cumsum([math.prod(shape) for shape in _SHAPES])
_SIZE = int(_ENDS[-1])
_RATES = np.full(_SIZE, HIDDEN_RATE)
_RATES[: _ENDS[0]] = 1.0


def _views(vector: Floats) -> Weights:
    parts = np.split(vector, _ENDS[:-1])
    return Weights(*(p.reshape(s) for p, s in zip(parts, _SHAPES, strict=True)))


def _matrix(vector: Floats) -> Floats:
    """[buckets + hidden, features] everything that features are multiplied with; a
    view.
    """
    return vector[: _ENDS[1]].reshape(-1, len(FEATURES))


class Ranker:
    """Two small networks, Adagrad.

    Args:
        learning_rate: of the linear weights; the others have a third of it.
        seed: determines the first weights of the hidden units.
    """

    def __init__(self, learning_rate: float = 0.3, seed: int = 0) -> None:
        self.learning_rate = learning_rate
        rng = np.random.default_rng([seed, 3])
        self._vectors = [_first_weights(rng) for _ in (ALL, DISCOVERY)]
        self._squares = [np.full(_SIZE, 1e-6, np.float32) for _ in (ALL, DISCOVERY)]
        self.weights = [_views(vector) for vector in self._vectors]

    def scores(
        self, candidates: Candidates, purpose: int = ALL, without: Sequence[int] = ()
    ) -> Floats:
        """[c] of all candidates, as if the features `without` were zero."""
        weights = self.weights[purpose]
        found = np.empty(len(candidates.items), np.float32)
        matrix = _matrix(self._vectors[purpose]).copy()
        matrix[:, list(without)] = 0
        products = _product(candidates.features, matrix.T)
        _scores(weights, products, candidates.first, candidates.bucket, found)
        return found

    def learn(self, candidates: Candidates) -> None:
        """Learn from the events of these candidates."""
        self.apply(self.gradients(candidates))

    def gradients(self, candidates: Candidates) -> Floats:
        """Sums of gradients over the events of these candidates, as one vector: those
        of several add up.
        """
        found = []
        for purpose, weights in enumerate(self.weights):
            gradient = np.zeros(_SIZE, np.float32)
            some = candidates if purpose == ALL else candidates.discoveries()
            # [c, buckets + hidden]
            products = _product(some.features, _matrix(self._vectors[purpose]).T)
            derivatives = np.zeros_like(products)
            event_weights = some.weights
            if event_weights is None:
                event_weights = np.ones(len(some), np.float32)
            described = (some.first, some.bucket, some.target, some.seen, event_weights)
            _derive(
                weights,
                products,
                *described,
                purpose == DISCOVERY,
                derivatives,
                _views(gradient),
            )
            _matrix(gradient)[:] = _product(derivatives.T, some.features)
            found.append(gradient)
        return np.concatenate(found)

    @property
    def gradient_size(self) -> int:
        """Numbers that `gradients` returns."""
        return len(self.weights) * _SIZE

    def apply(self, gradients: Floats) -> None:
        """Learn from what `gradients` returned, of all events of a step.

        Sums and not means: Adagrad does not depend on the scale of all steps, and a
        step of few events after steps of many is a small one.
        """
        rates = (_RATES * self.learning_rate).astype(np.float32)
        for weights, squares, gradient in zip(
            self._vectors, self._squares, np.split(gradients, 2), strict=True
        ):
            squares += gradient**2
            weights -= rates * gradient / np.sqrt(squares)

    def influence(self, candidates: Candidates, purpose: int = ALL) -> Doubles:
        """[buckets, kinds] how much of what tells a user's candidates apart comes from
        each kind of evidence.

        By the spread of each kind's part of the score; NaN without candidates.
        """
        # [c]
        parts = self.parts(candidates, purpose)
        bucket = np.repeat(candidates.bucket, np.diff(candidates.first))
        found = np.full((len(BUCKETS), len(KINDS)), np.nan)
        for b in np.unique(bucket):
            spread = parts[bucket == b].std(0)
            found[b] = spread / max(spread.sum(), 1e-12)
        return found

    def parts(self, candidates: Candidates, purpose: int = ALL) -> Floats:
        """[c, kinds] what each kind of evidence adds to the score, linear where the
        hidden units are.

        The rest of the score is what the active hidden units' biases add.
        """
        weights = self.weights[purpose]
        x = candidates.features
        bucket = np.repeat(candidates.bucket, np.diff(candidates.first))  # [c]
        active = _product(x, weights.hidden.T) + weights.bias[bucket] > 0  # [c, hidden]
        slopes = weights.linear[bucket] + _product(
            (active * weights.out).astype(np.float32), weights.hidden
        )
        of_kinds = [(slopes[:, kind] * x[:, kind]).sum(1) for kind in KINDS.values()]
        return np.stack(of_kinds, axis=1)

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights and optimizer state."""
        found = {}
        for purpose, name in enumerate(("all", "discovery")):
            squares = _views(self._squares[purpose])
            for part in Weights._fields:
                weights = getattr(self.weights[purpose], part)
                found[f"{name}.weights.{part}"] = weights
                found[f"{name}.squares.{part}"] = getattr(squares, part)
        return found

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over what `state` returned.

        Raises:
            ValueError: it describes candidates by other features.
        """
        for name, array in self.state().items():
            if state[name].shape != array.shape:
                raise ValueError(
                    f"a ranker whose {name} has the shape {state[name].shape} is not one of {array.shape}"
                )
            array[:] = state[name]


def influence_by_name(influence: Doubles) -> dict[str, dict[str, float]]:
    """What `Ranker.influence` found, by length of history and kind of evidence; of
    those that had candidates.
    """
    return {
        name: dict(zip(KINDS, shares.tolist(), strict=True))
        for name, shares in zip(BUCKET_NAMES, influence, strict=True)
        if np.isfinite(shares).all()
    }


def _first_weights(rng: np.random.Generator) -> Floats:
    vector = np.zeros(_SIZE, np.float32)
    weights = _views(vector)
    for feature, weight in _FIRST_WEIGHTS.items():
        weights.linear[:, feature] = weight
    hidden = rng.standard_normal(_SHAPES[1], np.float32)
    weights.hidden[:] = hidden / np.float32(len(FEATURES) ** 0.5)
    return vector


def _product(a: Floats, b: Floats) -> Floats:
    """By torch, whose threads the settings govern."""
    found: Floats = torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    return found


@njit_borrowing
def _scores(
    weights: Weights, products: Floats, first: Rows, bucket: Rows, found: Floats
) -> None:
    for e in range(len(first) - 1):
        for c in range(first[e], first[e + 1]):
            found[c] = _score(weights, products[c], bucket[e])


@njit_borrowing
def _score(weights: Weights, products: Floats, b: int) -> np.float32:
    score = products[b]
    units = products[len(BUCKETS) :]
    for h in range(HIDDEN):
        score += weights.out[h] * max(units[h] + weights.bias[b, h], np.float32(0))
    return np.float32(score)


@njit_allocating
def _derive(
    weights: Weights,
    products: Floats,
    first: Rows,
    bucket: Rows,
    target: Rows,
    seen: Bools,
    event_weights: Floats,
    discovery: bool,
    derivatives: Floats,
    gradient: Weights,
) -> None:
    """Derivatives of -log softmax at the target by `products`, and sums of those by
    `bias` and `out`.

    Each event counts by its weight; one whose target is no candidate teaches nothing.
    """
    scores = np.empty(len(products), np.float32)
    for e in range(len(target)):
        own = target[e]
        b = bucket[e]
        begin = first[e]
        end = first[e + 1]
        if own < 0:
            continue
        best = np.float32(-np.inf)
        for c in range(begin, end):
            hidden = discovery and seen[c]
            scores[c] = (
                np.float32(-np.inf) if hidden else _score(weights, products[c], b)
            )
            best = max(best, scores[c])
        total = np.float32(0)
        for c in range(begin, end):
            scores[c] = np.exp(scores[c] - best)
            total += scores[c]
        for c in range(begin, end):
            g = event_weights[e] * (scores[c] / total - np.float32(c == own))
            if abs(g) < _NEGLIGIBLE:
                continue
            derivatives[c, b] = g
            for h in range(HIDDEN):
                unit = products[c, len(BUCKETS) + h] + weights.bias[b, h]
                if unit > 0:
                    inner = g * weights.out[h]
                    derivatives[c, len(BUCKETS) + h] = inner
                    gradient.bias[b, h] += inner
                    gradient.out[h] += g * unit
