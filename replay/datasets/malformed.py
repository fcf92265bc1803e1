"""Rows that are no events: how many, why, and on which line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import duckdb

from streamer.replay.datasets.database import Connection
from streamer.replay.datasets.files import LogFile
from streamer.replay.datasets.tables import DelimitedTable, Table
from streamer.replay.lines import MOST_REPORTED, Malformed

CLIPPED = 80
"""Characters of a line that are shown."""


class MalformedRows(Malformed):
    """What was no event, over all files of a log."""

    def found(self, reason: str, rows: int) -> None:
        """Count some."""
        self.by_reason[reason] += rows

    def place(self, text: str) -> None:
        """Keep where one is, if there is room."""
        if len(self.places) < self._most:
            self.places.append(text)


class Rejected:
    """The lines that the database could not take apart, of the file that it just read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def clear(self) -> None:
        """Forget those of the file before."""
        self._connection.execute("DROP TABLE IF EXISTS reject_errors; DROP TABLE IF EXISTS reject_scans")

    def by_reason(self) -> Iterator[tuple[str, int]]:
        """Reasons, and lines of each; a line with several counts once."""
        sql = """SELECT lower(replace(reason, ' ', '_')), count(*) FROM
                 (SELECT first(error_type::VARCHAR ORDER BY byte_position) AS reason FROM reject_errors GROUP BY line)
                 GROUP BY 1 ORDER BY 1"""
        yield from self._connection.execute(sql).fetchall()

    def places(self) -> list[tuple[int, str]]:
        """Lines and what is wrong with them, the first ones."""
        sql = f"""SELECT line, lower(replace(first(error_type::VARCHAR ORDER BY byte_position), ' ', '_')) || ': ' ||
                         first(left(trim(csv_line, chr(10) || chr(13)), {CLIPPED}) ORDER BY byte_position)
                  FROM reject_errors GROUP BY line ORDER BY line LIMIT {MOST_REPORTED}"""
        return self._connection.execute(sql).fetchall()

    def wrong_quotes(self) -> int | None:
        """The first line with quotes that do not match, and perhaps took further lines with them; None if all do."""
        sql = """SELECT min(line) FROM reject_errors WHERE error_type::VARCHAR = 'UNQUOTED VALUE'
                 OR trim(csv_line, chr(10) || chr(13)) LIKE '%' || chr(10) || '%'"""
        line: int | None = self._connection.execute(sql).fetchall()[0][0]
        return line


_MIXED = "state machine reached an invalid state"
"""What the database says of lines that end in different ways."""


def why_by_line(connection: Connection, table: Table, read: Callable[[], object]) -> str | None:
    """Read a file; answer why that was in vain and its lines have to be taken apart one by one, None if it was not.

    Args:
        table: of the file.
        read: reads it.
    """
    try:
        read()
    except duckdb.InvalidInputException as error:
        if not isinstance(table, DelimitedTable) or _MIXED not in str(error):
            raise
        return "its lines end in different ways"
    quotes = isinstance(table, DelimitedTable) and table.quotes
    line = Rejected(connection).wrong_quotes() if quotes else None
    return None if line is None else f"the quotes in line {line} do not match"


def lines_of_rows(
    connection: Connection, file: LogFile, rows: Sequence[int], encoding: str, header: bool
) -> dict[int, tuple[int, str]]:
    """The line, and its text, on which each row of a file stands. Reads the file once more.

    Lines that became no row, and are in `reject_errors`, are skipped as in the first reading; of them, those that are
    not of the encoding do not come at all.

    Args:
        rows: numbers of rows, from 0.
        header: whether the first line is none of them.
    """
    sql = f"""
        WITH rejected AS (SELECT line, bool_or(error_type::VARCHAR = 'INVALID ENCODING') AS absent
                          FROM reject_errors GROUP BY line),
             shifts AS (SELECT line - row_number() OVER (ORDER BY line) + 1 AS since FROM rejected WHERE absent),
             present AS (SELECT row_number() OVER () AS n, line FROM {file.lines_sql(encoding, rejects="second")}),
             lines AS (SELECT n + (SELECT count(*) FROM shifts WHERE since <= n) AS n, line FROM present),
             used AS (SELECT n, line FROM lines
                      WHERE line IS NOT NULL AND n NOT IN (SELECT line FROM rejected)),
             numbered AS (SELECT n, line, row_number() OVER (ORDER BY n) - {1 + header} AS row FROM used)
        SELECT row, n, left(line, {CLIPPED}) FROM numbered WHERE row IN ({", ".join(map(str, rows))})"""
    found = connection.execute(sql).fetchall()
    connection.execute("DROP TABLE IF EXISTS second_errors; DROP TABLE IF EXISTS second_scans")
    return {row: (line, text) for row, line, text in found}
