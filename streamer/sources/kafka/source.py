"""Kafka topics as a source, read as a member of a consumer group.

The listener knows how far this trainer has trained, the group's committed offsets how
far anybody has; see `starts`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from streamer.errors import SourceUnavailable
from streamer.sources.base import Partition
from streamer.sources.kafka.consumer import Consumer
from streamer.sources.kafka.members import GroupMembers
from streamer.sources.kafka.offsets import Commit
from streamer.sources.kafka.reader import LOOK_S, KafkaReader
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.starts import Starts

__all__ = ["KafkaSettings", "KafkaSource"]

log = logging.getLogger(__name__)

JOINING_SLICE_S = 0.05
PATIENCE_S = 10.0
"""How long joining may take before that is logged; a broker has an empty group wait for
3 s.
"""
UNREAD_S = 5.0
"""How long a new partition may have no reader before we ask the group to rebalance."""


class KafkaSource(KafkaReader):
    """Reads topics as a member of a consumer group."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings)
        self._joined = False
        self._unread_since: dict[Partition, float] = {}
        self._ask_commits_at = 0.0
        # partitions of others
        self._has_reader: set[Partition] = set()
        self._ends_of_others: dict[Partition, int] = {}
        self._done_by_others: set[Partition] = set()

    # -------------------------------------------------------------------- open, close

    def _connect(self) -> Consumer:
        self._joined = False
        return Consumer(self._settings, self._settings.group_id)

    def _make_starts(self, consumer: Consumer) -> Starts:
        self._members = GroupMembers(self._settings, consumer.session_s)
        return Starts(self._settings, consumer, self._members)

    def _ask_for_partitions(self, consumer: Consumer) -> None:
        """1. See that the topics are there, unless they may be created. 2. Subscribe.
        3. Look at them again.

        The client asks for topics that it subscribes to by name, a little later, and
        brokers may create them then. Looking again shows whether they did; and without
        it the client would rebalance a second time, when it learns of the topics.
        """
        create = bool(self._settings.client.get("allow_auto_create_topics"))
        if not create:
            consumer.check_topics()
        consumer.subscribe(self._on_assigned, self._on_revoked)
        if create:
            time.sleep(3 * consumer.retry_backoff_s + 0.1)
        consumer.check_topics(self._settings.open_timeout_s)

    def _wait_for_partitions(self, consumer: Consumer) -> None:
        """Poll until the group has let us in and our partitions are settled."""
        began = time.monotonic()
        logged = False
        waiting = (
            f"consumer group {self._settings.group_id!r}: a rebalance is in progress "
            f"(a dead member is removed after {consumer.session_s:.0f} s)."
        )
        while not (self._joined and self._is_settled()):
            self._step(0, JOINING_SLICE_S)
            if self._is_settled() and not self._joined:
                # nothing is left for us, and the client does not always say so
                self._on_assigned([])
            waited_s = time.monotonic() - began
            if waited_s > self._settings.join_timeout_s:
                raise SourceUnavailable(f"{self._where}: could not join {waiting}")
            if waited_s > PATIENCE_S and not logged:
                log.info("Waiting to join %s", waiting)
                logged = True

    def _is_settled(self) -> bool:
        return super()._is_settled() and self._consumer.is_stable

    def _leave(self, consumer: Consumer, last: Mapping[Partition, Commit]) -> None:
        """Leave the group for good, also as a static member."""
        began = time.monotonic()
        member_id = consumer.member_id
        try:
            super()._leave(consumer, last)
        finally:
            if consumer.instance_id and member_id:
                left_s = self._settings.close_timeout_s - (time.monotonic() - began)
                self._members.remove(member_id, consumer.instance_id, max(0.1, left_s))

    # -------------------------------------------------------------------- the group

    def _on_assigned(self, partitions: list[Partition]) -> None:
        self._joined = True
        self._members.changed()
        self._assignment.guarded(lambda: self._assignment.on_assigned(partitions))

    def _on_revoked(self, partitions: list[Partition], lost: bool) -> None:
        if partitions:
            self._members.changed()
            self._assignment.guarded(
                lambda: self._assignment.on_revoked(partitions, lost=lost)
            )

    @property
    def all_assigned(self) -> bool:
        """See `Source.all_assigned`."""
        consumer = self._consumer
        existing = consumer.all_partitions()
        if not existing:
            return False
        others = set(existing)
        others -= self._table.reading().keys()
        self._look_at_commits_of_others(consumer, others)
        others -= self._done_by_others
        return self._members.read_by_others(others, consumer.member_id)

    def _look_at_commits_of_others(
        self, consumer: Consumer, others: set[Partition]
    ) -> None:
        """Note the partitions whose committed offset has reached the end that they had
        when we first looked.
        """
        left = others - self._done_by_others
        if not left or time.monotonic() < self._ask_commits_at:
            return
        self._ask_commits_at = time.monotonic() + LOOK_S
        with self._assignment.errors("looking up offsets of"):
            new = left - self._ends_of_others.keys()
            if new:
                self._ends_of_others |= consumer.end_offsets(new)
            for partition, commit in consumer.committed(left).items():
                if commit.reaches(self._ends_of_others[partition]):
                    self._done_by_others.add(partition)

    def _look_at_topics(self, consumer: Consumer) -> None:
        super()._look_at_topics(consumer)
        if consumer.instance_id:
            self._look_for_unread(consumer)

    def _look_for_unread(self, consumer: Consumer) -> None:
        """Have the group rebalance if a partition has had no reader for a while; every
        reader commits where it begins.

        The client does that itself where it leads the group. After a restart of a
        static member no client knows that it does (KAFKA-13435).
        """
        missing = set(consumer.all_partitions()) - self._has_reader
        missing -= self._table.reading().keys()
        if not missing:
            return
        with self._assignment.errors("looking up offsets of"):
            self._has_reader |= consumer.committed(missing).keys()
            now = time.monotonic()
            unread: list[str] = []
            for partition in sorted(missing - self._has_reader):
                if now - self._unread_since.setdefault(partition, now) > UNREAD_S:
                    unread.append(str(partition))
            if unread:
                log.info(
                    "Nobody reads %s yet: asking the group to rebalance",
                    ", ".join(unread),
                )
                self._unread_since = {}
                consumer.request_rejoin()
