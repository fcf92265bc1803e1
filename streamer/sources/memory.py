"""Topics in memory: the twin of a real log that tests, and programs without one, use.

The simplest thing that keeps the Source protocol: records lie in one list in append
order, and a reader walks along it. `MemorySource.assign` and `revoke` play the part of
a group's coordinator.

    log = MemoryLog()
    log.create_topic("interactions", partitions=2)
    log.append("interactions", [(b"user-1", b'{"item_id": 7}', 1_700_000_000_000)])
    source = MemorySource(log, "interactions")
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from streamer.errors import SourceError, UnknownTopic
from streamer.sources.base import Chunk, Partition, Positions, RebalanceListener
from streamer.sources.positions import (
    Partitioner,
    Record,
    as_topics,
    checked_partitions,
    checked_position,
)


class _Stored(NamedTuple):
    partition: Partition
    offset: int
    record: Record


class MemoryLog:
    """Topics with partitions, shared by any number of writing and reading threads."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.stored: list[_Stored] = []
        self.committed: dict[str, dict[Partition, int]] = {}
        """For each group the positions it committed last."""
        self.trained_by: dict[tuple[str, Partition], tuple[str, int]] = {}
        """For each of these who committed it, and where that trainer began."""
        self._partitioners: dict[str, Partitioner] = {}
        self._ends: dict[str, list[int]] = {}

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic; nothing happens if it is there with as many partitions.

        Raises:
            SourceError: it is there with another number of partitions.
        """
        with self.changed:
            existing = len(self._ends.setdefault(name, [0] * partitions))
            if existing != partitions:
                raise SourceError(
                    f"topic {name!r} has {existing} partitions, not {partitions}"
                )
            self._partitioners.setdefault(name, Partitioner(partitions))
            self.changed.notify_all()

    def append(
        self, topic: str, records: Iterable[Record], partition: int | None = None
    ) -> None:
        """Append records, by key or to the given partition."""
        with self.changed:
            ends = self._ends_of(topic)
            for record in records:
                number = (
                    self._partitioners[topic].choose(record[0])
                    if partition is None
                    else partition
                )
                self.stored.append(
                    _Stored(Partition(topic, number), ends[number], record)
                )
                ends[number] += 1
            self.changed.notify_all()

    def topics(self) -> dict[str, int]:
        """Each topic and its number of partitions."""
        with self.changed:
            return {name: len(ends) for name, ends in self._ends.items()}

    def end_offsets(self, topic: str) -> dict[Partition, int]:
        """The position after the last record of each partition."""
        with self.changed:
            return {
                Partition(topic, number): end
                for number, end in enumerate(self._ends_of(topic))
            }

    def _ends_of(self, topic: str) -> list[int]:
        if topic not in self._ends:
            raise UnknownTopic(
                f"there is no topic {topic!r}; there are {sorted(self._ends) or 'none'}"
            )
        return self._ends[topic]


class MemorySource:
    """Reads topics of a `MemoryLog` in append order.

    Args:
        log: where the records are.
        topics: one topic or several.
        partitions: the partition numbers to read of every topic; None for all. May be
            empty: `assign` adds some.
        start: where partitions begin that neither the listener nor the group has a
            position for.
        group: the name under which `commit` stores positions in `log.committed`.
        trainer: what tells our commits from those of others; "" if nothing does.
    """

    def __init__(
        self,
        log: MemoryLog,
        topics: str | Sequence[str],
        partitions: Collection[int] | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        group: str = "streamer",
        trainer: str = "",
    ) -> None:
        self._log = log
        self._trainer = trainer
        self._since: dict[Partition, int] = {}
        self._topics = as_topics(topics)
        self._wanted = partitions
        self._start = start
        self._group = group
        self._listener: RebalanceListener | None = None
        self._rebalances: deque[tuple[bool, list[Partition]]] = deque()
        self._positions: dict[Partition, int] = {}
        self._all_assigned = True
        self._cursor = (
            0  # index into log.stored; everything of ours before it was returned
        )

    def open(self, listener: RebalanceListener) -> None:
        """Take the wanted partitions, or all. See `Source.open`."""
        existing = self._log.topics()
        for topic in self._topics:
            if topic not in existing:
                raise UnknownTopic(
                    f"there is no topic {topic!r}; there are {sorted(existing) or 'none'}"
                )
        self._listener = listener
        ours = [
            p
            for topic in self._topics
            for p in checked_partitions(topic, existing[topic], self._wanted)
        ]
        if ours:
            self._take_over(ours)

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Give these partitions to this reader, inside its next poll. Any thread may
        call.
        """
        self._announce(True, partitions)

    def revoke(self, partitions: Iterable[Partition]) -> None:
        """Take these partitions from this reader, inside its next poll. Any thread may
        call.
        """
        self._announce(False, partitions)

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._serve_rebalances()
            chunks = self._take(max_records)
            if (
                chunks
                or max_records == 0
                or not self._wait_for_news(deadline - time.monotonic())
            ):
                return chunks

    at_end = False
    problem = None

    @property
    def all_assigned(self) -> bool:
        """See `Source.all_assigned`. A reader from which everything was revoked waits
        for what is assigned next.
        """
        return self._all_assigned

    def positions(self) -> Positions:
        """See `Source.positions`."""
        return dict(self._positions)

    def commit(self, positions: Positions) -> None:
        """Store the positions in `log.committed`, after `close` too."""
        with self._log.changed:
            self._log.committed.setdefault(self._group, {}).update(positions)
            for partition in positions:
                self._log.trained_by[self._group, partition] = (
                    self._trainer,
                    self._since.get(partition, 0),
                )

    def end_offsets(self) -> Positions:
        """See `Source.end_offsets`."""
        ends: dict[Partition, int] = {}
        for topic in self._topics:
            ends.update(self._log.end_offsets(topic))
        return {partition: ends[partition] for partition in tuple(self._positions)}

    def close(self) -> None:
        """Give up all partitions, without a call of the listener: it is the one who
        closes.
        """
        self._positions = {}
        self._listener = None

    def _announce(self, come: bool, partitions: Iterable[Partition]) -> None:
        with self._log.changed:
            self._rebalances.append((come, list(partitions)))
            self._log.changed.notify_all()

    def _serve_rebalances(self) -> None:
        while self._rebalances:
            come, partitions = self._rebalances.popleft()
            if come:
                self._take_over(partitions)
            else:
                self._let_go(partitions)

    def _take_over(self, partitions: list[Partition]) -> None:
        assert self._listener is not None, "open comes first"
        trained = self._listener.on_assigned(partitions)
        for partition in partitions:
            end = self._log.end_offsets(partition.topic)[partition]
            position = self._starting_position(partition, trained.get(partition), end)
            self._positions[partition] = checked_position(partition, position, end)
        self._all_assigned = True
        self._cursor = 0  # what was returned before is left out by its position

    def _starting_position(
        self, partition: Partition, trained: int | None, end: int
    ) -> int:
        """As Kafka has it: how far we or others came, whichever is later; the policy."""
        committed = self._log.committed.get(self._group, {}).get(partition)
        trainer, since = self._log.trained_by.get((self._group, partition), ("", 0))
        ours = trainer == self._trainer != ""
        if ours:
            committed = since  # what we trained after our last checkpoint is lost
        position = 0 if self._start == "earliest" else end
        known = [at for at in (trained, committed) if at is not None]
        if known:
            position = max(known)
        self._since[partition] = since if ours else position
        return position

    def _let_go(self, partitions: list[Partition]) -> None:
        assert self._listener is not None, "open comes first"
        for partition in partitions:
            self._positions.pop(partition, None)
        self._all_assigned = bool(self._positions)
        self._listener.on_revoked(partitions)

    def _take(self, max_records: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        with self._log.changed:
            while max_records > 0 and self._cursor < len(self._log.stored):
                stored = self._log.stored[self._cursor]
                self._cursor += 1
                if (
                    self._positions.get(stored.partition, stored.offset + 1)
                    == stored.offset
                ):
                    self._positions[stored.partition] += 1
                    _extend(chunks, stored)
                    max_records -= 1
        return chunks

    def _wait_for_news(self, timeout_s: float) -> bool:
        with self._log.changed:
            return timeout_s > 0 and self._log.changed.wait_for(
                self._has_news, timeout_s
            )

    def _has_news(self) -> bool:
        return bool(self._rebalances) or self._cursor < len(self._log.stored)


def _extend(chunks: list[Chunk], stored: _Stored) -> None:
    """Add a record to the last chunk, or to a new one if the partition changes."""
    if not chunks or chunks[-1].partition != stored.partition:
        chunks.append(Chunk(stored.partition, [], [], [], []))
    key, value, timestamp_ms = stored.record
    chunk = chunks[-1]
    chunk.offsets.append(stored.offset)
    chunk.timestamps_ms.append(timestamp_ms)
    chunk.keys.append(key)
    chunk.values.append(value)
