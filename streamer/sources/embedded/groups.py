"""Consumer groups of the embedded log: what each has committed, and when it was seen.

`DIR/groups.sqlite3` holds two tables:

    positions  name of the group, topic, number, position
    seen       name of the group, seconds since the epoch
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from streamer.sources.base import Partition, Positions
from streamer.sources.embedded.database import (
    BUSY_TIMEOUT_S,
    connect,
    translated_errors,
)

logger = logging.getLogger(__name__)

GROUPS_FILE = "groups.sqlite3"
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS positions (name TEXT, topic TEXT, number INTEGER, position INTEGER, "
    "PRIMARY KEY (name, topic, number))",
    "CREATE TABLE IF NOT EXISTS seen (name TEXT PRIMARY KEY, at_s REAL)",
)
SEEN_EVERY_S = 60.0
FORGOTTEN_AFTER_S = 7 * 86_400.0
"""A group that was not seen for this long is forgotten, as Kafka forgets one."""


def committed_positions(
    data_dir: str | Path, group: str = "streamer"
) -> dict[Partition, int]:
    """Return the positions that a group committed last; none if there are none."""
    path = Path(data_dir) / GROUPS_FILE
    if not path.exists():
        return {}
    with (
        translated_errors(path),
        contextlib.closing(connect(path, "ro", BUSY_TIMEOUT_S)) as db,
    ):
        rows = db.execute(
            "SELECT topic, number, position FROM positions WHERE name = ?", (group,)
        )
        return {Partition(topic, number): position for topic, number, position in rows}


class GroupPositions:
    """What one group commits: taken from any thread, written by the polling one.

    Args:
        path: of the database.
        name: of the group.
        clock: seconds since the epoch.
    """

    def __init__(
        self, path: Path, name: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[Partition, int] = {}
        self._seen_s = 0.0

    def add(self, positions: Positions) -> None:
        """Remember what to write."""
        with self._lock:
            self._waiting.update(positions)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def flush(self, busy_timeout_s: float = 0.05) -> None:
        """Write what waits, and now and then that the group lives; what cannot be
        written now is tried again next time.
        """
        with self._lock:
            waiting = self._waiting
            self._waiting = {}
        now_s = self._clock()
        is_due = now_s - self._seen_s >= SEEN_EVERY_S
        if not (waiting or is_due) or not self._path.parent.exists():
            return
        try:
            with self._transaction(busy_timeout_s) as db:
                db.execute(
                    "INSERT OR REPLACE INTO seen VALUES (?, ?)", (self._name, now_s)
                )
                db.executemany(
                    "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)",
                    [(self._name, *p, int(at)) for p, at in waiting.items()],
                )
            self._seen_s = now_s
        except sqlite3.Error as error:
            logger.debug("positions not stored in %s: %s", self._path, error)
            with self._lock:
                self._waiting = waiting | self._waiting

    def passed_by_all(self) -> dict[Partition, int]:
        """Return for each partition the position that every group has passed which
        reads it; groups that were not seen for long are forgotten.
        """
        with self._transaction(busy_timeout_s=0.05) as db:
            now_s = self._clock()
            oldest_s = now_s - FORGOTTEN_AFTER_S
            db.execute(
                "INSERT OR IGNORE INTO seen SELECT name, ? FROM positions", (now_s,)
            )
            alive = "SELECT name FROM seen WHERE at_s >= ?"
            db.execute(
                f"DELETE FROM positions WHERE name NOT IN ({alive})", (oldest_s,)
            )
            rows = db.execute(
                "SELECT topic, number, min(position) FROM positions GROUP BY topic, number"
            )
            return {Partition(topic, number): at for topic, number, at in rows}

    @contextlib.contextmanager
    def _transaction(self, busy_timeout_s: float) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(connect(self._path, "rwc", busy_timeout_s)) as db:
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("BEGIN IMMEDIATE")
            for statement in SCHEMA:
                db.execute(statement)
            yield db
            db.execute("COMMIT")
