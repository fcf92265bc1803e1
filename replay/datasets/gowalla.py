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

    def recognises(self, first_lines: FirstLines) -> bool:
        return _is_check_in(first_lines.cells("\t"))

    def may_have(self, first_lines: FirstLines) -> bool:
        return first_lines.name_columns("\t", "location_id") or first_lines.are_mostly("\t", _is_check_in)


def _is_check_in(cells: Sequence[str]) -> bool:
    return len(cells) == 5 and _TIME.fullmatch(cells[1]) is not None
