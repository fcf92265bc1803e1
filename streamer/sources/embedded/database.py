"""The database of the embedded log: its tables and the questions put to them.
`source.py` explains it.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from streamer.errors import SourceError, SourceUnavailable, UnknownTopic

LOG_FILE = "log.sqlite3"
FORMAT = 1
BUSY_TIMEOUT_S = 10.0

SCHEMA = (
    """CREATE TABLE partitions (
        id INTEGER PRIMARY KEY,
        topic TEXT NOT NULL,
        number INTEGER NOT NULL,
        next_offset INTEGER NOT NULL DEFAULT 0,
        UNIQUE (topic, number)
    )""",
    """CREATE TABLE batches (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        partition INTEGER NOT NULL,
        first_offset INTEGER NOT NULL,
        count INTEGER NOT NULL,
        max_timestamp_ms INTEGER NOT NULL,
        records BLOB NOT NULL
    )""",
    "CREATE UNIQUE INDEX batches_by_offset ON batches (partition, first_offset)",
    f"PRAGMA user_version = {FORMAT}",
)

Run = tuple[list[int], list[bytes | None], list[bytes]]
"""Timestamps, keys and values of consecutive records of one partition."""

encode_run = msgspec.msgpack.Encoder().encode
decode_run = msgspec.msgpack.Decoder(Run).decode


def connect(
    path: Path, busy_timeout_s: float = BUSY_TIMEOUT_S, mode: str = "rw"
) -> sqlite3.Connection:
    """Open a database in autocommit mode; `mode` is SQLite's: rw, or rwc to create it."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(
        uri,
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )


def create_or_open(path: Path) -> sqlite3.Connection:
    """Open the log for writing; create its tables if they are missing, even if others
    do the same now.
    """
    db = connect(path, mode="rwc")
    try:
        if format_of(db, path) == 0:
            deadline = time.monotonic() + BUSY_TIMEOUT_S
            while True:  # SQLite does not wait by itself here when another process does the same at this moment
                try:
                    db.execute("PRAGMA journal_mode = WAL")
                    break
                except sqlite3.OperationalError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)
            with db:
                db.execute("BEGIN IMMEDIATE")
                if format_of(db, path) == 0:
                    for statement in SCHEMA:
                        db.execute(statement)
                    db.execute(f"PRAGMA application_id = {secrets.randbits(31)}")
    except BaseException:
        db.close()
        raise
    return db


def format_of(db: sqlite3.Connection, path: Path) -> int:
    """The version of the tables; 0 if they are not there yet."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, FORMAT):
        raise SourceError(
            f"{path} has format {version}, this version of Streamer reads {FORMAT}: upgrade Streamer"
        )
    return version


def log_id(db: sqlite3.Connection) -> str:
    """What tells this log from others: random, given when it was created."""
    number: int = db.execute("PRAGMA application_id").fetchone()[0]
    return f"{number:08x}" if number else ""


@contextlib.contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as ours, with the file's name."""
    try:
        yield
    except sqlite3.Error as error:
        if "locked" in str(error) or "busy" in str(error):
            raise SourceUnavailable(
                f"{path} is in use by another writer: {error}. Try again"
            ) from error
        raise SourceError(
            f"cannot use {path}: {error}. Check free space and permissions, and that it is a log of Streamer"
        ) from error
    except OSError as error:
        raise SourceError(f"cannot use {path}: {error.strerror}") from error


def rows_of(db: sqlite3.Connection, topic: str) -> list[tuple[int, int]]:
    """Row id and next offset of each partition, by number."""
    return db.execute(
        "SELECT id, next_offset FROM partitions WHERE topic = ? ORDER BY number",
        (topic,),
    ).fetchall()


def topics_of(db: sqlite3.Connection) -> dict[str, int]:
    """Each topic and its number of partitions."""
    return dict(
        db.execute(
            "SELECT topic, count(*) FROM partitions GROUP BY topic ORDER BY topic"
        )
    )


def check_topics(
    path: Path, topics: Collection[str], existing: Collection[str]
) -> None:
    """Raise `UnknownTopic` unless all topics exist."""
    missing = [repr(topic) for topic in topics if topic not in existing]
    if missing:
        there = ", ".join(map(repr, existing)) or "none"
        raise UnknownTopic(
            f"there is no topic {', '.join(missing)} in {path.parent} (there: {there}). "
            "Write it first, or check the name"
        )


def ends_of(db: sqlite3.Connection, partition_id: int) -> tuple[int, int]:
    """Return the first offset of a partition that is still there, and its end."""
    query = (
        "SELECT coalesce((SELECT min(first_offset) FROM batches WHERE partition = id), "
        "next_offset), next_offset FROM partitions WHERE id = ?"
    )
    first, end = db.execute(query, (partition_id,)).fetchone()
    return first, end


def first_offset_since(
    db: sqlite3.Connection, partition_id: int, timestamp_ms: int, end: int
) -> int:
    """Return the offset of the first record with at least this timestamp; `end` if
    there is none.
    """
    run = db.execute(
        "SELECT first_offset, records FROM batches "
        "WHERE partition = ? AND max_timestamp_ms >= ? ORDER BY first_offset LIMIT 1",
        (partition_id, timestamp_ms),
    ).fetchone()
    if run is None:
        return end
    first, records = run
    for place, stamp in enumerate(decode_run(records)[0]):
        if stamp >= timestamp_ms:
            return int(first) + place
    return end
