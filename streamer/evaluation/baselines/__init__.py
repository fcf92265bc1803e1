"""Trivial recommenders: a method that loses to one of them is of no use.

Belongs here: one recommender a file, which learns from each event after it was ranked,
and what runs them. May import: `metrics.composition`, `model` and `evaluation.tally`.
"""

from __future__ import annotations

from streamer.evaluation.baselines.base import RECENT, Baseline, Stretch
from streamer.evaluation.baselines.counting import Counting
from streamer.evaluation.baselines.last_items import LastItems
from streamer.evaluation.baselines.popular import LAST_EVENTS, MostPopular
from streamer.evaluation.baselines.runner import BaselineRunner

__all__ = [
    "LAST_EVENTS",
    "LINE_BASELINES",
    "RECENT",
    "Baseline",
    "BaselineRunner",
    "Counting",
    "LastItems",
    "MostPopular",
    "Stretch",
]

LINE_BASELINES = ("most-popular", "last-items", "counting")
"""Those of a running line: the numbers of users and items bound their memory."""
