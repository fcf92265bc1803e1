"""Offline logs as streams of events: a reader for each format, filters, and an order that a seed determines.

Belongs here: whatever knows a file format, or turns files into `Events`; topics, paces and methods do not.
May import: `streamer.event`, `streamer.errors`, `replay.events`, DuckDB; nothing else of `replay`, no torch.
"""

from streamer.replay.datasets.base import DatasetFormat
from streamer.replay.datasets.formats import DATASETS, open_log
from streamer.replay.datasets.log import Interactions, Log
from streamer.replay.datasets.options import LogOptions

__all__ = ["DATASETS", "DatasetFormat", "Interactions", "Log", "LogOptions", "open_log"]
