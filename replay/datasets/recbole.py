"""RecBole's atomic files: tab-separated, with a header of names and types; `.item` and `.user` beside the `.inter`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamer.errors import SourceError
from streamer.event import Features
from streamer.replay.datasets.base import DatasetFormat, Opened
from streamer.replay.datasets.delimited import delimited, split
from streamer.replay.datasets.files import Peek, bare_name
from streamer.replay.datasets.generic import KNOWN
from streamer.replay.datasets.layout import Layout, layout_of, same_name
from streamer.replay.datasets.options import LogOptions
from streamer.replay.datasets.side import about
from streamer.replay.datasets.tables import DelimitedTable

_TYPES = ("token", "float", "token_seq", "float_seq")
_PARTS = ("user_id", "item_id", "timestamp", "rating", "event_type")


def _recbole(log: Opened) -> Layout:
    """Columns of the `.inter` that are no part of an event say something of the item, if they are tokens."""
    log = replace(log, options=replace(log.options, header=True))
    table, types = _typed(delimited(log, KNOWN, "\t"))
    parts = {getattr(KNOWN, part)[0] for part in _PARTS} | set(KNOWN.timestamp) | set(KNOWN.rating)
    parts |= {name.lower() for name in log.options.columns.values()}
    tokens = tuple(n for n, kind in types.items() if kind == "token" and n.lower() not in parts)
    layout = layout_of(table, replace(KNOWN, item_features=tokens), _without_others(log.options, table), log.where)
    return replace(
        layout,
        about_items=_beside(log, ".item", KNOWN.item_id, log.options.item_features, table),
        about_users=_beside(log, ".user", KNOWN.user_id, log.options.user_features, table),
    )


def _typed(table: DelimitedTable) -> tuple[DelimitedTable, dict[str, str]]:
    """A table whose columns are called `name:type`, by their names alone, and the types."""
    types = {name.rpartition(":")[0] or name: name.rpartition(":")[2] for name in table.names}
    return replace(table, names=tuple(types)), types


def _without_others(options: LogOptions, table: DelimitedTable) -> LogOptions:
    """Options in which only features of the `.inter` are named; the others are beside it."""

    def own(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if names is None else tuple(n for n in names if same_name(n.removesuffix(":float"), table.names))

    return replace(options, item_features=own(options.item_features), user_features=own(options.user_features))


def _beside(
    log: Opened, ending: str, keys: Sequence[str], asked: tuple[str, ...] | None, inter: DelimitedTable
) -> dict[str, Features]:
    """What the file with another ending says."""
    stem = bare_name(log.files[0].name).removesuffix(".inter")
    name = next((name for name in log.origin.names if bare_name(name) == stem + ending), None)
    if asked is not None:
        asked = tuple(n for n in asked if same_name(n.removesuffix(":float"), inter.names) is None)
    if name is None or asked == ():
        return _nothing(asked, log, stem + ending)
    file = log.origin.open(name)
    peek = file.peek(log.connection)
    opened = replace(log, files=(file,), peek=peek, options=LogOptions(header=True))
    table, types = _typed(delimited(opened, KNOWN, "\t"))
    numbers = tuple(n for n, kind in types.items() if kind == "float")
    return about(log.connection, file, table, keys, asked, numbers)


def _nothing(asked: tuple[str, ...] | None, log: Opened, name: str) -> dict[str, Features]:
    if asked:
        raise SourceError(f"{log.where}: there is no column {asked[0]!r}, and no {name} beside it that might have it")
    return {}


def is_recbole(peek: Peek) -> bool:
    """Whether the first line is a typed header."""
    cells = split(peek.first, "\t")
    return len(cells) > 1 and all(cell.rpartition(":")[2] in _TYPES for cell in cells)


RECBOLE = DatasetFormat(
    "recbole",
    "RecBole's .inter, with features from .item and .user beside it.",
    _recbole,
    (("*.inter",),),
    is_recbole,
)
