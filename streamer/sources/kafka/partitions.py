"""The partitions that are ours: taken over, settled, given up, and begun again where
their log is not the one that we have read.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kafka import OffsetAndMetadata, errors

from streamer.errors import SourceError, SourceUnavailable, UnknownTopic
from streamer.sources.base import (
    Partition,
    Position,
    Positions,
    RebalanceListener,
    is_of_other_log,
    warn_of_gap,
)
from streamer.sources.kafka.consumer import LOOKUP_TIMEOUT_MS, Consumer
from streamer.sources.kafka.offsets import Commit, OffsetTable
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.starts import Starts

log = logging.getLogger(__name__)

GONE_S = 5.0
"""How long a topic must be missing to be taken for deleted."""


class KafkaPartitions(RebalanceListener):
    """Partitions come in two steps, because the client can look nothing up while it
    assigns them:

    1. assigned: the listener is asked for positions, and the partition is paused;
    2. settled, right after: `Starts` finds where to begin, and where the partition
       ends; if nobody could know otherwise that we began there, it is committed;
       reading begins.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._where = settings.where
        self._table = OffsetTable()
        self._connection: Consumer | None = None
        self._starts: Starts
        self._listener: RebalanceListener
        self._opened = False
        self._gone_since: dict[str, float] = {}

    @property
    def _consumer(self) -> Consumer:
        if self._connection is None:
            raise SourceError(f"{self._where}: the source is not open")
        return self._connection

    # -------------------------------------------------------------------- come and go

    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        """Pause, and ask the listener. (Without a position the client would look for
        one itself.)
        """
        new = list(partitions)
        self._consumer.pause(new)
        for partition in new:
            self._consumer.seek(partition, Position(0))
        self._table.assign(dict.fromkeys(new))
        trained = self._listener.on_assigned(new)
        self._table.assign({p: trained.get(p) for p in new})
        return trained

    def on_revoked(self, partitions: Iterable[Partition]) -> None:
        """1. Call the listener. 2. Commit, also what it just wanted. 3. Forget the
        partitions.

        The commit goes ahead of our consent to the rebalance, so whoever gets a
        partition finds it.
        """
        gone = list(partitions)
        if not gone:
            return
        try:
            self._listener.on_revoked(gone)
            self._send_commits(self._table.take_last_commit())
        finally:
            self._table.forget(gone)

    def on_lost(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that may be others' already: nothing of them is
        committed.
        """
        gone = list(partitions)
        self._table.forget(gone)
        self._listener.on_lost(gone)

    def _settle(self, consumer: Consumer) -> None:
        """1. Find where to read the new partitions. 2. Commit the starts that nobody
        could know otherwise. 3. Read from there.
        """
        # 1.
        starts = self._starts.of(
            self._table.unsettled(), not self._opened, self._listener.on_start
        )
        # 2.
        new = {p: start.commit for p, start in starts.items() if start.must_commit}
        if new:
            consumer.commit(new, LOOKUP_TIMEOUT_MS)
        # 3.
        self._table.begin(starts)
        for partition, start in starts.items():
            consumer.seek(partition, start.position)
        consumer.resume(starts)

    def _send_commits(self, commits: Mapping[Partition, Commit]) -> None:
        """Commit, without waiting for the acknowledgement."""

        def done(error: Exception | None) -> None:
            if error is not None:
                log.debug("offsets are not committed: %s", error)
            self._table.sent(is_committed=error is None)

        if commits:
            self._consumer.commit_async(commits, done)

    # -------------------------------------------------------------------- other logs

    def _on_other_log(self, consumer: Consumer, error: SourceError) -> None:
        """Go on where a log is not the one that we have read; raise all other errors."""
        cause = error.__cause__
        with contextlib.suppress(SourceUnavailable):
            if isinstance(cause, errors.OffsetOutOfRangeError) and cause.args:
                self._on_out_of_range(consumer, cause.args[0])
            elif isinstance(cause, errors.LogTruncationError):
                self._on_truncated(consumer, cause.divergent_offsets)
            else:
                raise error

    def _on_out_of_range(self, consumer: Consumer, positions: Positions) -> None:
        """Records were removed before we read them, or the log was cut short or
        recreated.
        """
        ours = [Partition(*tp) for tp in positions if tp in self._table.reading()]
        consumer.existing_topics()  # now we know a topic that was recreated
        if self._reassign_recreated(consumer):
            return
        first = consumer.beginning_offsets(ours)
        for partition in ours:
            position = positions[partition]
            removed = position < first[partition]
            if removed and self._settings.auto_offset_reset != "error":
                warn_of_gap(partition, position, first[partition])
                self._table.skip_removed(partition, position, first[partition])
                consumer.seek(partition, Position(first[partition]))
            else:
                self._reassign([partition])

    def _on_truncated(
        self, consumer: Consumer, ends: Mapping[Any, OffsetAndMetadata | None]
    ) -> None:
        """A new leader's log ends before our position; what we read after that end is
        lost to Kafka.
        """
        for tp, end in ends.items():
            partition = Partition(*tp)
            if partition not in self._table.reading():
                continue
            if end is None:
                log_end = consumer.end_offsets([partition])[partition]
                end = OffsetAndMetadata(log_end, "", -1)
            problem = f"{partition}: a new leader has truncated its log to offset {end.offset:,}"
            if self._settings.auto_offset_reset == "error":
                raise SourceError(f"{problem}. To go on, use --start earliest")
            log.warning("%s; resuming there", problem)
            topic_id = consumer.topic_id(partition.topic)
            self._reassign([partition])
            at_most = Position(end.offset, topic_id, end.leader_epoch)
            trained = self._table.unsettled()[partition]
            if trained is None or at_most <= trained:
                self._table.assign({partition: at_most})

    def _reassign(self, partitions: list[Partition]) -> None:
        """Give partitions up and take them over again: their log is not the one that we
        have read.
        """
        self.on_lost(partitions)
        self.on_assigned(partitions)

    def _reassign_recreated(self, consumer: Consumer) -> bool:
        """Reassign the partitions of topics that were deleted and created again; return
        whether there were any.
        """
        recreated: list[Partition] = []
        for partition, position in self._table.positions().items():
            if is_of_other_log(position, consumer.topic_id(partition.topic)):
                recreated.append(partition)
        if recreated:
            self._reassign(recreated)
        return bool(recreated)

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
        self._reassign_recreated(consumer)
