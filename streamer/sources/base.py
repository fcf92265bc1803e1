"""What a source of events is: partitions of records, each read in order from an offset.

Kafka, the embedded log and files all look like this to the rest of Streamer. A
source knows nothing of events: it moves bytes. As in Kafka, a position is the next
offset to read, and a committed offset the next one to be processed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from streamer.errors import OtherSource

logger = logging.getLogger(__name__)

Record = tuple[bytes | None, bytes, int]
"""Key (or None), value, timestamp in milliseconds since the epoch: what a writer
appends.
"""


class Partition(NamedTuple):
    """One ordered part of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


Positions = Mapping[Partition, int]
"""For each partition the next offset to read."""


class Position(int):
    """An offset, with what tells its log from another of the same name.

    Args:
        offset: the next offset to read.
        topic_id: of the topic as it was created, or what else tells one log from
            another; "" if it is not known.
        leader_epoch: of the record before the offset, or a later one; -1 if it is not
            known. A log that lost its end in an election of its leader has no such
            record any more.
        resets: how often `streamer reset` has moved the group until then.
    """

    topic_id: str
    leader_epoch: int
    resets: int

    def __new__(
        cls, offset: int, topic_id: str = "", leader_epoch: int = -1, resets: int = 0
    ) -> Position:
        position = super().__new__(cls, offset)
        position.topic_id = topic_id
        position.leader_epoch = leader_epoch
        position.resets = resets
        return position

    def at(self, offset: int) -> Position:
        """Another offset of the same log."""
        return Position(offset, self.topic_id, self.leader_epoch, self.resets)


@dataclass(slots=True)
class Chunk:
    """Consecutive records of one partition, as columns of equal length.

    Offsets ascend; they may have gaps (compaction, transactions).
    """

    partition: Partition
    offsets: list[int]
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes]  # b"" where the record has none (a tombstone)
    lost: int = 0  # how many offsets before the first one were removed before they could be read

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, start: int, stop: int | None = None) -> Chunk:
        """The records `start` to `stop`; what was lost before the first one goes with
        it.
        """
        which = slice(start, stop)
        return Chunk(
            self.partition,
            self.offsets[which],
            self.timestamps_ms[which],
            self.keys[which],
            self.values[which],
            self.lost if start == 0 else 0,
        )

    def extend(self, more: Chunk) -> None:
        """Append the records that follow."""
        self.offsets += more.offsets
        self.timestamps_ms += more.timestamps_ms
        self.keys += more.keys
        self.values += more.values
        self.lost += more.lost


class RebalanceListener(Protocol):
    """Takes partitions over and gives them up. A source calls it inside `open` and
    `poll`: the polling thread waits for it.
    """

    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        """Return how far we have trained these partitions, which are ours now; of those
        that we never had, nothing.

        The source resumes there, unless others have trained beyond it: then at their
        committed offset.
        """
        ...

    def on_start(self, starts: Positions) -> Positions:
        """Return where to start reading partitions that were assigned, given where the
        source would: there, or earlier.
        """
        return starts

    def on_revoked(self, partitions: Iterable[Partition]) -> None:
        """Give up these partitions: nothing more of them may be trained.

        What is committed before this returns is there for whoever is assigned them
        next, if the source has groups.
        """
        return

    def on_lost(self, partitions: Iterable[Partition]) -> None:
        """Forget these partitions: others may read them already, so nothing of them may
        be trained, saved or committed any more.
        """
        return


class StartAt(RebalanceListener):
    """A listener without state: reading begins at given positions.

    Args:
        positions: where partitions begin; others begin by the source's policy.
    """

    def __init__(self, positions: Positions) -> None:
        self._positions = positions

    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        return {p: self._positions[p] for p in partitions if p in self._positions}


class Source(Protocol):
    """A stream of records.

    `open`, `poll` and `close` are called by one thread. `commit` and `end_offsets` may
    be called by any thread.
    """

    def open(self, listener: RebalanceListener) -> None:
        """Connect, and have our first partitions assigned.

        Raises:
            SourceUnavailable: the other side does not respond.
            UnknownTopic: there is no such topic.
        """
        ...

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """Return the next records, at most `max_records` in all, after waiting at most
        `timeout_s` for the first.

        With `max_records=0` nothing is read, but we stay a member of the group, and
        rebalances are served.
        """
        ...

    @property
    def at_end(self) -> bool:
        """Whether no record will ever come again: the end of a file or a pipe. A topic
        never ends.
        """
        ...

    @property
    def all_assigned(self) -> bool:
        """Whether every partition is ours, or was trained by another reader up to the
        end that it had when we first looked.

        For the polling thread; may take a moment.
        """
        ...

    @property
    def is_member(self) -> bool:
        """Whether our partitions are ours for all we know. For any thread.

        False when the group has not heard of us for as long as a session lasts, as
        after a pause of the process: others may have been given our partitions. Then
        either the group confirms that we are a member, or `on_lost` is called.
        """
        ...

    @property
    def problem(self) -> str | None:
        """What keeps the other side from responding now, in a sentence; None if nothing
        does. For any thread.
        """
        ...

    def positions(self) -> Positions:
        """Return for each of our partitions the offset that `poll` reads next, as a
        `Position` if the source has more.

        Called by the polling thread.
        """
        ...

    def commit(self, positions: Positions) -> None:
        """Commit these positions as the group's offsets. Never waits, never raises; it
        may be done later.
        """
        ...

    def end_offsets(self) -> Positions:
        """Return the offset after the last record of each of our partitions, as far as
        is known now.
        """
        ...

    def close(self) -> None:
        """Send commits that wait, leave the group, and close the connection. May be
        called twice.
        """
        ...


def is_of_other_log(position: int | None, topic_id: str) -> bool:
    """Whether a position is of another log than this one of the same name, as far as is
    known.
    """
    known = getattr(position, "topic_id", "")
    return bool(known and topic_id) and known != topic_id


def check_topics(
    trained: Collection[Partition], topics: Collection[str], directory: Path
) -> None:
    """See that what was learned in a directory is from one of these topics or files.

    Raises:
        OtherSource: it is from others.
    """
    known = {partition.topic for partition in trained}
    if known and known.isdisjoint(topics):
        raise OtherSource(
            f"{directory} was learned from {', '.join(sorted(known))}, and this is {', '.join(topics)}"
        )


def check_log(partition: Partition, trained: int | None, topic_id: str) -> None:
    """See that what was trained of a partition is of the log that is to be read.

    Raises:
        OtherSource: it is of another one.
    """
    if is_of_other_log(trained, topic_id):
        raise OtherSource(
            f"{partition} is not what the model has learned from, but another log of that name"
        )


def warn_of_gap(partition: Partition, position: int, first: int) -> None:
    """Report records that were removed before they were read."""
    logger.warning(
        "%s: offsets %d to %d were removed by retention before they were read; resuming at %d",
        partition,
        position,
        first - 1,
        first,
    )
