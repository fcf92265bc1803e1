"""Reads the rows of a log's files into the table `raw`, and counts those that are not
events.
"""

from __future__ import annotations

from streamer.errors import SourceError
from streamer.event import EventSettings, Reason
from streamer.replay.datasets.base import ISO_TIME, LogColumns
from streamer.replay.datasets.database import quoted, reading
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
"""Characters of a malformed line or row."""
_SCALED = " ".join(
    f"WHEN time_parsed < {LATEST_S}e{power} THEN time_parsed / 1e{power}"
    for power in (0, 3, 6, 9)
)
_REJECTED = f"""(SELECT line AS number,
                        lower(replace(first(error_type::VARCHAR ORDER BY byte_position), ' ', '_')) AS problem,
                        first(left(trim(csv_line, chr(10) || chr(13)), {SHOWN}) ORDER BY byte_position) AS text
                 FROM reject_errors GROUP BY line)"""
"""SQL of the lines that the database could not split; a line with several reasons
counts once.
"""
_UNCLOSED = """SELECT min(line) FROM reject_errors WHERE error_type::VARCHAR = 'UNQUOTED VALUE'
               AND trim(csv_line, chr(10) || chr(13)) LIKE '%' || chr(10) || '%'"""
"""SQL of the first line with a quote that takes further lines in."""


def read_rows(log: LogFiles, columns: LogColumns) -> MalformedRows:
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
            _report(log, file, columns.table, before, malformed)
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


def _rows_sql(file: LogFile, columns: LogColumns, settings: LogSettings) -> str:
    """SQL of the rows of a file, as in `raw`."""
    table = columns.table
    cells = ", ".join(f"coalesce(c{n}, '')" for n in range(len(table.names)))
    values = {
        "row_problem": table.problem,
        "row_text": table.text or f"concat_ws(', ', {cells})",
        **columns.values,
    }
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
    selected = ", ".join(f"{value} AS {name}" for name, value in values.items())
    sql = f"SELECT {selected} FROM {table.scan(file)}"
    if columns.has_time:
        # In two steps: within one expression each mention would parse the text again,
        # and a cast that fails is slow.
        sql = f"SELECT *, {columns.format.time} AS time_parsed FROM ({sql})"
        time_s = f"CASE WHEN time_parsed IS NULL THEN {ISO_TIME} {_SCALED} END"
        sql = f"SELECT * EXCLUDE (time_text, time_parsed), {time_s} AS time_s FROM ({sql})"
    return (
        f"SELECT * EXCLUDE (row_problem, row_text), CASE {' '.join(problems)} END AS problem,"
        f" CASE WHEN problem IS NOT NULL THEN left(row_text, {SHOWN}) END AS text FROM ({sql})"
    )


def _report(
    log: LogFiles, file: LogFile, table: LogTable, before: int, malformed: MalformedRows
) -> None:
    """Count the lines of a file that are not rows, and its rows that are not events;
    the first ones are examples. `before` rows of `raw` are of other files.
    """
    database = log.database
    prefix = f"{file.name}, " if len(log.files) > 1 else ""
    bad_rows = f"""(SELECT rowid AS number, problem, text FROM raw
                   WHERE rowid >= {before} AND problem IS NOT NULL)"""
    found = [("row", bad_rows, 1 - before)]
    if table.encoding is not None:
        unclosed = database.value(_UNCLOSED)
        if unclosed is not None:
            raise SourceError(
                f"{file.name}: the quotes in line {unclosed} do not match: correct it, or read the file as tsv with "
                "its delimiter, where quotes are plain characters"
            )
        found.insert(0, ("line", _REJECTED, 0))
    for unit, bad, shift in found:
        counts = f"SELECT problem, count(*) FROM {bad} GROUP BY ALL ORDER BY ALL"
        for problem, count in database.rows(counts):
            malformed.by_reason[problem] += count
        first = f"SELECT * FROM {bad} ORDER BY number LIMIT {MAX_EXAMPLES}"
        for number, problem, text in database.rows(first):
            example = f"{prefix}{unit} {number + shift}: {problem}: {text}"
            malformed.examples.append(example)
    del malformed.examples[MAX_EXAMPLES:]


def filtered_sql(columns: LogColumns, settings: LogSettings) -> str:
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
    kept += [name for name in (*FEATURES, "event_type") if name in columns.values]
    if columns.has_time:
        kept.append("time_s")
    return f"SELECT {', '.join(kept)} FROM raw WHERE {' AND '.join(conditions)}"
