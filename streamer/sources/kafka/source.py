"""Kafka topics as a source, read as a member of a consumer group.

The listener knows how far this trainer has trained, the group's committed offsets how
far anybody has; see `starts`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping

from kafka.admin import MemberToRemove

from streamer.errors import SourceUnavailable, StreamerError
from streamer.sources.base import Partition, Positions
from streamer.sources.kafka.consumer import Consumer
from streamer.sources.kafka.group import group_admin
from streamer.sources.kafka.offsets import Commit
from streamer.sources.kafka.reader import KafkaReader
from streamer.sources.kafka.settings import KafkaSettings

__all__ = ["KafkaSettings", "KafkaSource"]

log = logging.getLogger(__name__)

JOINING_SLICE_S = 0.05
PATIENCE_S = 10.0
"""How long joining may take before that is logged; a broker has an empty group wait for
3 s.
"""
UNREAD_S = 5.0
"""How long a new partition may have no reader before we ask the group to rebalance."""
NOTHING = Commit(0)


class KafkaSource(KafkaReader):
    """Reads topics as a member of a consumer group."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings)
        self._joined_s = -math.inf
        # partitions of others
        self._has_reader: set[Partition] = set()
        self._unread_since: dict[Partition, float] = {}
        self._ends_of_others: dict[Partition, int] = {}
        self._done_by_others: set[Partition] = set()

    # -------------------------------------------------------------------- open, close

    def _ask_for_partitions(self, consumer: Consumer) -> None:
        """See that the topics are there, subscribe, and look at them again: without
        that the client would rebalance a second time, when it learns of them.
        """
        self._joined_s = -math.inf
        consumer.check_topics()
        consumer.subscribe(self)
        consumer.check_topics(self._settings.open_timeout_s)

    def _wait_for_partitions(self, consumer: Consumer) -> None:
        """Poll until the group has let us in and our partitions are settled."""
        began = time.monotonic()
        logged = False
        waiting = (
            f"consumer group {self._settings.group_id!r}: a rebalance is in progress "
            f"(a dead member is removed after {consumer.session_s:.0f} s)."
        )
        while self._joined_s < began or not self._is_settled():
            self._step(0, JOINING_SLICE_S)
            if self._is_settled() and self._joined_s < began:
                # nothing is left for us, and the client does not always say so
                self.on_assigned([])
            waited_s = time.monotonic() - began
            if waited_s > self._settings.join_timeout_s:
                raise SourceUnavailable(f"{self._where}: could not join {waiting}")
            if waited_s > PATIENCE_S and not logged:
                log.info("Waiting to join %s", waiting)
                logged = True

    def _is_settled(self) -> bool:
        return super()._is_settled() and self._consumer.is_stable

    def _leave(self, consumer: Consumer, last: Mapping[Partition, Commit]) -> None:
        """Leave the group for good, also as a static member: it would stay in the group
        until its session expires, and nobody would read its partitions.

        Whoever has taken its instance id over meanwhile has another member id, and
        stays.
        """
        began = time.monotonic()
        member_id = consumer.member_id
        try:
            super()._leave(consumer, last)
        finally:
            if consumer.instance_id and member_id:
                left_s = self._settings.close_timeout_s - (time.monotonic() - began)
                timeout_ms = round(1000 * max(0.1, left_s))
                with group_admin(
                    self._settings, bootstrap_timeout_ms=timeout_ms
                ) as admin:
                    member = MemberToRemove(member_id, consumer.instance_id)
                    admin.remove_group_members(self._settings.group_id, [member])

    # -------------------------------------------------------------------- the group

    @property
    def is_member(self) -> bool:  # type: ignore[override]
        """See `Source.is_member`: within the time of a session we have sent a heartbeat
        that the group has answered, or have polled and were let in.
        """
        consumer = self._connection
        if consumer is None:
            return False
        confirmed_s = max(self._joined_s, consumer.confirmed_s)
        return time.monotonic() - confirmed_s <= consumer.session_s

    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        trained = super().on_assigned(partitions)
        self._joined_s = self._polled_s
        return trained

    def _has_member(self, instance_ids: set[str]) -> bool:
        """Whether one of these is a member, as far as the broker knows; True if it does
        not say.
        """
        name = self._settings.group_id
        try:
            with group_admin(self._settings) as admin:
                found = admin.describe_groups([name])[name]
        except StreamerError as error:
            found = {"error": str(error), "members": []}
        if found["error"]:
            log.warning("%s; assuming that other trainers run", found["error"])
            return True
        return any(m["group_instance_id"] in instance_ids for m in found["members"])

    # -------------------------------------------------------------------- others

    @property
    def all_assigned(self) -> bool:
        """See `Source.all_assigned`."""
        existing = set(self._consumer.all_partitions())
        return bool(existing) and self._others(existing) <= self._done_by_others

    def _others(self, partitions: set[Partition]) -> set[Partition]:
        return partitions - self._table.reading().keys()

    def _look_at_topics(self, consumer: Consumer) -> None:
        """See also what became of the partitions that are not ours."""
        super()._look_at_topics(consumer)
        others = self._others(set(consumer.all_partitions()))
        others -= self._done_by_others & self._has_reader
        if others:
            self._look_at_commits(consumer, others)
            self._have_them_read(consumer, others - self._has_reader)

    def _look_at_commits(self, consumer: Consumer, others: set[Partition]) -> None:
        """Note the partitions that have a reader, and those whose committed offset has
        reached the end that they had when we first looked.
        """
        new = others - self._ends_of_others.keys()
        if new:
            self._ends_of_others |= consumer.end_offsets(new)
        commits = consumer.committed(others)
        self._has_reader |= commits.keys()
        for partition in others:
            commit = commits.get(partition, NOTHING)
            if commit.reaches(self._ends_of_others[partition]):
                self._done_by_others.add(partition)

    def _have_them_read(self, consumer: Consumer, unread: set[Partition]) -> None:
        """Have the group rebalance if a partition has had no reader for a while; every
        trainer commits where it begins.

        The client does that itself where it leads the group. After a restart of a
        static member no client knows that it does (KAFKA-13435).
        """
        now = time.monotonic()
        overdue: list[str] = []
        for partition in sorted(unread):
            if now - self._unread_since.setdefault(partition, now) > UNREAD_S:
                overdue.append(str(partition))
        if overdue and consumer.instance_id:
            names = ", ".join(overdue)
            log.info("Nobody reads %s yet: asking the group to rebalance", names)
            self._unread_since = {}
            consumer.request_rejoin()
