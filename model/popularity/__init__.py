"""Streaming estimates of each item's share of the events."""

from model.popularity.base import Popularity, estimation_error
from model.popularity.exact import ExactPopularity
from model.popularity.hashed import HashPopularity

__all__ = ["ExactPopularity", "HashPopularity", "Popularity", "estimation_error"]
