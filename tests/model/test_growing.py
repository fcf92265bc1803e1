"""Growing arrays: capacities are powers of two, and what was there stays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.model.rows.growing import SMALLEST_CAPACITY, capacity_for, grown


@given(size=st.integers(0, 1 << 40), current=st.sampled_from([0, 1 << 10, 1 << 20, 1 << 30]))
def test_capacity_never_shrinks_and_is_the_smallest_power_of_two_that_fits(size, current):
    capacity = capacity_for(size, current)
    assert capacity >= max(size, current)
    assert capacity & (capacity - 1) == 0
    assert capacity in (current, SMALLEST_CAPACITY) or capacity < 2 * size


@pytest.mark.parametrize("fill", [0, -1, 2.5])
def test_grown_array_keeps_its_rows_and_fills_the_new_ones(fill):
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    larger = grown(array, 4, fill)
    assert larger.dtype == array.dtype
    assert larger.shape == (SMALLEST_CAPACITY, 2)
    np.testing.assert_array_equal(larger[:3], array)
    assert (larger[3:] == fill).all()
    assert grown(larger, SMALLEST_CAPACITY) is larger
