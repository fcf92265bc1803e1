"""Files as tables: SQL that reads a file, and SQL of each column in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from replay.datasets.database import quoted
from replay.datasets.files import LogFile


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

    Without `quotes`, delimiters count wherever they stand, and the quotes around a value that begins with one are taken
    off: a quote that is never closed then spoils one line at most.
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

    def text(self, name: str) -> str:
        return f"c{self.names.index(name)}"

    def column(self, name: str) -> str:
        number = self.names.index(name)
        if self.quotes:
            return f"nullif(trim(c{number}), '')"
        unquoted = f"CASE WHEN starts_with(c{number}, '\"') THEN trim(c{number}, '\" ') ELSE trim(c{number}) END"
        return f"nullif({unquoted}, '')"


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
