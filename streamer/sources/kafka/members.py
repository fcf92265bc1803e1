"""The members of our consumer group, as its broker sees them."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove

from streamer.errors import SourceError, SourceUnavailable, StreamerError
from streamer.sources.base import Partition
from streamer.sources.kafka.client import connect, to_streamer_error
from streamer.sources.kafka.settings import KafkaSettings

log = logging.getLogger(__name__)

EXPIRY_S = 2.0
"""How long after a session's end a broker may take to notice."""
AGAIN_S = 1.0


class GroupMembers:
    """Who is in our consumer group, and who reads which partition.

    A member that died is one of the group until its session expires, and may be given
    partitions that nobody reads then. So the broker is asked only when nothing has
    changed for as long as a session lasts: who is a member of a stable group then,
    lives.

    Args:
        settings: how to connect; each question has a connection of its own, as there
            are few.
        session_s: how long a session lasts, which is taken to be the same for all
            members.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        session_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._session_s = session_s
        self._clock = clock
        self._where = f"the group {settings.group_id!r} of {settings.where}"
        self._read_by_others: set[Partition] = set()
        self._ask_at = math.inf

    def changed(self) -> None:
        """Partitions came or went; or we are in the group, and none came."""
        self._read_by_others = set()
        self._ask_at = self._clock() + self._session_s + EXPIRY_S

    def read_by_others(self, partitions: Collection[Partition], our_id: str) -> bool:
        """Whether living members other than us read all of these; False if that is not
        known yet.

        What they read is taken to stay so until something changes for us.
        """
        if (
            not self._read_by_others.issuperset(partitions)
            and self._clock() >= self._ask_at
        ):
            self._ask_at = self._clock() + AGAIN_S
            self._ask(partitions, our_id)
        return self._read_by_others.issuperset(partitions)

    def has_member(self, instance_ids: Collection[str]) -> bool:
        """Whether one of these is a member, as far as the broker knows; True if it does
        not say.
        """
        try:
            return any(
                member["group_instance_id"] in instance_ids
                for member in self._described()["members"]
            )
        except StreamerError as error:
            log.warning("%s; assuming that other trainers run", error)
            return True

    def _ask(self, partitions: Collection[Partition], our_id: str) -> None:
        try:
            self._read_by_others = self._given_to_others(our_id)
        except SourceUnavailable as error:
            log.debug("%s", error)
        except StreamerError as error:
            log.warning(
                "%s; assuming that other trainers read %s",
                error,
                ", ".join(map(str, sorted(partitions))),
            )
            self._read_by_others = set(partitions)

    def _given_to_others(self, our_id: str) -> set[Partition]:
        """Nothing while a rebalance is going on.

        Raises:
            SourceUnavailable: no broker responds.
            SourceError: we may not know.
        """
        described = self._described()
        if described["group_state"] != "Stable":
            return set()
        return {
            Partition(topic["topic"], number)
            for member in described["members"]
            if member["member_id"] != our_id and member["member_assignment"]
            for topic in member["member_assignment"]["assigned_partitions"]
            for number in topic["partitions"]
        }

    def remove(self, member_id: str, instance_id: str, timeout_s: float) -> None:
        """Remove a static member: it would stay in the group until its session expires,
        and nobody would read its partitions.

        Whoever has taken its instance id over meanwhile has another member id, and
        stays.

        Raises:
            SourceError: it could not be removed.
        """
        with self._admin(bootstrap_timeout_ms=round(timeout_s * 1000)) as admin:
            member = MemberToRemove(member_id, instance_id)
            admin.remove_group_members(self._settings.group_id, [member])

    def _described(self) -> dict[str, Any]:
        name = self._settings.group_id
        with self._admin() as admin:
            found: dict[str, Any] = admin.describe_groups([name])[name]
        if found["error"]:
            raise SourceError(f"{self._where}: {found['error']}")
        return found

    @contextlib.contextmanager
    def _admin(self, **config: Any) -> Iterator[Any]:
        """A connection for one question."""
        admin = connect(KafkaAdminClient, self._settings.admin_config() | config)
        with contextlib.closing(admin), to_streamer_error(self._where):
            yield admin
