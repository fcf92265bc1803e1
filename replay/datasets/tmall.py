"""Tmall's user log of the IJCAI-15 challenge: `user_log_format1.csv`, from May to November 2014, by day."""

from __future__ import annotations

from dataclasses import replace

from streamer.replay.datasets.base import DatasetFormat, Opened
from streamer.replay.datasets.delimited import delimited, has_header, is_number, most_lines
from streamer.replay.datasets.files import Peek
from streamer.replay.datasets.layout import Known, Layout, layout_of
from streamer.replay.datasets.times import Time

YEAR = 2014
_LAYOUT = ("user_id", "item_id", "cat_id", "seller_id", "brand_id", "time_stamp", "action_type")
_KNOWN = Known(
    ("user_id",),
    ("item_id",),
    ("time_stamp",),
    event_type=("action_type",),
    item_features=("cat_id", "seller_id", "merchant_id", "brand_id"),
)
_ACTIONS = {
    "click": "0",
    "cart": "1",
    "add_to_cart": "1",
    "purchase": "2",
    "buy": "2",
    "favourite": "3",
    "favorite": "3",
}


def _tmall(log: Opened) -> Layout:
    layout = layout_of(delimited(log, _KNOWN, ",", _LAYOUT), _KNOWN, log.options, log.where, _day)
    return replace(layout, type_names=_ACTIONS)


def _day(value: str) -> Time:
    """Of a month and a day in four digits, the first of which may be missing."""
    day = f"epoch(try_strptime('{YEAR}' || lpad(x, 4, '0'), '%Y%m%d'))"
    return Time(value, day, "CASE WHEN length(x) BETWEEN 3 AND 4 THEN y END")


def _is_tmall(peek: Peek) -> bool:
    return any(has_header(peek, ",", "user_id", of, "time_stamp", "action_type") for of in ("seller_id", "merchant_id"))


def _may_be_tmall(peek: Peek) -> bool:
    return most_lines(peek, ",", lambda cells: len(cells) == len(_LAYOUT) and is_number(cells[5], 1231))


TMALL = DatasetFormat(
    "tmall",
    "Tmall's user log (IJCAI-15): user_log_format1.csv; types click, cart, purchase, favourite.",
    _tmall,
    (("*user_log_format*.csv",),),
    _is_tmall,
    _may_be_tmall,
)
