"""Reading partitions of Kafka, whoever assigns them: what a member of a group and a
reader of given partitions have in common.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from streamer.errors import SourceError, SourceUnavailable
from streamer.sources.base import (
    Chunk,
    Partition,
    Positions,
    RebalanceListener,
)
from streamer.sources.kafka.consumer import Consumer
from streamer.sources.kafka.offsets import Commit, OffsetTable
from streamer.sources.kafka.partitions import KafkaPartitions
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


class KafkaReader(KafkaPartitions, ABC):
    """Reads partitions. See `Source` for what its methods promise.

    What keeps Kafka from responding is ignored, and tried again by the next poll; the
    watch logs it if it lasts.

    A record without a value (a tombstone) is delivered with the value `b""`. No event
    is that short, so it becomes a dead letter.
    """

    at_end = False
    is_member = True
    _has_member: Callable[[set[str]], bool] | None = None
    """Whether one of some trainers runs in our group; None without a group."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings)
        self._group_id: str | None = settings.group_id
        self._watch: Watch
        self._look_at = 0.0
        self._polled_s = 0.0
        """When the client was last given time to work, by the monotonic clock."""

    # -------------------------------------------------------------------- open, close

    def open(self, listener: RebalanceListener) -> None:
        """See `Source.open`. After an error it may be called again."""
        consumer = self._connection = Consumer(self._settings, self._group_id)
        self._opened = False
        self._listener = listener
        self._watch = Watch(consumer, self._table, self._where)
        self._starts = Starts(self._settings, consumer, self._has_member)
        try:
            self._ask_for_partitions(consumer)
            self._wait_for_partitions(consumer)
        except BaseException:
            self.close()
            raise
        self._opened = True
        self._watch.start()

    @abstractmethod
    def _ask_for_partitions(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def _wait_for_partitions(self, consumer: Consumer) -> None:
        """Return when our partitions are settled."""

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
        except (SourceError, TimeoutError) as error:
            log.warning("%s: could not leave cleanly: %s", self._where, error)
        self._table = OffsetTable()

    def _leave(self, consumer: Consumer, last: Mapping[Partition, Commit]) -> None:
        consumer.close(last, self._settings.close_timeout_s)

    # -------------------------------------------------------------------- poll

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`. With `max_records=0` it waits only while a rebalance is
        going on.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            wait_s = min(left_s, SLICE_S)
            if max_records == 0:
                # The client forgets a join that ended between two polls, and joins
                # again: so it is given time for one.
                wait_s = 0.0 if self._is_settled() else SLICE_S
            records = self._step(max_records if self.is_member else 0, wait_s)
            if records:
                return [self._chunk(p, found) for p, found in records.items()]
            if max_records == 0 and self._is_settled():
                return []
            if left_s == 0:
                self._note_passed()
                return []

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
        self._send_commits(self._table.take_commit())
        if self._opened and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            with contextlib.suppress(SourceUnavailable):
                self._look_at_topics(consumer)
        records = self._let_client_poll(consumer, max_records, timeout_s)
        if self._table.unsettled():
            with contextlib.suppress(SourceUnavailable):
                self._settle(consumer)
        return records

    def _let_client_poll(
        self, consumer: Consumer, max_records: int, timeout_s: float
    ) -> Mapping[Partition, list[Any]]:
        held = [] if max_records else list(self._table.reading())
        try:
            consumer.pause(held)
            self._polled_s = time.monotonic()
            return consumer.poll(max_records or 1, timeout_s)
        except SourceUnavailable as error:
            log.debug("%s", error)
            time.sleep(min(timeout_s, 0.1))
        except SourceError as error:
            self._on_other_log(consumer, error)
        finally:
            reading = self._table.reading()
            consumer.resume(p for p in held if p in reading)
        return {}

    def _chunk(self, partition: Partition, records: list[Any]) -> Chunk:
        last = records[-1]
        lost = self._table.returned(partition, last.offset + 1, last.leader_epoch)
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
            try:
                position = self._consumer.position(partition)
                self._table.pass_by(partition, position)
            except SourceUnavailable as error:
                log.debug("%s", error)
            except SourceError as error:
                self._on_other_log(self._consumer, error)

    def _behind(self) -> list[Partition]:
        return self._table.behind()

    # -------------------------------------------------------------------- offsets

    def positions(self) -> Positions:
        """See `Source.positions`. While a rebalance is going on, partitions that may
        come back are missing.
        """
        return self._table.positions()

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
