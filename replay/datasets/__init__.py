"""Logs of the past as streams: formats, filters, and an order that a seed determines.

with open_log("loc-gowalla_totalCheckins.txt.gz", "gowalla", LogOptions(min_user_events=10)) as log:
    for events in log.batches():
        ...
"""

from replay.datasets.base import DatasetFormat
from replay.datasets.interactions import Interactions
from replay.datasets.log import Log
from replay.datasets.opening import DATASETS, open_log
from replay.datasets.options import LogOptions

__all__ = ["DATASETS", "DatasetFormat", "Interactions", "Log", "LogOptions", "open_log"]
