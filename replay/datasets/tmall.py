"""Tmall's user log of the IJCAI-15 challenge: clicks, carts, purchases and favourites, May to November 2014.

    user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type
    328862,323294,833,2882,2661,829,0

Times are only days of 2014, month and day in three or four digits. The seller is also called merchant_id, brands may
be missing, and the header may be.
"""

from __future__ import annotations

from dataclasses import replace

from streamer.replay.datasets.base import ColumnNames, EventColumns, TimeFormat
from streamer.replay.datasets.delimited import DelimitedFormat
from streamer.replay.datasets.files import LogFiles
from streamer.replay.datasets.first_lines import FirstLines, is_number

_ACTIONS = {
    "click": "0", "cart": "1", "add_to_cart": "1", "purchase": "2", "buy": "2", "favourite": "3", "favorite": "3",
}  # fmt: skip


class Tmall(DelimitedFormat):
    """Tmall's user log (IJCAI-15): user_log_format1.csv; types click, cart, purchase, favourite."""

    name = "tmall"
    file_names = (("*user_log_format*.csv",),)
    delimiter = ","
    order = ("user_id", "item_id", "cat_id", "seller_id", "brand_id", "time_stamp", "action_type")
    names = ColumnNames(
        ("user_id",),
        ("item_id",),
        ("time_stamp",),
        event_type=("action_type",),
        item_features=("cat_id", "seller_id", "merchant_id", "brand_id"),
    )
    time_format = TimeFormat(
        "epoch(try_strptime('2014' || lpad(time_text, 4, '0'), '%Y%m%d'))",
        "CASE WHEN length(time_text) BETWEEN 3 AND 4 THEN time_parsed END",
    )

    def columns(self, log: LogFiles) -> EventColumns:
        return replace(super().columns(log), event_type_names=_ACTIONS)

    def recognises(self, start: FirstLines) -> bool:
        names = ("user_id", "time_stamp", "action_type")
        return any(start.has_header(",", *names, seller) for seller in ("seller_id", "merchant_id"))

    def accepts(self, start: FirstLines) -> bool:
        return start.most_rows_match(",", lambda cells: len(cells) == len(self.order) and is_number(cells[5], 1231))
