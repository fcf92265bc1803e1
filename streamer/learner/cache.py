"""The cache of items that are resampled often, drawn anew after each step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamer.learner.state import State
from streamer.model.batch import Rows


def refresh_cache(
    state: State, items: Rows, counts: NDArray[np.float32], counted: bool
) -> None:
    """Count what a step resampled, and draw the next cache, if the method has one.

    Args:
        state: what is learned.
        items: that were resampled; an item may occur twice.
        counts: how often each was.
        counted: whether they are added to the occurrence.
    """
    method = state.trainer.method
    if not method.resamples:
        return
    state.changes.mark("items", items)
    if counted:
        state.occurrence.add(items, counts)
    if method.extra != "cache":
        return

    size = state.settings.cache_size
    if state.settings.cache_scope == "touched":
        touched = np.unique(items)
        state.cache = state.occurrence.draw_among(touched, size, state.draws)
    else:
        drawn = state.occurrence.draw(size, state.draws, state.items.size)
        state.cache = drawn[state.items.is_used(drawn)]
