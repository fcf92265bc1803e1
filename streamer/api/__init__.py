"""The face of a learner for programs and notebooks: `streamer.Learner`.

Belongs here: events in the forms that people have them in, ids that come back as they
went in, and evaluation on a frame. May import: `evaluation`, `recommender`, `learner`
and rooms below.
"""

from streamer.api.evaluation import Evaluation
from streamer.api.learner import Learner

__all__ = ["Evaluation", "Learner"]
