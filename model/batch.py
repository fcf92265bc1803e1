"""What a training step is given: a micro-batch, and the view of the stream that its
sampler needs. All on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
"""Numbers of table rows."""
Recent = NDArray[np.int32]
"""[B, L] item rows, most recent first, filled up with -1."""
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Batch:
    """B events, as rows of the tables.

    Args:
        users: [B] user rows.
        items: [B] item rows: the positives.
        recent: [B, L] the last distinct items of each event's user, as of the event;
            None if the towers use none.
        times_s: [B] seconds since the epoch; None if nobody needs them.
        user_codes: [B, C] categories of each event's user; None: look them up by the
            user's row.
        weights: [B] how much each event counts, at least 0; None: 1 each.
    """

    users: Rows
    items: Rows
    recent: Recent | None = None
    times_s: Rows | None = None
    user_codes: Rows | None = None
    weights: Floats | None = None

    def __len__(self) -> int:
        return len(self.items)

    def only(self, events: Rows) -> Batch:
        """Some of the events."""
        found: dict[str, Any] = {}
        for column in fields(self):
            values = getattr(self, column.name)
            found[column.name] = None if values is None else values[events]
        return Batch(**found)


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
        cache_draws: log of the probability with which items are drawn into the cache;
            None if it is not known.
        is_used: which of some item rows have an item; None if all have.
    """

    popularity: LogPopularity
    cache: Rows
    cache_draws: LogPopularity | None = None
    is_used: Callable[[Rows], NDArray[np.bool_]] | None = None
