"""The Echo Nest's taste profiles: user, song, number of plays; tab-separated, no header, no time.

    b80344d063b5ccb3212f76538f3d9e43d87dca9e    SOAKIMP12A8C130995  1

Plays stand for the rating: a threshold of 2 keeps the songs that a user played at least twice.
"""

from __future__ import annotations

import re

from streamer.replay.datasets.base import ColumnNames
from streamer.replay.datasets.delimited import DelimitedFormat
from streamer.replay.datasets.first_lines import FirstLines, is_number


class EchoNest(DelimitedFormat):
    """Echo Nest taste profiles: train_triplets.txt; a threshold of the rating counts plays."""

    name = "echonest"
    file_names = (("train_triplets*.txt",),)
    delimiter = "\t"
    order = ("user_id", "song_id", "play_count")
    names = ColumnNames(("user_id", "user"), ("song_id", "song"), rating=("play_count", "plays"))

    def recognises(self, start: FirstLines) -> bool:
        cells = start.cells("\t")
        return len(cells) == 3 and re.fullmatch(r"SO[0-9A-Z]{16}", cells[1]) is not None

    def accepts(self, start: FirstLines) -> bool:
        if start.has_header("\t", "song_id") or start.has_header("\t", "song"):
            return True
        return start.most_rows_match("\t", lambda cells: len(cells) == 3 and is_number(cells[2]))
