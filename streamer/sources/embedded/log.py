"""The writing side of the embedded log. `source.py` explains it."""

from __future__ import annotations

import contextlib
import itertools
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from streamer.errors import SourceError
from streamer.sources.base import Partition, Record
from streamer.sources.embedded.database import (
    LOG_FILE,
    Run,
    check_topics,
    create_or_open,
    encode_run,
    rows_of,
    topics_of,
    translated_errors,
)

GROUP_RECORDS = 4096
"""How many records of an append are sorted by partition together; see `source.py`."""
MAX_GROUP_BYTES = 16 << 20
INSERT = "INSERT INTO batches (partition, first_offset, count, max_timestamp_ms, records) VALUES (?, ?, ?, ?, ?)"


class EmbeddedLog:
    """The writing side of the embedded log. Threads may share one, processes each open
    their own.

    Args:
        data_dir: the directory of the log; created if it is missing.
    """

    def __init__(self, data_dir: str | Path) -> None:
        self._path = Path(data_dir) / LOG_FILE
        self._lock = threading.Lock()
        self._turn = itertools.count()
        with translated_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._db = create_or_open(self._path)
            self._db.execute("PRAGMA synchronous = NORMAL")

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic; nothing happens if it is there with as many partitions.

        Raises:
            SourceError: it is there with another number of partitions.
        """
        if partitions < 1:
            raise SourceError(
                f"topic {name!r} needs at least one partition, not {partitions}"
            )
        with self._transaction():
            existing = len(rows_of(self._db, name))
            if existing not in (0, partitions):
                raise SourceError(
                    f"topic {name!r} has {existing} partitions, not {partitions}"
                )
            rows = [(name, number) for number in range(existing, partitions)]
            self._db.executemany(
                "INSERT INTO partitions (topic, number) VALUES (?, ?)", rows
            )

    def append(
        self, topic: str, records: Sequence[Record], partition: int | None = None
    ) -> dict[Partition, int]:
        """Append records, all of them or (on an error, or if killed) none, and return
        the ends of all partitions.

        Each goes to the partition of its key, without a key to the next in turn, or all
        go to the given partition.

        Raises:
            msgspec.ValidationError: keys and values must be bytes, timestamps integers.
            UnknownTopic: create the topic first.
            SourceUnavailable: another writer kept the log busy for too long.
        """
        with self._transaction():
            rows = self._rows_of(topic)
            if partition is not None and not 0 <= partition < len(rows):
                raise SourceError(
                    f"topic {topic!r} has partitions 0 to {len(rows) - 1}, not {partition}"
                )
            ends = [next_offset for _, next_offset in rows]
            for group in _groups(records, GROUP_RECORDS):
                for number, run in self._by_partition(group, len(rows), partition):
                    keys, values, timestamps_ms = zip(*run, strict=True)
                    columns = (timestamps_ms, keys, values)
                    checked = msgspec.convert(columns, Run, builtin_types=[bytes])
                    at = (rows[number][0], ends[number], len(run), max(timestamps_ms))
                    self._db.execute(INSERT, (*at, encode_run(checked)))
                    ends[number] += len(run)
            updates = [(end, row) for end, (row, _) in zip(ends, rows, strict=True)]
            self._db.executemany(
                "UPDATE partitions SET next_offset = ? WHERE id = ?", updates
            )
        return {Partition(topic, number): end for number, end in enumerate(ends)}

    def topics(self) -> dict[str, int]:
        """Each topic and its number of partitions."""
        with self._lock, translated_errors(self._path):
            return topics_of(self._db)

    def end_offsets(self, topic: str) -> dict[Partition, int]:
        """The position after the last record of each partition."""
        with self._lock, translated_errors(self._path):
            rows = self._rows_of(topic)
        return {Partition(topic, number): end for number, (_, end) in enumerate(rows)}

    def _rows_of(self, topic: str) -> list[tuple[int, int]]:
        check_topics(self._path, [topic], topics_of(self._db))
        return rows_of(self._db, topic)

    def close(self) -> None:
        """Let go of the database. May be called twice."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> EmbeddedLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _by_partition(
        self, group: Sequence[Record], partitions: int, partition: int | None
    ) -> list[tuple[int, Sequence[Record]]]:
        """Sort a group by partition, stably, and return each partition's part."""
        if partition is not None or partitions == 1:
            return [(partition or 0, group)]
        runs: dict[int, list[Record]] = {}
        for record in group:
            number = self._partition_of(record[0], partitions)
            runs.setdefault(number, []).append(record)
        return sorted(runs.items())

    def _partition_of(self, key: bytes | None, partitions: int) -> int:
        """The number of a key's partition, never to be changed; without a key the next
        in turn.
        """
        number = next(self._turn) if key is None else zlib.crc32(key)
        return number % partitions

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. Taking the write lock first means that no step within can
        find the log busy.
        """
        with self._lock, translated_errors(self._path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield


def _groups(records: Sequence[Record], size: int) -> Iterator[Sequence[Record]]:
    """Cut records into groups of at most `size`, smaller where values are large (a run
    is one value).
    """
    for start in range(0, len(records), size):
        group = records[start : start + size]
        if len(group) > 1 and sum(len(record[1]) for record in group) > MAX_GROUP_BYTES:
            yield from _groups(group, max(1, size // 2))
        else:
            yield group
