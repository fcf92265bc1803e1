"""Prequential evaluation: events are ranked, then trained, in the production pipeline
itself.

Belongs here: ranking a batch before it is trained, hit rates by slice, trivial
recommenders beside it (`floors`). May import: `metrics`, `learner` and rooms below
them.
"""

from streamer.prequential.delay import Delay, DelayedLearner
from streamer.prequential.evaluator import (
    MODEL,
    RETRIEVED,
    WITHOUT_TOWERS,
    BestFloor,
    Prequential,
    TowersShare,
)
from streamer.prequential.floors import FLOORS, LINE_FLOORS
from streamer.prequential.metrics import METRICS, MISS, Figure, Tally
from streamer.prequential.slices import SLICES

__all__ = [
    "FLOORS",
    "LINE_FLOORS",
    "METRICS",
    "MISS",
    "MODEL",
    "RETRIEVED",
    "SLICES",
    "WITHOUT_TOWERS",
    "BestFloor",
    "Delay",
    "DelayedLearner",
    "Figure",
    "Prequential",
    "Tally",
    "TowersShare",
]
