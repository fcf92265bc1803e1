"""Prequential evaluation: events are ranked, then trained, on the production line itself."""

from streamer.prequential.delay import Delay, DelayedLearner
from streamer.prequential.evaluator import MODEL, Prequential
from streamer.prequential.floors import FLOORS
from streamer.prequential.metrics import METRICS, MISS, Figure, Tally
from streamer.prequential.slices import SLICES

__all__ = [
    "FLOORS",
    "METRICS",
    "MISS",
    "MODEL",
    "SLICES",
    "Delay",
    "DelayedLearner",
    "Figure",
    "Prequential",
    "Tally",
]
