"""Logs of the past as streams: formats, filters, and an order that a seed determines.

with open_log("loc-gowalla_totalCheckins.txt.gz", "gowalla", LogOptions(min_user_events=10)) as log:
    for events in log.batches():
        ...
"""

from streamer.replay.datasets.base import DatasetFormat
from streamer.replay.datasets.interactions import Interactions
from streamer.replay.datasets.log import Log
from streamer.replay.datasets.opening import DATASETS, open_log
from streamer.replay.datasets.options import LogOptions

__all__ = ["DATASETS", "DatasetFormat", "Interactions", "Log", "LogOptions", "open_log"]
