"""New ids get a row when they have come often enough."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.admission import Admission


@given(st.lists(st.sampled_from("abcdef"), max_size=60), st.integers(1, 5), st.integers(1, 7))
def test_an_id_is_admitted_with_its_nth_event(ids, after, batch_size):
    sketch = Admission(after)
    found = [sketch.admit(ids[k : k + batch_size]).tolist() for k in range(0, len(ids), batch_size)]
    expected = [ids[: k + 1].count(raw) >= after for k, raw in enumerate(ids)]
    assert [admitted for part in found for admitted in part] == expected


def test_one_off_ids_are_kept_out_for_ever():
    sketch = Admission(after=2, slots=1 << 12)
    shares = [sketch.admit([f"bot-{k}-{n}" for n in range(512)]).mean() for k in range(100)]
    assert max(shares) < 0.5
    assert np.mean(shares[50:]) < 0.3


@pytest.mark.parametrize("after", [1, 255])
def test_a_counter_does_not_overflow(after):
    sketch = Admission(after)
    assert sketch.admit(["tea"] * 600).tolist() == [k + 1 >= after for k in range(600)]
