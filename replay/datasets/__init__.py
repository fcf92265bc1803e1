"""Offline logs as streams of events: a reader for each format, filters, and an order
that a seed determines.

Belongs here: whatever knows a file format, or turns files into `Events`; topics, paces
and methods do not. May import: `streamer.event`, `streamer.errors`, `replay.events`,
`replay.settings`, DuckDB; nothing else of `replay`, no torch. Whatever is wrong with a
log is a SourceError that says where and what to try, with a setting a SettingsError.
"""

from streamer.replay.datasets.base import DatasetFormat
from streamer.replay.datasets.formats import DATASETS, LogSample, open_log, sample_log
from streamer.replay.datasets.log import Interactions, Log
from streamer.replay.settings import LogSettings

__all__ = [
    "DATASETS",
    "DatasetFormat",
    "Interactions",
    "Log",
    "LogSample",
    "LogSettings",
    "open_log",
    "sample_log",
]
