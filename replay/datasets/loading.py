"""From files to a table of events: read, leave out what is none, filter, sort.

    raw      rows of the files in their order: u, i (ids), t, r, e, a, b     rowid is the number of the row
    ids_u    id, code: of all users; ids_i, ids_a and ids_b the same         a and b are features of item and user
    events   n (number of the row), t, and codes u, i, a, b                  what the filters leave
    stream   the same, in the order of the stream                            rowid is the position

All but the stream and the ids are dropped on the way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from streamer.errors import SourceError
from streamer.event import EventSettings, Reason
from streamer.replay.datasets.base import Opened
from streamer.replay.datasets.database import quoted, reading
from streamer.replay.datasets.features import packed_sql
from streamer.replay.datasets.files import LogFile
from streamer.replay.datasets.layout import Layout
from streamer.replay.datasets.malformed import MalformedRows, Rejected, lines_of_rows, why_by_line
from streamer.replay.datasets.order import keyed_sql
from streamer.replay.datasets.tables import DelimitedTable
from streamer.replay.datasets.times import END_S
from streamer.replay.lines import MOST_REPORTED

logger = logging.getLogger(__name__)

LONGEST_ID = EventSettings().max_id_length
"""Characters, as on the wire."""


def load(log: Opened, layout: Layout) -> MalformedRows:
    """Fill the tables `ids_u`, `ids_i`, ... and `stream`; answer what was no event.

    Raises:
        SourceError: a file cannot be read, or holds no event.
    """
    loader = _Loader(log, layout)
    # 1. the rows of all files, and what is wrong with some
    loader.read()
    # 2. ids as codes, and the filters that look at one event
    loader.encode()
    # 3. the filters that look at all of them
    loader.sample_users()
    loader.keep_core()
    # 4. the stream
    with reading(log.where):
        sort(log, layout, "events", "stream", log.options.seed, log.options.limit)
        log.connection.execute("DROP TABLE events")
    return loader.malformed


def coded(layout: Layout) -> dict[str, str]:
    """The columns that become codes: their names, and their SQL."""
    columns = {"u": layout.user, "i": layout.item}
    if layout.item_features:
        columns["a"] = packed_sql(layout.item_features)
    if layout.user_features:
        columns["b"] = packed_sql(layout.user_features)
    return columns


def sort(log: Opened, layout: Layout, source: str, target: str, seed: int, limit: int | None = None) -> None:
    """Make a table of events in the order of the stream."""
    by_time = "t, " if layout.time is not None else ""
    upto = "" if limit is None else f"LIMIT {limit}"
    log.connection.execute(
        f"CREATE TABLE {target} AS SELECT * EXCLUDE (k) FROM ({keyed_sql(source, seed)}) ORDER BY {by_time}k, n {upto}"
    )


class _Loader:
    def __init__(self, log: Opened, layout: Layout) -> None:
        self._log, self._layout, self._options = log, layout, log.options
        self._connection = log.connection
        self.malformed = MalformedRows()
        self._needs_rating = layout.above_average or self._options.min_rating is not None
        self._coded = coded(layout)
        self._events = 0  # of the file that was read last

    # 1 ----------------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Fill `raw`, file by file; the lines of a damaged one are taken apart one by one."""
        first = events = 0
        for file in self._log.files:
            with reading(file.name):
                taken = self._insert(file, first)
                after = self._count("raw")
                self._report(taken, first)
            first, events = after, events + self._events
        if not first and not self.malformed.total:
            raise SourceError(f"{self._log.where} is empty: it has no row")
        if not events:
            example = f", e.g. {self.malformed.places[0]}" if self.malformed.places else ""
            raise SourceError(
                f"{self._log.where}: none of its {self.malformed.total:,} rows is an event{example}; "
                "is it of another format, or are its columns called otherwise?"
            )

    def _insert(self, file: LogFile, first: int) -> LogFile:
        """Put the rows of a file after the first ones; answer the file as it was read."""
        table = self._layout.table
        why = why_by_line(self._connection, table, partial(self._fill, file, first, self._layout))
        if why is None or not isinstance(table, DelimitedTable):
            return file
        by_line, at_once = table.by_line(), self._events
        any_ends = file.with_any_ends(self._connection, table.encoding)
        self._fill(any_ends, first, replace(self._layout, table=by_line, problem=by_line.problem))
        if self._events < at_once:  # most quotes that go over several lines are meant to
            self._fill(file, first, self._layout)
            return file
        logger.info("%s: %s; each of its lines is read alone", file.name, why)
        return any_ends

    def _fill(self, file: LogFile, first: int, layout: Layout) -> None:
        """Put rows in the place of all that come after the first ones; count those that are events."""
        self._events = 0
        Rejected(self._connection).clear()
        if first and self._count("raw") > first:
            self._run(f"CREATE OR REPLACE TABLE raw AS SELECT * FROM raw WHERE rowid < {first} ORDER BY rowid")
        into = "INSERT INTO raw" if first else "CREATE OR REPLACE TABLE raw AS"
        self._run(f"{into} {self._select(file, layout)}")
        self._events = self._count(f"raw WHERE rowid >= {first} AND bad IS NULL")

    def _select(self, file: LogFile, layout: Layout) -> str:
        """SQL of the rows of a file."""
        sql = f"SELECT {', '.join(self._columns(layout))} FROM {layout.table.scan(file)}"
        if layout.time is not None:
            sql = f"SELECT *, {layout.time.y} AS y FROM ({sql})"
            sql = f"SELECT * EXCLUDE (x, y), {layout.time.t} AS t FROM ({sql})"
        left_out = "" if layout.problem is None else "EXCLUDE (p)"
        return f"SELECT * {left_out}, {self._bad(layout)} AS bad FROM ({sql})"

    def _columns(self, layout: Layout) -> Iterator[str]:
        yield from (f"{sql} AS {name}" for name, sql in self._coded.items())
        if layout.time is not None:
            yield f"{layout.time.x} AS x"
        if self._needs_rating:
            yield f"{layout.rating} AS r"
        if self._options.event_types:
            yield f"{layout.event_type} AS e"
        if layout.problem is not None:
            yield f"{layout.problem} AS p"

    def _bad(self, layout: Layout) -> str:
        """SQL of the reason why a row is no event; null if it is one."""
        cases = [
            "WHEN u IS NULL THEN 'missing_user_id'",
            "WHEN i IS NULL THEN 'missing_item_id'",
            f"WHEN length(u) > {LONGEST_ID} OR length(i) > {LONGEST_ID} THEN '{Reason.ID_TOO_LONG}'",
        ]
        if layout.problem is not None:
            cases.insert(0, "WHEN p IS NOT NULL THEN p")
        if layout.time is not None:
            cases.append(f"WHEN t IS NULL OR t < 0 OR t >= {END_S} THEN 'bad_timestamp'")
        if self._needs_rating:
            cases.append("WHEN r IS NULL OR NOT isfinite(r) THEN 'bad_rating'")
        return f"CASE {' '.join(cases)} END"

    def _report(self, file: LogFile, first: int) -> None:
        """Count the rows of a file that are no events, and say where the first ones are."""
        table, rejected = self._layout.table, Rejected(self._connection)
        places: list[tuple[int, str]] = []
        if table.encoding is not None:
            for reason, rows in rejected.by_reason():
                self.malformed.found(reason, rows)
            places += rejected.places()
        sql = f"SELECT bad, count(*) FROM raw WHERE rowid >= {first} AND bad IS NOT NULL GROUP BY bad ORDER BY bad"
        found = self._rows(sql)
        for reason, rows in found:
            self.malformed.found(reason, rows)
        if found:
            places += self._places_of_rows(file, first)
        unit = "row" if table.encoding is None else "line"
        prefix = f"{file.name}, " if len(self._log.files) > 1 else ""
        for number, text in sorted(places):
            self.malformed.place(f"{prefix}{unit} {number}: {text}")

    def _places_of_rows(self, file: LogFile, first: int) -> Iterator[tuple[int, str]]:
        bad = f"SELECT rowid, bad FROM raw WHERE rowid >= {first} AND bad IS NOT NULL"
        reasons = {row - first: reason for row, reason in self._rows(f"{bad} ORDER BY rowid LIMIT {MOST_REPORTED}")}
        table = self._layout.table
        if table.encoding is None:
            yield from ((row + 1, reason) for row, reason in reasons.items())
            return
        lines = lines_of_rows(self._connection, file, list(reasons), table.encoding, table.header)
        for row, (line, text) in lines.items():
            yield line, f"{reasons[row]}: {text}"

    # 2 ----------------------------------------------------------------------------------------------------------------

    def encode(self) -> None:
        """Fill the tables of ids, and `events`; drop `raw`."""
        with reading(self._log.where):
            for name in self._coded:
                self._run(
                    f"CREATE TABLE ids_{name} AS SELECT id, (row_number() OVER () - 1)::INTEGER AS code FROM"
                    f" (SELECT DISTINCT {name} AS id FROM raw WHERE bad IS NULL)"
                )
            codes = "".join(f", ids_{name}.code AS {name}" for name in self._coded)
            joins = " ".join(f"JOIN ids_{name} ON raw.{name} = ids_{name}.id" for name in self._coded)
            time = ", t" if self._layout.time is not None else ""
            self._run(
                f"CREATE TABLE events AS SELECT raw.rowid AS n {time} {codes} FROM raw {joins} {self._averages()}"
                f" WHERE {' AND '.join(self._conditions())}"
            )
            self._run("DROP TABLE raw")

    def _averages(self) -> str:
        """A join with the average rating of each user, if that is what a rating is held against."""
        if not self._is_above_average:
            return ""
        return "JOIN (SELECT u, avg(r) AS mean FROM raw WHERE bad IS NULL GROUP BY u) AS average ON average.u = raw.u"

    @property
    def _is_above_average(self) -> bool:
        return self._layout.above_average and self._options.min_rating is None

    def _conditions(self) -> Iterator[str]:
        options = self._options
        yield "bad IS NULL"
        if options.event_types:
            names = self._layout.type_names
            yield f"e IN ({', '.join(quoted(names.get(t.lower(), t)) for t in options.event_types)})"
        if self._is_above_average:
            yield "r > mean + 1e-9"
        if options.min_rating is not None:
            yield f"r >= {options.min_rating!r}"
        if options.since_s is not None:
            yield f"t >= {options.since_s!r}"
        if options.until_s is not None:
            yield f"t < {options.until_s!r}"

    # 3 ----------------------------------------------------------------------------------------------------------------

    def sample_users(self) -> None:
        """Keep the users that the seed chooses: a share of them is part of any larger one."""
        sample = self._options.sample_users
        if sample is None:
            return
        with reading(self._log.where):
            users = self._rows("SELECT count(DISTINCT u) FROM events")[0][0]
            chosen = max(1, round(sample * users)) if sample < 1 else int(sample)
            self._run(
                f"""DELETE FROM events WHERE u NOT IN (
                    SELECT code FROM ids_u WHERE code IN (SELECT u FROM events)
                    ORDER BY md5('{self._options.seed}:' || id), id LIMIT {chosen})"""
            )

    def keep_core(self) -> None:
        """Drop users and items with too few events, again and again until none is left."""
        least = {"u": self._options.min_user_events, "i": self._options.min_item_events}
        dropped = True
        while dropped:
            with reading(self._log.where):
                dropped = sum(self._drop_rare(column, events) for column, events in least.items()) > 0

    def _drop_rare(self, column: str, least: int) -> int:
        """Drop the events of those with fewer; answer how many that were."""
        if least <= 1:
            return 0
        rare = f"SELECT {column} FROM events GROUP BY {column} HAVING count(*) < {least}"
        return int(self._rows(f"DELETE FROM events WHERE {column} IN ({rare})")[0][0])

    # helpers ----------------------------------------------------------------------------------------------------------

    def _run(self, sql: str) -> None:
        self._connection.execute(sql)

    def _rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()

    def _count(self, table: str) -> int:
        return int(self._rows(f"SELECT count(*) FROM {table}")[0][0])
