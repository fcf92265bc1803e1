"""Delimited text: the formats csv and tsv, and how all others of this kind are read.

    user_id,item_id,timestamp
    ann,"tea, green",1700000000

A log of several files must have the same columns in all of them. A quote that is never closed, or lines of which some
end in CR LF and others in LF, make the database lose lines: such a file is read line by line, see `LineByLineTable`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import duckdb

from streamer.errors import SourceError
from streamer.replay.datasets.base import (
    ANY_TIME,
    COMMON_NAMES,
    ColumnNames,
    DatasetFormat,
    EventColumns,
    Table,
    TimeFormat,
    find_columns,
    first_match,
)
from streamer.replay.datasets.database import Database, quoted
from streamer.replay.datasets.files import LogFile, LogFiles
from streamer.replay.datasets.options import FIELDS

_MIXED_LINE_ENDS = "state machine reached an invalid state"
"""What the database says of lines that end in different ways."""


class DelimitedFormat(DatasetFormat):
    """Delimited text, see `delimited_table` and `find_columns`."""

    names: ClassVar[ColumnNames] = COMMON_NAMES
    delimiter: ClassVar[str | None] = None
    order: ClassVar[tuple[str, ...]] = ()
    quotes: ClassVar[bool] = False
    time_format: ClassVar[TimeFormat] = ANY_TIME

    def columns(self, log: LogFiles) -> EventColumns:
        table = delimited_table(log, self.names, self.delimiter, self.order, self.quotes)
        return find_columns(log, table, self.names, self.time_format)


class Csv(DelimitedFormat):
    """Any delimited text; name its columns unless they are user_id, item_id, timestamp."""

    name = "csv"
    file_names = (("*.csv",),)
    quotes = True


class Tsv(DelimitedFormat):
    """The same with tabs between, and no quotes."""

    name = "tsv"
    file_names = (("*.tsv",),)
    delimiter = "\t"


@dataclass(frozen=True, slots=True, kw_only=True)
class DelimitedTable(Table):
    """Lines of cells with a delimiter between.

    With `quotes`, a quoted cell may hold delimiters and line ends. Without, delimiters count wherever they stand, and
    quotes are taken off a cell that begins with one.
    """

    delimiter: str
    encoding: str = "utf-8"
    quotes: bool = False
    skipped: int = 0
    """Empty lines before the first."""

    def scan(self, file: LogFile) -> str:
        quote = "'\"'" if self.quotes else "''"
        columns = ", ".join(f"'c{number}': 'VARCHAR'" for number in range(len(self.names)))
        return (
            f"read_csv({quoted(file.path)}, compression={quoted(file.compression)}, header={self.header},"
            f" auto_detect=false, delim={quoted(self.delimiter)}, quote={quote}, escape={quote},"
            f" skip={self.skipped}, columns={{{columns}}}, encoding={quoted(self.encoding)}, store_rejects=true,"
            f" rejects_line_size_limit=1000)"
        )

    def untrimmed(self, name: str) -> str:
        return f"c{self.names.index(name)}"

    def trimmed(self, name: str) -> str:
        cell = self.untrimmed(name)
        if self.quotes:
            return f"nullif(trim({cell}), '')"
        return f"nullif(CASE WHEN starts_with({cell}, '\"') THEN trim({cell}, '\" ') ELSE trim({cell}) END, '')"

    def line_by_line(self) -> LineByLineTable:
        """The same columns, each line split alone."""
        return LineByLineTable(**{f.name: getattr(self, f.name) for f in fields(self)})

    def damage(self, database: Database, read: Callable[[], object]) -> str | None:
        """Call `read`, and return why the file must be read line by line; None if nothing is wrong."""
        try:
            read()
        except duckdb.InvalidInputException as error:
            if _MIXED_LINE_ENDS not in str(error):
                raise
            return "its lines end in different ways"
        if not self.quotes:
            return None
        line = database.value(
            """SELECT min(line) FROM reject_errors WHERE error_type::VARCHAR = 'UNQUOTED VALUE'
               OR trim(csv_line, chr(10) || chr(13)) LIKE '%' || chr(10) || '%'"""
        )
        return None if line is None else f"the quotes in line {line} do not match"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineByLineTable(DelimitedTable):
    """Reads a damaged file more slowly: it splits each line alone, so that a damaged line spoils no other.

    A quote that is never closed is a character like others.
    """

    def scan(self, file: LogFile) -> str:
        lines = f"SELECT line, {self._split} AS cells FROM {file.lines_sql(self.encoding)} WHERE line IS NOT NULL"
        columns = ", ".join(f"{self._cell(number)} AS c{number}" for number in range(len(self.names)))
        return f"(SELECT line, cells, {columns} FROM ({lines} OFFSET {int(self.header)}))"

    @property
    def problem(self) -> str:
        """SQL of the reason why a line does not have these columns; null if it has."""
        quotes = "length(line) - length(replace(line, '\"', ''))" if self.quotes else "0"
        columns = len(self.names)
        return (
            f"CASE WHEN len(cells) = {columns} THEN NULL WHEN ({quotes}) % 2 = 1 THEN 'unclosed_quote'"
            f" WHEN len(cells) < {columns} THEN 'missing_columns' ELSE 'too_many_columns' END"
        )

    @property
    def _split(self) -> str:
        """SQL of all cells of a line, still with their quotes."""
        plain = f"string_split(line, {quoted(self.delimiter)})"
        if not self.quotes or len(self.delimiter) > 1:
            return plain
        mark = re.escape(self.delimiter)
        cell = f'{mark}("(?:[^"]|"")*"[^{mark}]*|[^{mark}]*)'
        in_quotes = f"regexp_extract_all({quoted(self.delimiter)} || line, {quoted(cell)}, 1)"
        return f"CASE WHEN contains(line, '\"') THEN {in_quotes} ELSE {plain} END"

    def _cell(self, number: int) -> str:
        cell = f"cells[{number + 1}]"
        if not self.quotes:
            return cell
        inside = f"replace({cell}[2:-2], '\"\"', '\"')"
        return (
            f"CASE WHEN NOT starts_with({cell}, '\"') THEN {cell}"
            f" WHEN length({cell}) > 1 AND ends_with({cell}, '\"') THEN {inside} ELSE trim({cell}, '\"') END"
        )


def delimited_table(
    log: LogFiles,
    names: ColumnNames,
    delimiter: str | None = None,
    order: Sequence[str] = (),
    quotes: bool = False,
) -> DelimitedTable:
    """The table in a log of delimited text.

    Args:
        log: the files.
        names: what the format calls its columns; a first line that names a user and an item by them is a header.
        delimiter: between columns, unless the options name one; None: as the first lines show.
        order: the columns of a file without a header; empty: they are called 1, 2, 3.
        quotes: whether cells may be quoted, with delimiters inside.

    Raises:
        SourceError: it has too few columns, two of one name, or others in another file.
    """
    options, start = log.options, log.first_lines
    mark = options.delimiter or delimiter or start.delimiter
    cells = start.cells(mark)
    # 1. is the first line a header?
    header = options.header if options.header is not None else _is_header(cells, names, options.columns, bool(order))
    # 2. the names of the columns
    if header:
        _check_distinct(log, cells, names)
        columns = cells
    else:  # as many as most of the first lines have
        count = Counter(map(len, start.rows(mark))).most_common(1)[0][0]
        if count < len(order):
            raise SourceError(
                f"{log.where}: its lines have {count} columns, e.g. {start.quoted_first}; expected "
                f"{mark.join(order)!r}: choose another format"
            )
        columns = [*order, *(str(number) for number in range(len(order) + 1, count + 1))]
    if len(columns) < 2:
        raise SourceError(
            f"{log.where}: its lines have no two columns with {mark!r} between: {start.quoted_first}; "
            "choose another delimiter or format"
        )
    # 3. the same in all files
    check_same_columns(log, mark, len(columns), cells if header else None)
    return DelimitedTable(
        names=_distinct(columns),
        delimiter=mark,
        header=header,
        quotes=quotes,
        encoding=start.encoding,
        skipped=start.empty_before_first,
    )


def check_same_columns(log: LogFiles, delimiter: str, columns: int, header: Sequence[str] | None = None) -> None:
    """See that all files of a log have the columns of the first.

    Raises:
        SourceError: one has others.
    """
    for file in log.files[1:]:
        start = file.first_lines(log.database)
        cells = start.cells(delimiter)
        if start.first and (len(cells) != columns or (header is not None and cells != header)):
            raise SourceError(
                f"{log.where}: the files have different columns: {file.name} begins with {start.quoted_first}, "
                f"{log.files[0].name} with {log.first_lines.quoted_first}; read them one by one"
            )


def _is_header(cells: Sequence[str], names: ColumnNames, asked: Mapping[str, str], has_order: bool) -> bool:
    """Whether the first line is a header: it is, if it names a user and an item as the format or the user does.

    If the user counts a column by its number, the other one decides. If nothing does, formats without an order of
    their own must have a header, unless the user counts all columns.
    """
    known: list[bool | None] = []
    for part, usual in (("user_id", names.user_id), ("item_id", names.item_id)):
        name = asked.get(part)
        known.append(None if name and name.isdecimal() else first_match((name,) if name else usual, cells) is not None)
    if True in known and False not in known:
        return True
    return not has_order and not (asked and all(name.isdecimal() for name in asked.values()))


def _check_distinct(log: LogFiles, cells: Sequence[str], names: ColumnNames) -> None:
    """See that no two columns of a header have the name of a part of an event.

    Raises:
        SourceError: two have.
    """
    for part in FIELDS:
        asked = log.options.columns.get(part)
        found = first_match(getattr(names, part) if asked is None else (asked,), cells)
        if found is not None and cells.count(found) > 1:
            raise SourceError(
                f"{log.where}: two columns are called {found!r}: say which one by its number, "
                f"e.g. {part}={1 + cells.index(found)}"
            )


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """The names, with a number added where one is empty or occurs again."""
    found: list[str] = []
    for number, name in enumerate(names, 1):
        found.append(name if name and name not in found else f"{name or 'column'}_{number}")
    return tuple(found)
