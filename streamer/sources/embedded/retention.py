"""Removes what every consumer group has committed, once the log is larger than is to be
kept.

Offsets stay as they are: readers see a later beginning, as in Kafka. SQLite uses the
space again for records that are appended later; the file does not shrink.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from streamer.sources.base import Positions
from streamer.sources.embedded.database import connect

logger = logging.getLogger(__name__)

STEP_BYTES = 16 << 20
"""How much is removed at a time: writers wait for it."""


def trim(path: Path, passed: Positions, keep_bytes: int) -> bool:
    """Remove the oldest runs of records before the positions in `passed`, as long as
    the log holds more than `keep_bytes`.

    A run goes as a whole, when all of it is passed. Returns whether there may be more
    to remove; if a writer keeps the log busy, nothing is removed.
    """
    try:
        with contextlib.closing(connect(path, "rw", busy_timeout_s=0.05)) as db:
            excess = _used_bytes(db) - keep_bytes
            if excess <= 0:
                return False
            db.execute("BEGIN IMMEDIATE")
            removed = 0
            for seq, size in heapq.merge(*_passed_runs(db, passed)):
                if removed >= min(excess, STEP_BYTES):
                    break
                db.execute("DELETE FROM batches WHERE seq = ?", (seq,))
                removed += size
            db.execute("COMMIT")
            return 0 < removed < excess
    except sqlite3.Error as error:
        logger.debug("nothing is trimmed in %s: %s", path, error)
        return False


def _used_bytes(db: sqlite3.Connection) -> int:
    names = ("page_count", "freelist_count", "page_size")
    pages, free, page_bytes = (
        db.execute(f"PRAGMA {name}").fetchone()[0] for name in names
    )
    return int((pages - free) * page_bytes)


def _passed_runs(
    db: sqlite3.Connection, passed: Positions
) -> list[Iterator[tuple[int, int]]]:
    """Return for each partition its runs that are passed, oldest first: number in the
    log, and size in bytes.
    """
    runs: list[Iterator[tuple[int, int]]] = []
    for partition, position in passed.items():
        runs.append(
            db.execute(
                "SELECT seq, length(records) FROM batches WHERE partition = "
                "(SELECT id FROM partitions WHERE topic = ? AND number = ?) "
                "AND first_offset < ? AND first_offset + count <= ? ORDER BY first_offset",
                (*partition, position, position),
            )
        )
    return runs
