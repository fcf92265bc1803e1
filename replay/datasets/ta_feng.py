"""Ta-Feng's purchases, November 2000 to February 2001.

`ta_feng_all_months_merged.csv` has a header and quotes all values. The files D11, D12, D01 and D02, one a month, have
semicolons between, a header in Chinese (Big5), and values padded with spaces. The columns are the same.
"""

from __future__ import annotations

import re

from streamer.errors import SourceError
from streamer.replay.datasets import times
from streamer.replay.datasets.base import DatasetFormat, Opened
from streamer.replay.datasets.delimited import guess_delimiter, has_header, most_lines, same_columns, split
from streamer.replay.datasets.files import Peek
from streamer.replay.datasets.layout import Known, Layout, layout_of
from streamer.replay.datasets.tables import DelimitedTable

_LAYOUT = (
    "TRANSACTION_DT",
    "CUSTOMER_ID",
    "AGE_GROUP",
    "PIN_CODE",
    "PRODUCT_SUBCLASS",
    "PRODUCT_ID",
    "AMOUNT",
    "ASSET",
    "SALES_PRICE",
)
_KNOWN = Known(
    ("CUSTOMER_ID",),
    ("PRODUCT_ID",),
    ("TRANSACTION_DT",),
    item_features=("PRODUCT_SUBCLASS",),
    user_features=("AGE_GROUP", "PIN_CODE"),
)
_DATE = re.compile(r"\d{1,2}/\d{1,2}/\d{4}|\d{4}[-/]\d{1,2}[-/]\d{1,2}")


def _ta_feng(log: Opened) -> Layout:
    delimiter = log.options.delimiter or guess_delimiter(log.peek)
    cells = split(log.peek.first, delimiter)
    if len(cells) != len(_LAYOUT):
        raise SourceError(
            f"{log.where}: its first line has {len(cells)} columns, expected {len(_LAYOUT)}: "
            f"{delimiter.join(_LAYOUT)}; it has {log.peek.first[:60]!r}"
        )
    header = log.options.header if log.options.header is not None else not cells[0][:1].isdecimal()
    same_columns(log, delimiter, len(_LAYOUT))
    skipped = log.peek.empty_before_first
    table = DelimitedTable(_LAYOUT, delimiter, header, encoding=log.peek.encoding, skipped=skipped)
    dates = times.pattern("%m/%d/%Y", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d", "%Y/%m/%d")
    return layout_of(table, _KNOWN, log.options, log.where, dates)


def _is_ta_feng(peek: Peek) -> bool:
    return has_header(peek, guess_delimiter(peek), "TRANSACTION_DT", "CUSTOMER_ID", "PRODUCT_ID")


def _may_be_ta_feng(peek: Peek) -> bool:
    return most_lines(peek, guess_delimiter(peek), lambda c: len(c) == len(_LAYOUT) and _DATE.match(c[0]) is not None)


TA_FENG = DatasetFormat(
    "ta-feng",
    "Ta-Feng groceries: ta_feng_all_months_merged.csv, or a directory with D11, D12, D01, D02.",
    _ta_feng,
    (("ta_feng_all_months_merged.csv",), ("D11", "D12", "D01", "D02")),
    _is_ta_feng,
    _may_be_ta_feng,
)
