"""The embedded log: topics, partitions and offsets in one SQLite database, for those
who have no Kafka.

`DIR/log.sqlite3` (WAL mode) holds two tables:

    partitions  id, topic, number, next_offset     the end of each partition; offsets are never used twice
    batches     seq, partition, first_offset, count, max_timestamp_ms, records
                a run of records of one partition; `records` is MessagePack:
                [timestamps_ms, keys, values]

Why runs and not one row a record: Python lets go of its global lock at every row that
SQLite returns, and a thread that shares the process with a busy trainer then waits for
it at every row; a row of many records pays this once.

**Order.** `seq` numbers the runs in the order in which they were appended, over all
partitions and topics. A reader returns records in this order, restricted to its
partitions; the order is fixed when the records are written, so it depends on neither
poll sizes nor timing, and a reader that goes on at recorded positions sees exactly the
rest of what it would have seen. Within one `append`, each group of at most
4096 records is sorted by partition (stable, so the order of a key's events
stays): that makes the runs long. A topic of one partition keeps the order to the
record.

**Writers.** An append is one transaction: readers see all of it or nothing, also if the
writer is killed. Several writers are safe (a replay, and a trainer that writes dead
letters): SQLite makes them wait for each other. A killed process loses nothing that
`append` returned from; a power cut may lose the last moments.

**Readers** never block writers, nor each other. Committed positions are a third table,
written when no writer is busy; a reader of a group with `keep_bytes` removes what every
group has committed, once the log is larger: see `groups`.

SQLite's WAL needs a local file system: not for a directory on NFS.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from streamer.errors import SourceError, UnknownTopic
from streamer.sources.base import Chunk, Partition, Positions, RebalanceListener
from streamer.sources.embedded import database
from streamer.sources.embedded.database import (
    LOG_FILE,
    connect,
    rows_of,
    topics_of,
    translated_errors,
)
from streamer.sources.embedded.groups import ConsumerGroup, GroupCommits
from streamer.sources.embedded.runs import RunReader
from streamer.sources.positions import (
    StartPolicy,
    as_topics,
    checked_partitions,
    checked_position,
    warn_of_gap,
)

IDLE_SLEEP_S = 0.01
EARLIEST = StartPolicy()
DEFAULT_GROUP = ConsumerGroup()


class EmbeddedSource:
    """Reads topics of the embedded log, in the order in which they were appended; see
    the module.

    Args:
        data_dir: the directory of the log.
        topics: one topic or several.
        partitions: the partition numbers to read of every topic; None for all.
        start: where partitions begin that the listener gives no position for. A topic
            that appears only after `open` is read from its beginning in any case.
        wait_for_topic: if a topic (or the whole log) is not there yet, wait for it in
            `poll`, do not raise.
        group: in whose name positions are committed; None for a reader that commits
            none, which retention does not wait for.
    """

    at_end = False
    all_assigned = True
    is_member = True
    problem = None

    def __init__(
        self,
        data_dir: str | Path,
        topics: str | Sequence[str],
        partitions: Collection[int] | None = None,
        start: StartPolicy = EARLIEST,
        *,
        wait_for_topic: bool = False,
        group: ConsumerGroup | None = DEFAULT_GROUP,
    ) -> None:
        self._path = Path(data_dir) / LOG_FILE
        self._missing = as_topics(topics)
        self._wanted = partitions
        self._start = start
        self._wait_for_topic = wait_for_topic
        self._commits = GroupCommits(self._path, group) if group is not None else None
        self._listener: RebalanceListener | None = None
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._runs: RunReader | None = None
        self._ends: dict[int, int] = {}  # by the id of its row, as far as is known

    def open(self, listener: RebalanceListener) -> None:
        """See `Source.open`."""
        self._listener = listener
        try:
            with translated_errors(self._path):
                self._connect()
                existing = topics_of(self._db) if self._db is not None else {}
                missing = [topic for topic in self._missing if topic not in existing]
                if missing and not self._wait_for_topic:
                    raise UnknownTopic(
                        database.unknown_topic(self._path, missing, existing)
                    )
                if self._db is not None:
                    with self._snapshot(self._db):
                        self._take_over_topics(self._db, self._start)
        except BaseException:
            self.close()
            raise

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`."""
        assert self._listener is not None, "open comes first"
        deadline = time.monotonic() + timeout_s
        if self._commits is not None and self._db is not None:
            self._commits.flush()
            self._commits.trim()
        while True:
            chunks = self._fetch(max_records) if max_records > 0 else []
            remaining_s = deadline - time.monotonic()
            if chunks or max_records == 0 or remaining_s <= 0:
                return chunks
            if self._db is not None and not self._is_same_file():
                raise SourceError(
                    f"{self._path} was removed or replaced while it was read; start again"
                )
            time.sleep(min(IDLE_SLEEP_S, remaining_s))

    def positions(self) -> Positions:
        """See `Source.positions`."""
        return self._runs.positions() if self._runs is not None else {}

    def commit(self, positions: Positions) -> None:
        """Store the positions as those of the group (`committed_positions`) at the next
        poll, or at `close`.
        """
        if self._commits is not None:
            self._commits.add(positions)

    def end_offsets(self) -> Positions:
        """See `Source.end_offsets`. Any thread may ask, so over a connection of its
        own; what was known last if the log does not respond."""
        partitions = self._runs.partitions if self._runs is not None else {}
        if partitions:
            with (
                contextlib.suppress(sqlite3.Error),
                contextlib.closing(connect(self._path, "rw", 1.0)) as db,
            ):
                self._ends = dict(db.execute("SELECT id, next_offset FROM partitions"))
        ends = self._ends
        return {p: ends[row] for row, p in partitions.items() if row in ends}

    def close(self) -> None:
        """Store what was committed and let go of the database. May be called twice."""
        self._listener = None
        if self._db is not None:
            if self._commits is not None:
                self._commits.flush(database.BUSY_TIMEOUT_S)
            self._db.close()
            self._db = None

    def _connect(self) -> None:
        """Open the database if it is there and has its tables; otherwise leave it for
        later.
        """
        if not self._path.exists():
            return
        db = connect(self._path, "rw", database.BUSY_TIMEOUT_S)
        if database.format_of(db, self._path) == 0:
            db.close()  # a writer is about to create the tables
            return
        self._db = db
        self._inode = self._path.stat().st_ino
        self._runs = RunReader(db)

    def _is_same_file(self) -> bool:
        """A removed log would be waited for in vain: its file lives on, unseen, as long
        as it is open.
        """
        try:
            return self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _snapshot(self, db: sqlite3.Connection) -> Iterator[None]:
        """All reads within see one state of the log."""
        db.execute("BEGIN")
        try:
            yield
        finally:
            db.execute("COMMIT")

    def _fetch(self, max_records: int) -> list[Chunk]:
        """Return the next records that are there."""
        with translated_errors(self._path):
            if self._db is None:
                self._connect()
            if self._db is None or self._runs is None:
                return []
            if self._missing:
                # or a topic that appears between the two could be passed by
                with self._snapshot(self._db):
                    self._take_over_topics(self._db, EARLIEST)
                    self._runs.fetch(max_records)
            else:
                self._runs.fetch(max_records)
        return self._runs.take(max_records)

    def _take_over_topics(self, db: sqlite3.Connection, start: StartPolicy) -> None:
        """Ask the listener for positions in all partitions of the missing topics that
        are there now, and read on there.
        """
        assert self._listener is not None, "open comes first"
        assert self._runs is not None
        existing = topics_of(db)
        new: dict[int, Partition] = {}
        for topic in self._missing:
            if topic in existing:
                rows = rows_of(db, topic)
                for partition in checked_partitions(topic, len(rows), self._wanted):
                    new[rows[partition.number][0]] = partition
        self._missing = [topic for topic in self._missing if topic not in existing]
        if not new:
            return
        trained = self._listener.on_assigned(list(new.values()))
        positions: dict[Partition, int] = {}
        lost: dict[Partition, int] = {}
        for row, partition in new.items():
            first, end = database.ends_of(db, row)
            if partition not in trained:
                positions[partition] = _by_policy(db, row, partition.topic, start)
                continue
            position = checked_position(partition, trained[partition], end)
            if position < first:
                warn_of_gap(partition, position, first)
                lost[partition] = first - position
            positions[partition] = max(position, first)
        positions |= self._listener.on_start(positions)
        self._runs.add(new, positions, lost)
        if self._commits is not None:  # from now on, retention waits for us
            self._commits.add(positions)
            self._commits.flush(database.BUSY_TIMEOUT_S)


def _by_policy(db: sqlite3.Connection, row: int, topic: str, start: StartPolicy) -> int:
    """Where a partition begins that has no position."""
    first, end = database.ends_of(db, row)
    if topic in start.from_beginning:
        return first
    if start.timestamp_ms is not None:
        return database.first_offset_since(db, row, start.timestamp_ms, end)
    return first if start.start == "earliest" else end


def all_partitions(
    data_dir: str | Path, topics: Sequence[str], *, wait: bool
) -> list[Partition]:
    """Return all partitions of topics; none while one of them is not there yet.

    Raises:
        UnknownTopic: a topic is not there, and nobody is to `wait` for it.
    """
    path = Path(data_dir) / LOG_FILE
    existing: dict[str, int] = {}
    if path.exists():
        with (
            translated_errors(path),
            contextlib.closing(connect(path, "rw", database.BUSY_TIMEOUT_S)) as db,
        ):
            existing = topics_of(db) if database.format_of(db, path) else {}
    missing = [topic for topic in topics if topic not in existing]
    if missing and not wait:
        raise UnknownTopic(database.unknown_topic(path, missing, existing))
    found: list[Partition] = []
    for topic in () if missing else topics:
        found += checked_partitions(topic, existing[topic], None)
    return found
