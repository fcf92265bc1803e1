"""Row optimizers against torch's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
from torch import Tensor

from streamer.model import optim
from streamer.model.optim import (
    BETA2,
    EPSILON,
    Adagrad,
    Adam,
    DenseAdam,
    ParameterAdam,
    RowOptimizer,
    make_optimizer,
)
from streamer.model.rows.tables import EmbeddingTable

CPU = torch.device("cpu")
SIZE, DIM, RATE = 12, 5, 0.01
NAMES = ("adam", "adagrad", "sgd", "dense-adam")
CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # rounding of float32: a step of 1e-2 gathers 1e-7 or so

Step = tuple[Tensor, Tensor]
"""Touched rows and their gradients."""


def fading(memory: float) -> Adagrad:
    """Whose squares count 1 / e after this many updates."""
    optimizer = Adagrad()
    optimizer.keep = 1.0 - 1.0 / memory
    return optimizer


def table_for(optimizer: RowOptimizer) -> EmbeddingTable:
    table = EmbeddingTable(DIM, optimizer.slots, 0.1, 3, CPU, optimizer.numbers)
    table.grow(SIZE)
    return table


def steps_over(rows_of: Callable[[], Tensor], count: int, seed: int = 0) -> Iterator[Step]:
    """Gradients of very different sizes, so that a misplaced epsilon or power shows."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-9, 2, DIM)
    for _ in range(count):
        rows = rows_of()
        yield rows, torch.randn(len(rows), DIM, generator=generator) * scale


def all_rows() -> Tensor:
    return torch.arange(SIZE).flip(0)


def some_rows() -> Callable[[], Tensor]:
    """A few rows a step, in no order; row 0 never, row 1 only once."""
    generator = torch.Generator().manual_seed(1)
    first = [torch.tensor([4, 1, 7])]
    return lambda: first.pop() if first else 2 + torch.randperm(SIZE - 2, generator=generator)[:4]


def run(optimizer: RowOptimizer, steps: Iterable[Step]) -> EmbeddingTable:
    table = table_for(optimizer)
    for rows, gradient in steps:
        optimizer.apply(table, rows, gradient, RATE)
    return table


def run_torch(make: Callable[[list[Tensor]], torch.optim.Optimizer], steps: Iterable[Step]) -> Tensor:
    """torch's optimizer over the same weights; rows without a gradient have the gradient zero."""
    weight = table_for(DenseAdam()).weight.clone().requires_grad_()
    optimizer = make([weight])
    for rows, gradient in steps:
        weight.grad = torch.zeros_like(weight).index_add_(0, rows, gradient)
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("in_host_memory", [True, False], ids=["compiled", "gathered"])
class TestAdam:
    @pytest.fixture(autouse=True)
    def path(self, in_host_memory, monkeypatch):
        monkeypatch.setattr(optim, "in_host_memory", lambda tensor: in_host_memory)

    def test_each_row_follows_its_own_history_as_in_torch(self):
        steps = [*steps_over(all_rows, 100), *steps_over(some_rows(), 60)]
        found, start = run(Adam(), steps).weight, table_for(Adam()).weight
        for row in range(SIZE):
            weight = start[row].clone().requires_grad_()
            reference = torch.optim.Adam([weight], lr=RATE)
            for rows, gradient in steps:
                if row in rows:
                    weight.grad = gradient[rows == row][0]
                    reference.step()
            torch.testing.assert_close(found[row], weight.detach(), **CLOSE)

    def test_first_step_is_exact_to_a_few_parts_in_a_million(self):
        table = table_for(Adam())
        table.weight.zero_()
        Adam().apply(table, torch.tensor([0]), torch.ones(1, DIM), RATE)
        torch.testing.assert_close(table.weight[0], torch.full((DIM,), -RATE), rtol=1e-6, atol=0)

    def test_many_updates_need_no_correction_any_more(self):
        table = table_for(Adam())
        table.lines[:, -1].fill_(1e6)
        table.slot(0).fill_(0.5)
        table.slot(1).fill_(0.25)
        before = table.weight.clone()
        Adam().apply(table, torch.tensor([3]), torch.full((1, DIM), 0.5), RATE)
        torch.testing.assert_close(before[3] - table.weight[3], torch.full((DIM,), RATE), rtol=1e-4, atol=0)


OPTIMIZERS = [Adam(), Adagrad(), fading(5.0), DenseAdam(0.05)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: f"{type(one).__name__}{vars(one)}")
def test_the_compiled_and_the_gathered_path_agree_on_weights_state_and_counts(optimizer, monkeypatch):
    steps = list(steps_over(some_rows(), 100))
    compiled = run(optimizer, steps).lines
    monkeypatch.setattr(optim, "in_host_memory", lambda tensor: False)
    torch.testing.assert_close(run(optimizer, steps).lines[:SIZE], compiled[:SIZE], **CLOSE)


def test_adagrad_with_a_memory_never_stops_learning():
    optimizer, table = fading(50.0), table_for(Adagrad())
    row, gradient = torch.tensor([1]), torch.ones(1, DIM)
    for _ in range(1000):
        optimizer.apply(table, row, gradient, RATE)
    before = table.weight[1].clone()
    optimizer.apply(table, row, gradient, RATE)
    torch.testing.assert_close(before - table.weight[1], torch.full((DIM,), RATE / math.sqrt(50)), rtol=1e-3, atol=0)


@pytest.mark.parametrize("layout", ["transposed", "sliced"])
def test_adam_takes_gradients_of_any_memory_layout(layout):
    wide = torch.randn(SIZE, 2 * DIM, generator=torch.Generator().manual_seed(2))
    gradient = wide[:, :DIM] if layout == "sliced" else wide[:, :DIM].T.contiguous().T
    found = run(Adam(), [(all_rows(), gradient)])
    assert torch.equal(found.lines, run(Adam(), [(all_rows(), gradient.contiguous())]).lines)


class TestDenseAdam:
    @pytest.mark.parametrize("l2", [0.0, 0.05])
    def test_equals_torch_with_weight_decay_also_for_rows_without_gradient(self, l2):
        expected = run_torch(lambda p: torch.optim.Adam(p, lr=RATE, weight_decay=l2), steps_over(some_rows(), 500))
        found = run(DenseAdam(l2), steps_over(some_rows(), 500)).weight
        torch.testing.assert_close(found, expected, **CLOSE)

    def test_restart_continues_the_common_step_count(self):
        steps = list(steps_over(some_rows(), 20))
        whole, table = run(DenseAdam(0.05), steps), table_for(DenseAdam())
        table.load_state(run(DenseAdam(0.05), steps[:9]).state())
        for rows, gradient in steps[9:]:
            DenseAdam(0.05).apply(table, rows, gradient, RATE)
        assert torch.equal(table.weight, whole.weight)


TORCH = {
    "adagrad": (fading(float("inf")), lambda p: torch.optim.Adagrad(p, lr=RATE, eps=EPSILON)),
    "sgd": (make_optimizer("sgd"), lambda p: torch.optim.SGD(p, lr=RATE)),
}


@pytest.mark.parametrize("rows_of", [lambda: all_rows, some_rows], ids=["all", "some"])
@pytest.mark.parametrize("name", TORCH)
def test_others_equal_torch(name, rows_of):
    optimizer, make = TORCH[name]
    found = run(optimizer, steps_over(rows_of(), 200)).weight
    torch.testing.assert_close(found, run_torch(make, steps_over(rows_of(), 200)), **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_touched_is_no_error(name):
    run(make_optimizer(name), [(torch.empty(0, dtype=torch.int64), torch.empty(0, DIM))])


def test_parameter_adam_equals_torch():
    generator = torch.Generator().manual_seed(0)
    ours = {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours.values()]
    reference, optimizer = torch.optim.Adam(theirs, lr=RATE), ParameterAdam(ours)
    for k in range(40):
        for mine, other in zip(ours.values(), theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        optimizer.step(RATE, k + 1)
        reference.step()
    for mine, other in zip(ours.values(), theirs, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


SHAPES = {"scale": (), "recency": (7,), "layer": (4, 3)}


class TestClippedDenseGradients:
    def stepped(self, gradient: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
        """A parameter after a step, and the second moment that the step left."""
        parameter = torch.nn.Parameter(torch.ones(2))
        adam = ParameterAdam({"w": parameter})
        parameter.grad = torch.tensor(gradient)
        adam.step(RATE, 1)
        return parameter.detach(), adam.moments["w"][1]

    @pytest.mark.parametrize(("gradient", "clipped"), [([3e6, 4e6], [6, 8]), ([3.0, 4.0], [3, 4])])
    def test_only_a_large_gradient_is_clipped_so_that_it_does_not_stop_the_steps_after_it(self, gradient, clipped):
        _, second = self.stepped(gradient)
        assert second.tolist() == pytest.approx([(1 - BETA2) * g**2 for g in clipped])

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
    def test_one_that_is_not_finite_changes_nothing(self, bad):
        parameter, second = self.stepped([bad, 1.0])
        assert parameter.tolist() == [1.0, 1.0]
        assert second.tolist() == [0.0, 0.0]
