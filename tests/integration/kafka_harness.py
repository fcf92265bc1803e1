"""What the tests of Kafka need: topics with records in them, sources that are closed again, a look from outside."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from contracts.source_contract import RecordingListener, rows_of
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, RetriableError
from line_harness import NOON_MS, PATIENCE_S, until
from servers.kafka import KafkaServer

from streamer.dead_letters.base import DeadLetter, Reason
from streamer.sources.base import Partition, Positions, RebalanceListener
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.source import KafkaSource

QUICK: dict[str, Any] = {"retry_backoff_ms": 20, "session_timeout_ms": 6_000, "heartbeat_interval_ms": 200}
"""Client settings that make tests quick."""


class KafkaHarness:
    """Topics of a broker, for one test. Fits `SourceHarness`."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        self._producers: dict[str | None, KafkaProducer] = {}
        self._sources: list[KafkaSource] = []
        self._topics: list[str] = []

    # ----------------------------------------------------------------------------------------- topics

    def make_topic(self, partitions: int) -> str:
        self._topics.append(self.server.create_topic(partitions=partitions))
        return self._topics[-1]

    def append(
        self,
        topic: str,
        partition: int,
        values: Iterable[bytes | None],
        *,
        key: bytes | None = None,
        first_time_ms: int | None = None,
        compression: str | None = None,
    ) -> None:
        """Append records as one batch, if they fit; their times are a millisecond apart."""
        producer = self._producer(compression)
        promises = [
            producer.send(
                topic,
                value,
                key,
                partition=partition,
                timestamp_ms=None if first_time_ms is None else first_time_ms + number,
            )
            for number, value in enumerate(values)
        ]
        producer.flush(timeout=PATIENCE_S)
        for promise in promises:
            promise.get(timeout=PATIENCE_S)

    def _producer(self, compression: str | None) -> KafkaProducer:
        if compression not in self._producers:
            self._producers[compression] = KafkaProducer(
                bootstrap_servers=self.server.bootstrap,
                compression_type=compression,
                linger_ms=20,
                retry_backoff_ms=20,
                max_request_size=1 << 30,  # of what is not compressed yet
            )
        return self._producers[compression]

    def forget_producers(self) -> None:
        """Write with new ones from now on: the old ones know a topic as it was, and would create it if it is gone."""
        for producer in self._producers.values():
            producer.close(timeout=10)
        self._producers = {}

    # ----------------------------------------------------------------------------------------- sources

    def settings(self, topics: str | Sequence[str], **changes: Any) -> KafkaSettings:
        client = {**QUICK, **changes.pop("client", {})}
        group = changes.pop("group_id", f"group-{uuid.uuid4().hex[:12]}")
        bootstrap = changes.pop("bootstrap_servers", self.server.bootstrap)
        return KafkaSettings(bootstrap, topics, group_id=group, client=client, **changes)

    def source(self, settings: KafkaSettings, listener: RebalanceListener) -> KafkaSource:
        """A source that is open."""
        source = KafkaSource(settings)
        self._sources.append(source)
        source.open(listener)
        return source

    def open_source(
        self, topic: str | Sequence[str], positions: Positions | None = None, **changes: Any
    ) -> tuple[KafkaSource, RecordingListener]:
        listener = RecordingListener(positions or {})
        return self.source(self.settings(topic, **changes), listener), listener

    def close(self) -> None:
        for source in self._sources:
            source.close()
        self.forget_producers()

    # ----------------------------------------------------------------------------------------- from outside

    def committed(self, group: str) -> dict[Partition, int]:
        """What an admin client sees of a group's offsets; nothing while the broker has no place for them yet."""
        try:
            with self.server.admin() as admin:
                offsets = admin.list_group_offsets(group)[group]
        except RetriableError:
            return {}
        return {Partition(*tp): offset.offset for tp, offset in offsets.items() if offset.offset >= 0}

    def describe(self) -> str:
        """The offsets of all topics of the test, for whoever looks for the reason of a failure."""
        lines = []
        with suppress(KafkaError):
            consumer = KafkaConsumer(bootstrap_servers=self.server.bootstrap)
            places = [TopicPartition(t, n) for t in self._topics for n in consumer.partitions_for_topic(t) or ()]
            lines += [f"{tp.topic}[{tp.partition}] ends at {end}" for tp, end in consumer.end_offsets(places).items()]
            consumer.close()
            with self.server.admin() as admin:
                groups = [group["group_id"] for group in admin.list_groups()]
            for group in groups:
                ours = {str(p): offset for p, offset in self.committed(group).items() if p.topic in self._topics}
                lines += [f"committed by {group}: {ours}"] if ours else []
        return "\n".join(lines)

    def members(self, group: str, *, settled: bool = False) -> int:
        """How many there are; `settled`: none while a rebalance is going on."""
        try:
            with self.server.admin() as admin:
                found = admin.describe_groups([group])[group]
                return len(found["members"]) if found["group_state"] == "Stable" or not settled else 0
        except RetriableError:
            return 0


class WrittenTopic:
    """A topic, and what was written to each of its partitions."""

    def __init__(self, kafka: KafkaHarness, partitions: int) -> None:
        self.kafka = kafka
        self.name = kafka.make_topic(partitions)
        self.values: dict[Partition, list[bytes]] = {Partition(self.name, n): [] for n in range(partitions)}

    def append(self, values: Sequence[bytes], **how: Any) -> None:
        """Append records, in turn on each partition."""
        for partition, written in self.values.items():
            share = list(values[partition.number :: len(self.values)])
            self.kafka.append(self.name, partition.number, share, **how)
            written += share

    @property
    def all_values(self) -> list[bytes]:
        return [value for written in self.values.values() for value in written]

    @property
    def ends(self) -> dict[Partition, int]:
        """For each partition the offset after its last record."""
        return {partition: len(written) for partition, written in self.values.items()}


def values_read(source: KafkaSource, count: int) -> list[bytes]:
    """Poll until `count` records came; their values."""
    values: list[bytes] = []
    until(lambda: len(values) >= count, lambda: values.extend(row[2] for row in rows_of(source.poll(1000, 0.1))))
    return values


def letter(**changes: Any) -> DeadLetter:
    record = {"topic": "events", "partition": 3, "offset": 41, "timestamp_ms": NOON_MS, "key": b"user"}
    return DeadLetter(**{"reason": Reason.NOT_JSON, "detail": "byte 0: 'ü'", "value": b"\x00\xff{"} | record | changes)


def letters_of(kafka: KafkaHarness, topic: str, count: int) -> list[tuple[bytes | None, bytes, dict[str, bytes], int]]:
    """Key, value, headers and time of the letters in a topic, read by a plain client."""
    consumer = KafkaConsumer(topic, bootstrap_servers=kafka.server.bootstrap, auto_offset_reset="earliest")
    found: list[tuple[bytes | None, bytes, dict[str, bytes], int]] = []

    def step() -> None:
        for records in consumer.poll(200).values():
            found.extend((r.key, r.value, dict(r.headers), r.timestamp) for r in records)

    until(lambda: len(found) >= count, step)
    consumer.close()
    return found


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Values that are all different."""
    return [b"%d" % number for number in range(first, first + count)]


def warnings(caplog: pytest.LogCaptureFixture, words: str = "") -> list[str]:
    """What we said ourselves, not the client, as warnings with these words."""
    ours = [record for record in caplog.records if record.name.startswith("streamer")]
    return [r.getMessage() for r in ours if r.levelno >= logging.WARNING and words in r.getMessage()]
