"""Gowalla's check-ins as SNAP has them: user, time, latitude, longitude, location; tabs between, no header."""

from __future__ import annotations

import re
from collections.abc import Sequence

from streamer.replay.datasets import times
from streamer.replay.datasets.base import DatasetFormat, Opened
from streamer.replay.datasets.delimited import delimited, has_header, most_lines, split
from streamer.replay.datasets.files import Peek
from streamer.replay.datasets.layout import Known, Layout, layout_of

_LAYOUT = ("user_id", "timestamp", "latitude", "longitude", "location_id")
_KNOWN = Known(("user_id", "user"), ("location_id", "item_id"), ("timestamp", "time"))
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def _gowalla(log: Opened) -> Layout:
    return layout_of(delimited(log, _KNOWN, "\t", _LAYOUT), _KNOWN, log.options, log.where, times.iso)


def _is_gowalla(peek: Peek) -> bool:
    return _is_check_in(split(peek.first, "\t"))


def _may_be_gowalla(peek: Peek) -> bool:
    return has_header(peek, "\t", "location_id") or most_lines(peek, "\t", _is_check_in)


def _is_check_in(cells: Sequence[str]) -> bool:
    return len(cells) == 5 and _ISO.fullmatch(cells[1]) is not None


GOWALLA = DatasetFormat(
    "gowalla",
    "Gowalla check-ins (SNAP): loc-gowalla_totalCheckins.txt.",
    _gowalla,
    (("loc-gowalla_totalcheckins*.txt",),),
    _is_gowalla,
    _may_be_gowalla,
)
