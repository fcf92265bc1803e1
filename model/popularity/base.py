"""What every popularity estimate can do."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Floats, LogPopularity, Rows


class PopularityEstimate(LogPopularity, Protocol):
    """Learns from the stream how large a share of the events each item has."""

    def observe(self, items: Rows) -> None:
        """Take in a micro-batch of events, in order."""
        ...

    def log_pop(self, rows: Rows) -> Floats:
        """log of each item's share of the events; finite for every row, seen or not."""
        ...

    def forget(self, rows: Rows) -> None:
        """Retire items."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything, as arrays."""
        ...

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over what `state` returned."""
        ...


def estimation_error(
    estimate: LogPopularity, truth: LogPopularity, rows: Rows
) -> float:
    """Mean absolute error of log popularity over some items: 0.7 means off by a factor
    of two on average.
    """
    if not len(rows):
        return 0.0
    return float(np.abs(estimate.log_pop(rows) - truth.log_pop(rows)).mean())
