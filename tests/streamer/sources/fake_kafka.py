"""A stand-in for kafka-python's consumer, its cluster and an admin client: what a source calls of them, and no more.

The topic `t` has two partitions, of which the group gives us the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

from clock import Clock
from kafka import OffsetAndMetadata, TopicPartition
from kafka.structs import MemberState

from streamer.sources.base import Partition
from streamer.sources.kafka import consumer, private
from streamer.sources.kafka import source as module
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.source import KafkaSource
from streamer.sources.kafka.tail import KafkaTail

OURS = TopicPartition("t", 0)
ZERO = Partition("t", 0)
PRIVATE = ("seek", "on_heartbeat", "request_rejoin")


class FakeKafka:
    """`calls` are the names of what was called; `fails` raises what it has for a name, once."""

    def __init__(self) -> None:
        self.calls: set[str] = set()
        self.fails: dict[str, Exception] = {}
        self.values = [b"0", b"1", b"2"]
        self.committed_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.position_of = 0
        self.answer: Callable[[float], None]
        """Answers a heartbeat that was sent at a time."""
        self.clock: Clock | None = None
        """Goes on while a poll waits."""
        self.is_lost = False
        self.has_joined = False
        self.paused: set[TopicPartition] = set()
        self.listener: Any = None
        self.config = {"group_instance_id": "streamer-a", "session_timeout_ms": 45_000, "fetch_max_wait_ms": 0}

    def source(self, monkeypatch: Any, reader: str = "group") -> Any:
        """A source whose client this is: of a member of a group, or a tail of the first partition."""
        network = SimpleNamespace(cluster=Called(self), wakeup=lambda: None)
        monkeypatch.setattr(consumer, "connect_with_network", lambda *_: (Called(self), network))
        monkeypatch.setattr("streamer.sources.kafka.group.connect", lambda *_: Called(self))
        monkeypatch.setattr(module, "UNREAD_S", -1.0)
        for name in PRIVATE:
            monkeypatch.setattr(private, name, lambda client, *args, name=name: getattr(client, name)(*args))
        settings = KafkaSettings("b:9092", "t", trainer="a", start_timestamp_ms=1, join_timeout_s=60)
        return KafkaSource(settings) if reader == "group" else KafkaTail(settings, lambda: [ZERO])

    def poll(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        if self.is_lost:
            drive(self.listener.on_partitions_lost([OURS]))
            self.is_lost = self.has_joined = False
        if self.listener is not None and not self.has_joined:
            self.has_joined = True
            drive(self.listener.on_partitions_assigned([OURS]))
        values = [] if OURS in self.paused else self.values[self.position_of :][:max_records]
        if not values:
            if self.clock is not None:
                self.clock.now += timeout_ms / 1000
            else:
                time.sleep(min(timeout_ms, 5) / 1000)
            return {}
        first, self.position_of = self.position_of, self.position_of + len(values)
        return {OURS: [record(first + k, value) for k, value in enumerate(values)]}

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], timeout_ms: int) -> None:
        self.committed_offsets |= offsets

    def commit_async(self, offsets: dict[TopicPartition, OffsetAndMetadata], callback: Callable[..., None]) -> None:
        self.committed_offsets |= offsets
        callback(offsets, None)

    def committed(self, tp: TopicPartition, metadata: bool, timeout_ms: int) -> OffsetAndMetadata | None:
        return self.committed_offsets.get(tp)

    def seek(self, tp: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        self.position_of = offset

    def on_heartbeat(self, answered: Callable[[float], None]) -> None:
        self.answer = answered

    def request_rejoin(self) -> None:
        pass

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused -= set(partitions)

    def position(self, tp: TopicPartition, timeout_ms: int) -> int:
        return self.position_of

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def subscribe(self, topics: list[str], listener: Any) -> None:
        self.listener = listener

    def beginning_offsets(self, partitions: Iterable[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: Iterable[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, len(self.values) + 1)  # the last offset holds the mark of a transaction

    def offsets_for_times(self, times: dict[TopicPartition, int], timeout_ms: int) -> dict[TopicPartition, Any]:
        return dict.fromkeys(times, SimpleNamespace(offset=0))

    def group_metadata(self) -> Any:
        return SimpleNamespace(state=MemberState.STABLE if self.has_joined else MemberState.UNJOINED, member_id="m")

    def topics(self) -> set[str]:
        return {"t"}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0, 1}

    def topic_id(self, topic: str) -> str:
        return "id"

    def describe_groups(self, names: list[str]) -> dict[str, Any]:
        return {name: {"error": None, "members": []} for name in names}

    def remove_group_members(self, group: str, members: list[Any]) -> None:
        pass

    def close(self, **_: Any) -> None:
        pass


class Called:
    """Notes what is called of a `FakeKafka`, and raises what the test has prepared."""

    def __init__(self, fake: FakeKafka) -> None:
        self._fake = fake
        self.config = fake.config

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self._fake.calls.add(name)
            if name in self._fake.fails:
                raise self._fake.fails.pop(name)
            found = getattr(self._fake, name)
            return found(*args, **named) if callable(found) else found

        return call


def record(offset: int, value: bytes) -> Any:
    return SimpleNamespace(offset=offset, value=value, key=None, timestamp=0, leader_epoch=0)


def drive(coroutine: Coroutine[Any, None, None]) -> None:
    """Run what the client would run on its I/O thread."""
    try:
        while True:
            future = coroutine.send(None)
            while not future.is_done:
                time.sleep(0.001)
    except StopIteration:
        return
