"""Streaming estimates of each item's share of the events: exact counts, or hash arrays
of fixed size.

Belongs here: an estimate that counts items as they come and returns the logarithm of
their share. May import: `model.batch`, `model.growing`, `model.jit`.
"""

from streamer.model.popularity.exact import ExactPopularity
from streamer.model.popularity.hashed import HashPopularity

PopularityEstimate = ExactPopularity | HashPopularity
"""Learns from the stream how large a share of the events each item has."""


__all__ = ["ExactPopularity", "HashPopularity", "PopularityEstimate"]
