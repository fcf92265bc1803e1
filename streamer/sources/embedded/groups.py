"""Consumer groups of the embedded log: what each has committed, and the removal of what
all of them have passed.

The table `committed` holds the name of the group, topic, number, position, and when the
group was seen, in seconds since the epoch.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from streamer.sources.base import Partition, Positions
from streamer.sources.embedded.database import connect

logger = logging.getLogger(__name__)

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS committed (name TEXT, topic TEXT, number INTEGER, "
    "position INTEGER, seen_s REAL, PRIMARY KEY (name, topic, number))"
)
USED_BYTES = (
    "SELECT (page_count - freelist_count) * page_size "
    "FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)
TRIM = """
    WITH passed AS (
        SELECT id, min(position) AS position
        FROM committed JOIN partitions USING (topic, number) GROUP BY id
    ), oldest AS (
        SELECT seq, length(records) AS size FROM batches JOIN passed ON id = partition
        WHERE first_offset + count <= position ORDER BY seq LIMIT 1000
    ), removed AS (SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before FROM oldest)
    DELETE FROM batches WHERE seq IN (SELECT seq FROM removed WHERE before < ?)
"""
SEEN_EVERY_S = 60.0
TRIM_EVERY_S = 1.0
STEP_BYTES = 16 << 20
"""How much is removed at a time: writers wait for it."""
FORGOTTEN_AFTER_S = 7 * 86_400.0
"""A group that was not seen for this long is forgotten, as Kafka forgets one."""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A name under which positions are committed.

    Args:
        name: of the group.
        keep_bytes: how large the log may be before what every group has committed is
            removed; None for any size.
    """

    name: str = "streamer"
    keep_bytes: int | None = None


class GroupCommits:
    """What one group commits: taken from any thread, written by the polling one.

    Args:
        path: of the log.
        group: whose commits these are.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        path: Path,
        group: ConsumerGroup,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._group = group
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[Partition, int] = {}
        self._seen_s = 0.0
        self._trim_at = 0.0

    def add(self, positions: Positions) -> None:
        """Remember what to write."""
        with self._lock:
            self._waiting.update(positions)

    def flush(self, busy_timeout_s: float = 0.05) -> None:
        """Write what waits, and now and then that the group lives; what cannot be
        written now is tried again next time.
        """
        with self._lock:
            waiting = self._waiting
            self._waiting = {}
        now_s = self._clock()
        if not waiting and now_s - self._seen_s < SEEN_EVERY_S:
            return
        name = self._group.name
        rows = [(name, *p, int(at), now_s) for p, at in waiting.items()]
        try:
            with self._transaction(busy_timeout_s) as db:
                db.execute(
                    "UPDATE committed SET seen_s = ? WHERE name = ?", (now_s, name)
                )
                db.executemany("REPLACE INTO committed VALUES (?, ?, ?, ?, ?)", rows)
            self._seen_s = now_s
        except sqlite3.Error as error:
            logger.debug("positions not stored in %s: %s", self._path, error)
            with self._lock:
                self._waiting = waiting | self._waiting

    def trim(self) -> None:
        """Remove the oldest runs of records that every group has passed which reads
        them, if the log is too large; every second, and nothing while a writer is busy.

        A run goes as a whole. Offsets stay as they are: readers see a later beginning,
        as in Kafka. SQLite uses the space again for records that are appended later;
        the file does not shrink.
        """
        keep_bytes = self._group.keep_bytes
        now_s = self._clock()
        if keep_bytes is None or now_s < self._trim_at:
            return
        self._trim_at = now_s + TRIM_EVERY_S
        forgotten_s = now_s - FORGOTTEN_AFTER_S
        with (
            contextlib.suppress(sqlite3.Error),
            self._transaction(busy_timeout_s=0.05) as db,
        ):
            excess = db.execute(USED_BYTES).fetchone()[0] - keep_bytes
            if excess > 0:
                db.execute("DELETE FROM committed WHERE seen_s < ?", (forgotten_s,))
                removed = db.execute(TRIM, (min(excess, STEP_BYTES),)).rowcount
                self._trim_at = now_s if removed else self._trim_at

    @contextlib.contextmanager
    def _transaction(self, busy_timeout_s: float) -> Iterator[sqlite3.Connection]:
        """All or nothing, with the table of commits."""
        with contextlib.closing(connect(self._path, busy_timeout_s)) as db, db:
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("BEGIN IMMEDIATE")
            db.execute(SCHEMA)
            yield db
