"""What a training step is given: a micro-batch, and the view of the stream that its sampler needs. All on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from streamer.model.co_occurrence import CoOccurrence

Rows = NDArray[np.int64]
"""Numbers of table rows."""
Recent = NDArray[np.int32]
"""[B, L] item rows, most recent first, filled up with -1."""
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    """B events, as rows of the tables.

    Args:
        users: [B] user rows.
        items: [B] item rows: the positives.
        recent: [B, L] the last distinct items of each event's user, as of the event; None if the model uses none.
    """

    users: Rows
    items: Rows
    recent: Recent | None = None

    def __len__(self) -> int:
        return len(self.items)


class LogPopularity(Protocol):
    """Anything that knows the share of the events that each item has."""

    def log_pop(self, rows: Rows) -> Floats:
        """log of each item's share of the events; finite for every row, seen or not."""
        ...


@dataclass(frozen=True, slots=True)
class StreamState:
    """What the sampler sees of the stream.

    Args:
        popularity: corrects the sampling bias.
        cache: [C] item rows of the cache, with repetitions; may be empty.
        prior: popularity that is part of the score itself; the correction's one if None.
        cache_draws: log of the probability with which items are drawn into the cache; None if it is not known.
        co_occurrence: neighbours of each item, as of before the batch; needed if the model uses them.
    """

    popularity: LogPopularity
    cache: Rows
    prior: LogPopularity | None = None
    cache_draws: LogPopularity | None = None
    co_occurrence: CoOccurrence | None = None
