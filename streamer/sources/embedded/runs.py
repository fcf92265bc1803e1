"""Reads the runs of some partitions of the embedded log, in the order in which they were
appended, as chunks.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from streamer.errors import SourceError
from streamer.sources.base import Chunk, Partition, warn_of_gap
from streamer.sources.embedded.database import decode_run


@dataclass(slots=True)
class Reading:
    """How far a partition is read."""

    partition: Partition
    next_offset: int
    lost: int = 0
    """Offsets that were removed before they were read, not yet reported by a chunk."""

    def skip_to(self, first: int) -> None:
        """Go on at an offset; what is before was removed."""
        if first > self.next_offset:
            warn_of_gap(self.partition, self.next_offset, first)
            self.lost += first - self.next_offset
            self.next_offset = first


class RunReader:
    """Where a reader is in the log. For one thread, but for `readings`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.readings: dict[int, Reading] = {}
        """By the id of a partition's row; replaced when there are more."""
        self._cursor = 0  # every run of ours up to this number was fetched
        self._pending: deque[Chunk] = deque()  # fetched, not returned yet

    def add(self, readings: Mapping[int, Reading]) -> None:
        """Read these partitions, too."""
        cursor = self._cursor if self.readings else self._last_seq()
        for row, reading in readings.items():
            # the cursor must be before the run that holds the offset, or the oldest
            holds = self.db.execute(
                "SELECT seq, first_offset + count FROM batches WHERE partition = ? AND first_offset <= max(?, "
                "(SELECT min(first_offset) FROM batches WHERE partition = ?)) ORDER BY first_offset DESC LIMIT 1",
                (row, reading.next_offset, row),
            ).fetchone()
            if holds is not None and reading.next_offset < holds[1]:
                cursor = min(cursor, holds[0] - 1)
        self._cursor = cursor
        self.readings = self.readings | dict(readings)

    def fetch(self, max_records: int) -> None:
        """Have enough ready for `take(max_records)`, unless it is ready or not there."""
        if self._pending or not self.readings:
            return
        last_seq = self._last_seq()
        ids = ",".join(map(str, self.readings))
        runs = self.db.execute(
            "SELECT seq, partition, first_offset, count, records FROM batches "
            f"NOT INDEXED WHERE seq > ? AND partition IN ({ids}) ORDER BY seq",  # along the rows, no sorting
            (self._cursor,),
        )
        for seq, row, first_offset, count, records in runs:
            self._cursor = seq
            unread = first_offset + count - self.readings[row].next_offset
            if unread > 0:
                self._unpack(self.readings[row], first_offset, count, records)
                max_records -= min(unread, count)
            if max_records <= 0:
                break
        if not self._pending:
            # pass by what is not ours; its end was asked for before we looked
            self._cursor = max(self._cursor, last_seq)

    def _unpack(
        self, reading: Reading, first_offset: int, count: int, records: bytes
    ) -> None:
        """Turn a run into a chunk, without what was read before."""
        reading.skip_to(first_offset)
        try:
            timestamps_ms, keys, values = decode_run(records)
        except msgspec.MsgspecError as error:
            raise SourceError(
                f"the records of {reading.partition} from offset {first_offset} are damaged: {error}"
            ) from error
        offsets = list(range(first_offset, first_offset + count))
        chunk = Chunk(reading.partition, offsets, timestamps_ms, keys, values)
        chunk = chunk.part(reading.next_offset - first_offset)
        chunk.lost = reading.lost
        reading.lost = 0
        reading.next_offset = first_offset + count
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
        following = {r.partition: r.next_offset for r in self.readings.values()}
        for chunk in reversed(self._pending):  # fetched, but not returned
            following[chunk.partition] = chunk.offsets[0]
        return following

    def _last_seq(self) -> int:
        last = self.db.execute("SELECT max(seq) FROM batches").fetchone()[0]
        return int(last or 0)
