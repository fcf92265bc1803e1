"""Test, then train: the live hit rate of the model, beside trivial recommenders.

Belongs here: ranking events of a batch before it is trained, counting hits, and the
baselines that a running line shows. Slices, feedback delays and further baselines are
in `replay.evaluation`. May import: `metrics.composition`, `learner` and rooms below it.
"""

from streamer.evaluation.baselines import LINE_BASELINES
from streamer.evaluation.prequential import (
    BestBaseline,
    EventSampler,
    Prequential,
    TowersShare,
)
from streamer.evaluation.ranking import MODEL, WITHOUT_TOWERS
from streamer.evaluation.tally import Tally

__all__ = [
    "LINE_BASELINES",
    "MODEL",
    "WITHOUT_TOWERS",
    "BestBaseline",
    "EventSampler",
    "Prequential",
    "Tally",
    "TowersShare",
]
