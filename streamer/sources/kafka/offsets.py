"""The one table of offsets: for each partition what is read, what is committed, and
where its log ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kafka import OffsetAndMetadata

from streamer.sources.base import Partition, Position, Positions

FORMAT = "streamer-1"
RETRY_COMMIT_S = 1.0


class Commit(NamedTuple):
    """A committed offset; its metadata in Kafka is the text of the other fields.

    On start, offsets in a checkpoint take precedence over the commits of its own
    trainer only: what that trainer has trained after the checkpoint is lost, what
    others have trained is not.
    """

    offset: int
    trainer: str = ""
    """Who committed it; "" if it was not a trainer."""
    topic_id: str = ""
    since: int = 0
    """Where this trainer began: it has trained from there to `offset`, and others what
    is before.
    """
    partitions: int = 0
    """How many partitions the topic had when the group began to read it: those that
    have come since begin at 0.
    """
    no_record_before: int = 0
    """Between `offset` and this there are marks of transactions and aborted records
    only; 0 if nobody knows.
    """

    @classmethod
    def of(cls, committed: OffsetAndMetadata) -> Commit:
        """Return what was committed, by whomever."""
        words = (committed.metadata or "").split()
        if len(words) not in (5, 6) or words[0] != FORMAT:
            return cls(committed.offset)
        _, trainer, topic_id, *numbers = words
        return cls(committed.offset, trainer, topic_id.strip("-"), *map(int, numbers))

    def reaches(self, end: int) -> bool:
        """Whether no record is left before an offset."""
        return max(self.offset, self.no_record_before) >= end

    def for_kafka(self) -> OffsetAndMetadata:
        """Return it as the client commits it; without a trainer it says nothing but the
        offset.
        """
        if not self.trainer:
            return OffsetAndMetadata(self.offset, "", -1)
        topic_id = self.topic_id or "-"
        metadata = f"{FORMAT} {self.trainer} {topic_id} {self.since} {self.partitions}"
        if self.no_record_before > self.offset:
            metadata += f" {self.no_record_before}"
        return OffsetAndMetadata(self.offset, metadata, -1)


class Start(NamedTuple):
    """Where the reading of a partition begins."""

    position: Position
    commit: Commit
    """What our commits say of it, with the offset up to which it is known to be
    trained.
    """
    must_commit: bool
    """Whether that must be committed before reading begins: or nobody would know where
    we began.
    """
    lost: int
    """How many offsets were removed before we could read them."""
    end: int
    """Where the partition ends now."""


@dataclass(slots=True)
class PartitionRow:
    """All that is known of one partition of ours."""

    trained: int | None = None
    """How far we have trained it, as the listener said; None if we never had it."""
    start: Start | None = None
    """Where reading began; None until that is known."""
    position: int = 0
    """The offset after the last record that was returned."""
    passed: int = 0
    """The client's position: nothing more comes from before it."""
    end: int = 0
    lost: int = 0
    """Offsets that were removed before they were read, not yet reported by a chunk."""
    to_commit: int | None = None
    committing: int | None = None
    """Sent to be committed, and not acknowledged yet."""


class OffsetTable:
    """A row for each partition of ours, behind one lock.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[Partition, PartitionRow] = {}
        self._retry_at = 0.0

    # -------------------------------------------------------------------- assignment

    def assign(self, trained: Mapping[Partition, int | None]) -> None:
        """Add partitions; where they start is not known yet."""
        with self._lock:
            for partition, position in trained.items():
                self._rows[partition] = PartitionRow(position)

    def unsettled(self) -> dict[Partition, int | None]:
        """Return the partitions whose start is not known, with how far they are
        trained.
        """
        with self._lock:
            return {p: r.trained for p, r in self._rows.items() if r.start is None}

    def begin(self, starts: Mapping[Partition, Start]) -> None:
        """Note where the reading of these partitions starts."""
        with self._lock:
            for partition, start in starts.items():
                row = self._rows[partition]
                row.start = start
                row.position = int(start.position)
                row.end = start.end
                row.lost = start.lost

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Remove partitions: what was to be committed of them is not ours to commit."""
        with self._lock:
            for partition in partitions:
                self._rows.pop(partition, None)

    def reading(self) -> dict[Partition, PartitionRow]:
        """Return the rows of the partitions that are read."""
        with self._lock:
            return {p: row for p, row in self._rows.items() if row.start is not None}

    @property
    def is_empty(self) -> bool:
        return not self._rows

    def __contains__(self, partition: object) -> bool:
        return partition in self._rows

    # -------------------------------------------------------------------- reading

    def returned(self, partition: Partition, position: int) -> int:
        """Note that records up to a position were returned, and return how many were
        removed before them.
        """
        with self._lock:
            row = self._rows[partition]
            row.position = position
            row.end = max(row.end, position)
            lost = row.lost
            row.lost = 0
            return lost

    def skip_removed(self, partition: Partition, position: int, first: int) -> None:
        """Note that the offsets from a position up to `first` were removed."""
        with self._lock:
            row = self._rows[partition]
            row.lost += first - position
            row.position = first
            row.passed = 0

    def pass_by(self, partition: Partition, position: int) -> None:
        """Note that the client has come as far as this without finding records."""
        with self._lock:
            self._rows[partition].passed = position

    def behind(self) -> list[Partition]:
        """Return the partitions of which not everything was returned, as far as is
        known.
        """
        return [p for p, row in self.reading().items() if row.position < row.end]

    def positions(self) -> dict[Partition, int]:
        """Return the next offset of each partition that may bring a record."""
        return {p: max(r.position, r.passed) for p, r in self.reading().items()}

    def ends(self) -> dict[Partition, int]:
        """Return the position after the last record of each partition.

        The last offsets of a partition may hold no record (marks of transactions,
        aborted records). Once they are passed, the end is the position after the last
        record that there was.
        """
        ends: dict[Partition, int] = {}
        for partition, row in self.reading().items():
            is_passed = row.position < row.end <= row.passed
            ends[partition] = row.position if is_passed else row.end
        return ends

    def set_ends(self, rows: Mapping[Partition, PartitionRow], ends: Positions) -> None:
        """Note ends that were looked up for rows of `reading`; what was assigned anew
        meanwhile is left out.
        """
        with self._lock:
            for partition, row in rows.items():
                if self._rows.get(partition) is row:
                    row.end = max(ends[partition], row.position)

    # -------------------------------------------------------------------- commits

    def want_commit(self, positions: Positions) -> None:
        """Remember what to commit. Partitions that are not read are left out."""
        rows = self.reading()
        with self._lock:
            for partition, position in positions.items():
                if partition in rows:
                    rows[partition].to_commit = int(position)

    def take_commit(self) -> dict[Partition, Commit]:
        """Return what to send now: nothing while one commit is on its way, or shortly
        after a failure.
        """
        with self._lock:
            on_its_way = any(r.committing is not None for r in self._rows.values())
            if on_its_way or self._clock() < self._retry_at:
                return {}
        return self.take_last_commit()

    def take_last_commit(self) -> dict[Partition, Commit]:
        """Return all that is not known to be committed."""
        commits: dict[Partition, Commit] = {}
        rows = self.reading()
        with self._lock:
            for partition, row in rows.items():
                if row.to_commit is not None:
                    row.committing = row.to_commit
                    row.to_commit = None
                if row.committing is not None and row.start is not None:
                    passed = row.passed if row.committing >= row.position else 0
                    commits[partition] = row.start.commit._replace(
                        offset=row.committing, no_record_before=passed
                    )
        return commits

    def committed(self) -> None:
        """Note that what was sent has arrived."""
        with self._lock:
            for row in self._rows.values():
                row.committing = None

    def not_committed(self) -> None:
        """Note that what was sent has failed: it is sent again later, unless there is
        something newer.
        """
        with self._lock:
            self._retry_at = self._clock() + RETRY_COMMIT_S
            for row in self._rows.values():
                if row.to_commit is None:
                    row.to_commit = row.committing
                row.committing = None
