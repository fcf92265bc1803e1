"""The row pass on a CPU: from scores to weights, counts and gradient in three sweeps
over a block that stays in cache.

The block is transposed, one query a lane: every sweep runs over candidates while
neighbouring queries sit in neighbouring lanes of a vector register, so that even the
cumulative sum along the candidates is vectorised.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamer.model.batch import Floats, Ints
from streamer.model.jit import inlined, njit_allocating, njit_borrowing
from streamer.model.kernels.spec import MASKED

f32 = np.float32
_LOG2_E = f32(1.4426950408889634)
_LN2_HIGH = f32(0.693359375)
_LN2_LOW = f32(-2.12194440e-4)
# exp(x) = 1 + x + x^2 P(x) on [-ln2 / 2, ln2 / 2], relative error below 1e-7
_P0 = f32(1.9875691500e-4)
_P1 = f32(1.3981999507e-3)
_P2 = f32(8.3334519073e-3)
_P3 = f32(4.1665795894e-2)
_P4 = f32(1.6666665459e-1)
_P5 = f32(5.0000001201e-1)
_SMALLEST_EXPONENT = f32(-87.0)
_ZERO = f32(0)
_ONE = f32(1)
_HALF = f32(0.5)
_BIAS = np.int32(127)
_MANTISSA_BITS = np.int32(23)

_EMPTY = f32(-1e29)
_MASKED = f32(MASKED)

INPUTS = 4
"""Lines of `RowLines` that are given."""


class RowLines(NamedTuple):
    """One number of each row of a block, [R]: the inputs, then the outputs."""

    positive: Floats  # score of the row's own positive
    offsets: Floats  # one uniform number of each row
    own: Ints  # the candidate that is the row's own positive, -1 if there is none
    weight: Floats  # how much the row's loss counts
    loss: Floats
    scale: Floats  # turns the block into gradients
    positive_gradient: Floats
    top: Floats  # the largest corrected score
    total: Floats  # the sum of the weights
    squares: Floats  # the sum of their squares (for the effective sample size)
    distinct: Floats  # how many candidates were drawn at least once
    own_share: Floats  # the normalised weight of the row's own positive

    def only(self, rows: slice) -> RowLines:
        """Those of some rows; views."""
        return RowLines(*(line[rows] for line in self))  # type: ignore[arg-type]


@inlined
def exp_of_non_positive(x: np.float32) -> np.float32:
    """exp(x) for x <= 0, zero below the smallest normal number; pure arithmetic, so
    that it vectorises.
    """
    t = x if x > _SMALLEST_EXPONENT else _SMALLEST_EXPONENT
    k = np.floor(t * _LOG2_E + _HALF)
    t = t - k * _LN2_HIGH - k * _LN2_LOW
    y = ((((_P0 * t + _P1) * t + _P2) * t + _P3) * t + _P4) * t + _P5
    y = y * t * t + t + _ONE
    power = np.int32((np.int32(k) + _BIAS) << _MANTISSA_BITS)
    y = y * power.view(np.float32)  # 2^k by its bits
    return y if x > _SMALLEST_EXPONENT else _ZERO


@njit_borrowing
def _weigh(z: Floats, log_weight: Floats, rows: RowLines) -> None:
    """Turn scores [K, R] into unnormalised weights exp(score + log_weight - top), in
    place; fills `top`, `total`, `squares` and `own_share`.
    """
    K, R = z.shape
    for r in range(R):
        rows.top[r] = -np.inf
        rows.total[r] = _ZERO
        rows.squares[r] = _ZERO
    for j in range(K):
        b = log_weight[j]
        for r in range(R):
            v = z[j, r] + b
            rows.top[r] = v if v > rows.top[r] else rows.top[r]
    for j in range(K):
        b = log_weight[j]
        for r in range(R):
            v = exp_of_non_positive(z[j, r] + b - rows.top[r])
            z[j, r] = v
            rows.total[r] += v
            rows.squares[r] += v * v
    for r in range(R):
        rows.own_share[r] = _ZERO
        if rows.own[r] >= 0 and rows.top[r] > _EMPTY:
            rows.own_share[r] = z[rows.own[r], r] / rows.total[r]


@njit_allocating
def _resample(
    z: Floats,
    factor: Floats,
    draws: int,
    rows: RowLines,
    mass: Floats,
    counts: Floats,
) -> None:
    """Systematic resampling of each row, and the weight n e^s of each candidate in the
    loss, in place.

    n_j = floor(m c_j + r) - floor(m c_{j-1} + r), where c is the cumulative share of
    the weights. The running sum adds in the order in which `_weigh` formed `total`, so
    it ends exactly there, and the counts of a row sum to m.

    Args:
        z: [K, R] weights in, n e^(s - top) out.
        factor: [K] e^(-log_weight): turns a weight back into e^s.
        draws: m.
        rows: a row without candidates gets no draws; fills `distinct`.
        mass: [R] out: the sum of each row.
        counts: [K] the draws of each candidate are added here.
    """
    K, R = z.shape
    scale = np.empty(R, np.float32)
    running = np.zeros(R, np.float32)
    drawn = np.zeros(R, np.float32)
    for r in range(R):
        scale[r] = f32(draws) / rows.total[r] if rows.top[r] > _EMPTY else _ZERO
        mass[r] = _ZERO
        rows.distinct[r] = _ZERO
    for j in range(K):
        f = factor[j]
        column = _ZERO
        for r in range(R):
            v = z[j, r]
            running[r] += v
            upto = np.floor(running[r] * scale[r] + rows.offsets[r])
            n = upto - drawn[r]
            drawn[r] = upto
            g = n * v * f
            z[j, r] = g
            mass[r] += g
            rows.distinct[r] += _ONE if n > _ZERO else _ZERO
            column += n
        counts[j] += column


@njit_borrowing
def _finish(
    rows: RowLines,
    mass: Floats,
    add_positive: bool,
    queries: int,
) -> None:
    """Close each row: its loss, the factor that turns the block into gradients, the
    gradient of its positive's score.

    With t = log(sum of the candidates) - positive, the loss is log(1 + e^t) if the
    positive stands beside the candidates, and t if it is one of them; it counts by the
    row's weight. All gradients are those of the mean over all queries.
    """
    for r in range(len(mass)):
        rows.loss[r] = _ZERO
        rows.scale[r] = _ZERO
        rows.positive_gradient[r] = _ZERO
        if mass[r] > _ZERO and rows.top[r] > _EMPTY:
            t = rows.top[r] + np.log(mass[r]) - rows.positive[r]
            share = _ONE
            loss = t
            if add_positive:
                share = _ONE / (_ONE + np.exp(-t))
                loss = t + np.log1p(np.exp(-t)) if t > _ZERO else np.log1p(np.exp(t))
            share *= rows.weight[r]
            rows.loss[r] = loss * rows.weight[r]
            rows.scale[r] = share / (mass[r] * queries)
            rows.positive_gradient[r] = -share / queries


@njit_allocating
def block(
    z: Floats,
    rows: RowLines,
    log_weight: Floats,
    factor: Floats,
    draws: int,
    add_positive: bool,
    mask_own: bool,
    counts: Floats,
    queries: int,
) -> None:
    """All that happens to a block between its two matrix products.

    Args:
        z: [K, R] scores in; out: gradient of the loss by each score, but for the row's
            scale.
        rows: those of the block.
        log_weight: [K] what the correction adds to each candidate's score.
        factor: [K] e^(-log_weight).
        draws: m, or 0 to take every candidate once.
        add_positive: see `Sampling`.
        mask_own: see `Sampling`.
        counts: [K] the draws of each candidate are added here.
        queries: rows of all blocks.
    """
    if mask_own:
        for r in range(z.shape[1]):
            if rows.own[r] >= 0:
                z[rows.own[r], r] = _MASKED
    _weigh(z, log_weight, rows)
    mass = rows.total.copy()
    if draws:
        _resample(z, factor, draws, rows, mass, counts)
    _finish(rows, mass, add_positive, queries)
