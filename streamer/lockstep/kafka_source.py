"""Partitions of Kafka topics that were assigned to a rank by name: no consumer group
decides who reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from streamer.sources.base import Chunk, Partition, Positions
from streamer.sources.kafka.consumer import Consumer
from streamer.sources.kafka.reader import KafkaReader
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.tail import KafkaTail

STALLED_S = 5.0
"""After this time without a record, a partition that should have more is not waited
for.
"""
WHOLE_FETCH = 1 << 30


class AssignedKafkaSource(KafkaTail):
    """Reads what it is told to, from where the listener says. Commits are for those who
    watch the lag.

    Each partition has a buffer, which holds what the client fetched of it at once: a
    partition that does not want more does not hold up the others.

    Args:
        settings: how to reach Kafka; offsets are committed in the name of the group.
        assigned: which partitions are ours now; there may be more from poll to poll.
        wants: whether to read on in a partition.
        may_commit: whether what is to be committed still is, asked when it is sent.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        assigned: Callable[[], Iterable[Partition]],
        wants: Callable[[Partition], bool],
        may_commit: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(settings, assigned)
        self._group_id = settings.group_id
        self._wants = wants
        self._may_commit = may_commit
        self._buffers: dict[Partition, list[Any]] = {}
        self._empty_since: dict[Partition, float] = {}
        # partitions of what a poll has returned and nobody has queued yet
        self._on_their_way: frozenset[Partition] = frozenset()

    def _ask_for_partitions(self, consumer: Consumer) -> None:
        consumer.ask_before_commits(self._may_commit)
        super()._ask_for_partitions(consumer)

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`: what the last one returned is queued by now."""
        self._on_their_way = frozenset()
        return super().poll(max_records, timeout_s)

    def commit(self, positions: Positions) -> None:
        """See `Source.commit`."""
        KafkaReader.commit(self, positions)

    def _let_client_poll(
        self,
        consumer: Consumer,
        max_records: int,
        timeout_s: float,
    ) -> Mapping[Partition, list[Any]]:
        """Fetch for the partitions that want more and have nothing in their buffer, and
        return records of those that want some.

        Fetches are taken from the client whole: of a partition that is paused in the
        middle of one, it may never return the rest (kafka-python 3.0.12).
        """
        self._drop_buffers_of_other_logs()
        if max_records == 0:
            return super()._let_client_poll(consumer, 0, timeout_s)
        if any(map(self._wants, self._buffers)):
            timeout_s = 0.0
        paused: list[Partition] = []
        for partition in self._table.reading():
            if partition in self._buffers or not self._wants(partition):
                paused.append(partition)
        consumer.pause(paused)
        try:
            fetched = super()._let_client_poll(consumer, WHOLE_FETCH, timeout_s)
        finally:
            reading = self._table.reading()
            consumer.resume(p for p in paused if p in reading)
        self._buffers |= fetched
        self._drop_buffers_of_other_logs()
        self._note_empty({*paused, *fetched})
        return self._take(max_records)

    def _drop_buffers_of_other_logs(self) -> None:
        """Forget what was fetched of partitions that are assigned anew."""
        reading = self._table.reading()
        self._buffers = {p: r for p, r in self._buffers.items() if p in reading}

    def _take(self, max_records: int) -> dict[Partition, list[Any]]:
        """Take records out of the buffers, of each partition in turn."""
        taken: dict[Partition, list[Any]] = {}
        for partition in list(self._buffers):
            if max_records > 0 and self._wants(partition):
                self._on_their_way |= {partition}
                records = self._buffers.pop(partition)
                taken[partition] = records[:max_records]
                if len(records) > max_records:
                    self._buffers[partition] = records[max_records:]
                max_records -= len(taken[partition])
        return taken

    def _note_empty(self, not_empty: set[Partition]) -> None:
        """Note since when partitions bring nothing though they have more."""
        behind = self._behind()
        now = time.monotonic()
        for partition in self._table.reading():
            if partition in behind and partition not in not_empty:
                self._empty_since.setdefault(partition, now)
            else:
                self._empty_since.pop(partition, None)

    def _behind(self) -> list[Partition]:
        return [p for p in self._table.behind() if p not in self._buffers]

    def has_no_more(self, partition: Partition) -> bool:
        """See `Assigned.has_no_more`: it is read to its end, or has brought nothing for
        a while.
        """
        if partition in self._on_their_way or partition in self._buffers:
            return False
        if partition not in self._table.reading():
            return False
        now = time.monotonic()
        stalled = now - self._empty_since.get(partition, now) > STALLED_S
        return stalled or partition not in self._table.behind()


def all_partitions(settings: KafkaSettings) -> Callable[[], list[Partition]]:
    """What lists all partitions of the topics, over one connection."""
    consumer: Consumer | None = None

    def listed() -> list[Partition]:
        nonlocal consumer
        consumer = consumer or Consumer(settings, group_id=None)
        consumer.existing_topics()
        return consumer.all_partitions()

    return listed
