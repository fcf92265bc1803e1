"""Streaming estimates of each item's share of the events."""

from streamer.model.popularity.base import Popularity, estimation_error
from streamer.model.popularity.exact import ExactPopularity
from streamer.model.popularity.hashed import HashPopularity

__all__ = ["ExactPopularity", "HashPopularity", "Popularity", "estimation_error"]
