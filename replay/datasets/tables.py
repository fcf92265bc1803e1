"""Files as tables: SQL that reads a file, and SQL of each column in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from streamer.replay.datasets.database import quoted
from streamer.replay.datasets.files import LogFile


class Table(Protocol):
    """How each file of a log is read."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its columns."""
        ...

    @property
    def encoding(self) -> str | None:
        """How its lines are encoded; None if it has no lines."""
        ...

    @property
    def header(self) -> bool:
        """Whether the first line is no row."""
        ...

    def scan(self, file: LogFile) -> str:
        """SQL of the rows of a file, in their order."""
        ...

    def column(self, name: str) -> str:
        """SQL of the text in a column; null where there is none."""
        ...

    def text(self, name: str) -> str:
        """SQL of the same, but perhaps with spaces or quotes around it."""
        ...


@dataclass(frozen=True, slots=True)
class DelimitedTable:
    """Lines of columns with a delimiter between.

    With `quotes`, a quoted value may hold delimiters and ends of lines: a quote that is never closed takes the lines
    after it with it, see `by_line`. Without, delimiters count wherever they stand, and the quotes around a value that
    begins with one are taken off.
    """

    names: tuple[str, ...]
    delimiter: str
    header: bool
    quotes: bool = False
    encoding: str = "utf-8"
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

    def by_line(self) -> LineTable:
        """The same columns, each line taken apart alone."""
        return LineTable(self.names, self.delimiter, self.header, self.quotes, self.encoding, self.skipped)

    def text(self, name: str) -> str:
        return f"c{self.names.index(name)}"

    def column(self, name: str) -> str:
        number = self.names.index(name)
        if self.quotes:
            return f"nullif(trim(c{number}), '')"
        unquoted = f"CASE WHEN starts_with(c{number}, '\"') THEN trim(c{number}, '\" ') ELSE trim(c{number}) END"
        return f"nullif({unquoted}, '')"


@dataclass(frozen=True, slots=True)
class LineTable(DelimitedTable):
    """The same, but each line is taken apart alone, however the one before ends. Slower, for files that are damaged.

    A quote that is never closed is a character like others: it spoils its own line at most.
    """

    def scan(self, file: LogFile) -> str:
        lines = f"SELECT line, {self._cells} AS cells FROM {file.lines_sql(self.encoding)} WHERE line IS NOT NULL"
        columns = ", ".join(f"{self._cell(number)} AS c{number}" for number in range(len(self.names)))
        return f"(SELECT line, cells, {columns} FROM ({lines} OFFSET {int(self.header)}))"

    @property
    def problem(self) -> str:
        """SQL of the reason why a line has not these columns; null if it has."""
        quotes = "length(line) - length(replace(line, '\"', ''))" if self.quotes else "0"
        columns = len(self.names)
        return (
            f"CASE WHEN len(cells) = {columns} THEN NULL WHEN ({quotes}) % 2 = 1 THEN 'unclosed_quote'"
            f" WHEN len(cells) < {columns} THEN 'missing_columns' ELSE 'too_many_columns' END"
        )

    @property
    def _cells(self) -> str:
        """SQL of all values of a line."""
        split = f"string_split(line, {quoted(self.delimiter)})"
        if not self.quotes or len(self.delimiter) > 1:
            return split
        mark = re.escape(self.delimiter)
        cell = f'{mark}("(?:[^"]|"")*"[^{mark}]*|[^{mark}]*)'
        in_quotes = f"regexp_extract_all({quoted(self.delimiter)} || line, {quoted(cell)}, 1)"
        return f"CASE WHEN contains(line, '\"') THEN {in_quotes} ELSE {split} END"

    def _cell(self, number: int) -> str:
        cell = f"cells[{number + 1}]"
        if not self.quotes:
            return cell
        inside = f"replace({cell}[2:-2], '\"\"', '\"')"
        return (
            f"CASE WHEN NOT starts_with({cell}, '\"') THEN {cell}"
            f" WHEN length({cell}) > 1 AND ends_with({cell}, '\"') THEN {inside} ELSE trim({cell}, '\"') END"
        )


@dataclass(frozen=True, slots=True)
class ParquetTable:
    """A Parquet file; its types are known."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    encoding: None = None
    header: bool = False

    def scan(self, file: LogFile) -> str:
        return f"read_parquet({quoted(file.path)})"

    def raw(self, name: str) -> str:
        """SQL of a column as it is."""
        return '"' + name.replace('"', '""') + '"'

    def type_of(self, name: str) -> str:
        """The type of a column."""
        return self.types[self.names.index(name)]

    def column(self, name: str) -> str:
        return f"nullif(trim({self.text(name)}), '')"

    def text(self, name: str) -> str:
        return f"{self.raw(name)}::VARCHAR"


@dataclass(frozen=True, slots=True)
class JsonTable:
    """A JSON object a line. A name with dots is a way into it, unless a field is called so."""

    names: tuple[str, ...]
    ways: Mapping[str, tuple[str, ...]]
    """The keys that lead to each."""
    encoding: str = "utf-8"
    header: bool = False

    def scan(self, file: LogFile) -> str:
        document = "CASE WHEN json_valid(line) THEN CASE WHEN json_type(line) = 'OBJECT' THEN line END END"
        return f"(SELECT {document} AS document, line FROM {file.lines_sql(self.encoding)} WHERE line IS NOT NULL)"

    def column(self, name: str) -> str:
        return f"nullif(trim({self.text(name)}), '')"

    def text(self, name: str) -> str:
        return f"json_extract_string(document, {self._way(name)})"

    def object(self, name: str) -> str:
        """SQL of a field that is an object, as JSON."""
        return f"json_extract(document, {self._way(name)})::VARCHAR"

    def _way(self, name: str) -> str:
        return quoted("".join("/" + key.replace("~", "~0").replace("/", "~1") for key in self.ways[name]))


@dataclass(frozen=True, slots=True)
class AdjacencyTable:
    """A user and its items a line."""

    names: tuple[str, ...] = ("user_id", "item_id")
    encoding: str = "utf-8"
    header: bool = False

    def scan(self, file: LogFile) -> str:
        words = r"string_split_regex(trim(line, chr(9) || ' '), '[ \t]+')"
        lines = f"SELECT {words} AS words FROM {file.lines_sql('utf-8')} WHERE line IS NOT NULL"
        return f"(SELECT words[1] AS user_id, unnest(words[2:]) AS item_id FROM ({lines}))"

    def column(self, name: str) -> str:
        return name

    def text(self, name: str) -> str:
        return name
