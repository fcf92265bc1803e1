"""The choice of the best candidates, against a sort."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamer.learner.scorer import _best

SCORES = st.sampled_from([np.nan, -np.inf, np.inf, -1.0, 0.0, 0.5, 1.0, 2.0])


@given(st.lists(SCORES, max_size=60), st.sets(st.integers(0, 60)), st.integers(1, 70))
def test_the_best_that_are_not_left_out_come_in_order_and_ties_in_theirs(scores, left_out, k):
    items = np.arange(len(scores), dtype=np.int32)
    found = _best(items, np.array(scores, np.float32), np.array(sorted(left_out), np.int64), k)
    allowed = [n for n, score in enumerate(scores) if np.isfinite(score) and n not in left_out]
    assert found.tolist() == sorted(allowed, key=lambda n: -scores[n])[:k]
