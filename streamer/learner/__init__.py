"""Everything that is learned from a stream, and how one micro-batch changes it.

The class `Learner` is made of layers, one file each: `state.py` (what is learned, by
rows), `bounded.py` (what goes), `described.py` (features and catalogue), `learner.py`
(a micro-batch). Belongs here: what changes with an event, and what of it is saved. May
import: `model`, `ingest`, `group`, the files of checkpoints and rooms below; never
sources or the store.
"""

from streamer.learner.learner import Evaluator, Learned, Learner
from streamer.learner.state import (
    OF_USERS,
    checkpoint_meta,
    checkpoint_settings,
    learner_settings,
)

__all__ = [
    "OF_USERS",
    "Evaluator",
    "Learned",
    "Learner",
    "checkpoint_meta",
    "checkpoint_settings",
    "learner_settings",
]
