"""A consumer group from outside: its members, and what it has committed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kafka import KafkaAdminClient, TopicPartition, errors

from streamer.errors import SourceError
from streamer.sources.base import Partition
from streamer.sources.kafka.client import GuardedClient, connect, streamer_error
from streamer.sources.kafka.offsets import Commit
from streamer.sources.kafka.settings import KafkaSettings


@contextlib.contextmanager
def group_admin(settings: KafkaSettings, **config: Any) -> Iterator[Any]:
    """A connection for questions about a group."""
    client = connect(KafkaAdminClient, settings.admin_config() | config)
    with contextlib.closing(GuardedClient(client, _where(settings))) as admin:
        yield admin


def _where(settings: KafkaSettings) -> str:
    return f"the group {settings.group_id!r} of {settings.where}"


def check_no_member(settings: KafkaSettings) -> None:
    """See that nobody is in the group.

    Raises:
        SourceError: somebody is.
    """
    name = settings.group_id
    with group_admin(settings) as admin:
        found = admin.describe_groups([name])[name]
    members = sorted({member["client_host"] for member in found["members"]})
    if members:
        raise SourceError(
            f"{_where(settings)} has {len(found['members'])} members, at {', '.join(members)}: stop its trainers "
            "first. One that was killed is a member until its session ends (session_timeout_ms, 45 s)"
        )


def committed(
    settings: KafkaSettings, partitions: Iterable[Partition]
) -> dict[Partition, Commit]:
    """What the group has committed of partitions."""
    wanted = [TopicPartition(*partition) for partition in partitions]
    with group_admin(settings) as admin:
        offsets = admin.list_group_offsets({settings.group_id: wanted})
    found = offsets[settings.group_id].items()
    return {Partition(*tp): Commit.of(at) for tp, at in found if at.offset >= 0}


def commit(settings: KafkaSettings, commits: Mapping[Partition, Commit]) -> None:
    """Commit for a group that has no member.

    Raises:
        SourceError: it has one, or may not commit.
    """
    offsets = {TopicPartition(*p): one.for_kafka() for p, one in commits.items()}
    with group_admin(settings) as admin:
        results = admin.alter_group_offsets(settings.group_id, offsets)
    for tp, error in results.items():
        if error is not errors.NoError:
            raise streamer_error(error(), f"{_where(settings)}, {Partition(*tp)}")
