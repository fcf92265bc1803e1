"""Delimited text: the formats csv and tsv, and how all others of this kind are read.

    user_id,item_id,timestamp
    ann,"tea, green",1700000000

A log of several files must have the same columns in all of them. A quote that is never
closed, or lines of which some end in CR LF and others in LF, make the database lose
lines: such a file is read `by_line`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import duckdb

from streamer.errors import SourceError
from streamer.replay.datasets.base import (
    ANY_TIME,
    COMMON_NAMES,
    ColumnNames,
    DatasetFormat,
    EventColumns,
    LogTable,
    TimeFormat,
    find_columns,
    first_match,
)
from streamer.replay.datasets.database import Database, quoted
from streamer.replay.datasets.files import LogFile, LogFiles
from streamer.replay.datasets.first_lines import FirstLines
from streamer.replay.settings import FIELDS

_MIXED_LINE_ENDS = "state machine reached an invalid state"
"""What the database says of lines that end in different ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelimitedTable(LogTable):
    """Lines of cells with a delimiter between.

    With `quotes`, a quoted cell may hold delimiters and line ends. Without, delimiters
    count wherever they stand, and quotes are taken off a cell that begins with one.
    """

    delimiter: str
    encoding: str = "utf-8"
    quotes: bool = False
    skipped: int = 0
    """Empty lines before the first."""
    by_line: bool = False
    """Whether each line is split alone, which is slower, so that a damaged line spoils
    no other.

    A quote that is never closed is then a character like others.
    """

    def scan(self, file: LogFile) -> str:
        if self.by_line:
            cells = ", ".join(
                f"{self._cell_sql(number)} AS c{number}"
                for number in range(len(self.names))
            )
            lines = f"SELECT line, {self._cells_sql} AS cells FROM {file.lines_sql(self.encoding)} WHERE line NOT NULL"
            return f"(SELECT line, cells, {cells} FROM ({lines} OFFSET {int(self.header)}))"
        quote = "'\"'" if self.quotes else "''"
        columns = ", ".join(
            f"'c{number}': 'VARCHAR'" for number in range(len(self.names))
        )
        return (
            f"read_csv({quoted(file.path)}, compression={quoted(file.compression)}, header={self.header},"
            f" auto_detect=false, delim={quoted(self.delimiter)}, quote={quote}, escape={quote},"
            f" skip={self.skipped}, columns={{{columns}}}, encoding={quoted(self.encoding)}, store_rejects=true,"
            f" rejects_line_size_limit=1000)"
        )

    @property
    def _cells_sql(self) -> str:
        """SQL of all cells of a line, still with their quotes."""
        plain = f"string_split(line, {quoted(self.delimiter)})"
        if not self.quotes or len(self.delimiter) > 1:
            return plain
        mark = re.escape(self.delimiter)
        cell = f'{mark}("(?:[^"]|"")*"[^{mark}]*|[^{mark}]*)'
        in_quotes = (
            f"regexp_extract_all({quoted(self.delimiter)} || line, {quoted(cell)}, 1)"
        )
        return f"CASE WHEN contains(line, '\"') THEN {in_quotes} ELSE {plain} END"

    def _cell_sql(self, number: int) -> str:
        """SQL of one of them, without its quotes."""
        cell = f"cells[{number + 1}]"
        if not self.quotes:
            return cell
        inside = f"replace({cell}[2:-2], '\"\"', '\"')"
        return (
            f"CASE WHEN NOT starts_with({cell}, '\"') THEN {cell}"
            f" WHEN length({cell}) > 1 AND ends_with({cell}, '\"') THEN {inside} ELSE trim({cell}, '\"') END"
        )

    @property
    def problem(self) -> str:
        """SQL of the reason why a line that is split alone does not have these columns;
        null if it has.
        """
        quotes = (
            "length(line) - length(replace(line, '\"', ''))" if self.quotes else "0"
        )
        columns = len(self.names)
        return (
            f"CASE WHEN len(cells) = {columns} THEN NULL WHEN ({quotes}) % 2 = 1 THEN 'unclosed_quote'"
            f" WHEN len(cells) < {columns} THEN 'missing_columns' ELSE 'too_many_columns' END"
        )

    def untrimmed(self, name: str) -> str:
        return f"c{self.names.index(name)}"

    def trimmed(self, name: str) -> str:
        cell = self.untrimmed(name)
        if self.quotes:
            return f"nullif(trim({cell}), '')"
        return f"nullif(CASE WHEN starts_with({cell}, '\"') THEN trim({cell}, '\" ') ELSE trim({cell}) END, '')"

    def damage(self, database: Database, read: Callable[[], object]) -> str | None:
        """Call `read`, and return why the file must be read line by line; None if
        nothing is wrong.
        """
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


class DelimitedFormat(DatasetFormat):
    """A format of delimited text."""

    names: ClassVar[ColumnNames] = COMMON_NAMES
    """A first line that names a user and an item by these is a header."""
    delimiter: ClassVar[str | None] = None
    """Unless the settings name one; None: as the first lines show."""
    order: ClassVar[tuple[str, ...]] = ()
    """The columns of a file without a header; empty: they are called 1, 2, 3."""
    quotes: ClassVar[bool] = False
    """Whether cells may be quoted, with delimiters inside."""
    time_format: ClassVar[TimeFormat] = ANY_TIME
    headers: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Columns that only its own headers have together, in any order and case."""
    own_cells: ClassVar[Mapping[int, str]] = {}
    """Patterns of cells that only its own rows have, by the number of the cell."""
    cells: ClassVar[Mapping[int, str]] = {}
    """Patterns of cells that its rows have, and perhaps those of other formats."""

    def recognises(self, start: FirstLines) -> bool:
        delimiter = self.delimiter or start.delimiter
        if any(start.has_header(delimiter, *names) for names in self.headers):
            return True
        first = start.cells(delimiter)
        return bool(self.own_cells) and self._is_row(first, self.own_cells)

    def accepts(self, start: FirstLines) -> bool:
        if not self.cells:
            return False
        delimiter = self.delimiter or start.delimiter
        if self.names.are_header(start.cells(delimiter)):
            return True
        return start.most_rows_match(
            delimiter, lambda row: self._is_row(row, self.cells)
        )

    def _is_row(self, row: Sequence[str], patterns: Mapping[int, str]) -> bool:
        """Whether a line has as many cells as a row, and they match the patterns."""
        return len(row) == len(self.order) and all(
            re.fullmatch(pattern, row[number]) for number, pattern in patterns.items()
        )

    def columns(self, log: LogFiles) -> EventColumns:
        return find_columns(log, self.table(log), self.names, self.time_format)

    def table(self, log: LogFiles) -> DelimitedTable:
        """The table in the files of a log."""
        settings = log.settings
        start = log.first_lines
        delimiter = settings.delimiter or self.delimiter or start.delimiter
        cells = start.cells(delimiter)
        # 1. is the first line a header?
        header = settings.header
        if header is None:
            header = self._is_header(cells, settings.columns)
        # 2. the names of the columns
        if header:
            columns = cells
            for part in FIELDS:
                asked = settings.columns.get(part)
                named = first_match(
                    getattr(self.names, part) if asked is None else (asked,), cells
                )
                if named is not None and cells.count(named) > 1:
                    raise SourceError(
                        f"{log.where}: two columns are called {named!r}: say which one by its number, "
                        f"e.g. {part}={1 + cells.index(named)}"
                    )
        else:  # as many as most of the first lines have
            count = Counter(map(len, start.rows(delimiter))).most_common(1)[0][0]
            columns = [
                *self.order,
                *(str(number) for number in range(len(self.order) + 1, count + 1)),
            ]
            if count < len(columns):
                raise SourceError(
                    f"{log.where}: its lines have {count} columns, e.g. {start.quoted_first}; expected "
                    f"{delimiter.join(self.order)!r}: choose another format"
                )
        if len(columns) < 2:
            raise SourceError(
                f"{log.where}: its lines have no two columns with {delimiter!r} between: {start.quoted_first}; "
                "choose another delimiter or format"
            )
        # 3. the same in all files
        for file in log.files[1:]:
            other = file.first_lines(log.database)
            found = other.cells(delimiter)
            if other.first and (
                len(found) != len(columns) or (header and found != cells)
            ):
                raise SourceError(
                    f"{log.where}: the files have different columns: {file.name} begins with {other.quoted_first}, "
                    f"{log.files[0].name} with {start.quoted_first}; read them one by one"
                )
        # 4. a number is added to a name that is empty or occurs again
        names: list[str] = []
        for number, name in enumerate(columns, 1):
            names.append(
                name if name and name not in names else f"{name or 'column'}_{number}"
            )
        return DelimitedTable(
            names=tuple(names),
            delimiter=delimiter,
            header=header,
            quotes=self.quotes,
            encoding=start.encoding,
            skipped=start.empty_before_first,
        )

    def _is_header(self, cells: Sequence[str], asked: Mapping[str, str]) -> bool:
        """Whether the first line is a header: it is, if it names a user and an item as
        the format or the user does.

        If the user counts a column by its number, the other one decides. If nothing
        does, formats without an order of their own must have a header, unless the user
        counts all columns.
        """
        wanted = (
            (asked.get("user_id"), self.names.user_id),
            (asked.get("item_id"), self.names.item_id),
        )
        by_name = [
            (name,) if name else usual
            for name, usual in wanted
            if not (name and name.isdecimal())
        ]
        if by_name and all(first_match(names, cells) for names in by_name):
            return True
        return not self.order and not (
            asked and all(name.isdecimal() for name in asked.values())
        )


class Csv(DelimitedFormat):
    """Any delimited text; name its columns unless they are user_id, item_id, timestamp."""

    name = "csv"
    file_names = (("*.csv",),)
    quotes = True


class Tsv(DelimitedFormat):
    """Tab-separated text, in which quotes are plain characters; name its columns as for
    csv.
    """

    name = "tsv"
    file_names = (("*.tsv",),)
    delimiter = "\t"
