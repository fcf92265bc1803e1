"""A log that was read, filtered and sorted: a stream that can be run through again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.replay.datasets.base import Opened
from streamer.replay.datasets.database import Connection, reading
from streamer.replay.datasets.features import FeatureReader
from streamer.replay.datasets.interactions import Interactions, by_first_appearance
from streamer.replay.datasets.layout import Layout
from streamer.replay.datasets.loading import coded, load, sort
from streamer.replay.datasets.scratch import Scratch
from streamer.replay.events import Events
from streamer.replay.lines import Malformed

CHUNK = 65_536


class Log:
    """The events of a log, in the order of the stream: by time, equal times shuffled by the seed.

    A log without time is shuffled by the seed. The order is the same on any machine and with any number of threads.
    Used by one thread; `close` removes the temporary files.

    Args:
        name: of its format.
        log: its files, open.
        layout: what its columns are.
        scratch: the directory of temporary files.

    Raises:
        SourceError: it cannot be read, or holds no event.
    """

    def __init__(self, name: str, log: Opened, layout: Layout, scratch: Scratch) -> None:
        self.name, self.path = name, Path(log.origin.path)
        self._log, self._layout, self._scratch = log, layout, scratch
        self._connection: Connection = log.connection
        self.malformed: Malformed = load(log, layout)
        self.has_time, self.seed = layout.time is not None, log.options.seed
        self._length = int(self._one("SELECT count(*) FROM stream")[0])
        self._user_ids, self._item_ids = self._ids("u"), self._ids("i")
        self._item_features = FeatureReader(layout.item_features, self._ids("a"), layout.about_items)
        self._user_features = FeatureReader(layout.user_features, self._ids("b"), layout.about_users)
        self._passes = 0

    def __len__(self) -> int:
        return self._length

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of everything, and remove temporary files. May be called twice."""
        self._connection.close()
        self._log.origin.close()
        self._scratch.close()

    @property
    def files(self) -> list[Path]:
        """All files that were read, those beside the log too; of an archive the archive."""
        return self._log.origin.opened

    def describe(self) -> dict[str, Any]:
        """How much there is of everything."""
        times = "min(t), max(t)" if self.has_time else "NULL, NULL"
        users, items, first, last = self._one(f"SELECT count(DISTINCT u), count(DISTINCT i), {times} FROM stream")
        return {
            "name": self.name,
            "path": str(self.path),
            "users": users,
            "items": items,
            "events": len(self),
            "first_s": first,
            "last_s": last,
            "malformed": self.malformed.total,
            "reasons": dict(self.malformed.by_reason),
        }

    def batches(self, chunk: int = CHUNK, pass_seed: int | None = None, start: int = 0) -> Iterator[Events]:
        """The events in the order of the stream.

        Args:
            chunk: events at once.
            pass_seed: another order of equal times, for a further pass; None: that of the options.
            start: leave out so many events.

        Raises:
            ValueError: chunk or start are no good.
            SourceError: there is no room to sort.
        """
        if chunk < 1 or start < 0:
            raise ValueError(f"chunk is {chunk} and start is {start}: they must be at least 1 and 0")
        return self._batches(chunk, pass_seed, start)

    def interactions(self) -> Interactions:
        """All events as arrays; features are left out."""
        columns = "u, i, t" if self.has_time else "u, i"
        with reading(self.path):
            arrays = self._connection.execute(f"SELECT {columns} FROM stream ORDER BY rowid").fetchnumpy()
        users, user_ids = by_first_appearance(arrays["u"].astype(np.int64), self._user_ids)
        items, item_ids = by_first_appearance(arrays["i"].astype(np.int64), self._item_ids)
        return Interactions(users, items, user_ids, item_ids, arrays.get("t"))

    def _batches(self, chunk: int, pass_seed: int | None, start: int) -> Iterator[Events]:
        with reading(self.path):
            table, drop = self._ordered(pass_seed)
        try:
            for begin in range(start, len(self), chunk):
                with reading(self.path):
                    events = self._read(table, begin, begin + chunk)
                yield events
        finally:
            drop()

    def _ordered(self, pass_seed: int | None) -> tuple[str, Callable[[], object]]:
        """A table in the order of a seed, and what to call when it is not needed any more."""
        if pass_seed is None or pass_seed == self._log.options.seed:
            return "stream", lambda: None
        self._passes += 1
        table = f"pass_{self._passes}"
        sort(self._log, self._layout, "stream", table, pass_seed)
        return table, lambda: self._connection.execute(f"DROP TABLE {table}")

    def _read(self, table: str, begin: int, end: int) -> Events:
        """The events at some positions."""
        sql = f"SELECT * FROM {table} WHERE rowid >= {begin} AND rowid < {end}"
        columns = self._connection.execute(sql).fetchnumpy()
        users = self._user_ids[columns["u"]].tolist()
        items = self._item_ids[columns["i"]].tolist()
        times = columns["t"].tolist() if self.has_time else None
        about_users = self._user_features.read(users, columns.get("b"))
        about_items = self._item_features.read(items, columns.get("a"))
        return Events(users, items, times, about_users, about_items)

    def _ids(self, column: str) -> NDArray[Any]:
        """All values of a column by their codes; empty, if there is none."""
        if column not in coded(self._layout):
            return np.empty(0, object)
        ids = self._connection.execute(f"SELECT id FROM ids_{column} ORDER BY code").fetchnumpy()["id"]
        return np.ma.getdata(ids)

    def _one(self, sql: str) -> tuple[Any, ...]:
        return self._connection.execute(sql).fetchall()[0]
