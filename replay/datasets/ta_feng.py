"""Ta-Feng's purchases, November 2000 to February 2001, in two forms with the same columns.

`ta_feng_all_months_merged.csv` quotes all values:

    "TRANSACTION_DT","CUSTOMER_ID","AGE_GROUP","PIN_CODE","PRODUCT_SUBCLASS","PRODUCT_ID","AMOUNT","ASSET","SALES_PRICE"
    "11/1/2000","01104905","45-49","115","110411","4710199010372","2","24","30"

D11, D12, D01 and D02, a file a month, have semicolons, a header in Chinese (Big5), and values padded with spaces:

    2000-11-01 00:00:00;00046855  ;D ;E ;110411;4710085120468;3;51;57
"""

from __future__ import annotations

import re
from dataclasses import replace

from streamer.replay.datasets.base import ColumnNames, EventColumns, TimeFormat, find_columns
from streamer.replay.datasets.delimited import DelimitedFormat
from streamer.replay.datasets.files import LogFiles
from streamer.replay.datasets.first_lines import FirstLines

_DATES = ["%m/%d/%Y", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d", "%Y/%m/%d"]
_DATE = re.compile(r"\d{1,2}/\d{1,2}/\d{4}|\d{4}[-/]\d{1,2}[-/]\d{1,2}")


class TaFeng(DelimitedFormat):
    """Ta-Feng groceries: ta_feng_all_months_merged.csv, or a directory with D11, D12, D01, D02."""

    name = "ta-feng"
    file_names = (("ta_feng_all_months_merged.csv",), ("D11", "D12", "D01", "D02"))
    order = (
        "TRANSACTION_DT", "CUSTOMER_ID", "AGE_GROUP", "PIN_CODE", "PRODUCT_SUBCLASS", "PRODUCT_ID",
        "AMOUNT", "ASSET", "SALES_PRICE",
    )  # fmt: skip
    names = ColumnNames(
        ("CUSTOMER_ID",),
        ("PRODUCT_ID",),
        ("TRANSACTION_DT",),
        item_features=("PRODUCT_SUBCLASS",),
        user_features=("AGE_GROUP", "PIN_CODE"),
    )
    time_format = TimeFormat(f"epoch(try_strptime(time_text, {_DATES}))", "time_parsed")

    def columns(self, log: LogFiles) -> EventColumns:
        # The names in the header do not count: it may be in Chinese.
        table = self.table(replace(log, settings=replace(log.settings, header=False)))
        header = log.settings.header
        if header is None:
            header = not log.first_lines.cells(table.delimiter)[0][:1].isdecimal()
        return find_columns(log, replace(table, header=header), self.names, self.time_format)

    def recognises(self, start: FirstLines) -> bool:
        return start.has_header(start.delimiter, "TRANSACTION_DT", "CUSTOMER_ID", "PRODUCT_ID")

    def accepts(self, start: FirstLines) -> bool:
        return start.most_rows_match(
            start.delimiter, lambda cells: len(cells) == len(self.order) and _DATE.match(cells[0]) is not None
        )
