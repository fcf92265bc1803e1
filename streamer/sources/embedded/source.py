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
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streamer.errors import SourceError
from streamer.sources.base import (
    Chunk,
    Partition,
    Position,
    Positions,
    RebalanceListener,
    check_log,
)
from streamer.sources.embedded.database import (
    BUSY_TIMEOUT_S,
    LOG_FILE,
    check_topics,
    connect,
    ends_of,
    first_offset_since,
    format_of,
    log_id,
    rows_of,
    topics_of,
    translated_errors,
)
from streamer.sources.embedded.groups import ConsumerGroup, GroupCommits
from streamer.sources.embedded.runs import Reading, RunReader

IDLE_SLEEP_S = 0.01


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """Where partitions begin that have no position.

    Args:
        start: at their beginning, or at their end.
        timestamp_ms: instead of `start`: at the first record with at least this
            timestamp.
        from_beginning: topics that begin at their beginning in any case.
    """

    start: Literal["earliest", "latest"] = "earliest"
    timestamp_ms: int | None = None
    from_beginning: Collection[str] = ()

    def offset(self, db: sqlite3.Connection, row: int, topic: str) -> int:
        """Return where a partition begins, given the id of its row."""
        first, end = ends_of(db, row)
        if topic in self.from_beginning:
            return first
        if self.timestamp_ms is not None:
            return first_offset_since(db, row, self.timestamp_ms, end)
        return first if self.start == "earliest" else end


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
        self._missing = [topics] if isinstance(topics, str) else list(topics)
        self._wanted = partitions
        self._start = start
        self._wait_for_topic = wait_for_topic
        self._commits = GroupCommits(self._path, group) if group is not None else None
        self._listener: RebalanceListener
        self._inode = 0
        self._log_id = ""
        self._runs: RunReader | None = None
        """Once the log is there; it holds the connection."""
        self._ends: dict[int, int] = {}  # by the id of its row, as far as is known

    def open(self, listener: RebalanceListener) -> None:
        """See `Source.open`."""
        self._listener = listener
        try:
            if not self._wait_for_topic:
                check_topics(self._path, self._missing, _topics_in(self._path))
            self._fetch(0, self._start)
        except BaseException:
            self.close()
            raise

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`."""
        deadline = time.monotonic() + timeout_s
        if self._commits is not None and self._runs is not None:
            self._commits.flush()
            self._commits.trim()
        while True:
            chunks = self._fetch(max_records) if max_records > 0 else []
            remaining_s = deadline - time.monotonic()
            if chunks or max_records == 0 or remaining_s <= 0:
                return chunks
            if self._runs is not None and not self._is_same_file():
                raise SourceError(
                    f"{self._path} was removed or replaced while it was read; start again"
                )
            time.sleep(min(IDLE_SLEEP_S, remaining_s))

    def positions(self) -> Positions:
        """See `Source.positions`."""
        found = self._runs.positions() if self._runs is not None else {}
        return {p: Position(at, self._log_id) for p, at in found.items()}

    def commit(self, positions: Positions) -> None:
        """Store the positions as those of the group at the next poll, or at `close`."""
        if self._commits is not None:
            self._commits.add(positions)

    def end_offsets(self) -> Positions:
        """See `Source.end_offsets`. Any thread may ask, so over a connection of its
        own; what was known last if the log does not respond."""
        readings = self._runs.readings if self._runs is not None else {}
        if readings:
            with (
                contextlib.suppress(sqlite3.Error),
                contextlib.closing(connect(self._path, 1.0)) as db,
            ):
                self._ends = dict(db.execute("SELECT id, next_offset FROM partitions"))
        ends = self._ends
        return {r.partition: ends[row] for row, r in readings.items() if row in ends}

    def close(self) -> None:
        """Store what was committed and let go of the database. May be called twice."""
        if self._runs is not None:
            if self._commits is not None:
                self._commits.flush(BUSY_TIMEOUT_S)
            self._runs.db.close()
            self._runs = None

    def _connect(self) -> RunReader | None:
        """Open the database if it is there and has its tables; otherwise leave it for
        later.
        """
        if self._runs is None and self._path.exists():
            db = connect(self._path)
            if format_of(db, self._path) == 0:
                db.close()  # a writer is about to create the tables
                return None
            self._inode = self._path.stat().st_ino
            self._log_id = log_id(db)
            self._runs = RunReader(db)
        return self._runs

    def _is_same_file(self) -> bool:
        """A removed log would be waited for in vain: its file lives on, unseen, as long
        as it is open.
        """
        try:
            return self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _fetch(self, max_records: int, start: StartPolicy = EARLIEST) -> list[Chunk]:
        """Return the next records that are there, of topics that appeared, too.

        All reads see one state of the log, or a topic that appears between two of them
        could be passed by.
        """
        with translated_errors(self._path):
            runs = self._connect()
            if runs is None:
                return []
            with runs.db:
                runs.db.execute("BEGIN")
                if self._missing:
                    self._take_over_topics(runs, start)
                if max_records:
                    runs.fetch(max_records)
        return runs.take(max_records)

    def _take_over_topics(self, runs: RunReader, start: StartPolicy) -> None:
        """Ask the listener for positions in all partitions of the missing topics that
        are there now, and read on there.
        """
        existing = topics_of(runs.db)
        new: dict[int, Partition] = {}
        for topic in self._missing:
            if topic in existing:
                for number, (row, _) in enumerate(rows_of(runs.db, topic)):
                    if self._wanted is None or number in self._wanted:
                        new[row] = Partition(topic, number)
        self._missing = [topic for topic in self._missing if topic not in existing]
        if not new:
            return
        trained = self._listener.on_assigned(list(new.values()))
        readings: dict[int, Reading] = {}
        for row, partition in new.items():
            first, end = ends_of(runs.db, row)
            position = trained.get(partition)
            if position is None:
                position = start.offset(runs.db, row, partition.topic)
            check_log(partition, position, self._log_id)
            _check_position(partition, position, end)
            readings[row] = Reading(partition, position)
            readings[row].skip_to(first)
        starts: dict[Partition, int] = {}
        for reading in readings.values():
            starts[reading.partition] = Position(reading.next_offset, self._log_id)
        starts |= self._listener.on_start(starts)
        for reading in readings.values():
            reading.next_offset = starts[reading.partition]
        runs.add(readings)
        if self._commits is not None:  # from now on, retention waits for us
            self._commits.add(starts)
            self._commits.flush(BUSY_TIMEOUT_S)


def _check_position(partition: Partition, position: int, end: int) -> None:
    """Refuse a position beyond the end of the partition.

    The log would not be the one that the position was taken from; reading on would
    silently lose or double events.
    """
    if position > end:
        raise SourceError(
            f"{partition} ends at offset {end}, but reading should resume at {position}: the log was replaced "
            "since that position was recorded. Bring the old log back, or use another checkpoint directory"
        )


def _topics_in(path: Path) -> dict[str, int]:
    """Each topic of a log and its number of partitions; nothing is created."""
    if not path.exists():
        return {}
    with translated_errors(path), contextlib.closing(connect(path)) as db:
        return topics_of(db) if format_of(db, path) else {}


def all_partitions(
    data_dir: str | Path, topics: Sequence[str], *, wait: bool
) -> list[Partition]:
    """Return all partitions of topics; none while one of them is not there yet.

    Raises:
        UnknownTopic: a topic is not there, and nobody is to `wait` for it.
    """
    path = Path(data_dir) / LOG_FILE
    existing = _topics_in(path)
    if not wait:
        check_topics(path, topics, existing)
    found: list[Partition] = []
    for topic in topics:
        if topic not in existing:
            return []
        found += [Partition(topic, number) for number in range(existing[topic])]
    return found
