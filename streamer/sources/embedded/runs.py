"""Reads the runs of some partitions of the embedded log, in the order in which they were
appended, as chunks.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Mapping

import msgspec

from streamer.errors import SourceError
from streamer.sources.base import Chunk, Partition
from streamer.sources.embedded.database import decode_run
from streamer.sources.positions import warn_of_gap


class RunReader:
    """Where a reader is in the log. For one thread, but for `partitions`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.partitions: dict[int, Partition] = {}
        """By the id of its row; replaced when there are more."""
        self._next: dict[int, int] = {}  # the next offset to fetch, by the same id
        self._lost: dict[int, int] = {}  # removed before them, not yet reported
        self._cursor = 0  # every run of ours up to this number was fetched
        self._pending: deque[Chunk] = deque()  # fetched, not returned yet

    def add(
        self,
        partitions: Mapping[int, Partition],
        positions: Mapping[Partition, int],
        lost: Mapping[Partition, int],
    ) -> None:
        """Read these, too, from their positions on; `lost` offsets before those were
        removed.
        """
        cursor = self._cursor if self.partitions else self._last_seq()
        for row, partition in partitions.items():
            position = positions[partition]
            self._next[row] = position
            self._lost[row] = lost.get(partition, 0)
            # the cursor must be before the run that holds the position, or the oldest
            holds = self._db.execute(
                "SELECT seq, first_offset + count FROM batches WHERE partition = ? AND first_offset <= max(?, "
                "(SELECT min(first_offset) FROM batches WHERE partition = ?)) ORDER BY first_offset DESC LIMIT 1",
                (row, position, row),
            ).fetchone()
            if holds is not None and position < holds[1]:
                cursor = min(cursor, holds[0] - 1)
        self._cursor = cursor
        self.partitions = self.partitions | dict(partitions)

    def fetch(self, max_records: int) -> None:
        """Have enough ready for `take(max_records)`, unless it is ready or not there."""
        if self._pending or not self.partitions:
            return
        last_seq = self._last_seq()
        ids = ",".join(map(str, self.partitions))
        cursor = self._db.execute(
            "SELECT seq, partition, first_offset, count, records FROM batches "
            f"NOT INDEXED WHERE seq > ? AND partition IN ({ids}) ORDER BY seq",  # along the rows, no sorting
            (self._cursor,),
        )
        found: list[tuple[int, int, int, bytes]] = []
        for seq, row, first_offset, count, records in cursor:
            self._cursor = seq
            known = max(0, self._next[row] - first_offset)
            if known < count:
                found.append((row, first_offset, count, records))
                max_records -= count - known
            if max_records <= 0:
                break
        cursor.close()  # ends the read transaction, so that SQLite can recycle its WAL
        if not found:
            # pass by what is not ours; its end was asked for before we looked
            self._cursor = max(self._cursor, last_seq)
        for run in found:
            self._unpack(*run)

    def _unpack(self, row: int, first_offset: int, count: int, records: bytes) -> None:
        """Turn a run into a chunk, without what lies before our position."""
        partition = self.partitions[row]
        position = self._next[row]
        lost = self._lost.pop(row, 0)
        if first_offset > position:
            warn_of_gap(partition, position, first_offset)
            lost += first_offset - position
        try:
            timestamps_ms, keys, values = decode_run(records)
        except msgspec.MsgspecError as error:
            raise SourceError(
                f"the records of {partition} from offset {first_offset} are damaged: {error}"
            ) from error
        offsets = list(range(first_offset, first_offset + count))
        chunk = Chunk(partition, offsets, timestamps_ms, keys, values)
        chunk = chunk.part(max(0, position - first_offset))
        chunk.lost = lost
        self._next[row] = first_offset + count
        self._pending.append(chunk)

    def take(self, max_records: int) -> list[Chunk]:
        """Return at most `max_records` of what was fetched; neighbours of one partition
        become one chunk.
        """
        taken: list[Chunk] = []
        while self._pending and max_records > 0:
            chunk = self._pending.popleft()
            if len(chunk) > max_records:
                self._pending.appendleft(chunk.part(max_records))
                chunk = chunk.part(0, max_records)
            max_records -= len(chunk)
            if taken and taken[-1].partition == chunk.partition:
                taken[-1].extend(chunk)
            else:
                taken.append(chunk)
        return taken

    def positions(self) -> dict[Partition, int]:
        """Return for each partition the offset that `take` returns next."""
        following = {p: self._next[row] for row, p in self.partitions.items()}
        for chunk in reversed(self._pending):  # fetched, but not returned
            following[chunk.partition] = chunk.offsets[0]
        return following

    def _last_seq(self) -> int:
        last = self._db.execute("SELECT max(seq) FROM batches").fetchone()[0]
        return int(last or 0)
