"""Gowalla's check-ins as SNAP publishes them: user, time, latitude, longitude, location; tab-separated, no header.

    0   2010-10-19T23:55:27Z    30.2359091167   -97.7951395833  22847

The newest check-ins of a user stand first. Coordinates become features only if asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from streamer.replay.datasets.base import ISO_TIME, ColumnNames
from streamer.replay.datasets.delimited import DelimitedFormat
from streamer.replay.datasets.first_lines import FirstLines

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Gowalla(DelimitedFormat):
    """Gowalla check-ins (SNAP): loc-gowalla_totalCheckins.txt."""

    name = "gowalla"
    file_names = (("loc-gowalla_totalcheckins*.txt",),)
    delimiter = "\t"
    order = ("user_id", "timestamp", "latitude", "longitude", "location_id")
    names = ColumnNames(("user_id", "user"), ("location_id", "item_id"), ("timestamp", "time"))
    time_format = ISO_TIME

    def recognises(self, start: FirstLines) -> bool:
        return _is_check_in(start.cells("\t"))

    def accepts(self, start: FirstLines) -> bool:
        return start.has_header("\t", "location_id") or start.most_rows_match("\t", _is_check_in)


def _is_check_in(cells: Sequence[str]) -> bool:
    return len(cells) == 5 and _TIME.fullmatch(cells[1]) is not None
