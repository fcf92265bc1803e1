"""Published logs of delimited text, as they can be downloaded: each has its own
columns, times and first lines.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import ClassVar

from streamer.replay.datasets.base import (
    COMMON_NAMES,
    ISO_TIME,
    ColumnNames,
    EventColumns,
    TimeFormat,
    find_columns,
)
from streamer.replay.datasets.delimited import DelimitedFormat, DelimitedTable
from streamer.replay.datasets.files import LogFiles
from streamer.replay.datasets.first_lines import FirstLines
from streamer.replay.datasets.jsonl import jsonl_columns

NUMBER = r"\d+(\.\d+)?"


class Gowalla(DelimitedFormat):
    """Gowalla check-ins (SNAP): loc-gowalla_totalCheckins.txt.

    User, time, latitude, longitude, location; tab-separated, no header:

        0   2010-10-19T23:55:27Z    30.2359091167   -97.7951395833  22847

    The newest check-ins of a user stand first. Coordinates become features only if
    asked for.
    """

    name = "gowalla"
    file_names = (("loc-gowalla_totalcheckins*.txt",),)
    delimiter = "\t"
    order = ("user_id", "timestamp", "latitude", "longitude", "location_id")
    names = ColumnNames(
        ("user_id", "user"), ("location_id", "item_id"), ("timestamp", "time")
    )
    time_format = ISO_TIME

    own_cells: ClassVar = {1: r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"}
    cells = own_cells


class Tmall(DelimitedFormat):
    """Tmall's user log (IJCAI-15): user_log_format1.csv; types click, cart, purchase,
    favourite.

        user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type
        328862,323294,833,2882,2661,829,0

    Times are only days of 2014, May to November, month and day in three or four digits.
    The seller is also called merchant_id, brands may be missing, and the header may be.
    """

    name = "tmall"
    file_names = (("*user_log_format*.csv",),)
    delimiter = ","
    order = (
        "user_id",
        "item_id",
        "cat_id",
        "seller_id",
        "brand_id",
        "time_stamp",
        "action_type",
    )
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

    headers = (
        ("user_id", "time_stamp", "action_type", "seller_id"),
        ("user_id", "time_stamp", "action_type", "merchant_id"),
    )
    cells: ClassVar = {5: r"\d{3,4}"}

    def columns(self, log: LogFiles) -> EventColumns:
        names = {"click": "0", "cart": "1", "purchase": "2", "favourite": "3"}
        names |= {"add_to_cart": "1", "buy": "2", "favorite": "3"}
        return replace(super().columns(log), event_type_names=names)


class TaFeng(DelimitedFormat):
    """Ta-Feng groceries: ta_feng_all_months_merged.csv, or a directory with D11, D12,
    D01, D02.

    Purchases of November 2000 to February 2001. The merged file quotes all values:

        "TRANSACTION_DT","CUSTOMER_ID","AGE_GROUP","PIN_CODE","PRODUCT_SUBCLASS","PRODUCT_ID","AMOUNT","ASSET",...
        "11/1/2000","01104905","45-49","115","110411","4710199010372","2","24","30"

    The others, a file a month, have semicolons, a header in Chinese (Big5), and values
    padded with spaces:

        2000-11-01 00:00:00;00046855  ;D ;E ;110411;4710085120468;3;51;57
    """

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
    time_format = TimeFormat(
        "epoch(try_strptime(time_text, ['%m/%d/%Y', '%Y-%m-%d %H:%M:%S', '%Y-%m-%d', '%Y/%m/%d']))",
        "time_parsed",
    )
    headers = (("TRANSACTION_DT", "CUSTOMER_ID", "PRODUCT_ID"),)
    cells: ClassVar = {0: r"(\d{1,2}/\d{1,2}/\d{4}|\d{4}[-/]\d{1,2}[-/]\d{1,2}).*"}

    def columns(self, log: LogFiles) -> EventColumns:
        # The names in the header do not count: it may be in Chinese.
        table = self.table(log.with_settings(header=False))
        header = log.settings.header
        if header is None:
            header = not log.first_lines.cells(table.delimiter)[0][:1].isdecimal()
        return find_columns(
            log, replace(table, header=header), self.names, self.time_format
        )


class Amazon(DelimitedFormat):
    """Amazon ratings: ratings_Books.csv and the like; ratings above the user's average,
    unless there is a threshold.

        A1N4O8VOJZTDVB,B004A9SDD8,4.0,1383350400

    The files of 2014 have the user first, those of 2018 the item first, both without a
    header; those of 2023 have a header and milliseconds. Reviews are also read as JSON
    lines. That only what a user rated above their own average becomes an event is as in
    the paper.
    """

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
    headers = (("asin", "rating"), ("parent_asin", "rating"))
    cells: ClassVar = {2: r"[0-5](\.\d+)?", 3: NUMBER}

    def columns(self, log: LogFiles) -> EventColumns:
        read = super().columns
        if log.first_lines.is_json:
            read = partial(jsonl_columns, names=self.names)
        return replace(read(log), above_average=True)

    def table(self, log: LogFiles) -> DelimitedTable:
        table = super().table(log)
        if not table.header and _products(log.first_lines, 0) > _products(
            log.first_lines, 1
        ):
            user, item, *others = table.names
            return replace(table, names=(item, user, *others))
        return table

    def recognises(self, start: FirstLines) -> bool:
        cells = start.cells(start.delimiter)
        if COMMON_NAMES.are_header(cells) and not super().recognises(start):
            return False
        rows = start.rows(",")
        products = max(_products(start, column) for column in (0, 1))
        return all(len(row) == 4 for row in rows[:5]) and 2 * products > len(rows)


def _products(start: FirstLines, column: int) -> int:
    """The number of lines with the id of a product in a column; that of a book is its
    ISBN.
    """
    product = re.compile(r"B[0-9A-Z]{9}|[0-9]{9}[0-9X]")
    return sum(
        len(row) > column and bool(product.fullmatch(row[column]))
        for row in start.rows(",")
    )


class EchoNest(DelimitedFormat):
    """Echo Nest taste profiles: train_triplets.txt; a threshold of the rating counts
    plays.

    User, song, number of plays; tab-separated, no header, no time:

        b80344d063b5ccb3212f76538f3d9e43d87dca9e    SOAKIMP12A8C130995  1

    A threshold of 2 keeps the songs that a user played at least twice.
    """

    name = "echonest"
    file_names = (("train_triplets*.txt",),)
    delimiter = "\t"
    order = ("user_id", "song_id", "play_count")
    names = ColumnNames(
        ("user_id", "user"), ("song_id", "song"), rating=("play_count", "plays")
    )
    own_cells: ClassVar = {1: r"SO[0-9A-Z]{16}"}
    cells: ClassVar = {2: NUMBER}
