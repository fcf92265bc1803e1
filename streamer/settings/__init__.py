"""Settings of a run: `RunSettings` holds all settings of `streamer run`, by the same
names everywhere.

Each group is a class of its own, so that a part of the line asks for its own settings
only. The model's groups are in `streamer.model.settings`. What a setting is, and how
text becomes one: `streamer.model.setting`. Belongs here: a setting of the line, with
default, range and meaning. May import: `model` only.
"""

from streamer.settings.events import FIELDS, EventSettings
from streamer.settings.run import (
    GroupSettings,
    OutputSettings,
    PipelineSettings,
    PublishSettings,
    RunSettings,
    SharingSettings,
)
from streamer.settings.stream import StreamSettings

__all__ = [
    "FIELDS",
    "EventSettings",
    "GroupSettings",
    "OutputSettings",
    "PipelineSettings",
    "PublishSettings",
    "RunSettings",
    "SharingSettings",
    "StreamSettings",
]
