"""Prequential evaluation: events are ranked, then trained, in the production pipeline
itself.

Belongs here: ranking a batch before it is trained, hit rates by slice, trivial
recommenders beside it (`baselines`). May import: `metrics`, `learner` and rooms below
them.
"""

from streamer.evaluation.baselines import BASELINES, LINE_BASELINES
from streamer.evaluation.delay import Delay, DelayedLearner
from streamer.evaluation.evaluator import (
    MODEL,
    RETRIEVED,
    WITHOUT_TOWERS,
    BestBaseline,
    Prequential,
    TowersShare,
)
from streamer.evaluation.metrics import METRICS, MISS, Figure, Tally
from streamer.evaluation.slices import SLICES

__all__ = [
    "BASELINES",
    "LINE_BASELINES",
    "METRICS",
    "MISS",
    "MODEL",
    "RETRIEVED",
    "SLICES",
    "WITHOUT_TOWERS",
    "BestBaseline",
    "Delay",
    "DelayedLearner",
    "Figure",
    "Prequential",
    "Tally",
    "TowersShare",
]
