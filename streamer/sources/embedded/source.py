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
`group_records` records is sorted by partition (stable, so the order of a key's events
stays): that makes the runs long. `group_records=1` keeps the append order to the
record, for a small part of the speed; a topic of one partition always keeps it.

**Writers.** An append is one transaction: readers see all of it or nothing, also if the
writer is killed. Several writers are safe (a replay, and a trainer that writes dead
letters): SQLite makes them wait for each other. A killed process loses nothing that
`append` returned from; a power cut may lose the last moments unless `durable=True`.

**Readers** never block writers, nor each other. Committed positions are kept apart, in
`DIR/groups.sqlite3`, so that storing them does not wait for a writer either.

SQLite's WAL needs a local file system: not for a directory on NFS.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

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
from streamer.sources.embedded.groups import GROUPS_FILE, Commits, committed_positions
from streamer.sources.embedded.log import EmbeddedLog
from streamer.sources.positions import (
    as_topics,
    checked_partitions,
    checked_position,
    warn_of_gap,
)

__all__ = ["EmbeddedLog", "EmbeddedSource", "committed_positions"]

IDLE_SLEEP_S = 0.01


class EmbeddedSource:
    """Reads topics of the embedded log, in the order in which they were appended; see
    the module.

    Args:
        data_dir: the directory of the log.
        topics: one topic or several.
        partitions: the partition numbers to read of every topic; None for all.
        start: where partitions begin that the listener gives no position for. A topic
            that appears only after `open` is read from its beginning in any case.
        start_timestamp_ms: instead of `start`: begin at the first record with at least
            this timestamp.
        from_beginning: those of the topics that begin at their beginning in any case.
        wait_for_topic: if a topic (or the whole log) is not there yet, wait for it in
            `poll`, do not raise.
        group: the name under which `commit` stores positions.
    """

    def __init__(
        self,
        data_dir: str | Path,
        topics: str | Sequence[str],
        partitions: Collection[int] | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        start_timestamp_ms: int | None = None,
        *,
        from_beginning: Collection[str] = (),
        wait_for_topic: bool = False,
        group: str = "streamer",
    ) -> None:
        self._path = Path(data_dir) / LOG_FILE
        self._missing = as_topics(topics)
        self._wanted = partitions
        self._start = start
        self._start_timestamp_ms = start_timestamp_ms
        self._from_beginning = from_beginning
        self._wait_for_topic = wait_for_topic
        self._commits = Commits(Path(data_dir) / GROUPS_FILE, group)
        self._ends: dict[
            int, int
        ] = {}  # by the id of its row, as far as they are known
        self._listener: RebalanceListener | None = None
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._partitions: dict[int, Partition] = {}  # by the id of its row
        self._next: dict[int, int] = {}  # the next offset to fetch, by the same id
        self._cursor = 0  # every run of ours up to this seq was fetched
        self._idle = False  # the last fetch found nothing
        self._pending: deque[Chunk] = deque()  # fetched, not returned yet

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
                    with self._snapshot():
                        self._take_over_topics(self._start)
        except BaseException:
            self.close()
            raise

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`."""
        assert self._listener is not None, "open comes first"
        deadline = time.monotonic() + timeout_s
        self._commits.flush()
        while True:
            if max_records > 0 and not self._pending:
                self._fetch(max_records)
            chunks = _take(self._pending, max_records)
            remaining_s = deadline - time.monotonic()
            if chunks or max_records == 0 or remaining_s <= 0:
                return chunks
            if self._db is not None and not self._is_same_file():
                raise SourceError(
                    f"{self._path} was removed or replaced while it was read; start again"
                )
            time.sleep(min(IDLE_SLEEP_S, remaining_s))

    at_end = False
    all_assigned = True
    problem = None

    def positions(self) -> Positions:
        """See `Source.positions`."""
        following = {
            partition: self._next[row] for row, partition in self._partitions.items()
        }
        for chunk in reversed(self._pending):  # fetched, but not returned
            following[chunk.partition] = chunk.offsets[0]
        return following

    def commit(self, positions: Positions) -> None:
        """Store the positions for lag monitors (`committed_positions`) at the next
        poll, or at `close`.
        """
        self._commits.add(positions)

    def end_offsets(self) -> Positions:
        """See `Source.end_offsets`. Any thread may ask, so over a connection of its
        own; what was known last if the log does not respond."""
        partitions = self._partitions
        if partitions:
            with (
                contextlib.suppress(sqlite3.Error),
                contextlib.closing(connect(self._path, "rw", 1.0)) as db,
            ):
                self._ends = dict(db.execute("SELECT id, next_offset FROM partitions"))
        ends = self._ends
        return {
            partition: ends[row] for row, partition in partitions.items() if row in ends
        }

    def close(self) -> None:
        """Store what was committed and let go of the database. May be called twice."""
        self._commits.flush()
        self._pending.clear()
        self._listener = None
        if self._db is not None:
            self._db.close()
            self._db = None

    def _connect(self) -> None:
        """Open the database if it is there and has its tables; otherwise leave it for
        later.
        """
        if not self._path.exists():
            return
        db = connect(self._path, "rw", database.BUSY_TIMEOUT_S)
        if (
            database.format_of(db, self._path) == 0
        ):  # a writer is about to create the tables
            db.close()
            return
        self._db, self._inode = db, self._path.stat().st_ino

    def _is_same_file(self) -> bool:
        """A removed log would be waited for in vain: its file lives on, unseen, as long
        as it is open.
        """
        try:
            return self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """All reads within see one state of the log."""
        assert self._db is not None
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    def _fetch(self, max_records: int) -> None:
        """Move the next runs into `_pending`, enough for `max_records`."""
        with translated_errors(self._path):
            if self._db is None:
                self._connect()
            if self._db is None:
                return
            if self._missing:
                with (
                    self._snapshot()
                ):  # or a topic that appears between the two could be passed by
                    self._take_over_topics("earliest")
                    rows = self._fetch_rows(max_records)
            else:
                rows = self._fetch_rows(max_records)
        for row in rows:
            self._unpack(*row)

    def _fetch_rows(self, max_records: int) -> list[tuple[int, int, int, bytes]]:
        assert self._db is not None
        if not self._partitions:
            return []
        passed = self._last_seq() if self._idle else 0
        ids = ",".join(map(str, self._partitions))
        cursor = self._db.execute(
            "SELECT seq, partition, first_offset, count, records FROM batches "
            f"NOT INDEXED WHERE seq > ? AND partition IN ({ids}) ORDER BY seq",  # along the rows, no sorting
            (self._cursor,),
        )
        rows = []
        for seq, partition_id, first_offset, count, records in cursor:
            self._cursor = seq
            known = max(0, self._next[partition_id] - first_offset)
            if known < count:
                rows.append((partition_id, first_offset, count, records))
                max_records -= count - known
            if max_records <= 0:
                break
        cursor.close()  # ends the read transaction, so that SQLite can recycle its WAL
        self._idle = not rows
        if self._idle:
            self._cursor = max(
                self._cursor, passed
            )  # pass by what is not ours; asked for before we looked
        return rows

    def _unpack(
        self, partition_id: int, first_offset: int, count: int, records: bytes
    ) -> None:
        """Turn a run into a chunk, without what lies before our position."""
        partition = self._partitions[partition_id]
        position = self._next[partition_id]
        lost = max(0, first_offset - position)
        if lost:
            warn_of_gap(partition, position, first_offset)
        try:
            timestamps_ms, keys, values = database.decode_run(records)
        except msgspec.MsgspecError as error:
            raise SourceError(
                f"the records of {partition} from offset {first_offset} are damaged: {error}"
            ) from error
        chunk = Chunk(
            partition,
            list(range(first_offset, first_offset + count)),
            timestamps_ms,
            keys,
            values,
            lost,
        )
        if first_offset < position:
            _, chunk = _split(chunk, position - first_offset)
        self._next[partition_id] = first_offset + count
        self._pending.append(chunk)

    def _take_over_topics(self, start: str) -> None:
        """Ask the listener for positions in all partitions of the missing topics that
        are there now.
        """
        assert self._db is not None
        assert self._listener is not None, "open comes first"
        existing = topics_of(self._db)
        found = [topic for topic in self._missing if topic in existing]
        new: dict[int, Partition] = {}
        for topic in found:
            rows = rows_of(self._db, topic)
            new |= {
                rows[p.number][0]: p
                for p in checked_partitions(topic, len(rows), self._wanted)
            }
        self._missing = [topic for topic in self._missing if topic not in existing]
        if not new:
            return
        listened = self._listener.on_assigned(list(new.values()))
        cursor = self._cursor if self._partitions else self._last_seq()
        for row, partition in new.items():
            self._next[row] = position = self._starting_position(
                row, partition, listened, start
            )
            holds = self._db.execute(  # the run that holds the position, or the oldest; the cursor must be before it
                "SELECT seq, first_offset + count FROM batches WHERE partition = ? AND first_offset <= max(?, "
                "(SELECT min(first_offset) FROM batches WHERE partition = ?)) ORDER BY first_offset DESC LIMIT 1",
                (row, position, row),
            ).fetchone()
            if holds is not None and position < holds[1]:
                cursor = min(cursor, holds[0] - 1)
        self._cursor = cursor
        self._partitions = (
            self._partitions | new
        )  # not in place: another thread may be reading it

    def _starting_position(
        self, row: int, partition: Partition, listened: Positions, start: str
    ) -> int:
        """The listener's position; without one, the source's own policy decides."""
        assert self._db is not None
        end: int = self._db.execute(
            "SELECT next_offset FROM partitions WHERE id = ?", (row,)
        ).fetchone()[0]
        oldest = (
            "SELECT coalesce(min(first_offset), ?) FROM batches WHERE partition = ?"
        )
        first: int = self._db.execute(oldest, (end, row)).fetchone()[0]
        if partition in listened:
            return checked_position(partition, listened[partition], end)
        if partition.topic in self._from_beginning:
            return first
        if self._start_timestamp_ms is None:
            return first if start == "earliest" else end
        run = database.first_run_since(self._db, row, self._start_timestamp_ms, end)
        query = "SELECT records FROM batches WHERE partition = ? AND first_offset = ?"
        for (records,) in self._db.execute(query, (row, run)):
            timestamps_ms = database.decode_run(records)[0]
            return run + next(
                k
                for k, stamp in enumerate(timestamps_ms)
                if stamp >= self._start_timestamp_ms
            )
        return end

    def _last_seq(self) -> int:
        assert self._db is not None
        last: int | None = self._db.execute("SELECT max(seq) FROM batches").fetchone()[
            0
        ]
        return last or 0


def all_partitions(
    data_dir: str | Path, topics: Sequence[str], *, wait: bool
) -> list[Partition]:
    """All partitions of topics; none while one of them is not there yet.

    Raises:
        UnknownTopic: a topic is not there, and nobody is to `wait` for it.
    """
    path = Path(data_dir) / LOG_FILE
    existing = {}
    if path.exists():
        with (
            translated_errors(path),
            contextlib.closing(connect(path, "rw", database.BUSY_TIMEOUT_S)) as db,
        ):
            existing = topics_of(db) if database.format_of(db, path) else {}
    missing = [topic for topic in topics if topic not in existing]
    if missing and not wait:
        raise UnknownTopic(database.unknown_topic(path, missing, existing))
    return (
        [
            Partition(topic, number)
            for topic in topics
            for number in range(existing[topic])
        ]
        if not missing
        else []
    )


def _take(pending: deque[Chunk], max_records: int) -> list[Chunk]:
    """Take at most `max_records` off the front; neighbours of one partition become one
    chunk.
    """
    taken: list[Chunk] = []
    while pending and max_records > 0:
        chunk = pending.popleft()
        if len(chunk) > max_records:
            chunk, rest = _split(chunk, max_records)
            pending.appendleft(rest)
        max_records -= len(chunk)
        if taken and taken[-1].partition == chunk.partition:
            _join(taken[-1], chunk)
        else:
            taken.append(chunk)
    return taken


def _split(chunk: Chunk, at: int) -> tuple[Chunk, Chunk]:
    left = _part(chunk, slice(None, at))
    right = _part(chunk, slice(at, None))
    return replace(left, lost=chunk.lost), right


def _part(chunk: Chunk, part: slice) -> Chunk:
    return Chunk(
        chunk.partition,
        chunk.offsets[part],
        chunk.timestamps_ms[part],
        chunk.keys[part],
        chunk.values[part],
    )


def _join(chunk: Chunk, more: Chunk) -> None:
    chunk.offsets += more.offsets
    chunk.timestamps_ms += more.timestamps_ms
    chunk.keys += more.keys
    chunk.values += more.values
    chunk.lost += more.lost
