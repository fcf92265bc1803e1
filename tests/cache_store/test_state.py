"""What a trainer holds of the shared state."""

from __future__ import annotations

import numpy as np

from streamer.cache_store.contribution import Contribution, OffsetSpan
from streamer.cache_store.state import StoreSettings, TrainerState


def test_an_item_that_is_kept_counts_what_waits_while_its_row_was_only_just_assigned():
    """The server has given it a row that no pull has brought yet."""
    state = TrainerState(StoreSettings(), "trainer", "memory", lambda: 0.0)
    state.row_map.own_ids = ["known", "new"]
    state.add_ids(["known"], "")
    state.row_map.assign([0, 1], [0, 1])
    state.replica.counts[0] = 5
    state.retire(np.array([0, 1]), force=False)
    three = Contribution((OffsetSpan("t[0]", 0, 3),), np.zeros(3, np.int32), [0, 1, 2], np.array([1, 0, 1]))
    state.contribute(three)
    corrected = state.take_received().corrected
    assert corrected is not None
    assert corrected.items.tolist() == [0, 1]
    assert corrected.counts.tolist() == [5 + 1, 2]
