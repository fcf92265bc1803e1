"""Adjacency lists as LightGCN has them: a user and its items a line, spaces between; no time."""

from __future__ import annotations

from streamer.errors import SourceError
from streamer.replay.datasets.base import DatasetFormat, Opened
from streamer.replay.datasets.delimited import DELIMITERS
from streamer.replay.datasets.files import Peek
from streamer.replay.datasets.generic import KNOWN
from streamer.replay.datasets.layout import Layout
from streamer.replay.datasets.tables import AdjacencyTable


def _lightgcn(log: Opened) -> Layout:
    if not any(len(line.split()) > 1 for line in log.peek.lines):
        raise SourceError(f"{log.where}: none of its first lines is a user and items: {log.peek.first[:60]!r}")
    return Layout(AdjacencyTable(), "user_id", "item_id")


def _may_be_lightgcn(peek: Peek) -> bool:
    """Whether the first line has spaces between and is no header."""
    words = peek.first.lower().split()
    return not any(mark in peek.first for mark in DELIMITERS) and not any(word in KNOWN.user_id for word in words)


LIGHTGCN = DatasetFormat(
    "lightgcn",
    "Adjacency lists: a user and its items a line (train.txt, test.txt).",
    _lightgcn,
    (("train.txt", "test.txt"),),
    fits=_may_be_lightgcn,
)
