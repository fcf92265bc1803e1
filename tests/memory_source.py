"""Twins in memory: of a log and its source, which keeps the contract of all sources, and of a file of dead letters.

`MemorySource.assign`, `revoke` and `lose` play the part of a group's coordinator: any thread may call them, and they
are served inside the next poll.
"""

from __future__ import annotations

import itertools
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from streamer.dead_letters.base import DeadLetter, DeadLetters
from streamer.errors import UnknownTopic
from streamer.sources.base import Chunk, Partition, Positions, RebalanceListener, Record

GROUP = "streamer"


class MemoryLog:
    """Topics with partitions, shared by any number of writing and reading threads."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.stored: list[Chunk] = []  # one record each, in the order in which they were appended
        self.committed: dict[str, dict[Partition, int]] = {}  # by group
        self.trained_by: dict[tuple[str, Partition], tuple[str, int]] = {}  # who committed it, and where that began
        self._turn = itertools.count()
        self._ends: dict[str, list[int]] = {}

    def create_topic(self, name: str, partitions: int) -> None:
        self._ends[name] = [0] * partitions

    def append(self, topic: str, records: Iterable[Record], partition: int | None = None) -> None:
        """Append records, by key or to the given partition."""
        with self.changed:
            ends = self._ends[topic]
            for key, value, time_ms in records:
                number = partition
                if number is None:
                    number = next(self._turn) % len(ends) if key is None else zlib.crc32(key) % len(ends)
                self.stored.append(Chunk(Partition(topic, number), [ends[number]], [time_ms], [key], [value]))
                ends[number] += 1
            self.changed.notify_all()

    def topics(self) -> dict[str, int]:
        """Each topic and its number of partitions."""
        return {name: len(ends) for name, ends in self._ends.items()}

    def end_offsets(self, topic: str) -> dict[Partition, int]:
        with self.changed:
            if topic not in self._ends:
                raise UnknownTopic(f"there is no topic {topic!r}")
            return {Partition(topic, number): end for number, end in enumerate(self._ends[topic])}


class MemorySource:
    """Reads a topic of a `MemoryLog` in append order.

    Args:
        log: where the records are.
        topic: which is read.
        partitions: the numbers to begin with; None for all.
        trainer: what tells our commits from those of others; "" if nothing does.
    """

    at_end = False
    is_member = True
    problem = None
    all_assigned = True

    def __init__(self, log: MemoryLog, topic: str, partitions: Sequence[int] | None = None, trainer: str = "") -> None:
        self._log, self._topic, self._wanted, self._trainer = log, topic, partitions, trainer
        self._since: dict[Partition, int] = {}
        self._listener: RebalanceListener | None = None
        self._rebalances: deque[Callable[[], None]] = deque()
        self._positions: dict[Partition, int] = {}
        self._cursor = 0  # of `log.stored`; everything of ours before it was returned

    def open(self, listener: RebalanceListener) -> None:
        self._listener = listener
        ours = [p for p in self._log.end_offsets(self._topic) if self._wanted is None or p.number in self._wanted]
        if ours:
            self._take_over(ours)

    def assign(self, partitions: Collection[Partition]) -> None:
        """Give these partitions to this reader."""
        self._announce(lambda: self._take_over(partitions))

    def revoke(self, partitions: Collection[Partition]) -> None:
        """Take these partitions from this reader."""
        self._announce(lambda: self._listener.on_revoked(self._let_go(partitions)))

    def lose(self, partitions: Collection[Partition]) -> None:
        """Take these partitions from this reader without asking it first."""
        self._announce(lambda: self._listener.on_lost(self._let_go(partitions)))

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        deadline = time.monotonic() + timeout_s
        while True:
            while self._rebalances:
                self._rebalances.popleft()()
            chunks = self._take(max_records)
            left_s = deadline - time.monotonic()
            if chunks or max_records == 0 or left_s <= 0:
                return chunks
            with self._log.changed:
                self._log.changed.wait_for(lambda: self._rebalances or self._cursor < len(self._log.stored), left_s)

    def positions(self) -> Positions:
        return dict(self._positions)

    def commit(self, positions: Positions) -> None:
        with self._log.changed:
            committed = self._log.committed.setdefault(GROUP, {})
            for partition, position in positions.items():
                committed[partition] = max(position, self._since.get(partition, 0))
                self._log.trained_by[GROUP, partition] = (self._trainer, self._since.get(partition, 0))

    def end_offsets(self) -> Positions:
        ends = self._log.end_offsets(self._topic)
        return {partition: ends[partition] for partition in tuple(self._positions)}

    def close(self) -> None:
        self._positions = {}

    def _announce(self, rebalance: Callable[[], None]) -> None:
        with self._log.changed:
            self._rebalances.append(rebalance)
            self._log.changed.notify_all()

    def _take_over(self, partitions: Collection[Partition]) -> None:
        trained = self._listener.on_assigned(partitions)
        starts = {p: self._starting_position(p, trained.get(p, 0)) for p in partitions}
        self._positions |= self._listener.on_start(starts)
        self.all_assigned = True
        self._cursor = 0  # what was returned before is left out by its position

    def _starting_position(self, partition: Partition, trained: int) -> int:
        """As Kafka has it: how far we or others came, whichever is later."""
        committed = self._log.committed.get(GROUP, {}).get(partition, 0)
        trainer, since = self._log.trained_by.get((GROUP, partition), ("", 0))
        ours = trainer == self._trainer != ""
        position = max(trained, since if ours else committed)  # what we trained after our last checkpoint is lost
        self._since[partition] = since if ours else position
        return position

    def _let_go(self, partitions: Collection[Partition]) -> Collection[Partition]:
        for partition in partitions:
            self._positions.pop(partition, None)
        self.all_assigned = bool(self._positions)  # or it waits for what is assigned next
        return partitions

    def _take(self, max_records: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        with self._log.changed:
            while max_records > 0 and self._cursor < len(self._log.stored):
                stored = self._log.stored[self._cursor]
                self._cursor += 1
                if self._positions.get(stored.partition) != stored.offsets[0]:
                    continue
                self._positions[stored.partition] += 1
                max_records -= 1
                if not chunks or chunks[-1].partition != stored.partition:
                    chunks.append(Chunk(stored.partition, [], [], [], []))
                chunks[-1].extend(stored)
        return chunks


class MemoryDeadLetters(DeadLetters):
    """Keeps all dead letters."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []

    def write(self, letters: Sequence[DeadLetter]) -> None:
        self.letters += letters
