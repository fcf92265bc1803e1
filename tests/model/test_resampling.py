"""Laws of the resamplers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamer.model.resampling import multinomial, systematic

weights = st.lists(st.floats(0.0, 50.0, width=32), min_size=1, max_size=40).filter(lambda w: sum(w) > 1e-3)


@given(weights, st.integers(1, 5000), st.floats(0, 0.99951171875, width=32))
def test_systematic_counts_sum_to_m_and_stay_within_one_of_expectation(w, m, r):
    w64 = torch.tensor([w], dtype=torch.float64)
    n = systematic(w64, m, torch.tensor([r], dtype=torch.float64))
    expected = m * w64 / w64.sum()
    assert n.sum().item() == m
    assert (n >= 0).all()
    assert ((n - expected).abs() < 1 + 1e-9 * m).all()
    assert (n[w64 == 0] == 0).all()
    in_float32 = systematic(torch.tensor([w]), m, torch.tensor([r]))
    assert in_float32.sum().item() == m
    assert (in_float32 >= 0).all()


def test_systematic_is_unbiased():
    w = torch.tensor([[0.1, 3.0, 0.0, 0.77, 1.3]], dtype=torch.float64)
    grid = 20_000
    offsets = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    mean = systematic(w.expand(grid, -1), 7, offsets).mean(0)
    torch.testing.assert_close(mean, 7 * w[0] / w.sum(), atol=2 / grid, rtol=0)


def test_multinomial_is_unbiased_and_has_the_binomial_variance():
    w = torch.tensor([[0.1, 3.0, 0.0, 0.77, 1.3]], dtype=torch.float64)
    rows, m = 40_000, 7
    n = multinomial(w.expand(rows, -1), m, torch.Generator().manual_seed(0))
    p = w[0] / w.sum()
    assert (n.sum(1) == m).all()
    deviation = (m * p * (1 - p) / rows).sqrt()
    assert ((n.mean(0) - m * p).abs() <= 4.5 * deviation).all()
    torch.testing.assert_close(n.var(0), m * p * (1 - p), rtol=0.05, atol=1e-9)


@pytest.mark.parametrize("resample", ["systematic", "multinomial"])
def test_a_row_without_weight_draws_nothing_and_a_column_without_weight_is_never_drawn(resample):
    w = torch.zeros(2, 6)
    w[1, 2:4] = 1.0
    if resample == "systematic":
        n = systematic(w, 5, torch.tensor([0.3, 0.9]))
    else:
        n = multinomial(w, 5, torch.Generator().manual_seed(0))
    assert n[0].sum() == 0
    assert n[1].sum() == 5
    assert n[1, [0, 1, 4, 5]].sum() == 0
