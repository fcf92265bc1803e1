"""Files that say something of items or users: one line for each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from streamer.errors import SourceError
from streamer.event import Features
from streamer.replay.datasets.database import Connection, reading
from streamer.replay.datasets.files import LogFile
from streamer.replay.datasets.layout import LONGEST_FEATURE, number, same_name
from streamer.replay.datasets.malformed import Rejected, why_by_line
from streamer.replay.datasets.tables import DelimitedTable, LineTable

FEW = 10
"""So many different values make a feature, however few lines there are."""


def about(
    connection: Connection,
    file: LogFile,
    table: DelimitedTable,
    keys: Sequence[str],
    asked: tuple[str, ...] | None,
    numbers: Sequence[str] = (),
) -> dict[str, Features]:
    """What a file says, by id.

    Args:
        file: the file.
        table: its columns.
        keys: what the column with the id may be called.
        asked: the columns to take; None: all that are features. A column that tells more than half of the lines
            apart, a title say, is a name rather than a feature.
        numbers: columns that hold numbers; so does `price:float` among those asked for.

    Raises:
        SourceError: a column is not there.
    """
    key = next((k for k in (same_name(key, table.names) for key in keys) if k), None)
    if key is None:
        raise SourceError(
            f"{file.name}: no column is called {' or '.join(keys[:3])}; there is {', '.join(table.names)}"
        )
    names = [n for n in table.names if n != key] if asked is None else [_there(n, table, file) for n in asked]
    floats = {*numbers, *(n.removesuffix(":float") for n in asked or () if n.endswith(":float"))}
    columns = [number(table.column(n)) if n in floats else table.column(n) for n in names]
    with reading(file.name):
        rows = _rows(connection, file, table, [table.column(key), *columns])
    used = [k for k, n in enumerate(names, 1) if asked is not None or n in floats or _is_feature([r[k] for r in rows])]
    found = {row[0]: {names[k - 1]: _cut(row[k]) for k in used if row[k] is not None} for row in rows if row[0]}
    return {id_: features for id_, features in found.items() if features}


def _rows(
    connection: Connection, file: LogFile, table: DelimitedTable, columns: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Some columns of a file; what is no row is left out."""
    rows: list[tuple[Any, ...]] = []

    def read(file: LogFile, table: DelimitedTable) -> None:
        Rejected(connection).clear()
        where = f"WHERE {table.problem} IS NULL" if isinstance(table, LineTable) else ""
        rows[:] = connection.execute(f"SELECT {', '.join(columns)} FROM {table.scan(file)} {where}").fetchall()

    if why_by_line(connection, table, partial(read, file, table)) is not None:
        read(file.with_any_ends(connection, table.encoding), table.by_line())
    Rejected(connection).clear()
    return rows


def _cut(value: str | float) -> str | float:
    return value[:LONGEST_FEATURE] if isinstance(value, str) else value


def _is_feature(values: Sequence[object]) -> bool:
    return len(set(values)) <= max(FEW, len(values) // 2)


def _there(name: str, table: DelimitedTable, file: LogFile) -> str:
    found = same_name(name.removesuffix(":float"), table.names)
    if found is None:
        raise SourceError(f"{file.name}: there is no column {name!r}; the columns are {', '.join(table.names)}")
    return found
