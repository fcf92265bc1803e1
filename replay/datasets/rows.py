"""Reads the rows of a log's files into the table `raw`, and counts those that are not
events.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamer.errors import SourceError
from streamer.event import EventSettings, Reason
from streamer.replay.datasets.base import ISO_TIME, EventColumns
from streamer.replay.datasets.database import Database, quoted, reading
from streamer.replay.datasets.files import LogFile, LogFiles
from streamer.replay.datasets.tables import FEATURES, LogTable
from streamer.replay.events import MAX_EXAMPLES, MalformedRows
from streamer.replay.settings import LogSettings, parse_time

LATEST_S = 7_258_118_400
"""The year 2200. A larger number counts milliseconds, a still larger one microseconds,
then nanoseconds.
"""
LONGEST_ID = EventSettings().max_id_length
"""Characters, as in events."""
SHOWN = 80
"""Characters of a malformed line."""
_SCALED = " ".join(
    f"WHEN time_parsed < {LATEST_S}e{power} THEN time_parsed / 1e{power}"
    for power in (0, 3, 6, 9)
)
_REJECTED = f"""(SELECT line, lower(replace(first(error_type::VARCHAR ORDER BY byte_position), ' ', '_')) AS problem,
                        first(left(trim(csv_line, chr(10) || chr(13)), {SHOWN}) ORDER BY byte_position) AS text
                 FROM reject_errors GROUP BY line)"""
"""SQL of the lines that the database could not split; a line with several reasons
counts once.
"""
_UNCLOSED = """SELECT min(line) FROM reject_errors WHERE error_type::VARCHAR = 'UNQUOTED VALUE'
               AND trim(csv_line, chr(10) || chr(13)) LIKE '%' || chr(10) || '%'"""
"""SQL of the first line with a quote that takes further lines in."""


def read_rows(log: LogFiles, columns: EventColumns) -> MalformedRows:
    """Fill the table `raw`, and return the rows that are not events."""
    malformed = MalformedRows()
    database = log.database
    into = "CREATE TABLE raw AS"
    for file in log.files:
        with reading(file.name):
            before = 0 if file is log.files[0] else database.value(_COUNT)
            rows = _rows_sql(file, columns, log.settings)
            database.drop_rejects()
            database.rows(f"{into} {rows}")
            into = "INSERT INTO raw"
            prefix = f"{file.name}, " if len(log.files) > 1 else ""
            _report(database, file, columns.table, before, malformed, prefix)
    events = database.value(f"{_COUNT} WHERE problem IS NULL")
    if not events and not malformed.total:
        raise SourceError(f"{log.where} is empty: it has no row")
    if not events:
        example = f", e.g. {malformed.examples[0]}" if malformed.examples else ""
        raise SourceError(
            f"{log.where}: none of its {malformed.total:,} rows is an event{example}; "
            "has it another format, or do its columns have other names?"
        )
    return malformed


_COUNT = "SELECT count(*) FROM raw"


def _rows_sql(file: LogFile, columns: EventColumns, settings: LogSettings) -> str:
    """SQL of the rows of a file, as in `raw`."""
    values = {"row_problem": columns.table.problem, **columns.values}
    problems = [
        "WHEN row_problem IS NOT NULL THEN row_problem",
        "WHEN user_id IS NULL THEN 'missing_user_id'",
        "WHEN item_id IS NULL THEN 'missing_item_id'",
        f"WHEN length(user_id) > {LONGEST_ID} OR length(item_id) > {LONGEST_ID} THEN '{Reason.ID_TOO_LONG}'",
    ]
    if columns.has_time:
        values["time_text"] = values.pop("timestamp")
        problems.append(
            f"WHEN time_s IS NULL OR time_s < 0 OR time_s >= {LATEST_S} THEN 'bad_timestamp'"
        )
    if columns.format.above_average or settings.min_rating is not None:
        problems.append("WHEN rating IS NULL OR NOT isfinite(rating) THEN 'bad_rating'")
    else:
        values.pop("rating", None)
    if not settings.event_types:
        values.pop("event_type", None)
    selected = ", ".join(f"{value} AS {name}" for name, value in values.items())
    sql = f"SELECT {selected} FROM {columns.table.scan(file)}"
    if columns.has_time:
        # In two steps: within one expression each mention would parse the text again,
        # and a cast that fails is slow.
        sql = f"SELECT *, {columns.format.time} AS time_parsed FROM ({sql})"
        time_s = f"CASE WHEN time_parsed IS NULL THEN {ISO_TIME} {_SCALED} END"
        sql = f"SELECT * EXCLUDE (time_text, time_parsed), {time_s} AS time_s FROM ({sql})"
    return f"SELECT * EXCLUDE (row_problem), CASE {' '.join(problems)} END AS problem FROM ({sql})"


def _report(
    database: Database,
    file: LogFile,
    table: LogTable,
    before: int,
    malformed: MalformedRows,
    prefix: str,
) -> None:
    """Count the rows of a file that are not events, and keep the first ones as
    examples. `before` rows of `raw` are of other files.
    """
    problems = f"FROM raw WHERE rowid >= {before} AND problem IS NOT NULL"
    counted = "GROUP BY ALL ORDER BY ALL"
    counts = database.rows(f"SELECT problem, count(*) {problems} {counted}")
    first = database.rows(
        f"SELECT rowid - {before}, problem {problems} ORDER BY rowid LIMIT {MAX_EXAMPLES}"
    )
    unit = "row"
    examples = [(row + 1, problem) for row, problem in first]
    if table.encoding is not None:
        unit = "line"
        unclosed = database.value(_UNCLOSED)
        if unclosed is not None:
            raise SourceError(
                f"{file.name}: the quotes in line {unclosed} do not match: correct it, or read the file as tsv with "
                "its delimiter, where quotes are plain characters"
            )
        counts += database.rows(f"SELECT problem, count(*) FROM {_REJECTED} {counted}")
        examples = database.rows(
            f"SELECT line, problem || ': ' || text FROM {_REJECTED} ORDER BY line LIMIT {MAX_EXAMPLES}"
        )
        lines = _lines_of_rows(database, file, [row for row, _ in first], table)
        for row, problem in first:
            if row in lines:
                line, text = lines[row]
                examples.append((line, f"{problem}: {text}"))
    for problem, rows in counts:
        malformed.by_reason[problem] += rows
    for number, text in sorted(examples):
        malformed.examples.append(f"{prefix}{unit} {number}: {text}")
    del malformed.examples[MAX_EXAMPLES:]


def _lines_of_rows(
    database: Database, file: LogFile, rows: Sequence[int], table: LogTable
) -> dict[int, tuple[int, str]]:
    """The number of the line, and its text, from which each of some rows was read.
    Reads the file once more.

    Lines that became no row, and are in `reject_errors`, are skipped as in the first
    reading; of them, those that are not of the encoding are not read at all.
    """
    if not rows:
        return {}
    lines = file.lines_sql(str(table.encoding), rejects="second")
    sql = f"""
        WITH rejected AS (SELECT line, bool_or(error_type::VARCHAR = 'INVALID ENCODING') AS absent
                          FROM reject_errors GROUP BY line),
             shifts AS (SELECT line - row_number() OVER (ORDER BY line) + 1 AS since FROM rejected WHERE absent),
             present AS (SELECT row_number() OVER () AS n, line FROM {lines}),
             lines AS (SELECT n + (SELECT count(*) FROM shifts WHERE since <= n) AS n, line FROM present),
             used AS (SELECT n, line FROM lines
                      WHERE line IS NOT NULL AND n NOT IN (SELECT line FROM rejected)),
             numbered AS (SELECT n, line, row_number() OVER (ORDER BY n) - {1 + table.header} AS row FROM used)
        SELECT row, n, left(line, {SHOWN}) FROM numbered WHERE row IN ({", ".join(map(str, rows))})"""
    found = database.rows(sql)
    database.drop_rejects("second")
    return {row: (line, text) for row, line, text in found}


def filtered_sql(columns: EventColumns, settings: LogSettings) -> str:
    """SQL of the events in `raw`, without those that the filters of single events leave
    out.
    """
    conditions = ["problem IS NULL"]
    if settings.event_types:
        names = columns.format.event_types
        types = [names.get(name.lower(), name) for name in settings.event_types]
        conditions.append(f"event_type IN ({', '.join(map(quoted, types))})")
    if settings.min_rating is not None:
        conditions.append(f"rating >= {settings.min_rating!r}")
    elif columns.format.above_average:
        average = "SELECT user_id, avg(rating) AS mean FROM raw WHERE problem IS NULL GROUP BY user_id"
        conditions.append(
            f"rating > (SELECT mean FROM ({average}) AS of WHERE of.user_id = raw.user_id) + 1e-9"
        )
    if settings.since is not None:
        conditions.append(f"time_s >= {parse_time(settings.since)!r}")
    if settings.until is not None:
        conditions.append(f"time_s < {parse_time(settings.until)!r}")
    kept = ["rowid AS row", "user_id", "item_id"]
    kept += [name for name in FEATURES if name in columns.values]
    if columns.has_time:
        kept.append("time_s")
    return f"SELECT {', '.join(kept)} FROM raw WHERE {' AND '.join(conditions)}"
