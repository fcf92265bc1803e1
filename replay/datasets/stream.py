"""From the rows of a log to its stream: ids as codes, filters, and the order of the
events.

raw       rows of the files, see `rows`                                  dropped when `events` is filled
codes_C   value, code: of all values of the column C of `raw`            C: user_id, item_id, features
events    row (its number in `raw`), time_s, and codes                   what the filters leave; dropped at the end
stream    the same in the order of the stream                            its rowid is the position
"""

from __future__ import annotations

from streamer.replay.datasets.base import EventColumns
from streamer.replay.datasets.database import quoted, reading
from streamer.replay.datasets.files import LogFiles
from streamer.replay.settings import LogSettings, parse_time

_MASK = 0xFFFFFFFF
_MASK_64 = (1 << 64) - 1
# of a multiply-xorshift mixer with little bias
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B


def make_stream(log: LogFiles, columns: EventColumns) -> None:
    """Fill the tables `stream` and `codes_...` from `raw`, and drop `raw`."""
    settings = log.settings
    database = log.database
    with reading(log.where):
        # 1. codes for ids and features, and the filters that look at one event
        for name in columns.coded:
            database.rows(
                f"CREATE TABLE codes_{name} AS SELECT value, (row_number() OVER () - 1)::INTEGER AS code FROM"
                f" (SELECT DISTINCT {name} AS value FROM raw WHERE problem IS NULL)"
            )
        database.rows(f"CREATE TABLE events AS {_filtered_sql(columns, settings)}")
        database.rows("DROP TABLE raw")
        # 2. the users that the seed chooses; a small sample is part of any larger one
        if (sample := settings.sample_users) is not None:
            users = database.value("SELECT count(DISTINCT user_id) FROM events")
            chosen = max(1, round(sample * users)) if sample < 1 else int(sample)
            database.rows(
                f"""DELETE FROM events WHERE user_id NOT IN (
                    SELECT code FROM codes_user_id WHERE code IN (SELECT user_id FROM events)
                    ORDER BY md5('{settings.seed}:' || value), value LIMIT {chosen})"""
            )
        # 3. without users and items that have too few events, until none is left
        dropped = settings.k_core > 1
        while dropped:
            dropped = False
            for column in ("user_id", "item_id"):
                rare = f"SELECT {column} FROM events GROUP BY {column} HAVING count(*) < {settings.k_core}"
                deleted = f"DELETE FROM events WHERE {column} IN ({rare})"
                dropped = bool(database.value(deleted)) or dropped
        # 4. the order
        limit = "" if settings.limit is None else f"LIMIT {settings.limit}"
        ordered = ordered_sql("events", settings.seed, columns.time is not None)
        database.rows(f"CREATE TABLE stream AS {ordered} {limit}")
        database.rows("DROP TABLE events")


def _filtered_sql(columns: EventColumns, settings: LogSettings) -> str:
    """SQL of the events in `raw` with their codes, without those that the filters leave
    out.
    """
    coded = columns.coded
    selected = ["raw.rowid AS row", *(f"codes_{name}.code AS {name}" for name in coded)]
    joins = [f"JOIN codes_{name} ON raw.{name} = codes_{name}.value" for name in coded]
    conditions = ["problem IS NULL"]
    if columns.time is not None:
        selected.append("time_s")
    if settings.event_types:
        types = [
            columns.event_type_names.get(name.lower(), name)
            for name in settings.event_types
        ]
        conditions.append(f"event_type IN ({', '.join(map(quoted, types))})")
    if settings.min_rating is not None:
        conditions.append(f"rating >= {settings.min_rating!r}")
    elif columns.above_average:
        average = "SELECT user_id, avg(rating) AS mean FROM raw WHERE problem IS NULL GROUP BY user_id"
        joins.append(f"JOIN ({average}) AS average ON average.user_id = raw.user_id")
        conditions.append("rating > mean + 1e-9")
    if settings.since is not None:
        conditions.append(f"time_s >= {parse_time(settings.since)!r}")
    if settings.until is not None:
        conditions.append(f"time_s < {parse_time(settings.until)!r}")
    return f"SELECT {', '.join(selected)} FROM raw {' '.join(joins)} WHERE {' AND '.join(conditions)}"


def ordered_sql(table: str, seed: int, by_time: bool) -> str:
    """SQL of the events of a table in the order of the stream: by time, equal times
    shuffled by a seed.
    """
    by = "time_s, shuffle_key, row" if by_time else "shuffle_key, row"
    return f"SELECT * EXCLUDE (shuffle_key) FROM ({shuffled_sql(table, seed)}) ORDER BY {by}"


def shuffled_sql(table: str, seed: int) -> str:
    """SQL of a table with a column `shuffle_key`, made from its column `row` and a
    seed.

    It is our own shuffle, not the database's, so that a seed means the same order for
    ever: the number of the row, mixed twice by a bijection of 32 bits. Rows beyond 2^32
    share keys, and then stand in the order of the file. Each step is a subquery: in one
    expression, each would hold the one before several times. The product of two numbers
    of 32 bits fits in 64.
    """
    # two numbers of 32 bits that neighbouring seeds do not share: the first output of
    # splitmix64
    z = (seed + 0x9E3779B97F4A7C15) & _MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
    low = (z ^ (z >> 31)) & _MASK
    high = (z ^ (z >> 31)) >> 32
    mix = (
        f"(xor(shuffle_key, shuffle_key >> 16) * {_FIRST}::UBIGINT) & {_MASK}",
        f"(xor(shuffle_key, shuffle_key >> 15) * {_SECOND}::UBIGINT) & {_MASK}",
        "xor(shuffle_key, shuffle_key >> 16)",
    )
    start = f"xor(xor(row::UBIGINT & {_MASK}, row::UBIGINT >> 32), {low}::UBIGINT)"
    sql = f"SELECT *, {start} AS shuffle_key FROM {table}"
    for step in (*mix, f"(shuffle_key + {high}::UBIGINT) & {_MASK}", *mix):
        sql = f"SELECT * REPLACE ({step} AS shuffle_key) FROM ({sql})"
    return sql
