"""The one table of offsets: for each partition what is read, what is committed, and
where its log ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
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
    resets: int = 0
    """How often `streamer reset` has moved the group: a position of before is none."""

    @classmethod
    def of(cls, committed: OffsetAndMetadata) -> Commit:
        """Return what was committed, by whomever."""
        words = (committed.metadata or "").split()
        if len(words) not in (5, 6, 7) or words[0] != FORMAT:
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
        if self.no_record_before > self.offset or self.resets:
            metadata += f" {self.no_record_before}"
        if self.resets:
            metadata += f" {self.resets}"
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


@dataclass(slots=True, eq=False)
class PartitionRow:
    """All that is known of one partition of ours."""

    trained: int | None = None
    """How far we have trained it, as the listener said; None if we never had it."""
    start: Start | None = None
    """Where reading began; None until that is known."""
    position: int = 0
    """The offset after the last record that was returned."""
    leader_epoch: int = -1
    """Of that record."""
    passed: int = 0
    """The client's position: nothing more comes from before it."""
    end: int = 0
    lost: int = 0
    """Offsets that were removed before they were read, not yet reported by a chunk."""
    to_commit: int | None = None
    committed: int | None = None
    """What was acknowledged."""


class OffsetTable:
    """A row for each partition of ours. Rows come and go on the polling thread; any
    thread may look, and say what is to be committed.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: dict[Partition, PartitionRow] = {}
        """Replaced, never changed in place: other threads may be looking at it."""
        self._sent: list[tuple[PartitionRow, int | None]] = []
        self._retry_at = 0.0

    # -------------------------------------------------------------------- assignment

    def assign(self, trained: Mapping[Partition, int | None]) -> None:
        """Add partitions; where they start is not known yet."""
        new = {partition: PartitionRow(at) for partition, at in trained.items()}
        self._rows = self._rows | new

    def unsettled(self) -> dict[Partition, int | None]:
        """Return the partitions whose start is not known, with how far they are
        trained.
        """
        return {p: r.trained for p, r in self._rows.items() if r.start is None}

    def begin(self, starts: Mapping[Partition, Start]) -> None:
        """Note where the reading of these partitions starts."""
        for partition, start in starts.items():
            row = self._rows[partition]
            row.position = int(start.position)
            row.leader_epoch = start.position.leader_epoch
            row.end = start.end
            row.lost = start.lost
            row.start = start

    def forget(self, partitions: Collection[Partition]) -> None:
        """Remove partitions: what was to be committed of them is not ours to commit."""
        self._rows = {p: r for p, r in self._rows.items() if p not in partitions}

    def reading(self) -> dict[Partition, PartitionRow]:
        """Return the rows of the partitions that are read."""
        return {p: row for p, row in self._rows.items() if row.start is not None}

    def __contains__(self, partition: object) -> bool:
        return partition in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    # -------------------------------------------------------------------- reading

    def returned(
        self, partition: Partition, position: int, leader_epoch: int = -1
    ) -> int:
        """Note that records up to a position were returned, and return how many were
        removed before them.
        """
        row = self._rows[partition]
        row.position = position
        row.leader_epoch = max(row.leader_epoch, leader_epoch)
        lost = row.lost
        row.lost = 0
        return lost

    def skip_removed(self, partition: Partition, position: int, first: int) -> None:
        """Note that the offsets from a position up to `first` were removed."""
        row = self._rows[partition]
        row.lost += first - position
        row.position = first
        row.passed = 0

    def pass_by(self, partition: Partition, position: int) -> None:
        """Note that the client has come as far as this without finding records."""
        self._rows[partition].passed = position

    def behind(self) -> list[Partition]:
        """Return the partitions of which not everything was returned, as far as is
        known.
        """
        return [p for p, row in self.reading().items() if row.position < row.end]

    def positions(self) -> dict[Partition, Position]:
        """Return the next offset of each partition that may bring a record."""
        found: dict[Partition, Position] = {}
        for partition, row in self.reading().items():
            assert row.start is not None
            start = row.start.position
            position = max(row.position, row.passed)
            found[partition] = Position(
                position, start.topic_id, row.leader_epoch, start.resets
            )
        return found

    def ends(self) -> dict[Partition, int]:
        """Return the position after the last record of each partition.

        The last offsets of a partition may hold no record (marks of transactions,
        aborted records). Once they are passed, the end is the position after the last
        record that there was.
        """
        ends: dict[Partition, int] = {}
        for partition, row in self.reading().items():
            is_passed = row.end <= row.passed
            ends[partition] = row.position if is_passed else max(row.end, row.position)
        return ends

    def set_ends(self, rows: Mapping[Partition, PartitionRow], ends: Positions) -> None:
        """Note ends that were looked up for rows of `reading`; a partition that was
        assigned anew meanwhile has another row.
        """
        for partition, row in rows.items():
            row.end = ends[partition]

    # -------------------------------------------------------------------- commits

    def want_commit(self, positions: Positions) -> None:
        """Remember what to commit. Partitions that are not read are left out, and so is
        what comes before the commit that reading began with.
        """
        for partition, row in self.reading().items():
            position = positions.get(partition, -1)
            assert row.start is not None
            if position >= row.start.commit.offset:
                row.to_commit = int(position)

    def take_commit(self) -> dict[Partition, Commit]:
        """Return what to send now: nothing while one commit is on its way, or shortly
        after a failure.
        """
        if self._sent or self._clock() < self._retry_at:
            return {}
        return self.take_last_commit()

    def take_last_commit(self) -> dict[Partition, Commit]:
        """Return all that is not known to be committed."""
        commits: dict[Partition, Commit] = {}
        self._sent = []
        for partition, row in self.reading().items():
            offset = row.to_commit
            if offset is None or offset == row.committed or row.start is None:
                continue
            self._sent.append((row, offset))
            passed = row.passed if offset >= row.position else 0
            commits[partition] = row.start.commit._replace(
                offset=offset, no_record_before=passed
            )
        return commits

    def sent(self, *, is_committed: bool) -> None:
        """Note what became of what was sent; after a failure it is sent again later,
        unless there is something newer.
        """
        for row, offset in self._sent if is_committed else ():
            row.committed = offset
        self._sent = []
        if not is_committed:
            self._retry_at = self._clock() + RETRY_COMMIT_S
