"""Online learning of recommender retrievers from event streams.

    from streamer import Learner

    learner = Learner(dim=32)
    learner.learn([("ann", "tea"), ("ann", "milk"), ("bob", "tea")])
    learner.recommend("bob", k=3)

`docs/python.md` describes the public names below. They are imported when they are used:
`import streamer` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

DISTRIBUTION = "streamer-recommender"
"""What pip calls the package that `import streamer` finds."""

PUBLIC = {
    "Learner": "streamer.api",
    "LearnerSettings": "streamer.model.settings",
    "RunSettings": "streamer.settings",
    "METHODS": "streamer.model.losses",
    "Pipeline": "streamer.pipeline",
    "build_pipeline": "streamer.build",
    "KafkaSource": "streamer.sources.kafka.source",
    "KafkaSettings": "streamer.sources.kafka.settings",
    "EmbeddedSource": "streamer.sources.embedded.source",
    "EmbeddedLog": "streamer.sources.embedded.log",
    "FileSource": "streamer.sources.files",
    "ssl_loss": "streamer.model.losses.functional",
    "ssl_pop_loss": "streamer.model.losses.functional",
    "mns_loss": "streamer.model.losses.functional",
    "bir_loss": "streamer.model.losses.functional",
    "xir_loss": "streamer.model.losses.functional",
    "StreamingPopularity": "streamer.model.streaming",
    "OccurrenceCache": "streamer.model.streaming",
    "StreamerError": "streamer.errors",
    "EventError": "streamer.errors",
}
"""Public name -> the module that has it."""

__all__ = list(PUBLIC)

if TYPE_CHECKING:
    from streamer.api import Learner as Learner
    from streamer.build import build_pipeline as build_pipeline
    from streamer.errors import EventError as EventError
    from streamer.errors import StreamerError as StreamerError
    from streamer.model.losses import METHODS as METHODS
    from streamer.model.losses.functional import bir_loss as bir_loss
    from streamer.model.losses.functional import mns_loss as mns_loss
    from streamer.model.losses.functional import ssl_loss as ssl_loss
    from streamer.model.losses.functional import ssl_pop_loss as ssl_pop_loss
    from streamer.model.losses.functional import xir_loss as xir_loss
    from streamer.model.settings import LearnerSettings as LearnerSettings
    from streamer.model.streaming import OccurrenceCache as OccurrenceCache
    from streamer.model.streaming import StreamingPopularity as StreamingPopularity
    from streamer.pipeline import Pipeline as Pipeline
    from streamer.settings import RunSettings as RunSettings
    from streamer.sources.embedded.log import EmbeddedLog as EmbeddedLog
    from streamer.sources.embedded.source import EmbeddedSource as EmbeddedSource
    from streamer.sources.files import FileSource as FileSource
    from streamer.sources.kafka.settings import KafkaSettings as KafkaSettings
    from streamer.sources.kafka.source import KafkaSource as KafkaSource


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(
            f"module 'streamer' has no attribute {name!r}; public are {', '.join(PUBLIC)}"
        )
    return getattr(importlib.import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])
