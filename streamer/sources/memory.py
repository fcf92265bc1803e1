"""Topics in memory: the twin of a real log that tests, and programs without one, use.

The simplest thing that keeps the Source protocol: records lie in one list in append
order, and a reader walks along it. `MemorySource.assign`, `revoke` and `lose` play the
part of a group's coordinator.

    log = MemoryLog()
    log.create_topic("interactions", partitions=2)
    log.append("interactions", [(b"user-1", b'{"item_id": 7}', 1_700_000_000_000)])
    source = MemorySource(log, "interactions")
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from streamer.errors import SourceError, UnknownTopic
from streamer.sources.base import Chunk, Partition, Positions, RebalanceListener
from streamer.sources.positions import (
    Partitioner,
    Record,
    as_topics,
    checked_partitions,
    checked_position,
)


class MemoryLog:
    """Topics with partitions, shared by any number of writing and reading threads."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.stored: list[Chunk] = []
        """One record each."""
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
            for key, value, time_ms in records:
                number = partition
                if number is None:
                    number = self._partitioners[topic].choose(key)
                of = Partition(topic, number)
                stored = Chunk(of, [ends[number]], [time_ms], [key], [value])
                self.stored.append(stored)
                ends[number] += 1
            self.changed.notify_all()

    def topics(self) -> dict[str, int]:
        """Each topic and its number of partitions."""
        with self.changed:
            return {name: len(ends) for name, ends in self._ends.items()}

    def end_offsets(self, topic: str) -> dict[Partition, int]:
        """The position after the last record of each partition."""
        with self.changed:
            ends = self._ends_of(topic)
            return {Partition(topic, number): end for number, end in enumerate(ends)}

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
        group: the name under which `commit` stores positions in `log.committed`.
        trainer: what tells our commits from those of others; "" if nothing does.
    """

    at_end = False
    is_member = True
    problem = None

    def __init__(
        self,
        log: MemoryLog,
        topics: str | Sequence[str],
        partitions: Collection[int] | None = None,
        group: str = "streamer",
        trainer: str = "",
    ) -> None:
        self._log = log
        self._trainer = trainer
        self._since: dict[Partition, int] = {}
        self._topics = as_topics(topics)
        self._wanted = partitions
        self._group = group
        self._listener: RebalanceListener | None = None
        self._rebalances: deque[Callable[[], None]] = deque()
        self._positions: dict[Partition, int] = {}
        self.all_assigned = True
        """A reader from which everything was revoked waits for what is assigned next."""
        self._cursor = 0
        """Index into `log.stored`; everything of ours before it was returned."""

    def open(self, listener: RebalanceListener) -> None:
        """Take the wanted partitions, or all. See `Source.open`."""
        self._listener = listener
        ours: list[Partition] = []
        for topic in self._topics:
            existing = len(self._log.end_offsets(topic))
            ours += checked_partitions(topic, existing, self._wanted)
        if ours:
            self._take_over(ours)

    def assign(self, partitions: Collection[Partition]) -> None:
        """Give these partitions to this reader, inside its next poll. Any thread may
        call.
        """
        self._announce(lambda: self._take_over(partitions))

    def revoke(self, partitions: Collection[Partition]) -> None:
        """Take these partitions from this reader, inside its next poll. Any thread may
        call.
        """
        self._announce(lambda: self._opened.on_revoked(self._let_go(partitions)))

    def lose(self, partitions: Collection[Partition]) -> None:
        """Take these partitions from this reader without asking it first."""
        self._announce(lambda: self._opened.on_lost(self._let_go(partitions)))

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`."""
        deadline = time.monotonic() + timeout_s
        while True:
            while self._rebalances:
                self._rebalances.popleft()()
            chunks = self._take(max_records)
            left_s = deadline - time.monotonic()
            if chunks or max_records == 0 or left_s <= 0:
                return chunks
            with self._log.changed:
                self._log.changed.wait_for(self._has_news, left_s)

    def positions(self) -> Positions:
        """See `Source.positions`."""
        return dict(self._positions)

    def commit(self, positions: Positions) -> None:
        """Store the positions in `log.committed`, after `close` too."""
        with self._log.changed:
            self._log.committed.setdefault(self._group, {}).update(positions)
            for partition in positions:
                by = (self._trainer, self._since.get(partition, 0))
                self._log.trained_by[self._group, partition] = by

    def end_offsets(self) -> Positions:
        """See `Source.end_offsets`."""
        ours = tuple(self._positions)
        return {p: self._log.end_offsets(p.topic)[p] for p in ours}

    def close(self) -> None:
        """Give up all partitions, without a call of the listener: it is the one who
        closes.
        """
        self._positions = {}
        self._listener = None

    @property
    def _opened(self) -> RebalanceListener:
        assert self._listener is not None, "open comes first"
        return self._listener

    def _announce(self, rebalance: Callable[[], None]) -> None:
        with self._log.changed:
            self._rebalances.append(rebalance)
            self._log.changed.notify_all()

    def _take_over(self, partitions: Collection[Partition]) -> None:
        trained = self._opened.on_assigned(partitions)
        starts: dict[Partition, int] = {}
        for partition in partitions:
            position = self._starting_position(partition, trained.get(partition))
            end = self._log.end_offsets(partition.topic)[partition]
            starts[partition] = checked_position(partition, position, end)
        self._positions |= self._opened.on_start(starts)
        self.all_assigned = True
        self._cursor = 0  # what was returned before is left out by its position

    def _starting_position(self, partition: Partition, trained: int | None) -> int:
        """As Kafka has it: how far we or others came, whichever is later."""
        committed = self._log.committed.get(self._group, {}).get(partition, 0)
        trainer, since = self._log.trained_by.get((self._group, partition), ("", 0))
        ours = trainer == self._trainer != ""
        if ours:
            committed = since  # what we trained after our last checkpoint is lost
        position = max(trained or 0, committed)
        self._since[partition] = since if ours else position
        return position

    def _let_go(self, partitions: Collection[Partition]) -> Collection[Partition]:
        for partition in partitions:
            self._positions.pop(partition, None)
        self.all_assigned = bool(self._positions)
        return partitions

    def _take(self, max_records: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        with self._log.changed:
            while max_records > 0 and self._cursor < len(self._log.stored):
                stored = self._log.stored[self._cursor]
                self._cursor += 1
                partition = stored.partition
                if self._positions.get(partition) != stored.offsets[0]:
                    continue
                self._positions[partition] += 1
                max_records -= 1
                if not chunks or chunks[-1].partition != partition:
                    chunks.append(Chunk(partition, [], [], [], []))
                chunks[-1].extend(stored)
        return chunks

    def _has_news(self) -> bool:
        return bool(self._rebalances) or self._cursor < len(self._log.stored)
