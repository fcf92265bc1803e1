"""A small ranker, learned online: which evidence counts, and for whom.

    score(u, j) = <w[b], x> + <v, relu(U x + c[b])>

with x the features of a candidate and b the user's bucket of history length. It is
trained by softmax over the candidates among which it decides, or an even sample of
them. There are two of them: one ranks all items; one ranks discoveries, items that the
user never had, and is trained on such events alone, against such candidates alone.
"""

from __future__ import annotations

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
        self._squares = [
            Weights(*(part + np.float32(1e-6) for part in w.zeros()))
            for w in self.weights
        ]

    def scores(
        self, candidates: Candidates, purpose: int = ALL, without: Sequence[int] = ()
    ) -> Floats:
        """[c] of all candidates, as if the features `without` were zero."""
        weights = self.weights[purpose]
        found = np.empty(len(candidates.items), np.float32)
        matrix = _matrix(weights)
        if without:
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
            gradient = weights.zeros()
            counts = np.zeros(len(BUCKETS), np.float32)
            some = candidates if purpose == ALL else candidates.discoveries()
            # [c, buckets + hidden]
            products = _product(some.features, _matrix(weights).T)
            derivatives = np.zeros_like(products)
            described = (some.first, some.bucket, some.target, some.seen)
            _derive(
                weights,
                products,
                *described,
                purpose == DISCOVERY,
                derivatives,
                gradient,
                counts,
            )
            sums = _product(derivatives.T, some.features)
            found += [sums.reshape(-1), gradient.bias.reshape(-1), gradient.out, counts]
        return np.concatenate(found)

    @property
    def gradient_size(self) -> int:
        """Numbers that `gradients` returns."""
        return sum(part.size for weights in self.weights for part in weights) + 2 * len(
            BUCKETS
        )

    def apply(self, gradients: Floats) -> None:
        """Learn from what `gradients` returned, of all events of a step."""
        for weights, squares, sums in zip(
            self.weights, self._squares, np.split(gradients, 2), strict=True
        ):
            ends = np.cumsum(
                [
                    weights.linear.size,
                    weights.hidden.size,
                    weights.bias.size,
                    weights.out.size,
                ]
            )
            linear, hidden, bias, out, counts = np.split(sums, ends)
            total = np.float32(max(counts.sum(), 1))
            by_bucket: Floats = np.maximum(counts, np.float32(1))[:, None]
            self._update(
                weights.linear,
                squares.linear,
                linear.reshape(weights.linear.shape) / by_bucket,
                1.0,
            )
            self._update(
                weights.hidden,
                squares.hidden,
                hidden.reshape(weights.hidden.shape) / total,
                HIDDEN_RATE,
            )
            self._update(
                weights.bias,
                squares.bias,
                bias.reshape(weights.bias.shape) / by_bucket,
                HIDDEN_RATE,
            )
            self._update(weights.out, squares.out, out / total, HIDDEN_RATE)

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
        return np.stack(
            [
                (slopes[:, kind] * x[:, kind]).sum(1)
                for kind in map(list, KINDS.values())
            ],
            axis=1,
        )

    def _update(
        self, weights: Floats, squares: Floats, gradient: Floats, rate: float
    ) -> None:
        squares += gradient**2
        weights -= np.float32(rate * self.learning_rate) * gradient / np.sqrt(squares)

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


def _first_weights(rng: np.random.Generator) -> Weights:
    linear = np.array(
        [_FIRST_WEIGHTS.get(feature, 0.0) for feature in Feature], np.float32
    )
    hidden = rng.standard_normal((HIDDEN, len(FEATURES)), np.float32) / np.float32(
        len(FEATURES) ** 0.5
    )
    shape = (len(BUCKETS), HIDDEN)
    return Weights(
        np.tile(linear, (len(BUCKETS), 1)),
        hidden,
        np.zeros(shape, np.float32),
        np.zeros(HIDDEN, np.float32),
    )


def _matrix(weights: Weights) -> Floats:
    """[buckets + hidden, features] everything that features are multiplied with."""
    return np.concatenate([weights.linear, weights.hidden])


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
    discovery: bool,
    derivatives: Floats,
    gradient: Weights,
    counts: Floats,
) -> None:
    """Derivatives of -log softmax at the target by `products`, and sums of those by
    `bias` and `out`.

    Events whose target is no candidate teach nothing.
    """
    scores = np.empty(len(products), np.float32)
    for e in range(len(target)):
        own = target[e]
        b = bucket[e]
        begin = first[e]
        end = first[e + 1]
        if own < 0:
            continue
        counts[b] += 1
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
            g = scores[c] / total - np.float32(c == own)
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
