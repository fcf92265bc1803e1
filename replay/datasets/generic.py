"""Any log with named columns: csv and tsv, JSON lines, Parquet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from streamer.errors import SourceError
from streamer.replay.datasets import times
from streamer.replay.datasets.base import DatasetFormat, Opened
from streamer.replay.datasets.database import quoted, reading
from streamer.replay.datasets.delimited import delimited
from streamer.replay.datasets.files import Peek
from streamer.replay.datasets.layout import FeatureColumn, Known, Layout, layout_of, number
from streamer.replay.datasets.tables import JsonTable, ParquetTable

KNOWN = Known(
    user_id=("user_id", "userid", "user", "uid", "customer_id", "visitorid", "visitor_id", "reviewerid"),
    item_id=("item_id", "itemid", "item", "iid", "product_id", "movieid", "asin", "parent_asin"),
    timestamp=("timestamp", "time_stamp", "time", "ts", "event_time", "datetime", "date", "unixreviewtime"),
    rating=("rating", "score", "overall"),
    event_type=("event_type", "event", "action", "action_type", "behavior", "behavior_type"),
)
"""What people call their columns."""


def _csv(log: Opened) -> Layout:
    return layout_of(delimited(log, KNOWN, None, quotes=True), KNOWN, log.options, log.where)


def _tsv(log: Opened) -> Layout:
    return layout_of(delimited(log, KNOWN, "\t"), KNOWN, log.options, log.where)


CSV = DatasetFormat(
    "csv", "Any delimited text; name its columns unless they are user_id, item_id, timestamp.", _csv, (("*.csv",),)
)
TSV = DatasetFormat("tsv", "The same with tabs between, and no quotes.", _tsv, (("*.tsv",),))


# JSON lines -----------------------------------------------------------------------------------------------------------


def _jsonl(log: Opened) -> Layout:
    return jsonl_layout(log, KNOWN)


def jsonl_layout(log: Opened, known: Known) -> Layout:
    """The layout of JSON lines with fields that are called so.

    Features are the objects `item_features` and `user_features`, as on the wire, unless columns are named.
    """
    table = _table(log.peek, log.where)
    layout = layout_of(table, known, log.options, log.where)
    problem = "CASE WHEN document IS NULL THEN CASE WHEN json_valid(line) THEN 'not_an_event' ELSE 'not_json' END END"
    item, user = layout.item_features, layout.user_features
    if log.options.item_features is None:
        item = _objects(table, "item_features")
    if log.options.user_features is None:
        user = _objects(table, "user_features")
    return replace(layout, problem=problem, item_features=item, user_features=user)


def _objects(table: JsonTable, name: str) -> tuple[FeatureColumn, ...]:
    return (FeatureColumn(name, table.object(name), "object"),) if name in table.names else ()


def _table(peek: Peek, where: str) -> JsonTable:
    """A table of all fields in the first lines, in the order in which they come.

    Raises:
        SourceError: no line is an object.
    """
    ways: dict[str, tuple[str, ...]] = {}
    for line in peek.lines:
        with contextlib.suppress(msgspec.DecodeError):
            document = msgspec.json.decode(line)
            if isinstance(document, dict):
                ways = {".".join(way): way for way in _ways(document)} | ways
    if not ways:
        raise SourceError(f"{where}: none of its first lines is a JSON object: {peek.first[:60]!r}")
    return JsonTable(tuple(sorted(ways, key=lambda name: len(ways[name]))), ways)


def _ways(document: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys that lead to each field of an object; outer ones come last."""
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _ways(value, (*above, key))
    yield from ((*above, key) for key in document)


def _is_jsonl(peek: Peek) -> bool:
    return peek.first.lstrip().startswith("{")


JSONL = DatasetFormat("jsonl", "A JSON object a line.", _jsonl, (("*.jsonl",), ("*.ndjson",), ("*.json",)), _is_jsonl)


# Parquet --------------------------------------------------------------------------------------------------------------


def _parquet(log: Opened) -> Layout:
    with reading(log.where):
        sql = f"DESCRIBE SELECT * FROM read_parquet({quoted(log.files[0].path)})"
        described = log.connection.execute(sql).fetchall()
    table = ParquetTable(tuple(row[0] for row in described), tuple(row[1] for row in described))
    layout = layout_of(table, KNOWN, log.options, log.where, partial(_parquet_time, table))
    return replace(
        layout,
        item_features=_by_type(table, layout.item_features),
        user_features=_by_type(table, layout.user_features),
    )


def _parquet_time(table: ParquetTable, text: str) -> times.Time:
    """The steps to seconds, by the type of the column."""
    name = next(name for name in table.names if table.column(name) == text)
    kind = table.type_of(name)
    if kind == "VARCHAR":
        return times.any_time(text)
    read = times.iso if kind.startswith(("TIMESTAMP", "DATE")) else times.number
    return read(table.raw(name))


def _by_type(table: ParquetTable, features: tuple[FeatureColumn, ...]) -> tuple[FeatureColumn, ...]:
    """Floating numbers are numbers, everything else is a category, as on the wire."""
    kinds = {name: table.type_of(name) for name in table.names}
    return tuple(
        FeatureColumn(f.name, number(table.column(f.name)), "number") if kinds.get(f.name) in ("DOUBLE", "FLOAT") else f
        for f in features
    )


PARQUET = DatasetFormat("parquet", "A Parquet file; name its columns.", _parquet, (("*.parquet",),), is_text=False)
