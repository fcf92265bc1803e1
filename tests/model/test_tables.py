"""Embedding tables: a row's numbers survive growth, its first weights depend on nothing but its number and the seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from streamer.model.rows.tables import EmbeddingTable

CPU = torch.device("cpu")
DIM, SLOTS = 3, 2
fifty = settings(max_examples=50)


def table_of(size: int = 0, *, dim: int = DIM, slots: int = SLOTS, std: float = 0.1, seed: int = 5) -> EmbeddingTable:
    table = EmbeddingTable(dim, slots, std, seed, CPU, numbers=1)
    table.grow(size)
    return table


def scribble(table: EmbeddingTable) -> Tensor:
    """Give every row its own weights and optimizer state; answers them."""
    with torch.no_grad():
        table.lines[: table.size] = torch.randn(table.size, table.lines.shape[1])
    return table.lines[: table.size].clone()


class TestGrowth:
    @pytest.mark.parametrize("size", [1025, 1100, 5000])
    def test_rows_keep_weights_and_optimizer_state(self, size):
        table = table_of(1000)
        before = scribble(table)
        table.grow(size)
        assert torch.equal(table.lines[:1000], before)
        assert table.size == len(table.weight) == size

    @fifty
    @given(sizes=st.lists(st.integers(0, 2500), min_size=1, max_size=8), seed=st.integers(0, 1 << 62))
    def test_first_weights_do_not_depend_on_how_the_table_grew(self, sizes, seed):
        stepwise = table_of(seed=seed)
        for size in sizes:
            stepwise.grow(size)
        at_once = table_of(max(sizes), seed=seed)
        assert torch.equal(stepwise.weight, at_once.weight)

    @fifty
    @given(loaded=st.integers(0, 300), size=st.integers(0, 300))
    def test_first_weights_do_not_depend_on_a_restart(self, loaded, size):
        restarted = table_of()
        restarted.load_state(table_of(loaded).state())
        restarted.grow(size)
        assert torch.equal(restarted.weight, table_of(max(loaded, size)).weight)

    def test_all_rows_differ(self):
        assert len(torch.unique(table_of(2000).weight, dim=0)) == 2000

    def test_first_weights_are_normal_with_the_given_deviation(self):
        weight = table_of(20_000, std=0.1).weight  # 60,000 numbers: relative error of the deviation 0.3%
        assert weight.mean().item() == pytest.approx(0, abs=5 * 0.1 / math.sqrt(weight.numel()))
        assert weight.std().item() == pytest.approx(0.1, rel=0.015)
        assert (weight.abs() < 0.1).float().mean().item() == pytest.approx(0.6827, abs=0.01)

    def test_one_by_one_growth_moves_the_table_a_logarithmic_number_of_times(self):
        table, places = table_of(), set()
        for size in range(1, 20_001):
            table.grow(size)
            places.add(table.lines.data_ptr())
        assert len(places) <= math.log2(20_000) - 8  # 1024, 2048, .. 32768


class TestClear:
    ROWS = (0, 1, 63, 64, 1500, 1999)

    def test_retired_rows_are_new_rows_again(self):
        table, rows = table_of(2000), np.array(self.ROWS)
        scribble(table)
        table.forget(rows[::-1])
        assert torch.equal(table.lines[rows], table_of(2000).lines[rows])


class TestViews:
    def test_weight_states_and_updates_are_disjoint_views_of_the_lines(self):
        table = table_of(4)
        for number, view in enumerate((table.weight, table.slot(0), table.slot(1), table.lines[:4, -1]), start=1):
            view.fill_(number)
        assert table.lines[:4].tolist() == [[1.0] * DIM + [2.0] * DIM + [3.0] * DIM + [4.0]] * 4


class TestState:
    @pytest.mark.parametrize(("dim", "slots"), [(DIM + 1, SLOTS), (DIM, SLOTS - 1)])
    def test_another_width_is_refused_and_changes_nothing(self, dim, slots):
        other, table, rows = table_of(9, dim=dim, slots=slots), table_of(5), np.arange(9)
        with pytest.raises(ValueError, match=r"do not fit .* dimension 3 and width 10: .* optimizer differs"):
            table_of().load_state(other.state())
        with pytest.raises(ValueError, match="do not fit"):
            table.put(rows, other.take(rows))
        assert torch.equal(table.weight, table_of(5).weight)

    def test_another_dimension_of_the_same_width_is_refused(self):
        adagrad, adam = table_of(5, dim=48, slots=1), table_of(dim=32, slots=2)
        assert adagrad.lines.shape[1] == adam.lines.shape[1]
        with pytest.raises(ValueError, match="rows of dimension 48 do not fit a table of dimension 32 and width 97"):
            adam.load_state(adagrad.state())
