"""Positions that readers of the embedded log commit, for lag monitors: informative,
best effort.

`DIR/groups.sqlite3` holds one table: positions (name of the group, topic, number,
position).
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from pathlib import Path

from streamer.sources.base import Partition, Positions
from streamer.sources.embedded.database import (
    BUSY_TIMEOUT_S,
    connect,
    translated_errors,
)

logger = logging.getLogger(__name__)

GROUPS_FILE = "groups.sqlite3"


def committed_positions(
    data_dir: str | Path, group: str = "streamer"
) -> dict[Partition, int]:
    """The positions that readers of a group committed last; empty if there are none."""
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


class Commits:
    """Positions on their way to `groups.sqlite3`: taken from any thread, written by the
    polling one.
    """

    def __init__(self, path: Path, group: str) -> None:
        self._path = path
        self._group = group
        self._lock = threading.Lock()
        self._waiting: dict[Partition, int] = {}

    def add(self, positions: Positions) -> None:
        with self._lock:
            self._waiting.update(positions)

    def flush(self) -> None:
        """Write what waits; what cannot be written now is tried again next time."""
        with self._lock:
            waiting = self._waiting
            self._waiting = {}
        if not waiting or not self._path.parent.exists():
            return
        rows = [
            (self._group, *partition, position)
            for partition, position in waiting.items()
        ]
        columns = "name TEXT, topic TEXT, number INTEGER, position INTEGER, PRIMARY KEY (name, topic, number)"
        try:
            with contextlib.closing(
                connect(self._path, "rwc", busy_timeout_s=0.05)
            ) as db:
                db.execute(
                    "PRAGMA synchronous = OFF"
                )  # informative only: the checkpoint rules at restart
                db.execute("BEGIN IMMEDIATE")
                db.execute(f"CREATE TABLE IF NOT EXISTS positions ({columns})")
                db.executemany(
                    "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)", rows
                )
                db.execute("COMMIT")
        except sqlite3.Error as error:
            logger.debug("positions not stored in %s: %s", self._path, error)
            with self._lock:
                self._waiting = waiting | self._waiting
