"""Streaming estimates of each item's share of the events: exact counts, or hash arrays
of fixed size.

Belongs here: an estimate that counts items as they come and returns the logarithm of
their share. May import: `model.batch`, `model.growing`, `model.jit`.
"""

import numpy as np

from streamer.model.batch import LogPopularity, Rows
from streamer.model.popularity.exact import ExactPopularity
from streamer.model.popularity.hashed import HashPopularity

PopularityEstimate = ExactPopularity | HashPopularity
"""Learns from the stream how large a share of the events each item has."""


def estimation_error(
    estimate: LogPopularity,
    truth: LogPopularity,
    rows: Rows,
) -> float:
    """Mean absolute error of log popularity over some items: 0.7 means off by a factor
    of two on average.
    """
    if not len(rows):
        return 0.0
    return float(np.abs(estimate.log_pop(rows) - truth.log_pop(rows)).mean())


__all__ = [
    "ExactPopularity",
    "HashPopularity",
    "PopularityEstimate",
    "estimation_error",
]
