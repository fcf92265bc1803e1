"""Everything that is learned from a stream, and how one micro-batch changes it.

An `OnlineLearner` is composed of `State` (what is learned, by rows), `Eviction` (what goes),
`Features` (features and catalogue) and `CandidateGenerator` (what the ranker ranks).
Belongs here: what changes with an event, and what of it is saved. May import: `model`,
`ingest`, the files of checkpoints and rooms below; never sources or the store.
"""

from streamer.learner.checkpoint import (
    checkpoint_meta,
    checkpoint_settings,
    learner_settings,
    newest_checkpoint,
)
from streamer.learner.eviction import Eviction
from streamer.learner.learner import OnlineLearner
from streamer.learner.state import State
from streamer.learner.step import Evaluator, Learned, StepEvents, StepHistory

__all__ = [
    "Evaluator",
    "Eviction",
    "Learned",
    "OnlineLearner",
    "State",
    "StepEvents",
    "StepHistory",
    "checkpoint_meta",
    "checkpoint_settings",
    "learner_settings",
    "newest_checkpoint",
]
