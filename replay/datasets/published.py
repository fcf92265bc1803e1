"""Published logs, as they can be downloaded: each has its own columns, times and first
lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from streamer.event.guess import COLUMN_NAMES
from streamer.replay.datasets.base import ISO_TIME, DatasetFormat
from streamer.replay.datasets.files import LogFile, LogFiles, bare_name
from streamer.replay.datasets.tables import (
    LogTable,
    adjacency_table,
    delimited_table,
    json_table,
    sessions_table,
)
from streamer.replay.settings import FIELDS


class Gowalla(DatasetFormat):
    """Gowalla check-ins (SNAP): loc-gowalla_totalCheckins.txt.

    User, time, latitude, longitude, location; tab-separated, no header:

        0   2010-10-19T23:55:27Z    30.2359091167   -97.7951395833  22847

    The newest check-ins of a user stand first. Coordinates become features only if
    asked for.
    """

    name = "gowalla"
    file_names = (("loc-gowalla_totalcheckins*.txt",),)
    looks = r"\d+\t\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\t"
    delimiter = "\t"
    order = ("user_id", "timestamp", "latitude", "longitude", "item_id")
    time = ISO_TIME


class Tmall(DatasetFormat):
    """Tmall's user log (IJCAI-15): user_log_format1.csv; types click, cart, purchase,
    favourite.

        user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type
        328862,323294,833,2882,2661,829,0

    Times are only days of 2014, May to November, month and day in three or four digits.
    The seller is also called merchant_id, brands may be missing, and the header may be.
    """

    name = "tmall"
    file_names = (("*user_log_format*.csv",),)
    looks = r"user_id,item_id,.*time_stamp,action_type|(\d*,){5}\d{3,4},\d$"
    delimiter = ","
    order = (
        *("user_id", "item_id", "cat_id", "seller_id", "brand_id"),
        *("time_stamp", "action_type"),
    )
    features: ClassVar = {"item": ("cat_id", "seller_id", "merchant_id", "brand_id")}
    time = (
        "CASE WHEN length(time_text) BETWEEN 3 AND 4 THEN"
        " epoch(try_strptime('2014' || lpad(time_text, 4, '0'), '%Y%m%d')) END"
    )
    event_types: ClassVar = {
        "click": "0",
        "cart": "1",
        "purchase": "2",
        "favourite": "3",
    }


class TaFeng(DatasetFormat):
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
    looks = r'"?TRANSACTION_DT|"?\d+[-/]\d+[-/]\d+|(.*;){8}'
    quotes = True
    fixed = True  # a header may be in Chinese
    order = (
        *("timestamp", "user_id", "AGE_GROUP", "PIN_CODE"),
        *("PRODUCT_SUBCLASS", "item_id", "AMOUNT", "ASSET", "SALES_PRICE"),
    )
    features: ClassVar = {
        "item": ("PRODUCT_SUBCLASS",),
        "user": ("AGE_GROUP", "PIN_CODE"),
    }
    time = "epoch(try_strptime(time_text, ['%m/%d/%Y', '%Y-%m-%d %H:%M:%S', '%Y-%m-%d', '%Y/%m/%d']))"

    def is_header(self, cells: Sequence[str], asked: Mapping[str, str]) -> bool:
        return not cells[0][:1].isdecimal()


class Amazon(DatasetFormat):
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
    looks = r"\w+,\w+,[0-5](\.\d+)?,\d+$|.*asin,rating"
    delimiter = ","
    order = ("user_id", "item_id", "rating", "timestamp")
    above_average = True

    def table(self, log: LogFiles) -> LogTable:
        first = log.first_lines.first
        if first.startswith("{"):
            return json_table(log)
        table = super().table(log)
        # an item is a product of Amazon, or a book by its ISBN
        if not table.header and re.match(r"(B[0-9A-Z]{9}|[0-9]{9}[0-9X]),", first):
            user, item, *others = table.names
            return replace(table, names=(item, user, *others))
        return table


class EchoNest(DatasetFormat):
    """Echo Nest taste profiles: train_triplets.txt; a threshold of the rating counts
    plays.

    User, song, number of plays; tab-separated, no header, no time:

        b80344d063b5ccb3212f76538f3d9e43d87dca9e    SOAKIMP12A8C130995  1

    A threshold of 2 keeps the songs that a user played at least twice.
    """

    name = "echonest"
    file_names = (("train_triplets*.txt",),)
    looks = r"\w+\tSO[0-9A-Z]{16}\t\d+"
    delimiter = "\t"
    order = ("user_id", "item_id", "rating")


class LightGcn(DatasetFormat):
    """Adjacency lists: a user and its items a line (train.txt, test.txt).

    No header, no time:

        0 1 2 3
    """

    name = "lightgcn"
    file_names = (("train.txt", "test.txt"),)
    looks = r"\w+( +\w+)* *$"

    def table(self, log: LogFiles) -> LogTable:
        return adjacency_table(log)


class Sessions(DatasetFormat):
    """Sessions: the items of a session a line, in their order; events are a second
    apart.

        12 7 7 31
    """

    name = "sessions"
    file_names = (("*.sessions",),)
    looks = r"\S+( +\S+)* *$"

    def table(self, log: LogFiles) -> LogTable:
        return sessions_table(log)


class RecBole(DatasetFormat):
    """RecBole's .inter, with features from .item and .user beside it.

    Tab-separated, with a header of names and types:

        user_id:token   item_id:token   rating:float    timestamp:float          x.inter
        item_id:token   price:float     class:token_seq                          x.item, beside it
        user_id:token   age:token                                                x.user

    Tokens of the `.inter` that are no part of an event are features of the item; all
    columns of `.item` and `.user` are features, but for names and titles.
    """

    name = "recbole"
    file_names = (("*.inter",),)
    looks = r"\w+:(token|float)"
    delimiter = "\t"

    def is_header(self, cells: Sequence[str], asked: Mapping[str, str]) -> bool:
        return True

    def table(self, log: LogFiles) -> LogTable:
        table = super().table(log)
        names = tuple(name.partition(":")[0] for name in table.names)
        numbers = tuple(
            n.partition(":")[0] for n in table.names if n.endswith(":float")
        )
        return replace(table, names=names, numbers=numbers)

    def files_beside(self, log: LogFiles, side: str) -> Sequence[str]:
        return (f"{bare_name(log.files[0].name).removesuffix('.inter')}.{side}",)

    def table_beside(self, log: LogFiles, name: str, file: LogFile) -> LogTable:
        return self.table(replace(log, files=(file,), first_lines=file.first_lines()))

    def usual_features(
        self, log: LogFiles, side: str, table: LogTable, file: LogFile
    ) -> Sequence[str]:
        if file is log.files[0]:
            return self._tokens(log) if side == "item" else ()
        # all but the id, and texts that differ in more than half of the lines
        names = [name for name in table.names if name != f"{side}_id"]
        cells = ", ".join(f"count(DISTINCT {table.cell(name)})" for name in names)
        sql = f"SELECT {cells}, count(*) FROM {table.scan(file)}"
        *distinct, rows = log.database.rows(sql)[0]
        most = max(10, rows // 2)
        return [
            name
            for name, count in zip(names, distinct, strict=True)
            if count <= most or name in table.numbers
        ]

    def _tokens(self, log: LogFiles) -> list[str]:
        """Tokens that are no part of an event."""
        parts = {COLUMN_NAMES[part][0] for part in FIELDS}
        parts.update(COLUMN_NAMES["timestamp"], COLUMN_NAMES["rating"])
        parts.update(name.lower() for name in log.settings.columns.values())
        typed = (cell.partition(":") for cell in log.first_lines.cells("\t"))
        return [n for n, _, kind in typed if kind == "token" and n.lower() not in parts]


_GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery"),
    *("Romance", "Sci-Fi", "Thriller", "War", "Western"),
)


class MovieLens(DatasetFormat):
    """MovieLens: u.data, ratings.dat or ratings.csv; genres and people from the files
    beside it.

        196     242     3       881250949                  u.data (100k), tab-separated
        196::242::3::881250949                             ratings.dat (1m, 10m)
        userId,movieId,rating,timestamp                    ratings.csv (20m and later), with a header

    u.item has a column for each genre, 1 if the movie has it: they become one feature
    `genres`, `Animation|Comedy`, as in the other files.
    """

    name = "movielens"
    file_names = (("ratings.csv",), ("ratings.dat",), ("u.data",))
    looks = r"\d+(::|\t|,)\d+\1(10|\d)(\.\d+)?\1\d+$|userId,movieId"
    order = ("userId", "movieId", "rating", "timestamp")
    features: ClassVar = {
        "item": ("genres",),
        "user": ("gender", "age", "occupation"),
    }
    beside: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "movies.csv": ("movieId", "title", "genres"),
        "movies.dat": ("movieId", "title", "genres"),
        "u.item": ("movieId", "title", "released", "video_released", "url", *_GENRES),
        "users.dat": ("userId", "gender", "age", "occupation", "zip"),
        "u.user": ("userId", "age", "gender", "occupation", "zip"),
    }
    """Columns of the files beside it."""

    def files_beside(self, log: LogFiles, side: str) -> Sequence[str]:
        key = {"item": "movieId", "user": "userId"}[side]
        return [name for name, columns in self.beside.items() if columns[0] == key]

    def table_beside(self, log: LogFiles, name: str, file: LogFile) -> LogTable:
        start = file.first_lines()
        is_csv = name.endswith(".csv")
        delimiter = {".csv": ",", ".dat": "::"}.get(name[-4:], "|")
        names = self.beside[name]
        table = delimited_table(names, delimiter, start, header=is_csv, quotes=is_csv)
        if name != "u.item":
            return table
        flags = []
        for number, genre in enumerate(names):
            if genre in _GENRES:
                escaped = genre.replace("'", "''")
                flags.append(f"CASE WHEN c{number} = '1' THEN '{escaped}' END")
        genres = f"concat_ws('|', {', '.join(flags)}) AS c2"
        return replace(
            table,
            names=("movieId", "title", "genres"),
            scan=lambda file: f"(SELECT c0, c1, {genres} FROM {table.scan(file)})",
        )
