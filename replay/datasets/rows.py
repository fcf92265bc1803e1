"""Reads the rows of a log's files into the table `raw`, and counts those that are not
events.

`raw` has a row for each row of the files, in their order, so that its rowid is the
number of the row:

    user_id, item_id, time_s, rating, event_type     those that the log has, and the filters need
    item_features, user_features                     each as one text
    problem                                          why the row is not an event, or null
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from streamer.errors import SourceError
from streamer.event import EventSettings, Reason
from streamer.replay.datasets.base import LATEST_S, EventColumns
from streamer.replay.datasets.database import Database, reading
from streamer.replay.datasets.delimited import DelimitedTable
from streamer.replay.datasets.files import LogFile, LogFiles
from streamer.replay.events import MAX_EXAMPLES, MalformedRows

logger = logging.getLogger(__name__)

LONGEST_ID = EventSettings().max_id_length
"""Characters, as in events."""
SHOWN = 80
"""Characters of a malformed line."""
_REJECTED = f"""(SELECT line, lower(replace(first(error_type::VARCHAR ORDER BY byte_position), ' ', '_')) AS reason,
                        first(left(trim(csv_line, chr(10) || chr(13)), {SHOWN}) ORDER BY byte_position) AS text
                 FROM reject_errors GROUP BY line)"""
"""SQL of the lines that the database could not split; a line with several reasons
counts once.
"""


def read_rows(log: LogFiles, columns: EventColumns) -> MalformedRows:
    """Fill the table `raw`, and return the rows that are not events."""
    reader = _RowReader(log, columns)
    events = 0
    for file in log.files:
        with reading(file.name):
            events += reader.read(file)
    malformed = reader.malformed
    if not events and not malformed.total:
        raise SourceError(f"{log.where} is empty: it has no row")
    if not events:
        example = f", e.g. {malformed.examples[0]}" if malformed.examples else ""
        raise SourceError(
            f"{log.where}: none of its {malformed.total:,} rows is an event{example}; "
            "has it another format, or do its columns have other names?"
        )
    return malformed


class _RowReader:
    """Appends the rows of one file after another to `raw`."""

    def __init__(self, log: LogFiles, columns: EventColumns) -> None:
        self._log = log
        self._columns = columns
        self._database = log.database
        self._needs_rating = (
            columns.above_average or log.settings.min_rating is not None
        )
        self._rows = 0  # in `raw`, of the files before
        self._events = 0  # among the rows of this file
        self.malformed = MalformedRows()

    def read(self, file: LogFile) -> int:
        """Append the rows of a file, and return the number of events among them."""
        columns = self._columns
        table = self._columns.table
        damage = table.damage(self._database, partial(self._append, file, columns))
        if damage is not None and isinstance(table, DelimitedTable):
            at_once = self._events
            by_line = replace(table, by_line=True)
            as_lines = file.with_mixed_line_ends(self._database, table.encoding)
            self._append(
                as_lines, replace(columns, table=by_line, problem=by_line.problem)
            )
            if self._events >= at_once:
                logger.info(
                    "%s: %s, so each of its lines is read alone, which is slower",
                    file.name,
                    damage,
                )
                file = as_lines
            else:  # quotes that span several lines are meant to
                self._append(file, columns)
        self._report(file)
        self._rows = self._database.value("SELECT count(*) FROM raw")
        return self._events

    def _append(self, file: LogFile, columns: EventColumns) -> None:
        """Put the rows of a file after those of the files before, in the place of what
        was read of it already.
        """
        self._events = 0
        rows = self._rows
        database = self._database
        database.drop_rejects()
        if rows and database.value("SELECT count(*) FROM raw") > rows:
            database.rows(
                f"CREATE OR REPLACE TABLE raw AS SELECT * FROM raw WHERE rowid < {rows} ORDER BY rowid"
            )
        into = "INSERT INTO raw" if rows else "CREATE OR REPLACE TABLE raw AS"
        database.rows(f"{into} {self._select(file, columns)}")
        self._events = database.value(
            f"SELECT count(*) FROM raw WHERE rowid >= {rows} AND problem IS NULL"
        )

    def _select(self, file: LogFile, columns: EventColumns) -> str:
        """SQL of the rows of a file, as in `raw`."""
        values = columns.coded
        not_events = [
            "WHEN user_id IS NULL THEN 'missing_user_id'",
            "WHEN item_id IS NULL THEN 'missing_item_id'",
            f"WHEN length(user_id) > {LONGEST_ID} OR length(item_id) > {LONGEST_ID} THEN '{Reason.ID_TOO_LONG}'",
        ]
        if columns.problem is not None:
            values["row_problem"] = columns.problem
            not_events.insert(0, "WHEN row_problem IS NOT NULL THEN row_problem")
        if columns.time is not None:
            values["time_text"] = columns.time
            not_events.append(
                f"WHEN time_s IS NULL OR time_s < 0 OR time_s >= {LATEST_S} THEN 'bad_timestamp'"
            )
        if self._needs_rating:
            values["rating"] = str(columns.rating)
            not_events.append(
                "WHEN rating IS NULL OR NOT isfinite(rating) THEN 'bad_rating'"
            )
        if self._log.settings.event_types:
            values["event_type"] = str(columns.event_type)
        selected = ", ".join(f"{value} AS {name}" for name, value in values.items())
        sql = f"SELECT {selected} FROM {columns.table.scan(file)}"
        if columns.time is not None:
            sql = f"SELECT *, {columns.time_format.parsed} AS time_parsed FROM ({sql})"
            sql = f"SELECT * EXCLUDE (time_text, time_parsed), {columns.time_format.seconds} AS time_s FROM ({sql})"
        without = "" if columns.problem is None else "EXCLUDE (row_problem)"
        return f"SELECT * {without}, CASE {' '.join(not_events)} END AS problem FROM ({sql})"

    def _report(self, file: LogFile) -> None:
        """Count the rows of a file that are not events, and keep the first ones as
        examples.
        """
        database = self._database
        table = self._columns.table
        problems = f"FROM raw WHERE rowid >= {self._rows} AND problem IS NOT NULL"
        counts = database.rows(
            f"SELECT problem, count(*) {problems} GROUP BY ALL ORDER BY ALL"
        )
        first = database.rows(
            f"SELECT rowid - {self._rows}, problem {problems} ORDER BY rowid LIMIT {MAX_EXAMPLES}"
        )
        if table.encoding is None:
            unit = "row"
            examples = [(row + 1, reason) for row, reason in first]
        else:
            counts = (
                database.rows(
                    f"SELECT reason, count(*) FROM {_REJECTED} GROUP BY ALL ORDER BY ALL"
                )
                + counts
            )
            rejected = f"SELECT line, reason || ': ' || text FROM {_REJECTED} ORDER BY line LIMIT {MAX_EXAMPLES}"
            unit = "line"
            examples = database.rows(rejected)
            lines = _lines_of_rows(
                database, file, [row for row, _ in first], table.encoding, table.header
            )
            examples += [
                (lines[row][0], f"{reason}: {lines[row][1]}")
                for row, reason in first
                if row in lines
            ]
        for reason, rows in counts:
            self.malformed.by_reason[reason] += rows
        prefix = f"{file.name}, " if len(self._log.files) > 1 else ""
        for number, text in sorted(examples):
            self.malformed.add_example(f"{prefix}{unit} {number}: {text}")


def _lines_of_rows(
    database: Database, file: LogFile, rows: Sequence[int], encoding: str, header: bool
) -> dict[int, tuple[int, str]]:
    """The number of the line, and its text, from which each of some rows was read.
    Reads the file once more.

    Lines that became no row, and are in `reject_errors`, are skipped as in the first
    reading; of them, those that are not of the encoding are not read at all.
    """
    if not rows:
        return {}
    sql = f"""
        WITH rejected AS (SELECT line, bool_or(error_type::VARCHAR = 'INVALID ENCODING') AS absent
                          FROM reject_errors GROUP BY line),
             shifts AS (SELECT line - row_number() OVER (ORDER BY line) + 1 AS since FROM rejected WHERE absent),
             present AS (SELECT row_number() OVER () AS n, line FROM {file.lines_sql(encoding, rejects="second")}),
             lines AS (SELECT n + (SELECT count(*) FROM shifts WHERE since <= n) AS n, line FROM present),
             used AS (SELECT n, line FROM lines
                      WHERE line IS NOT NULL AND n NOT IN (SELECT line FROM rejected)),
             numbered AS (SELECT n, line, row_number() OVER (ORDER BY n) - {1 + header} AS row FROM used)
        SELECT row, n, left(line, {SHOWN}) FROM numbered WHERE row IN ({", ".join(map(str, rows))})"""
    found = database.rows(sql)
    database.drop_rejects("second")
    return {row: (line, text) for row, line, text in found}
