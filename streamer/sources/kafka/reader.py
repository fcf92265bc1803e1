"""Reading partitions of Kafka, whoever assigns them: what a member of a group and a
reader of given partitions have in common.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from kafka import errors

from streamer.errors import SourceError, UnknownTopic
from streamer.sources.base import (
    Chunk,
    Partition,
    Position,
    Positions,
    RebalanceListener,
)
from streamer.sources.kafka.assignment import Assignment
from streamer.sources.kafka.client import to_streamer_error
from streamer.sources.kafka.consumer import Consumer
from streamer.sources.kafka.offsets import Commit, OffsetTable
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.starts import Starts
from streamer.sources.kafka.watch import Watch

log = logging.getLogger(__name__)

SLICE_S = 0.2
"""How long the client waits at a time; after it, new partitions are settled."""
LOOK_S = 1.0
"""How often topics are looked at: whether one was deleted or recreated, or has new
partitions.
"""
GONE_S = 5.0
"""How long a topic must be missing to be taken for deleted."""


class KafkaReader(ABC):
    """Reads partitions. See `Source` for what its methods promise.

    A record without a value (a tombstone) is delivered with the value `b""`. No event
    is that short, so it becomes a dead letter.
    """

    at_end = False

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._where = settings.where
        self._table = OffsetTable()
        self._connection: Consumer | None = None
        self._assignment: Assignment
        self._watch: Watch
        self._opened = False
        self._look_at = 0.0
        self._gone_since: dict[str, float] = {}

    # -------------------------------------------------------------------- open, close

    def open(self, listener: RebalanceListener) -> None:
        """See `Source.open`. After an error it may be called again."""
        consumer = self._connection = self._connect()
        self._opened = False
        self._watch = Watch(consumer, self._table, self._where)
        starts = self._make_starts(consumer)
        self._assignment = Assignment(
            self._settings, consumer, self._table, starts, listener
        )
        try:
            with to_streamer_error(self._where):
                self._ask_for_partitions(consumer)
                self._wait_for_partitions(consumer)
        except BaseException:
            self.close()
            raise
        self._opened = True
        self._watch.start()

    @abstractmethod
    def _connect(self) -> Consumer: ...

    @abstractmethod
    def _make_starts(self, consumer: Consumer) -> Starts: ...

    @abstractmethod
    def _ask_for_partitions(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def _wait_for_partitions(self, consumer: Consumer) -> None:
        """Return when our partitions are settled."""

    @property
    def _consumer(self) -> Consumer:
        if self._connection is None:
            raise SourceError(f"{self._where}: the source is not open")
        return self._connection

    def close(self) -> None:
        """See `Source.close`. Takes `close_timeout_s` at most, whatever state Kafka is
        in.
        """
        consumer = self._connection
        if consumer is None:
            return
        self._connection = None
        self._watch.stop()
        try:
            self._leave(consumer, self._table.take_last_commit())
        except (errors.KafkaError, SourceError, TimeoutError) as error:
            log.warning("%s: could not leave cleanly: %s", self._where, error)
        self._table = OffsetTable()

    def _leave(self, consumer: Consumer, last: Mapping[Partition, Commit]) -> None:
        consumer.close(last, self._settings.close_timeout_s)

    # -------------------------------------------------------------------- poll

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`. With `max_records=0` it waits only while a rebalance is
        going on.
        """
        if max_records == 0:
            self._poll_for_nothing(timeout_s)
            return []
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            records = self._step(max_records, min(left_s, SLICE_S))
            if records:
                return [self._chunk(p, found) for p, found in records.items()]
            if left_s == 0:
                self._note_passed()
                return []

    def _poll_for_nothing(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            # The client forgets a join that ended between two polls, and joins again:
            # so it is given time for one.
            self._step(0, 0.0 if self._is_settled() else SLICE_S)
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._is_settled():
                return
            time.sleep(min(left_s, 0.01))

    def _is_settled(self) -> bool:
        """Whether all that was assigned is being read, and no rebalance is going on."""
        return not self._table.unsettled()

    def _step(
        self, max_records: int, timeout_s: float
    ) -> Mapping[Partition, list[Any]]:
        """Return `ConsumerRecord`s, or none.

        1. Send commits. 2. Look at the topics. 3. Let the client work. 4. Settle the
        partitions that it brought.
        """
        consumer = self._consumer
        self._assignment.send_commits(self._table.take_commit())
        if self._opened and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            self._look_at_topics(consumer)
        records = self._let_client_poll(consumer, max_records, timeout_s)
        self._assignment.raise_error()
        if self._table.unsettled():
            self._assignment.settle(joining=not self._opened)
        return records

    def _let_client_poll(
        self, consumer: Consumer, max_records: int, timeout_s: float
    ) -> Mapping[Partition, list[Any]]:
        held = [] if max_records else list(self._table.reading())
        consumer.pause(held)
        try:
            with self._assignment.errors("reading"):
                try:
                    return consumer.poll(max_records or 1, timeout_s)
                except errors.OffsetOutOfRangeError as error:
                    self._assignment.on_out_of_range(error.args[0])
                    return {}
                except errors.LogTruncationError as error:
                    self._assignment.on_truncated(error.divergent_offsets)
                    return {}
            time.sleep(min(timeout_s, 0.1))  # after an error that it gets over
        finally:
            reading = self._table.reading()
            consumer.resume(p for p in held if p in reading)
        return {}

    def _chunk(self, partition: Partition, records: list[Any]) -> Chunk:
        lost = self._table.returned(partition, records[-1].offset + 1)
        return Chunk(
            partition,
            [record.offset for record in records],
            [record.timestamp for record in records],
            [record.key for record in records],
            [record.value or b"" for record in records],
            lost,
        )

    def _note_passed(self) -> None:
        """Called when nothing came: what we still expect before the end of a partition
        may not be there.
        """
        for partition in self._behind():
            with self._assignment.errors("reading"):
                try:
                    position = self._consumer.position(partition)
                    self._table.pass_by(partition, position)
                except errors.LogTruncationError as error:
                    self._assignment.on_truncated(error.divergent_offsets)

    def _behind(self) -> list[Partition]:
        return self._table.behind()

    def _look_at_topics(self, consumer: Consumer) -> None:
        """See whether a topic was deleted or recreated.

        Raises:
            UnknownTopic: a topic was deleted.
        """
        now = time.monotonic()
        for topic in self._settings.topics:
            if consumer.partitions_of(topic):
                self._gone_since.pop(topic, None)
                continue
            gone_s = now - self._gone_since.setdefault(topic, now)
            if gone_s > GONE_S and topic not in consumer.existing_topics():
                raise UnknownTopic(
                    f"{self._where}: the topic {topic!r} was deleted while it was read. Create it again"
                )
        self._assignment.reassign_recreated()

    # -------------------------------------------------------------------- offsets

    def positions(self) -> Positions:
        """See `Source.positions`. While a rebalance is going on, partitions that may
        come back are missing.
        """
        found: dict[Partition, int] = {}
        for partition, row in self._table.reading().items():
            assert row.start is not None
            start = row.start.position
            epoch = self._consumer.leader_epoch(partition)
            found[partition] = Position(
                max(row.position, row.passed),
                start.topic_id,
                max(start.leader_epoch, epoch),
            )
        return found

    def commit(self, positions: Positions) -> None:
        """See `Source.commit`. Sent by the next `poll`, or by `close`; what is not ours
        is left out.
        """
        self._table.want_commit(positions)

    def end_offsets(self) -> Positions:
        """See `Source.end_offsets`."""
        return self._table.ends()

    @property
    def problem(self) -> str | None:
        """See `Source.problem`."""
        return self._watch.problem
