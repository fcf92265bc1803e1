"""Optimizers of embedding tables. Each applies the gradients of the rows that a step
touched.

| name            | state a row | cost a step  | for                                                                |
|-----------------|-------------|--------------|--------------------------------------------------------------------|
| `adagrad`       | 1 vector    | touched rows | streams (default): new rows move fast, frequent ones settle        |
| `adam`          | 2 vectors   | touched rows | streams: moments of untouched rows stay                            |
| `sgd`           | none        | touched rows | servers, which never train: no state                               |
| `dense-adam`    | 2 vectors   | all rows     | the paper's protocol: Adam with L2 on the whole table              |

`streamer compare --set optimizer=...` compares them on a log.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from streamer.model.batch import Floats, Rows
from streamer.model.device import in_host_memory
from streamer.model.jit import inlined, njit_allocating, njit_borrowing
from streamer.model.rows.tables import EmbeddingTable

BETA1 = 0.9
BETA2 = 0.999
# rounded once: 1 - float32(0.999) is off by 1e-5
_ONE_LESS_BETA1 = np.float32(1 - BETA1)
_ONE_LESS_BETA2 = np.float32(1 - BETA2)
EPSILON = 1e-8
MEMORY = 10_000.0
"""Updates of a row after which a square counts 1 / e in Adagrad."""
MAX_NORM = 10.0
"""Of the gradients of all parameters that are no tables, together; usually it is below
1.
"""


def _bias_corrections(updates: int) -> Floats:
    """[updates, 2] what Adam multiplies m and sqrt(v) by after t updates; constant to
    float32 after the last.
    """
    t = np.maximum(np.arange(updates, dtype=np.float64), 1)
    return np.stack([1 / (1 - BETA1**t), 1 / np.sqrt(1 - BETA2**t)], axis=1).astype(
        np.float32
    )


_CORRECTIONS = _bias_corrections(1 << 15)


class RowOptimizer:
    """Applies the gradients of touched rows to a table.

    In host memory a compiled loop updates one row after the other; on any other device
    the rows are gathered, updated together, and put back. Both compute the same.
    """

    slots: int
    """Vectors of state a row needs."""
    numbers = 0
    """Single numbers of state a row needs."""

    def apply(
        self,
        table: EmbeddingTable,
        rows: Tensor,
        gradient: Tensor,
        rate: float,
    ) -> None:
        """Update `rows` (distinct) of the table by their gradients [len(rows), dim]."""
        if in_host_memory(table.lines):
            lines = table.lines.numpy()
            self._update_rows(
                lines,
                rows.numpy(),
                gradient.contiguous().numpy(),
                rate,
            )
        else:
            gathered = table.lines.index_select(0, rows)  # [T, width]
            self._update_gathered(gathered, gradient, rate)
            table.lines.index_copy_(0, rows, gathered)

    def _update_rows(
        self,
        lines: Floats,
        rows: Rows,
        gradient: Floats,
        rate: float,
    ) -> None:
        """Update some rows of all lines."""
        raise NotImplementedError

    def _update_gathered(self, lines: Tensor, gradient: Tensor, rate: float) -> None:
        """Update the lines of the rows alone, [T, width]."""
        raise NotImplementedError


class Adam(RowOptimizer):
    """Adam on touched rows only, each with its own step count.

    A row's moments do not decay while it is not touched, and its bias correction counts
    its own updates: an item that appears for the first time after a million steps
    starts like one of the first step.
    """

    slots = 2
    numbers = 1  # how often a row was updated

    def _update_rows(
        self,
        lines: Floats,
        rows: Rows,
        gradient: Floats,
        rate: float,
    ) -> None:
        _adam_rows(lines, rows, gradient, rate, _CORRECTIONS)

    def _update_gathered(self, lines: Tensor, gradient: Tensor, rate: float) -> None:
        d = gradient.shape[1]
        t = lines[:, -1:]
        t.add_(1)
        # 1 - beta^t, exact also for the first updates
        step = rate / -torch.expm1(t * math.log(BETA1))
        unbias = (-torch.expm1(t * math.log(BETA2))).sqrt()
        moments = (lines[:, d : 2 * d], lines[:, 2 * d : 3 * d])
        _adam(
            lines[:, :d],
            moments,
            gradient,
            step,
            unbias,
        )


def _adam(
    weights: Tensor,
    moments: tuple[Tensor, Tensor],
    gradient: Tensor,
    step: Tensor | float,
    unbias: Tensor | float,
) -> None:
    """Adam on any device; `step` is the rate over 1 - beta1^t, `unbias` the root of 1 -
    beta2^t.
    """
    m, v = moments
    m.lerp_(gradient, 1 - BETA1)
    v.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    weights.addcdiv_(m * -step, (v.sqrt() / unbias).add_(EPSILON))


@inlined
def _adam_number(
    line: Floats,
    d: int,
    k: int,
    g: np.float32,
    step: np.float32,
    unbias: np.float32,
) -> None:
    """Adam on one number of a line, whose weights have d."""
    m = np.float32(BETA1) * line[d + k] + _ONE_LESS_BETA1 * g
    v = np.float32(BETA2) * line[2 * d + k] + _ONE_LESS_BETA2 * g * g
    line[d + k] = m
    line[2 * d + k] = v
    line[k] -= step * m / (np.sqrt(v) * unbias + np.float32(EPSILON))


@njit_borrowing
def _adam_rows(
    lines: Floats,
    rows: Rows,
    gradient: Floats,
    rate: float,
    corrections: Floats,
) -> None:
    d = gradient.shape[1]
    for i in range(len(rows)):
        line = lines[rows[i]]
        line[-1] += np.float32(1)
        known = min(int(line[-1]), len(corrections) - 1)
        step = np.float32(rate) * corrections[known, 0]
        for k in range(d):
            _adam_number(
                line,
                d,
                k,
                gradient[i, k],
                step,
                corrections[known, 1],
            )


class Adagrad(RowOptimizer):
    """Adagrad on touched rows: the rate of a coordinate falls with the squares it has
    seen.

    A new row moves fast, a row that has been seen often moves slowly: what one pass
    over a stream needs. On an endless stream the rate must not fall to zero, so the
    squares fade: G = (1 - 1 / memory) G + g^2, and a row that is updated for ever keeps
    at least rate / sqrt(memory). Without fading it is torch's Adagrad.
    """

    slots = 1

    keep = 1.0 - 1.0 / MEMORY

    def _update_rows(
        self,
        lines: Floats,
        rows: Rows,
        gradient: Floats,
        rate: float,
    ) -> None:
        _adagrad_rows(lines, rows, gradient, rate, self.keep)

    def _update_gathered(self, lines: Tensor, gradient: Tensor, rate: float) -> None:
        d = gradient.shape[1]
        w = lines[:, :d]
        v = lines[:, d : 2 * d]
        v.mul_(self.keep).addcmul_(gradient, gradient)
        w.sub_(rate * gradient / (v.sqrt() + EPSILON))


@njit_borrowing
def _adagrad_rows(
    lines: Floats,
    rows: Rows,
    gradient: Floats,
    rate: float,
    keep: float,
) -> None:
    d = gradient.shape[1]
    step = np.float32(rate)
    kept = np.float32(keep)
    eps = np.float32(EPSILON)
    for i in range(len(rows)):
        row = rows[i]
        for k in range(d):
            g = gradient[i, k]
            v = kept * lines[row, d + k] + g * g
            lines[row, d + k] = v
            lines[row, k] -= step * g / (np.sqrt(v) + eps)


class Sgd(RowOptimizer):
    """Plain gradient steps on touched rows."""

    slots = 0

    def apply(
        self,
        table: EmbeddingTable,
        rows: Tensor,
        gradient: Tensor,
        rate: float,
    ) -> None:
        table.weight.index_add_(0, rows, gradient, alpha=-rate)


class DenseAdam(RowOptimizer):
    """torch's Adam with L2 regularisation, on every row at every step, as in the
    paper's protocol.

    All rows share the table's step count.

    Args:
        l2: coefficient of the L2 term, added to the gradient (not decoupled).
    """

    slots = 2

    def __init__(self, l2: float = 0.0) -> None:
        self.l2 = l2

    def apply(
        self,
        table: EmbeddingTable,
        rows: Tensor,
        gradient: Tensor,
        rate: float,
    ) -> None:
        table.steps += 1  # counted on the host: never read from the device
        step = rate / (1 - BETA1**table.steps)
        unbias = math.sqrt(1 - BETA2**table.steps)
        if in_host_memory(table.lines):
            lines = table.lines[: table.size].numpy()
            gradients = gradient.contiguous().numpy()
            _dense_adam(
                lines,
                rows.numpy(),
                gradients,
                step,
                1 / unbias,
                self.l2,
            )
        else:
            full = (table.weight * self.l2).index_add_(0, rows, gradient)
            _adam(
                table.weight,
                (table.slot(0), table.slot(1)),
                full,
                step,
                unbias,
            )


@njit_allocating
def _dense_adam(
    lines: Floats,
    rows: Rows,
    gradient: Floats,
    step: float,
    unbias: float,
    l2: float,
) -> None:
    """Line by line: everything that a row needs is read and written once. Rows are
    distinct.
    """
    d = gradient.shape[1]
    decay = np.float32(l2)
    full = np.empty(d, np.float32)
    place = np.full(len(lines), -1, np.int64)
    for i in range(len(rows)):
        place[rows[i]] = i
    for row in range(len(lines)):
        i = place[row]
        for k in range(d):
            own = gradient[i, k] if i >= 0 else np.float32(0)
            full[k] = decay * lines[row, k] + own
        for k in range(d):
            g = full[k]
            _adam_number(
                lines[row],
                d,
                k,
                g,
                np.float32(step),
                np.float32(unbias),
            )


class ParameterAdam:
    """Adam for the few parameters that are no tables; torch's own formula.

    torch.optim would do, but making one of its optimizers loads torch's compiler, which
    takes seconds.

    Args:
        parameters: by name.
    """

    def __init__(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}
        for name, parameter in parameters.items():
            zeros = torch.zeros_like(parameter.detach())
            self.moments[name] = (zeros, zeros.clone())

    def clear_gradients(self) -> None:
        """Forget the gradients of the last step."""
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self, rate: float, steps: int) -> None:
        """Update every parameter that has a gradient, in step number `steps`, from 1."""
        self._clip()
        step = rate / (1 - BETA1**steps)
        unbias = math.sqrt(1 - BETA2**steps)
        for name, parameter in self.parameters.items():
            g = parameter.grad
            if g is None:
                continue
            _adam(
                parameter,
                self.moments[name],
                g,
                step,
                unbias,
            )

    def _clip(self) -> None:
        """Scale the gradients down to `MAX_NORM`, to zero if one is not finite. A GPU
        is not waited for.
        """
        gradients = []
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                gradients.append(parameter.grad)
        total = sum_of_squares(gradients)
        if total is not None and total <= MAX_NORM**2:
            return
        norms = [gradient.norm() for gradient in gradients]
        norm = torch.stack(norms).norm()
        scale = (MAX_NORM / norm).clamp(max=1).nan_to_num()
        for gradient in gradients:
            gradient.nan_to_num_(0, 0, 0).mul_(scale)

    def state(self) -> dict[str, Tensor]:
        """Parameters and their moments by name; views."""
        found = {}
        for name, parameter in self.parameters.items():
            mean, square = self.moments[name]
            found[f"dense.{name}"] = parameter.detach()
            found[f"adam.{name}.0"] = mean
            found[f"adam.{name}.1"] = square
        return found


def sum_of_squares(tensors: Sequence[Tensor]) -> float | None:
    """Finite only if every number is, and its square; None for tensors of a GPU, which
    is not waited for.
    """
    if not all(in_host_memory(tensor) for tensor in tensors):
        return None
    return math.fsum(_squares(tensor.numpy().reshape(-1)) for tensor in tensors)


@njit_borrowing
def _squares(numbers: Floats) -> float:
    total = np.float32(0)
    for i in range(len(numbers)):
        total += numbers[i] * numbers[i]
    return float(total)


def make_optimizer(name: str, l2: float = 0.0) -> RowOptimizer:
    """The optimizer of that name."""
    kinds = {
        "adam": Adam(),
        "adagrad": Adagrad(),
        "sgd": Sgd(),
        "dense-adam": DenseAdam(l2),
    }
    return kinds[name]
