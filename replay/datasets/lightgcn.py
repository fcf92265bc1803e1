"""Adjacency lists as LightGCN publishes them: a user and its items a line, separated by
spaces; no header, no time.

    0 1 2 3
    1 7

A line with a user alone has no events.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamer.errors import SourceError
from streamer.replay.datasets.base import (
    COMMON_NAMES,
    DatasetFormat,
    EventColumns,
    LogTable,
)
from streamer.replay.datasets.files import LogFile, LogFiles
from streamer.replay.datasets.first_lines import DELIMITERS, FirstLines


class LightGcn(DatasetFormat):
    """Adjacency lists: a user and its items a line (train.txt, test.txt)."""

    name = "lightgcn"
    file_names = (("train.txt", "test.txt"),)

    def columns(self, log: LogFiles) -> EventColumns:
        if not any(len(line.split()) > 1 for line in log.first_lines.lines):
            raise SourceError(
                f"{log.where}: none of its first lines is a user and its items: {log.first_lines.quoted_first}; "
                "choose another format"
            )
        return EventColumns(
            AdjacencyTable(names=("user_id", "item_id")), "user_id", "item_id"
        )

    def accepts(self, start: FirstLines) -> bool:
        words = start.first.lower().split()
        delimited = any(mark in start.first for mark in DELIMITERS)
        return not delimited and not any(word in COMMON_NAMES.user_id for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjacencyTable(LogTable):
    """A row for each item of each line."""

    def scan(self, file: LogFile) -> str:
        words = r"string_split_regex(trim(line, chr(9) || ' '), '[ \t]+')"
        lines = f"SELECT {words} AS words FROM {file.lines_sql('utf-8')} WHERE line IS NOT NULL"
        return (
            f"(SELECT words[1] AS user_id, unnest(words[2:]) AS item_id FROM ({lines}))"
        )

    def untrimmed(self, name: str) -> str:
        return name
