"""A log that was read, filtered and put in order: a stream that can be read again and
again.

raw       rows of the files in their order, so that a rowid is the number of a row: what
          the log has of user_id, item_id, time_s, rating, event_type, item_features and
          user_features, and its problem: why it is not an event, or null
events    row (its number in `raw`), user_id, item_id, time_s, features: what the filters leave
stream    the same in the order of the stream: its rowid is the position
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.errors import SourceError
from streamer.event import Features, encode
from streamer.replay.datasets.base import LogColumns
from streamer.replay.datasets.database import reading
from streamer.replay.datasets.files import LogFiles
from streamer.replay.datasets.order import ordered_sql
from streamer.replay.datasets.rows import filtered_sql, read_rows
from streamer.replay.datasets.tables import decode_features
from streamer.replay.events import Events, MalformedRows, Record

CHUNK = 65_536
CATALOGUE_TYPE = "catalogue"
"""The type of catalogue events, by which a topic of both is read."""
MAX_SHARED = 1_000_000
"""Up to this number of different features are kept, and shared by the events."""


@dataclass(slots=True)
class Interactions:
    """All events of a log as arrays, in the order of the stream. Codes count ids in the
    order of their first event.
    """

    users: NDArray[np.int64]  # [E]
    items: NDArray[np.int64]  # [E]
    user_ids: list[str]
    item_ids: list[str]

    def __len__(self) -> int:
        return len(self.users)


class Log:
    """The events of a log in the order of the stream: by time, events of equal time
    shuffled by the seed.

    A log without times is shuffled as a whole. The order is the same on any machine and
    with any number of threads. Used by one thread; `close` removes the temporary files.
    Events share features: treat them as read-only.
    """

    def __init__(self, format_name: str, log: LogFiles, columns: LogColumns) -> None:
        self.name = format_name
        self.path = log.location.path
        self.seed = log.settings.seed
        self.has_time = columns.has_time
        self._log = log
        self._columns = columns
        self._database = log.database
        self._interactions: Interactions | None = None
        self._decode = functools.lru_cache(MAX_SHARED)(decode_features)
        self.malformed: MalformedRows = read_rows(log, columns)
        with reading(log.where):
            self._make_stream()
        self._length = int(self._database.value("SELECT count(*) FROM stream"))

    def _make_stream(self) -> None:
        settings = self._log.settings
        database = self._database
        # 1. the filters that look at one event
        database.rows(f"CREATE TABLE events AS {filtered_sql(self._columns, settings)}")
        database.rows("DROP TABLE raw")
        # 2. the users that the seed chooses; a small sample is part of any larger one
        if (sample := settings.sample_users) is not None:
            users = database.value("SELECT count(DISTINCT user_id) FROM events")
            chosen = max(1, round(sample * users)) if sample < 1 else int(sample)
            database.rows(
                f"""DELETE FROM events WHERE user_id NOT IN (
                    SELECT user_id FROM (SELECT DISTINCT user_id FROM events)
                    ORDER BY md5('{settings.seed}:' || user_id), user_id LIMIT {chosen})"""
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
        ordered = ordered_sql("events", self.seed, self.has_time)
        database.rows(f"CREATE TABLE stream AS {ordered} {limit}; DROP TABLE events")

    def __len__(self) -> int:
        return self._length

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its files and remove the temporary ones. May be called twice."""
        self._database.close()

    @property
    def files(self) -> list[Path]:
        """All files that were read, those with features too."""
        return self._log.location.opened

    def describe(self) -> dict[str, Any]:
        """The numbers of users, items, events and malformed rows, and the first time."""
        first = "min(time_s)" if self.has_time else "NULL"
        sql = f"SELECT count(DISTINCT user_id), count(DISTINCT item_id), {first} FROM stream"
        users, items, first_s = self._database.rows(sql)[0]
        return {
            "name": self.name,
            "users": users,
            "items": items,
            "events": len(self),
            "first_s": first_s,
            "malformed": self.malformed.total,
        }

    def batches(
        self, chunk: int = CHUNK, pass_seed: int | None = None, start: int = 0
    ) -> Iterator[Events]:
        """The events in the order of the stream, from position `start` on, `chunk` of
        them at once.

        Another pass has a seed of its own, by which events of equal time have another
        order.
        """
        table = "stream"
        if pass_seed is not None and pass_seed != self.seed:
            table = f"pass_{pass_seed}"
            ordered = ordered_sql("stream", pass_seed, self.has_time)
            with reading(self.path):
                self._database.rows(f"CREATE OR REPLACE TABLE {table} AS {ordered}")
        for begin in range(start, len(self), chunk):
            sql = f"SELECT * FROM {table} WHERE rowid >= {begin} AND rowid < {begin + chunk}"
            with reading(self.path):
                columns = self._database.arrays(sql)
            users: list[str] = columns["user_id"].tolist()
            items: list[str] = columns["item_id"].tolist()
            beside = self._columns.users.features
            of_users = self._features(users, columns.get("user_features"), beside)
            beside = self._columns.items.features
            of_items = self._features(items, columns.get("item_features"), beside)
            times_s = columns["time_s"].tolist() if self.has_time else None
            types = self._types(columns.get("event_type"))
            yield Events(users, items, times_s, of_users, of_items, types)

    def _types(self, column: Any) -> list[str | None] | None:
        """The types of some events, by the names that people know them by."""
        if column is None:
            return None
        given = self._columns.format.event_types
        names = {code: name for name, code in given.items()}
        return [names.get(code, code) or None for code in column.tolist()]

    def _features(
        self, ids: list[str], own: Any, beside: Any
    ) -> list[Features | None] | None:
        """The features of some events, those of the log and those beside it; None if
        none of them has any.
        """
        if own is None and not beside:
            return None
        found: list[Features | None] = [beside.get(id_) for id_ in ids]
        if own is not None:
            texts = map(self._decode, own.tolist())
            pairs = zip(found, texts, strict=True)
            found = [a | b if a and b else a or b for a, b in pairs]
        return found if any(found) else None

    def catalogue(self) -> list[Record]:
        """Catalogue events of the items that a file beside the log describes, at the
        time of the first event.

        Raises:
            SourceError: there is no such file.
        """
        features = self._columns.items.features
        titles = self._columns.items.titles
        if not features and not titles:
            raise SourceError(
                f"{self.path}: no file beside it describes its items, so that there is no catalogue"
            )
        time_s = self.describe()["first_s"]
        time_ms = round(1000 * (time.time() if time_s is None else time_s))
        records: list[Record] = []
        for item in dict.fromkeys([*features, *titles]):
            value = encode(
                None,
                item,
                time_s,
                item_features=features.get(item),
                title=titles.get(item),
                event_type=CATALOGUE_TYPE,
            )
            records.append((item.encode(), value, time_ms))
        return records

    def interactions(self) -> Interactions:
        """All events as arrays, without features; read once."""
        if self._interactions is None:
            with reading(self.path):
                users, user_ids = self._codes("user_id")
                items, item_ids = self._codes("item_id")
            self._interactions = Interactions(users, items, user_ids, item_ids)
        return self._interactions

    def _codes(self, column: str) -> tuple[NDArray[np.int64], list[str]]:
        """The code of each event's id, and the ids by their codes."""
        by_first = f"SELECT {column}, row_number() OVER (ORDER BY min(rowid)) - 1 AS code FROM stream GROUP BY {column}"
        ids = self._database.arrays(f"SELECT {column} FROM ({by_first}) ORDER BY code")
        codes = self._database.arrays(
            f"SELECT code FROM stream JOIN ({by_first}) USING ({column}) ORDER BY stream.rowid"
        )
        return codes["code"].astype(np.int64), ids[column].tolist()
