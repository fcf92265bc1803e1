"""What a source of events is: a few partitions of records, each read in order from an offset.

Kafka, the embedded log, files and memory all look like this to the rest of Streamer. A source knows nothing of events:
it moves bytes. Positions are always "the next offset to read", as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Partition(NamedTuple):
    """One ordered part of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


Positions = Mapping[Partition, int]
"""For each partition the next offset to read."""


class AtLeast(int):
    """A position that others may have passed meanwhile: where the group has committed a later one, that one counts.

    It stands for a partition that was ours before. A source without groups takes it as it is.
    """


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

    def __len__(self) -> int:
        return len(self.offsets)


class Listener(Protocol):
    """Who is told when partitions come and go. Both calls happen inside `open` or `poll`, on the polling thread."""

    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        """Answer where to go on reading; a partition left out starts where the source's own policy says.

        A plain position rules over what the group has committed, an `AtLeast` does not.
        """
        ...

    def on_revoked(self, partitions: Iterable[Partition]) -> None:
        """These partitions are no longer ours; nothing of them that is not trained yet may be trained.

        What is committed before this returns is there for whoever gets them next, if the source has groups.
        """
        ...


class Source(Protocol):
    """A stream of records.

    `open`, `poll` and `close` are called by one thread. `commit` and `end_positions` may be called by any thread.
    """

    def open(self, listener: Listener) -> None:
        """Connect, and learn which partitions are ours.

        Raises:
            SourceUnavailable: the other side does not answer.
            UnknownTopic: there is no such topic.
        """
        ...

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """Return the next records, at most `max_records` in all, after waiting at most `timeout_s` for the first.

        With `max_records=0` nothing is read, but membership of a group is kept alive and rebalances are served.
        """
        ...

    @property
    def at_end(self) -> bool:
        """True when no record will ever come again: the end of a file or a pipe. A topic never ends."""
        ...

    @property
    def settled(self) -> bool:
        """Whether no more partitions will come: all are ours, or others that live read them.

        False in the middle of a rebalance, and while a reader that died is not yet known to be dead. For the polling
        thread; may take a moment.
        """
        ...

    def positions(self) -> Positions:
        """For each of our partitions the offset that `poll` reads next. Called by the polling thread."""
        ...

    def commit(self, positions: Positions) -> None:
        """Tell the other side how far we have come, for lag monitors. Never blocks, never raises; may come late."""
        ...

    def end_positions(self) -> Positions:
        """The position after the last record of each of our partitions, as far as is known now."""
        ...

    def close(self) -> None:
        """Send what was committed, leave the group, let go of the connection. May be called twice."""
        ...
