"""Partitions of Kafka topics that were assigned to us by name: no consumer group
decides who reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition

from streamer.errors import SourceUnavailable
from streamer.sources.base import Chunk, Partition
from streamer.sources.kafka.client import connect, explained
from streamer.sources.kafka.commits import Commit
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.source import JOINING_SLICE_S, KafkaSource
from streamer.sources.kafka.starts import Starts

STALLED_S = 5.0
"""After this time without a record, a partition that should have more is not waited
for.
"""


class AssignedKafkaSource(KafkaSource):
    """Reads what it is told to, from where the listener says. Commits are for those who
    watch the lag.

    Args:
        settings: how to reach Kafka; offsets are committed in the name of the group.
        assigned: which partitions are ours now; there may be more from poll to poll.
        wants: whether to read on in a partition.
        may_commit: whether what is to be committed still is, asked when it is sent.
    """

    all_assigned = True

    def __init__(
        self,
        settings: KafkaSettings,
        assigned: Callable[[], Iterable[Partition]],
        wants: Callable[[Partition], bool],
        may_commit: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(replace(settings, trainer=None))
        self._may_commit = may_commit
        self._starts: _Policy
        self._ours = assigned
        self._wants = wants
        self._empty_since: dict[
            Partition, float
        ] = {}  # when a partition began to bring nothing though it has more

    def _subscribe(self) -> None:
        self._check_topics(self._settings.open_timeout_s)
        self._starts = _Policy(self._settings, self._consumer, self._group)
        self._fence()
        self._joined = True

    def _fence(self) -> None:
        """Have the client ask whether it may commit: that comes a while after it was
        told, and we may sleep between.
        """
        coordinator = self._consumer._coordinator
        send = coordinator._send_offset_commit_request

        async def send_if_we_may(
            offsets: Mapping[TopicPartition, OffsetAndMetadata],
        ) -> Any:
            return await send(offsets) if self._may_commit() else None

        coordinator._send_offset_commit_request = send_if_we_may

    def _join(self) -> None:
        began = time.monotonic()
        self._take_over()
        while self._unsettled:
            self._step(0, JOINING_SLICE_S)
            if time.monotonic() - began > self._settings.join_timeout_s:
                raise SourceUnavailable(
                    f"{self._where} did not say where its partitions begin and end"
                )

    def _take_over(self) -> None:
        """Begin with partitions that are ours now; one that was added to its topic is
        read from its beginning.
        """
        known = {*self._reading, *self._unsettled}
        if not (
            new := [tp for p in self._ours() if (tp := TopicPartition(*p)) not in known]
        ):
            return
        self._consumer.assign([*known, *new])
        self._assigned(new)
        if known or any(self._unsettled[tp] is not None for tp in new):
            added = [tp for tp in new if self._unsettled[tp] is None]
            self._starts.from_beginning.update(Partition(*tp) for tp in added)

    def _is_quiet(self) -> bool:
        return not self._unsettled

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`; partitions that do not want more are passed over."""
        self._take_over()
        if not self._consumer.assignment():
            time.sleep(timeout_s)
            return []
        full = [
            tp for tp, partition in self._reading.items() if not self._wants(partition)
        ]
        self._consumer.pause(*full)
        self._let_parked_return()
        try:
            chunks = super().poll(max_records, timeout_s)
        finally:
            self._consumer.resume(*full)
        now = time.monotonic()
        brought = {chunk.partition for chunk in chunks}
        behind = set(self._progress.behind())
        for tp, partition in self._reading.items():
            if (
                max_records == 0
                or tp in full
                or partition in brought
                or partition not in behind
            ):
                self._empty_since.pop(partition, None)
            else:
                self._empty_since.setdefault(partition, now)
        return chunks

    def _let_parked_return(self) -> None:
        """Make way for the records of a partition that was full, which the client keeps
        aside.

        It brings them back only if no other records are in line, even used up ones, and
        fetches nothing for the partition meanwhile (kafka-python 3.0.12): when the
        other partitions have ended, it would never be read again.
        """
        fetcher = self._consumer._fetcher
        if not fetcher._next_partition_records:
            fetcher._next_partition_records = None

    def has_no_more(self, partition: Partition) -> bool:
        """Whether a partition is read to its end, or has brought nothing for a while."""
        if partition not in self._progress.positions():
            return False
        stalled = (
            time.monotonic() - self._empty_since.get(partition, time.monotonic())
            > STALLED_S
        )
        return stalled or partition not in self._progress.behind()


class _Policy(Starts):
    """Starts where the checkpoint says, or by policy; committed offsets say nothing
    that a checkpoint does not.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.from_beginning: set[Partition] = set()

    def commits(self, partitions: Iterable[Partition]) -> dict[Partition, Commit]:
        return {}

    def _by_time_or_policy(self, partition: Partition, first: int, end: int) -> int:
        return (
            first
            if partition in self.from_beginning
            else super()._by_time_or_policy(partition, first, end)
        )


def all_partitions(settings: KafkaSettings) -> Callable[[], list[Partition]]:
    """What lists all partitions of the topics, over one connection."""
    consumer: Any = None

    def listed() -> list[Partition]:
        nonlocal consumer
        with explained(f"Kafka at {', '.join(settings.bootstrap_servers)}"):
            if consumer is None:
                config = replace(settings, trainer=None).consumer_config() | {
                    "group_id": None
                }
                consumer = connect(KafkaConsumer, config)
            existing = consumer.topics()
            found = {
                topic: consumer.partitions_for_topic(topic)
                for topic in settings.topics
                if topic in existing
            }
        if len(found) < len(settings.topics):
            return []
        return [
            Partition(topic, number)
            for topic, numbers in found.items()
            for number in sorted(numbers or ())
        ]

    return listed
