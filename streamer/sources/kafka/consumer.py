"""One `KafkaConsumer`, in terms of our partitions.

kafka-python calls a rebalance listener on its I/O thread, which also sends heartbeats,
while the caller of `poll` is blocked. A `RebalanceListener` may take long, so it is
called by a thread of its own, and the I/O thread goes on meanwhile.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from difflib import get_close_matches
from typing import Any

from kafka import AsyncConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.future import Future
from kafka.structs import MemberState

from streamer.errors import SourceError, UnknownTopic
from streamer.sources.base import Partition, Position, RebalanceListener
from streamer.sources.kafka import private
from streamer.sources.kafka.client import (
    GuardedClient,
    connect_with_network,
    in_thread,
)
from streamer.sources.kafka.offsets import Commit
from streamer.sources.kafka.settings import KafkaSettings

LOOKUP_TIMEOUT_MS = 2_000


class Consumer:
    """A consumer of the settings' topics: by `subscribe`, as a member of a group, or by
    `assign`, without one.

    Its methods raise no errors but ours: `SourceUnavailable` for what the client gets
    over.

    Args:
        settings: how to connect.
        group_id: the group in whose name offsets are committed; None for nobody.
    """

    def __init__(self, settings: KafkaSettings, group_id: str | None) -> None:
        config = settings.consumer_config() | {"group_id": group_id}
        if group_id is None:
            config.pop("group_instance_id", None)
        client, self._network = connect_with_network(KafkaConsumer, config)
        where = f"{settings.where}, topic {', '.join(settings.topics)}"
        self._client = GuardedClient(client, where)
        self._cluster = GuardedClient(self._network.cluster, where)
        self._where = settings.where
        self.topics = settings.topics
        self.instance_id: str = self._client.config["group_instance_id"] or ""
        self.session_s: float = self._client.config["session_timeout_ms"] / 1000
        self.fetch_wait_ms: int = self._client.config["fetch_max_wait_ms"]
        self.confirmed_s = -math.inf
        """When the last heartbeat was sent that the group has answered, by the monotonic
        clock.
        """
        self._closing = False
        self._failure: BaseException | None = None

    # -------------------------------------------------------------------- reading

    def poll(self, max_records: int, timeout_s: float) -> dict[Partition, list[Any]]:
        """Return `ConsumerRecord`s by partition; rebalances are served meanwhile.

        Raises:
            Exception: what the listener has raised; the client would bury it in an
                error of its own.
        """
        found = self._client.poll(round(timeout_s * 1000), max_records)
        if self._failure is not None:
            failure = self._failure
            self._failure = None
            raise failure
        return {Partition(*tp): records for tp, records in found.items()}

    def pause(self, partitions: Iterable[Partition]) -> None:
        self._client.pause(*_for_client(partitions))

    def resume(self, partitions: Iterable[Partition]) -> None:
        self._client.resume(*_for_client(partitions))

    def seek(self, partition: Partition, position: Position) -> None:
        """Read on at a position; the client checks by its leader epoch that the log is
        still the one that we have read.
        """
        tp = TopicPartition(*partition)
        self._client.seek(tp, int(position))
        self._client.private(private.seek, tp, int(position), position.leader_epoch)

    def position(self, partition: Partition) -> int:
        """Return the offset that is fetched next, as far as is known now."""
        return self._client.position(TopicPartition(*partition), timeout_ms=0) or 0

    # -------------------------------------------------------------------- membership

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read these, whatever a group says."""
        self._client.assign(_for_client(partitions))

    def subscribe(self, listener: RebalanceListener) -> None:
        """Join the group; the listener is called inside of `poll`."""
        rebalances = _Rebalances(self._serve, listener)
        self._client.subscribe(topics=list(self.topics), listener=rebalances)
        self._client.private(private.on_heartbeat, self._on_heartbeat)

    async def _serve(
        self, call: Callable[[list[Partition]], Any], partitions: Iterable[Any]
    ) -> None:
        """Call the listener, unless we are leaving."""
        ours = [Partition(*tp) for tp in sorted(partitions)]
        is_done = Future()

        def done(result: futures.Future[Any]) -> None:
            self._failure = self._failure or result.exception()
            is_done.success(None)
            self._network.wakeup()

        if not self._closing:
            in_thread(lambda: call(ours)).add_done_callback(done)
            await is_done

    @property
    def is_stable(self) -> bool:
        """Whether we are in the group, and no rebalance is going on."""
        return self._client.group_metadata().state is MemberState.STABLE

    @property
    def member_id(self) -> str:
        """Our id in the group, as the broker gave it."""
        return str(self._client.group_metadata().member_id)

    def _on_heartbeat(self, sent_s: float) -> None:
        self.confirmed_s = sent_s

    def request_rejoin(self) -> None:
        """Have the group rebalance."""
        self._client.private(private.request_rejoin)

    # -------------------------------------------------------------------- commits

    def commit(self, commits: Mapping[Partition, Commit], timeout_ms: int) -> None:
        """Commit, and wait for the acknowledgement."""
        self._client.commit(_offsets(commits), timeout_ms=timeout_ms)

    def commit_async(
        self,
        commits: Mapping[Partition, Commit],
        done: Callable[[Exception | None], None],
    ) -> None:
        """Commit, and call `done` later, with the error if there was one."""

        def acknowledged(_: object, response: object) -> None:
            done(response if isinstance(response, Exception) else None)

        try:
            self._client.commit_async(_offsets(commits), acknowledged)
        except SourceError as error:
            done(error)

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, Commit]:
        """Return what the group has committed; not of a topic that was deleted since."""
        commits: dict[Partition, Commit] = {}
        for partition in partitions:
            found = self._client.committed(
                TopicPartition(*partition), metadata=True, timeout_ms=LOOKUP_TIMEOUT_MS
            )
            if found is None:
                continue
            commit = Commit.of(found)
            if commit.topic_id in ("", self.topic_id(partition.topic)):
                commits[partition] = commit
        return commits

    def ask_before_commits(self, may_commit: Callable[[], bool]) -> None:
        """Have each commit dropped unless it is allowed when it is sent."""
        self._client.private(private.ask_before_commits, may_commit)

    # -------------------------------------------------------------------- lookups

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[Any, int]:
        return self._client.beginning_offsets(  # type: ignore[no-any-return]
            _for_client(partitions), timeout_ms=LOOKUP_TIMEOUT_MS
        )

    def end_offsets(
        self, partitions: Iterable[Partition], timeout_ms: int = LOOKUP_TIMEOUT_MS
    ) -> dict[Any, int]:
        return self._client.end_offsets(  # type: ignore[no-any-return]
            _for_client(partitions), timeout_ms=timeout_ms
        )

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or after a time; None if there is
        none.
        """
        tp = TopicPartition(*partition)
        found = self._client.offsets_for_times(
            {tp: timestamp_ms}, timeout_ms=LOOKUP_TIMEOUT_MS
        )
        return None if found[tp] is None else int(found[tp].offset)

    def existing_topics(self) -> set[str]:
        """Ask the brokers for all topics that we may read.

        Asking for one by name would create it on many brokers.
        """
        return self._client.topics()  # type: ignore[no-any-return]

    def check_topics(self, timeout_s: float = 0.0) -> None:
        """Return when our topics are there.

        Raises:
            UnknownTopic: one is not there after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            existing = self.existing_topics()
            missing = [topic for topic in self.topics if topic not in existing]
            if not missing:
                return
            if time.monotonic() >= deadline:
                raise UnknownTopic(
                    f"{self._where} has no topic {', '.join(map(repr, missing))} that "
                    f"this client may read; {_near(missing, existing)} Create the topic"
                )
            time.sleep(0.2)

    def partitions_of(self, topic: str) -> set[Partition]:
        """Return the partitions of a topic, as far as is known; none if it is not
        there.
        """
        numbers = self._cluster.partitions_for_topic(topic) or ()
        return {Partition(topic, number) for number in numbers}

    def all_partitions(self) -> list[Partition]:
        """Return all partitions of our topics; none while one topic is missing."""
        found: list[Partition] = []
        for topic in self.topics:
            existing = self.partitions_of(topic)
            if not existing:
                return []
            found += sorted(existing)
        return found

    def topic_id(self, topic: str) -> str:
        """Return the id that a topic got when it was created; "" if the broker has none
        (before Kafka 2.8).
        """
        return str(self._cluster.topic_id(topic) or "")

    # -------------------------------------------------------------------- close

    def close(self, last: Mapping[Partition, Commit], timeout_s: float) -> None:
        """Commit for the last time and hang up; takes `timeout_s` at most.

        Raises:
            TimeoutError: it took longer.
        """
        self._closing = True
        half_ms = round(timeout_s * 1000 / 2)

        def leave() -> None:
            try:
                if last:
                    self.commit(last, half_ms)
            finally:
                self._client.close(autocommit=False, timeout_ms=half_ms)

        in_thread(leave).result(timeout_s)


class _Rebalances(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Brings what the client says on its I/O thread to the listener."""

    def __init__(self, serve: Callable[..., Any], listener: RebalanceListener) -> None:
        self._serve = serve
        self._listener = listener

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        await self._serve(self._listener.on_assigned, assigned)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._serve(self._listener.on_revoked, revoked)

    async def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        await self._serve(self._listener.on_lost, lost)


def _for_client(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]


def _offsets(commits: Mapping[Partition, Commit]) -> dict[TopicPartition, Any]:
    return {TopicPartition(*p): commit.for_kafka() for p, commit in commits.items()}


def _near(missing: Iterable[str], existing: Iterable[str]) -> str:
    """Which topics could be meant."""
    names = sorted(existing)
    near = {name for topic in missing for name in get_close_matches(topic, names)}
    if near:
        return f"did you mean {' or '.join(sorted(near))}?"
    return f"there are {len(names)} others."
