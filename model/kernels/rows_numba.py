"""The row pass on a CPU: from scores to weights, counts and gradient in three sweeps
over a block that stays in cache.

The block is transposed, one query a lane: every sweep runs over candidates while
neighbouring queries sit in neighbouring lanes of a vector register, so that even the
cumulative sum along the candidates is vectorised.
"""

from __future__ import annotations

import numpy as np

from streamer.model.batch import Floats, Ints
from streamer.model.jit import (
    float32_from_bits,
    inlined,
    njit_allocating,
    njit_borrowing,
)

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
    y = y * float32_from_bits((np.int32(k) + _BIAS) << _MANTISSA_BITS)  # type: ignore[call-arg]
    return y if x > _SMALLEST_EXPONENT else _ZERO


@njit_borrowing
def weigh(
    z: Floats,
    log_weight: Floats,
    top: Floats,
    total: Floats,
    squares: Floats,
    own: Ints,
    own_share: Floats,
) -> None:
    """Turn scores into unnormalised weights, in place.

    Args:
        z: [K, R] scores in, weights exp(score + log_weight - top) out.
        log_weight: [K] what the correction adds to each candidate's score.
        top: [R] out: the largest corrected score of each row.
        total: [R] out: the sum of the weights of each row.
        squares: [R] out: the sum of their squares (for the effective sample size).
        own: [R] the candidate that is the row's own positive, -1 if there is none.
        own_share: [R] out: the normalised weight of that candidate.
    """
    K, R = z.shape
    for r in range(R):
        top[r] = -np.inf
        total[r] = _ZERO
        squares[r] = _ZERO
    for j in range(K):
        b = log_weight[j]
        for r in range(R):
            v = z[j, r] + b
            top[r] = v if v > top[r] else top[r]
    for j in range(K):
        b = log_weight[j]
        for r in range(R):
            v = exp_of_non_positive(z[j, r] + b - top[r])
            z[j, r] = v
            total[r] += v
            squares[r] += v * v
    for r in range(R):
        own_share[r] = (
            z[own[r], r] / total[r] if own[r] >= 0 and top[r] > _EMPTY else _ZERO
        )


@njit_allocating
def resample(
    z: Floats,
    factor: Floats,
    draws: int,
    offset: Floats,
    top: Floats,
    total: Floats,
    mass: Floats,
    distinct: Floats,
    counts: Floats,
) -> None:
    """Systematic resampling of each row, and the weight n e^s of each candidate in the
    loss, in place.

    n_j = floor(m c_j + r) - floor(m c_{j-1} + r), where c is the cumulative share of
    the weights. The running sum adds in the order in which `weigh` formed `total`, so
    it ends exactly there, and the counts of a row sum to m.

    Args:
        z: [K, R] weights in, n e^(s - top) out.
        factor: [K] e^(-log_weight): turns a weight back into e^s.
        draws: m.
        offset: [R] one uniform number of each row.
        top: [R] from `weigh`; a row without candidates gets no draws.
        total: [R] from `weigh`.
        mass: [R] out: the sum of each row.
        distinct: [R] out: how many candidates were drawn at least once.
        counts: [K] the draws of each candidate are added here.
    """
    K, R = z.shape
    scale = np.empty(R, np.float32)
    running = np.zeros(R, np.float32)
    drawn = np.zeros(R, np.float32)
    for r in range(R):
        scale[r] = f32(draws) / total[r] if top[r] > _EMPTY else _ZERO
        mass[r] = _ZERO
        distinct[r] = _ZERO
    for j in range(K):
        f = factor[j]
        column = _ZERO
        for r in range(R):
            v = z[j, r]
            running[r] += v
            upto = np.floor(running[r] * scale[r] + offset[r])
            n = upto - drawn[r]
            drawn[r] = upto
            g = n * v * f
            z[j, r] = g
            mass[r] += g
            distinct[r] += _ONE if n > _ZERO else _ZERO
            column += n
        counts[j] += column


@njit_borrowing
def finish(
    top: Floats,
    mass: Floats,
    positive: Floats,
    add_positive: bool,
    rows: int,
    loss: Floats,
    scale: Floats,
    positive_gradient: Floats,
) -> None:
    """Close each row: its loss, the factor that turns the block into gradients, the
    gradient of its positive's score.

    With t = log(sum of the candidates) - positive, the loss is log(1 + e^t) if the
    positive stands beside the candidates, and t if it is one of them. All gradients are
    those of the mean over `rows` rows.
    """
    for r in range(top.shape[0]):
        if mass[r] > _ZERO and top[r] > _EMPTY:
            t = top[r] + np.log(mass[r]) - positive[r]
            share = _ONE
            loss[r] = t
            if add_positive:
                share = _ONE / (_ONE + np.exp(-t))
                loss[r] = t + np.log1p(np.exp(-t)) if t > _ZERO else np.log1p(np.exp(t))
            scale[r] = share / (mass[r] * rows)
            positive_gradient[r] = -share / rows
        else:
            loss[r] = _ZERO
            scale[r] = _ZERO
            positive_gradient[r] = _ZERO


@njit_borrowing
def add_entries(
    z: Floats, first: Ints, columns: Ints, values: Floats, start: int
) -> None:
    """Add the sparse terms of rows start .. start + R to a transposed block of scores."""
    for r in range(z.shape[1]):
        for k in range(first[start + r], first[start + r + 1]):
            z[columns[k], r] += values[k]


@njit_borrowing
def take_entries(
    z: Floats, first: Ints, columns: Ints, scale: Floats, start: int, out: Floats
) -> None:
    """Read the gradient of those sparse terms from the block, each row times its scale."""
    for r in range(z.shape[1]):
        for k in range(first[start + r], first[start + r + 1]):
            out[k] = z[columns[k], r] * scale[r]


_CHUNK = 16


@njit_borrowing
def collect_draws(
    z: Floats, bits: Ints, columns: Ints, rows: Ints, values: Floats
) -> int:
    """List the cells of a block that are not zero, looking at whole chunks of rows at
    once.

    Args:
        z: [K, R] non-negative, mostly zeros.
        bits: the same memory, as integers.
        columns, rows, values: out; must have room for all of them and one more chunk.

    Returns:
        how many there are.
    """
    K, R = z.shape
    whole = R - R % _CHUNK
    n = 0
    for j in range(K):
        for start in range(0, whole, _CHUNK):
            any_bit = np.int32(0)
            for k in range(_CHUNK):
                any_bit |= bits[j, start + k]
            if any_bit != 0:
                for k in range(
                    _CHUNK
                ):  # writes every cell, keeps those that count: nothing to mispredict
                    columns[n] = j
                    rows[n] = start + k
                    values[n] = z[j, start + k]
                    n += z[j, start + k] > _ZERO
        for r in range(whole, R):
            columns[n] = j
            rows[n] = r
            values[n] = z[j, r]
            n += z[j, r] > _ZERO
    return n


@njit_borrowing
def add_products(
    out: Floats,
    out_at: Ints,
    source: Floats,
    source_at: Ints,
    values: Floats,
    count: int,
) -> None:
    """out[out_at[i]] += values[i] source[source_at[i]] for the first `count` i."""
    for i in range(count):
        g = values[i]
        line = out[out_at[i]]
        added = source[source_at[i]]
        for k in range(out.shape[1]):
            line[k] += g * added[k]


@njit_allocating
def block(
    z: Floats,
    start: int,
    log_weight: Floats,
    factor: Floats,
    draws: int,
    add_positive: bool,
    rows: Floats,
    own: Ints,
    first: Ints,
    columns: Ints,
    values: Floats,
    entry_gradient: Floats,
    counts: Floats,
    queries: Floats,
    scaled_queries: Floats,
) -> None:
    """All that happens to a block between its two matrix products.

    Args:
        z: [K, R] scores in; out: gradient of the loss by each score, but for the row's
            scale.
        start: the block's first row.
        draws: m, or 0 to take every candidate once.
        rows: [9, B] one line for each of `ROW_LINES`.
        queries: [B, d].
        scaled_queries: [R, d] out: the block's queries times their scale, for the item
            gradient.
    """
    R = z.shape[1]
    stop = start + R
    positive = rows[0, start:stop]
    offsets = rows[1, start:stop]
    loss = rows[2, start:stop]
    scale = rows[3, start:stop]
    positive_gradient = rows[4, start:stop]
    total = rows[5, start:stop]
    squares = rows[6, start:stop]
    distinct = rows[7, start:stop]
    own_share = rows[8, start:stop]
    top = np.empty(R, np.float32)
    mass = total.copy()
    if len(values):
        add_entries(z, first, columns, values, start)
    weigh(z, log_weight, top, total, squares, own[start:stop], own_share)
    if draws:
        resample(z, factor, draws, offsets, top, total, mass, distinct, counts)
    else:
        mass[:] = total
    finish(
        top, mass, positive, add_positive, rows.shape[1], loss, scale, positive_gradient
    )
    if len(values):
        take_entries(z, first, columns, scale, start, entry_gradient)
    for r in range(R):
        for k in range(queries.shape[1]):
            scaled_queries[r, k] = queries[start + r, k] * scale[r]


ROW_LINES = (
    "positive",
    "offsets",
    "loss",
    "scale",
    "positive_gradient",
    "total",
    "squares",
    "distinct",
    "own_share",
)
"""What the lines of `block`'s `rows` hold: two inputs, then the outputs."""
