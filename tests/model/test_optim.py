"""Row optimizers against torch's own, and against Adam written out for one number at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
from torch import Tensor

from streamer.model import optim
from streamer.model.optim import (
    BETA1,
    BETA2,
    EPSILON,
    Adagrad,
    Adam,
    DenseAdam,
    ParameterAdam,
    RowAdagrad,
    RowOptimizer,
    make_optimizer,
)
from streamer.model.rows.tables import EmbeddingTable

CPU = torch.device("cpu")
SIZE, DIM, RATE = 12, 5, 0.01
NAMES = ("adam", "adagrad", "row-adagrad", "sgd", "dense-adam")
CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # rounding of float32: a step of 1e-2 gathers 1e-7 or so

Step = tuple[Tensor, Tensor]
"""Touched rows and their gradients."""


class GatheredAdam(Adam):
    """Adam by the path that other devices take."""

    def apply(self, table: EmbeddingTable, rows: Tensor, gradient: Tensor, rate: float) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(optim, "in_host_memory", lambda tensor: False)
            super().apply(table, rows, gradient, rate)


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


def adam_of_one(weight: float, gradients: Iterable[float]) -> float:
    """Adam as in its paper, in double precision."""
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        weight -= RATE * (m / (1 - BETA1**t)) / (math.sqrt(v / (1 - BETA2**t)) + EPSILON)
    return weight


@pytest.mark.parametrize("optimizer", [Adam(), GatheredAdam()], ids=["compiled", "gathered"])
class TestAdam:
    def test_equals_torch_when_every_row_is_touched_at_every_step(self, optimizer):
        expected = run_torch(lambda p: torch.optim.Adam(p, lr=RATE), steps_over(all_rows, 300))
        found = run(optimizer, steps_over(all_rows, 300)).weight
        torch.testing.assert_close(found, expected, **CLOSE)

    def test_each_row_follows_its_own_history(self, optimizer):
        steps = list(steps_over(some_rows(), 60))
        found, start = run(optimizer, steps).weight, table_for(optimizer).weight
        for row in range(SIZE):
            mine = torch.stack([torch.zeros(DIM), *(g[rows == row][0] for rows, g in steps if row in rows)])[1:]
            slow = [adam_of_one(start[row, k].item(), mine[:, k].tolist()) for k in range(DIM)]
            torch.testing.assert_close(found[row], torch.tensor(slow), **CLOSE)

    def test_late_row_starts_like_one_of_the_first_step(self, optimizer):
        table, gradient = table_for(optimizer), torch.full((1, DIM), 1e-3)
        for _ in range(100):
            optimizer.apply(table, torch.tensor([2]), gradient, RATE)
        before = table.weight[5].clone()
        optimizer.apply(table, torch.tensor([5]), gradient, RATE)
        torch.testing.assert_close(before - table.weight[5], torch.full((DIM,), RATE), rtol=1e-4, atol=0)

    def test_first_step_is_exact_to_a_few_parts_in_a_million(self, optimizer):
        table = table_for(optimizer)
        table.weight.zero_()
        optimizer.apply(table, torch.tensor([0]), torch.ones(1, DIM), RATE)
        torch.testing.assert_close(table.weight[0], torch.full((DIM,), -RATE), rtol=1e-6, atol=0)

    def test_many_updates_need_no_correction_any_more(self, optimizer):
        table = table_for(optimizer)
        table.lines[:, -1].fill_(1e6)
        table.slot(0).fill_(0.5)
        table.slot(1).fill_(0.25)
        before = table.weight.clone()
        optimizer.apply(table, torch.tensor([3]), torch.full((1, DIM), 0.5), RATE)
        torch.testing.assert_close(before[3] - table.weight[3], torch.full((DIM,), RATE), rtol=1e-4, atol=0)

    def test_zero_gradient_of_a_new_row_does_not_move_it(self, optimizer):
        table = table_for(optimizer)
        before = table.weight.clone()
        optimizer.apply(table, torch.tensor([3]), torch.zeros(1, DIM), RATE)
        assert torch.equal(table.weight, before)


OPTIMIZERS = [Adam(), Adagrad(None), Adagrad(5.0), RowAdagrad(None), RowAdagrad(5.0), DenseAdam(0.05)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: f"{type(one).__name__}{vars(one)}")
def test_the_compiled_and_the_gathered_path_agree_on_weights_state_and_counts(optimizer, monkeypatch):
    steps = list(steps_over(some_rows(), 100))
    compiled = run(optimizer, steps).lines
    monkeypatch.setattr(optim, "in_host_memory", lambda tensor: False)
    torch.testing.assert_close(run(optimizer, steps).lines[:SIZE], compiled[:SIZE], **CLOSE)


@pytest.mark.parametrize("memory", [None, 5.0])
def test_row_adagrad_has_one_rate_a_row(memory):
    optimizer, squares = RowAdagrad(memory), torch.zeros(SIZE, dtype=torch.float64)
    steps, expected = list(steps_over(some_rows(), 100)), table_for(optimizer).weight.double()
    for rows, gradient in steps:
        squares[rows] = optimizer.keep * squares[rows] + gradient.double().square().mean(1)
        expected[rows] -= RATE * gradient / (squares[rows].sqrt() + optim.EPSILON).unsqueeze(1)
    found = run(optimizer, steps)
    torch.testing.assert_close(found.weight.double(), expected, rtol=1e-4, atol=1e-5)
    assert found.lines.shape[1] == DIM + 1


def test_adagrad_with_a_memory_never_stops_learning():
    optimizer, table = Adagrad(memory=50), table_for(Adagrad())
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

    def test_l2_pulls_rows_without_gradient_to_zero(self):
        table = run(DenseAdam(0.05), steps_over(some_rows(), 500))
        assert table.weight[0].abs().max() < table_for(DenseAdam()).weight[0].abs().max() / 10

    def test_restart_continues_the_common_step_count(self):
        steps = list(steps_over(some_rows(), 20))
        whole, table = run(DenseAdam(0.05), steps), table_for(DenseAdam())
        table.load_state(run(DenseAdam(0.05), steps[:9]).state())
        for rows, gradient in steps[9:]:
            DenseAdam(0.05).apply(table, rows, gradient, RATE)
        assert torch.equal(table.weight, whole.weight)


TORCH = {
    "adagrad": (Adagrad(memory=None), lambda p: torch.optim.Adagrad(p, lr=RATE, eps=EPSILON)),
    "sgd": (make_optimizer("sgd"), lambda p: torch.optim.SGD(p, lr=RATE)),
}


@pytest.mark.parametrize("rows_of", [lambda: all_rows, some_rows], ids=["all", "some"])
@pytest.mark.parametrize("name", TORCH)
def test_others_equal_torch(name, rows_of):
    optimizer, make = TORCH[name]
    found = run(optimizer, steps_over(rows_of(), 200)).weight
    torch.testing.assert_close(found, run_torch(make, steps_over(rows_of(), 200)), **CLOSE)


@pytest.mark.parametrize("name", ["adam", "adagrad", "row-adagrad", "sgd"])
def test_untouched_rows_do_not_move_and_keep_their_state(name):
    optimizer = make_optimizer(name)
    table = run(optimizer, steps_over(all_rows, 3))
    before = table.lines.clone()
    optimizer.apply(table, torch.tensor([7, 2]), torch.ones(2, DIM), RATE)
    untouched = [row for row in range(len(before)) if row not in (2, 7)]
    assert torch.equal(table.lines[untouched], before[untouched])
    assert not torch.equal(table.lines[[2, 7]], before[[2, 7]])


def test_adam_counts_the_updates_of_each_row():
    table, optimizer = table_for(Adam()), Adam()
    for rows in ([0], [3, 0], [0, 5, 3]):
        optimizer.apply(table, torch.tensor(rows), torch.ones(len(rows), DIM), RATE)
    assert table.lines[:7, -1].tolist() == [3, 0, 0, 2, 0, 1, 0]


@pytest.mark.parametrize("name", NAMES)
class TestEveryOptimizer:
    def test_order_of_the_rows_does_not_matter(self, name):
        steps = list(steps_over(some_rows(), 10))
        reversed_rows = [(rows.flip(0), gradient.flip(0)) for rows, gradient in steps]
        assert torch.equal(run(make_optimizer(name), steps).lines, run(make_optimizer(name), reversed_rows).lines)

    def test_state_survives_growth_of_the_table(self, name):
        steps, optimizer = list(steps_over(some_rows(), 10)), make_optimizer(name)
        whole, grown = run(optimizer, steps), run(optimizer, steps[:5])
        grown.grow(1024)  # as many as its memory holds
        for rows, gradient in steps[5:]:
            optimizer.apply(grown, rows, gradient, RATE)
        assert torch.equal(grown.lines[:SIZE], whole.lines[:SIZE])
        before = grown.weight[1023].clone()
        optimizer.apply(grown, torch.tensor([1023]), torch.ones(1, DIM), RATE)
        assert not torch.equal(grown.weight[1023], before)

    def test_weights_descend_to_the_minimum_of_a_parabola(self, name):
        optimizer = make_optimizer(name)
        table, rows = table_for(optimizer), torch.arange(3)
        table.weight.fill_(0.1)
        rate = {"sgd": 0.1, "adagrad": 0.1, "row-adagrad": 0.1}.get(name, 0.003)
        for _ in range(200):
            optimizer.apply(table, rows, table.weight[rows] - 0.02, rate)
        torch.testing.assert_close(table.weight[rows], torch.full((3, DIM), 0.02), rtol=0, atol=1e-3)

    def test_nothing_touched_is_no_error(self, name):
        run(make_optimizer(name), [(torch.empty(0, dtype=torch.int64), torch.empty(0, DIM))])


def test_unknown_name_lists_the_choices():
    with pytest.raises(ValueError, match="no optimizer 'lion'; there are adam, adagrad, row-adagrad, sgd, dense-adam"):
        make_optimizer("lion")


def test_parameter_adam_equals_torch_and_survives_a_restart():
    generator = torch.Generator().manual_seed(0)
    ours = {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours.values()]
    reference, optimizer = torch.optim.Adam(theirs, lr=RATE), ParameterAdam(ours)
    for k in range(40):
        for mine, other in zip(ours.values(), theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        optimizer.step(RATE)
        reference.step()
        if k == 20:
            state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
            optimizer = ParameterAdam(ours)
            optimizer.load_state(state)
    for mine, other in zip(ours.values(), theirs, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


SHAPES = {"scale": (), "recency": (7,), "layer": (4, 3)}


class TestClippedDenseGradients:
    def stepped(self, gradient: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
        """A parameter after a step, and the second moment that the step left."""
        parameter = torch.nn.Parameter(torch.ones(2))
        adam = ParameterAdam({"w": parameter})
        parameter.grad = torch.tensor(gradient)
        adam.step(RATE)
        return parameter.detach(), adam.moments["w"][1]

    def test_a_large_gradient_does_not_stop_the_steps_after_it(self):
        _, second = self.stepped([3e6, 4e6])
        assert second.tolist() == pytest.approx([(1 - BETA2) * 36, (1 - BETA2) * 64])

    def test_a_usual_gradient_is_left_as_it_is(self):
        _, second = self.stepped([3.0, 4.0])
        assert second.tolist() == pytest.approx([(1 - BETA2) * 9, (1 - BETA2) * 16])

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
    def test_one_that_is_not_finite_changes_nothing(self, bad):
        parameter, second = self.stepped([bad, 1.0])
        assert parameter.tolist() == [1.0, 1.0]
        assert second.tolist() == [0.0, 0.0]
