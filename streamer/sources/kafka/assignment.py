"""The partitions that are ours: taken over, settled, given up, and begun again where
their log is not the one that we have read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

from kafka import OffsetAndMetadata, errors

from streamer.errors import SourceError
from streamer.sources.base import Partition, Position, Positions, RebalanceListener
from streamer.sources.kafka.client import to_streamer_error
from streamer.sources.kafka.consumer import LOOKUP_TIMEOUT_MS, Consumer
from streamer.sources.kafka.offsets import Commit, OffsetTable
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.starts import Starts
from streamer.sources.positions import warn_of_gap

log = logging.getLogger(__name__)


class Assignment:
    """Partitions come in two steps, because the client can look nothing up while it
    assigns them:

    1. assigned: the listener is asked for positions, and the partition is paused;
    2. settled, right after: `Starts` finds where to begin, and where the partition
       ends; if nobody could know otherwise that we began there, it is committed;
       reading begins.

    Args:
        settings: what to do where a position is gone.
        consumer: reads the partitions.
        table: holds their offsets.
        starts: finds where they begin.
        listener: knows how far they are trained.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        consumer: Consumer,
        table: OffsetTable,
        starts: Starts,
        listener: RebalanceListener,
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._table = table
        self._starts = starts
        self._listener = listener
        self._listener_error: BaseException | None = None

    def errors(self, doing: str) -> AbstractContextManager[None]:
        """Turn the client's errors into ours, without those that it recovers from; the
        watch logs them if they last.
        """
        where = f"{self._settings.where}, {doing} {', '.join(self._settings.topics)}"
        return to_streamer_error(where, ignore_transient=True)

    # -------------------------------------------------------------------- come and go

    def guarded(self, call: Callable[[], None]) -> None:
        """Keep an error of the listener for `raise_error`; the client would bury it in
        its own.
        """
        try:
            call()
        except BaseException as error:
            self._listener_error = error

    def raise_error(self) -> None:
        """Raise what the listener raised."""
        if self._listener_error is not None:
            error = self._listener_error
            self._listener_error = None
            raise error

    def on_assigned(self, partitions: Collection[Partition]) -> None:
        """Pause, and ask the listener. (Without a position the client would look for
        one itself.)
        """
        self._consumer.pause(partitions)
        for partition in partitions:
            self._consumer.seek(partition, Position(0))
        self._table.assign(dict.fromkeys(partitions))
        trained = self._listener.on_assigned(list(partitions))
        self._table.assign({p: trained.get(p) for p in partitions})

    def on_revoked(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """1. Call the listener. 2. Commit, also what it just wanted. 3. Forget the
        partitions.

        The commit goes ahead of our consent to the rebalance, so whoever gets a
        partition finds it. Lost partitions are others' already.
        """
        try:
            self._listener.on_revoked(list(partitions))
            if not lost:
                self.send_commits(self._table.take_last_commit())
        finally:
            self._table.forget(partitions)

    def settle(self, *, joining: bool) -> None:
        """Find where to read the new partitions, and begin; if Kafka does not respond,
        that is tried in the next poll.

        1. Find the starts. 2. Commit those that nobody could know otherwise. 3. Read
        from there.
        """
        with self.errors("looking up offsets of"):
            # 1.
            starts = self._starts.of(self._table.unsettled(), joining)
            # 2.
            new = {p: start.commit for p, start in starts.items() if start.must_commit}
            try:
                if new:
                    self._consumer.commit(new, LOOKUP_TIMEOUT_MS)
            except errors.CommitFailedError as error:
                log.debug("the next rebalance has begun: %s", error)
                return
            # 3.
            self._table.begin(starts)
            for partition, start in starts.items():
                self._consumer.seek(partition, start.position)
            self._consumer.resume(starts)

    def send_commits(self, commits: Mapping[Partition, Commit]) -> None:
        """Commit, without waiting for the acknowledgement."""

        def done(error: Exception | None) -> None:
            if error is None:
                self._table.committed()
            else:
                log.debug("offsets are not committed: %s", error)
                self._table.not_committed()

        if commits:
            self._consumer.commit_async(commits, done)

    # -------------------------------------------------------------------- other logs

    def on_out_of_range(self, positions: Positions) -> None:
        """Records were removed before we read them, or the log was cut short or
        recreated.
        """
        ours = [Partition(*tp) for tp in positions if tp in self._table.reading()]
        self._consumer.existing_topics()  # now we know a topic that was recreated
        if self.reassign_recreated():
            return
        first = self._consumer.beginning_offsets(ours)
        for partition in ours:
            position = positions[partition]
            removed = position < first[partition]
            if removed and self._settings.auto_offset_reset != "error":
                warn_of_gap(partition, position, first[partition])
                self._table.skip_removed(partition, position, first[partition])
                self._consumer.seek(partition, Position(first[partition]))
            else:
                self.reassign([partition])

    def on_truncated(self, ends: Mapping[Any, OffsetAndMetadata | None]) -> None:
        """A new leader's log ends before our position; what we read after that end is
        lost to Kafka.
        """
        for tp, end in ends.items():
            partition = Partition(*tp)
            if partition not in self._table.reading():
                continue
            at = f"offset {end.offset:,}" if end else "an offset that is not known"
            problem = f"{partition}: a new leader has truncated its log to {at}"
            if self._settings.auto_offset_reset == "error":
                raise SourceError(f"{problem}. To go on, use --start earliest")
            log.warning("%s; resuming there", problem)
            if end is None:
                log_end = self._consumer.end_offsets([partition])[partition]
                end = OffsetAndMetadata(log_end, "", -1)
            topic_id = self._consumer.topic_id(partition.topic)
            self.reassign([partition])
            at_most = Position(end.offset, topic_id, end.leader_epoch)
            trained = self._table.unsettled()[partition]
            if trained is None or at_most <= trained:
                self._table.assign({partition: at_most})

    def reassign(self, partitions: Collection[Partition]) -> None:
        """Give partitions up and take them over again: their log is not the one that we
        have read.
        """
        self.on_revoked(partitions, lost=True)
        self.on_assigned(partitions)

    def reassign_recreated(self) -> bool:
        """Reassign the partitions of topics that were deleted and created again; return
        whether there were any.
        """
        recreated: list[Partition] = []
        for partition, row in self._table.reading().items():
            topic_id = self._consumer.topic_id(partition.topic)
            started_with = row.start.position.topic_id if row.start else ""
            if topic_id and started_with and topic_id != started_with:
                recreated.append(partition)
        if recreated:
            self.reassign(recreated)
        return bool(recreated)
