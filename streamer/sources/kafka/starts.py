"""Where to start reading partitions of Kafka."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kafka import TopicPartition

from streamer.errors import SourceError
from streamer.sources.base import Partition, PositionOrCommitted, Positions
from streamer.sources.kafka.settings import KafkaSettings

log = logging.getLogger(__name__)

LOOKUP_TIMEOUT_MS = 2_000


class Starts:
    """Finds starting positions, with questions to Kafka; raises the client's errors if it does not respond."""

    def __init__(self, settings: KafkaSettings, consumer: Any) -> None:
        self._settings = settings
        self._consumer = consumer

    def of(self, answers: Mapping[Partition, int | None]) -> tuple[Positions, Positions]:
        """Where each partition starts, and where it ends now.

        1. the answer, if there is one; 2. the committed offset, also if it is later than an answer that is a
        `PositionOrCommitted`; 3. the start time; 4. the reset policy.
        """
        first, ends = self._range(answers)
        starts: dict[Partition, int] = {}
        for partition, answer in answers.items():
            position = self._answered_or_committed(partition, answer)
            if position is None:
                position = self._by_time(partition, ends[partition])
            if position is None:
                position = self._by_policy(partition, first[partition], ends[partition], "it has no position yet")
            starts[partition] = self._in_range(partition, position, first[partition], ends[partition])
        return starts, ends

    def again(self, out_of_range: Positions) -> Positions:
        """Where to go on with positions that Kafka refused."""
        first, ends = self._range(out_of_range)
        return {p: self._in_range(p, position, first[p], ends[p]) for p, position in out_of_range.items()}

    def _range(self, partitions: Mapping[Partition, Any]) -> tuple[Positions, Positions]:
        tps = [TopicPartition(*partition) for partition in partitions]
        first = self._consumer.beginning_offsets(tps, timeout_ms=LOOKUP_TIMEOUT_MS)
        ends = self._consumer.end_offsets(tps, timeout_ms=LOOKUP_TIMEOUT_MS)
        return _by_partition(first), _by_partition(ends)

    def _answered_or_committed(self, partition: Partition, answer: int | None) -> int | None:
        if answer is not None and not isinstance(answer, PositionOrCommitted):
            return answer
        committed = self._committed(partition)
        return committed if answer is None else max(answer, committed or 0)

    def _committed(self, partition: Partition) -> int | None:
        offset: int | None = self._consumer.committed(TopicPartition(*partition), timeout_ms=LOOKUP_TIMEOUT_MS)
        return offset

    def _by_time(self, partition: Partition, end: int) -> int | None:
        """The first record at or after the start time, or the end if there is none."""
        if self._settings.start_timestamp_ms is None:
            return None
        tp = TopicPartition(*partition)
        wanted = {tp: self._settings.start_timestamp_ms}
        found = self._consumer.offsets_for_times(wanted, timeout_ms=LOOKUP_TIMEOUT_MS)[tp]
        return end if found is None else int(found.offset)

    def _in_range(self, partition: Partition, position: int, first: int, end: int) -> int:
        if first <= position <= end:
            return position
        why = f"its position {position} is out of range, valid are {first} to {end}"
        start = self._by_policy(partition, first, end, why)
        policy = self._settings.auto_offset_reset
        log.warning("%s: %s; resuming at offset %d (auto_offset_reset=%s)", partition, why, start, policy)
        return start

    def _by_policy(self, partition: Partition, first: int, end: int, why: str) -> int:
        if self._settings.auto_offset_reset == "error":
            raise SourceError(
                f"{partition} cannot be read: {why}, and auto_offset_reset is 'error'; "
                "to go on anyway, set it to 'earliest' or 'latest'"
            )
        return first if self._settings.auto_offset_reset == "earliest" else end


def _by_partition(offsets: Mapping[TopicPartition, int]) -> dict[Partition, int]:
    return {Partition(*tp): offset for tp, offset in offsets.items()}
