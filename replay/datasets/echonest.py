"""The Echo Nest's taste profiles: user, song, plays; tabs between, no header, no time. Plays stand for a rating."""

from __future__ import annotations

import re

from streamer.replay.datasets.base import DatasetFormat, Opened
from streamer.replay.datasets.delimited import delimited, has_header, is_number, most_lines, split
from streamer.replay.datasets.files import Peek
from streamer.replay.datasets.layout import Known, Layout, layout_of

_LAYOUT = ("user_id", "song_id", "play_count")
_KNOWN = Known(("user_id", "user"), ("song_id", "song"), rating=("play_count", "plays"))


def _echonest(log: Opened) -> Layout:
    return layout_of(delimited(log, _KNOWN, "\t", _LAYOUT), _KNOWN, log.options, log.where)


def _is_echonest(peek: Peek) -> bool:
    cells = split(peek.first, "\t")
    return len(cells) == 3 and re.fullmatch(r"SO[0-9A-Z]{16}", cells[1]) is not None


def _may_be_echonest(peek: Peek) -> bool:
    named = has_header(peek, "\t", "song_id") or has_header(peek, "\t", "song")
    return named or most_lines(peek, "\t", lambda cells: len(cells) == 3 and is_number(cells[2]))


ECHONEST = DatasetFormat(
    "echonest",
    "Echo Nest taste profiles: train_triplets.txt; a threshold of the rating counts plays.",
    _echonest,
    (("train_triplets*.txt",),),
    _is_echonest,
    _may_be_echonest,
)
