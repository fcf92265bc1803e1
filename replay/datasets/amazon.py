"""Amazon's ratings: user, item, rating, time; without a header (2014), the item first (2018), with a header (2023).

As in the paper, what a user rated above their own average counts as an interaction, unless a threshold is given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from streamer.replay.datasets.base import DatasetFormat, Opened
from streamer.replay.datasets.delimited import delimited, has_header, is_number, most_lines, names_parts, split
from streamer.replay.datasets.files import Peek
from streamer.replay.datasets.generic import JSONL, KNOWN, jsonl_layout
from streamer.replay.datasets.layout import Known, Layout, layout_of

_KNOWN = Known(
    ("user_id", "user", "reviewerID"),
    ("parent_asin", "asin", "item_id", "item"),
    ("timestamp", "unixReviewTime", "time"),
    ("rating", "overall"),
    required=("user_id", "item_id", "rating"),
)
_USER_FIRST = ("user_id", "item_id", "rating", "timestamp")
_ITEM_FIRST = ("item_id", "user_id", "rating", "timestamp")
_ASIN = re.compile(r"B[0-9A-Z]{9}|[0-9]{9}[0-9X]")


def _amazon(log: Opened) -> Layout:
    if JSONL.recognises(log.peek):
        return replace(jsonl_layout(log, _KNOWN), above_average=True)
    names = _ITEM_FIRST if _items(log.peek, 0) > _items(log.peek, 1) else _USER_FIRST
    layout = layout_of(delimited(log, _KNOWN, ",", names), _KNOWN, log.options, log.where)
    return replace(layout, above_average=True)


def _items(peek: Peek, column: int) -> int:
    """How many of the first lines have the id of a product in a column: ten characters, B... or a book's number."""
    return sum(len(cells) > column and _ASIN.fullmatch(cells[column]) is not None for cells in _rows(peek))


def _rows(peek: Peek) -> list[Sequence[str]]:
    return [split(line, ",") for line in peek.lines if line.strip()]


def _is_amazon(peek: Peek) -> bool:
    if names_parts(peek, KNOWN) and not any(has_header(peek, ",", name, "rating") for name in ("asin", "parent_asin")):
        return False
    rows = _rows(peek)
    products = max(_items(peek, 0), _items(peek, 1))
    return bool(rows) and all(len(row) == 4 for row in rows[:5]) and 2 * products > len(rows)


def _may_be_amazon(peek: Peek) -> bool:
    return most_lines(peek, ",", lambda cells: len(cells) == 4 and is_number(cells[2], 5) and is_number(cells[3]))


AMAZON = DatasetFormat(
    "amazon",
    "Amazon ratings: ratings_Books.csv and the like; ratings above the user's average, unless there is a threshold.",
    _amazon,
    (("ratings_*.csv",),),
    _is_amazon,
    _may_be_amazon,
)
