"""A log that was read, filtered and put in order: a stream that can be read again and
again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.errors import SourceError
from streamer.event import encode_item
from streamer.replay.datasets.base import EventColumns
from streamer.replay.datasets.database import reading
from streamer.replay.datasets.features import FeatureReader
from streamer.replay.datasets.files import LogFiles
from streamer.replay.datasets.rows import read_rows
from streamer.replay.datasets.stream import make_stream, ordered_sql
from streamer.replay.events import Events, MalformedRows, Record

CHUNK = 65_536
CATALOGUE_TYPE = "catalogue"
"""The type of catalogue events, by which a topic of both is read."""
_NO_TEXTS = np.empty(0, object)


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
    """

    def __init__(self, format_name: str, log: LogFiles, columns: EventColumns) -> None:
        self.name = format_name
        self.path = log.location.path
        self.seed = log.settings.seed
        self.has_time = columns.time is not None
        self._log = log
        self._database = log.database
        self.malformed: MalformedRows = read_rows(log, columns)
        make_stream(log, columns)
        self._length = int(self._database.value("SELECT count(*) FROM stream"))
        self._user_ids = self._values("user_id")
        self._item_ids = self._values("item_id")
        self._item_features = FeatureReader(
            columns.item_features,
            self._values("item_features") if columns.item_features else _NO_TEXTS,
            columns.features_by_item,
        )
        self._user_features = FeatureReader(
            columns.user_features,
            self._values("user_features") if columns.user_features else _NO_TEXTS,
            columns.features_by_user,
        )
        self._features_by_item = columns.features_by_item
        self._titles_by_item = columns.titles_by_item
        self._passes = 0

    def __len__(self) -> int:
        return self._length

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its files and remove the temporary ones. May be called twice."""
        self._log.close()

    @property
    def files(self) -> list[Path]:
        """All files that were read, those with features too; of an archive the archive."""
        return self._log.location.opened

    def describe(self) -> dict[str, Any]:
        """The numbers of users, items, events and malformed rows, and the first and the
        last time.
        """
        times = "min(time_s), max(time_s)" if self.has_time else "NULL, NULL"
        sql = f"SELECT count(DISTINCT user_id), count(DISTINCT item_id), {times} FROM stream"
        users, items, first_s, last_s = self._database.rows(sql)[0]
        return {
            "name": self.name,
            "users": users,
            "items": items,
            "events": len(self),
            "first_s": first_s,
            "last_s": last_s,
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
        seed = self.seed if pass_seed is None else pass_seed
        table = "stream"
        if seed != self.seed:
            self._passes += 1
            table = f"pass_{self._passes}"
            with reading(self.path):
                self._database.rows(
                    f"CREATE TABLE {table} AS {ordered_sql('stream', seed, self.has_time)}"
                )
        try:
            for begin in range(start, len(self), chunk):
                sql = f"SELECT * FROM {table} WHERE rowid >= {begin} AND rowid < {begin + chunk}"
                with reading(self.path):
                    columns = self._database.arrays(sql)
                users: list[str] = self._user_ids[columns["user_id"]].tolist()
                items: list[str] = self._item_ids[columns["item_id"]].tolist()
                times_s = columns["time_s"].tolist() if self.has_time else None
                user_features = self._user_features.read(
                    users, columns.get("user_features")
                )
                item_features = self._item_features.read(
                    items, columns.get("item_features")
                )
                yield Events(users, items, times_s, user_features, item_features)
        finally:
            if table != "stream":
                self._database.rows(f"DROP TABLE {table}")

    def catalogue(self) -> list[Record]:
        """Catalogue events of the items that a file beside the log describes, at the
        time of the first event.

        Raises:
            SourceError: there is no such file.
        """
        features = self._features_by_item
        titles = self._titles_by_item()
        if not features and not titles:
            raise SourceError(
                f"{self.path}: no file beside it describes its items, so that there is no catalogue"
            )
        time_s = self.describe()["first_s"]
        time_ms = round(1000 * (time.time() if time_s is None else time_s))
        return [
            (
                item.encode(),
                encode_item(
                    item,
                    time_s,
                    item_features=features.get(item),
                    title=titles.get(item),
                    event_type=CATALOGUE_TYPE,
                ),
                time_ms,
            )
            for item in dict.fromkeys([*features, *titles])
        ]

    def interactions(self) -> Interactions:
        """All events as arrays, without features."""
        with reading(self.path):
            arrays = self._database.arrays(
                "SELECT user_id, item_id FROM stream ORDER BY rowid"
            )
        users, user_ids = _by_first_event(
            arrays["user_id"].astype(np.int64), self._user_ids
        )
        items, item_ids = _by_first_event(
            arrays["item_id"].astype(np.int64), self._item_ids
        )
        return Interactions(users, items, user_ids, item_ids)

    def _values(self, column: str) -> NDArray[Any]:
        """All values of a column by their codes."""
        return np.ma.getdata(
            self._database.arrays(f"SELECT value FROM codes_{column} ORDER BY code")[
                "value"
            ]
        )


def _by_first_event(
    codes: NDArray[np.int64], ids: NDArray[Any]
) -> tuple[NDArray[np.int64], list[str]]:
    """Codes that count ids in the order of their first event, and the ids in that
    order.
    """
    first = np.full(len(ids), len(codes))
    # of equal codes the last assignment counts: the first position
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(codes))]
    new_codes = np.empty(len(ids), np.int64)
    new_codes[order] = np.arange(len(order))
    return new_codes[codes], ids[order].tolist()
