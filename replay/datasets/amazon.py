"""Amazon's ratings: user, item, rating, time.

    A1N4O8VOJZTDVB,B004A9SDD8,4.0,1383350400

The files of 2014 have the user first, those of 2018 the item first, both without a header; those of 2023 have a header
and milliseconds. Reviews are also read as JSON lines. Only what a user rated above their own average becomes an event,
as in the paper, unless a threshold is given.
"""

from __future__ import annotations

import re
from dataclasses import replace

from streamer.replay.datasets.base import COMMON_NAMES, ColumnNames, EventColumns
from streamer.replay.datasets.delimited import DelimitedFormat, DelimitedTable
from streamer.replay.datasets.files import LogFiles
from streamer.replay.datasets.first_lines import FirstLines, is_number
from streamer.replay.datasets.jsonl import jsonl_columns

_PRODUCT = re.compile(r"B[0-9A-Z]{9}|[0-9]{9}[0-9X]")
"""The id of a product; that of a book is its ISBN."""


class Amazon(DelimitedFormat):
    """Amazon ratings: ratings_Books.csv and the like; ratings above the user's average, unless there is a threshold."""

    name = "amazon"
    file_names = (("ratings_*.csv",),)
    delimiter = ","
    order = ("user_id", "item_id", "rating", "timestamp")
    names = ColumnNames(
        ("user_id", "user", "reviewerID"),
        ("parent_asin", "asin", "item_id", "item"),
        ("timestamp", "unixReviewTime", "time"),
        ("rating", "overall"),
        required=("user_id", "item_id", "rating"),
    )

    def columns(self, log: LogFiles) -> EventColumns:
        if log.first_lines.is_json:
            return replace(jsonl_columns(log, self.names), above_average=True)
        return replace(super().columns(log), above_average=True)

    def table(self, log: LogFiles) -> DelimitedTable:
        table = super().table(log)
        if not table.header and _products(log.first_lines, 0) > _products(log.first_lines, 1):
            user, item, *others = table.names
            return replace(table, names=(item, user, *others))
        return table

    def recognises(self, start: FirstLines) -> bool:
        is_header = COMMON_NAMES.are_header(start.cells(start.delimiter))
        if is_header and not any(start.has_header(",", name, "rating") for name in ("asin", "parent_asin")):
            return False
        rows = start.rows(",")
        products = max(_products(start, column) for column in (0, 1))
        return all(len(row) == 4 for row in rows[:5]) and 2 * products > len(rows)

    def accepts(self, start: FirstLines) -> bool:
        return start.most_rows_match(",", lambda row: len(row) == 4 and is_number(row[2], 5) and is_number(row[3]))


def _products(start: FirstLines, column: int) -> int:
    """The number of lines with the id of a product in a column."""
    return sum(len(row) > column and bool(_PRODUCT.fullmatch(row[column])) for row in start.rows(","))
