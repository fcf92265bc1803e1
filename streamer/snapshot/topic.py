"""Published snapshots as records of a topic of one partition.

A snapshot is cut into records that brokers take. The key of each says which part of
which snapshot it is, as JSON; the value is a stretch of its bytes:

    {"generation": 1207, "number": 13, "is_base": false, "part": 0, "last": true}

A generation's number is the end of the topic when it began, so that it is higher than
all before. Records of a base come between those of the deltas that are written
meanwhile. What was written before the base before the last is removed: the topic holds
two bases and the deltas after them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, errors

from streamer.errors import SourceError, SourceUnavailable
from streamer.snapshot.chain import Checkpoint
from streamer.snapshot.places import Found
from streamer.snapshot.snapshot import Snapshot, SnapshotEnd, SnapshotId
from streamer.sources.base import Partition, Positions, Source
from streamer.sources.kafka.client import connect, hang_up, to_streamer_error
from streamer.sources.kafka.settings import KafkaSettings

PART_BYTES = 900_000
"""Below what a broker takes by default (`message.max.bytes`), with room for key and
batch.
"""
TIMEOUT_S = 30.0
MAX_RECORDS = 500
CONFIG = {
    "linger_ms": 0,
    "max_block_ms": 5_000,
    "delivery_timeout_ms": 20_000,
    "request_timeout_ms": 10_000,
}
TOPIC = {
    "num_partitions": 1,
    "configs": {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
    },
}


class _Key(msgspec.Struct, frozen=True):
    """Which part of which snapshot a record is."""

    generation: int
    number: int
    is_base: bool
    part: int
    last: bool


_encode_key = msgspec.json.Encoder().encode
_decode_key = msgspec.json.Decoder(_Key).decode


class TopicPlace:
    """Publishes to a topic of Kafka, which is created if it is missing."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        servers = ", ".join(settings.bootstrap_servers)
        self._where = f"topic {topic!r} of Kafka at {servers}"
        self._producer: Any = None
        self._lock = threading.Lock()  # guards the producer
        # offsets at which the last two bases begin
        self._base_at = 0
        self._base_before = 0

    def begin(self) -> tuple[int, int]:
        """See `Place.begin`."""
        admin = connect(KafkaAdminClient, self._settings.admin_config())
        try:
            with to_streamer_error(self._where):
                if self._topic not in admin.list_topics():
                    admin.create_topics({self._topic: TOPIC}, wait_for_metadata=True)
        finally:
            admin.close()
        config = self._settings.consumer_config() | {"group_id": None}
        config.pop("group_instance_id", None)
        with (
            contextlib.closing(connect(KafkaConsumer, config)) as consumer,
            to_streamer_error(self._where),
        ):
            partitions = sorted(consumer.partitions_for_topic(self._topic) or ())
            if partitions != [0]:
                raise SourceError(
                    f"{self._where} has {len(partitions)} partitions: snapshots need a "
                    "topic of one"
                )
            partition = TopicPartition(self._topic, 0)
            end: int = consumer.end_offsets([partition])[partition]
        return end + 1, 0

    def write(self, ident: SnapshotId, frames: Iterable[bytes]) -> None:
        """See `Place.write`."""
        producer = self._connected()
        try:
            with to_streamer_error(self._where):
                promises = deque[Any]()
                first: int | None = None
                for part, (value, last) in enumerate(_parts(frames)):
                    key = _encode_key(_Key(*ident, part, last))
                    promises.append(producer.send(self._topic, value, key, partition=0))
                    # a base must not fill the client's memory
                    if len(promises) > 8 or last or part == 0:
                        done = [p.get(timeout=TIMEOUT_S) for p in promises]
                        first = done[0].offset if first is None else first
                        promises.clear()
        except SourceError as error:
            # a client that failed once cannot write in order any more: the next try has
            # a new one
            self._hang_up(producer)
            raise SourceUnavailable(str(error)) from error
        if ident.is_base and first is not None:
            self._base_before = self._base_at
            self._base_at = first

    def prune(self, base: SnapshotId) -> None:
        """See `Place.prune`. Brokers that do not let us remove records keep them."""
        if not self._base_before:
            return
        with contextlib.suppress(SourceError, errors.KafkaError):
            admin = connect(KafkaAdminClient, self._settings.admin_config())
            try:
                admin.delete_records(
                    {TopicPartition(self._topic, 0): self._base_before}
                )
            finally:
                admin.close()

    def close(self) -> None:
        """See `Place.close`."""
        if self._producer is not None:
            self._hang_up(self._producer)

    def _connected(self) -> Any:
        with self._lock:
            if self._producer is None:
                config = CONFIG | self._settings.producer_config()
                self._producer = connect(KafkaProducer, config)
            return self._producer

    def _hang_up(self, producer: Any) -> None:
        with self._lock:
            if self._producer is not producer:
                return  # the other thread was first
            self._producer = None
        hang_up(producer, drop_unsent=True)


class TopicReader:
    """Reads the snapshots of a topic.

    Args:
        make_source: reads the topic from its beginning.
    """

    def __init__(self, make_source: Callable[[], Source]) -> None:
        self._make_source = make_source
        self._source: Source | None = None
        self._parts: dict[SnapshotId, list[bytes]] = {}
        self._complete: deque[tuple[SnapshotId, bytes]] = deque()
        self._needs_base = True

    def poll(self, served: SnapshotEnd | None, timeout_s: float) -> Found:
        """See `SnapshotReader.poll`."""
        if not self._complete or self._waits_for_base():
            self._read(timeout_s)
        while self._complete and not self._waits_for_base():
            ident, content = self._complete.popleft()
            if self._is_wanted(ident, served):
                self._needs_base = False
                snapshot = Snapshot.of_bytes(str(ident), content)
                return Checkpoint([snapshot]) if ident.is_base else snapshot
        return None

    def _is_wanted(self, ident: SnapshotId, served: SnapshotEnd | None) -> bool:
        if served is None:
            return ident.is_base
        if (ident.generation, ident.number) <= (served.generation, served.number):
            return False  # doubled, or of a trainer that has a successor
        if ident.is_base:
            return True
        is_next = ident.number == served.number + 1
        same_generation = ident.generation == served.generation
        return same_generation and (is_next or not self._needs_base)

    def _read(self, timeout_s: float) -> None:
        if self._source is None:
            source = self._make_source()
            source.open(_FromTheStart())
            self._source = source
        for chunk in self._source.poll(MAX_RECORDS, timeout_s):
            for key, value in zip(chunk.keys, chunk.values, strict=True):
                self._add(key, value)
        if self._source.problem is not None:
            raise SourceUnavailable(self._source.problem)

    def _add(self, raw: bytes | None, value: bytes) -> None:
        try:
            key = _decode_key(raw or b"")
        except msgspec.MsgspecError:
            return  # nothing of ours
        ident = SnapshotId(key.generation, key.number, key.is_base)
        if key.part == 0:
            self._parts[ident] = []
        parts = self._parts.get(ident)
        if parts is None or len(parts) != key.part:
            # one is missing: it was removed, or is written again from the start
            self._parts.pop(ident, None)
            return
        parts.append(value)
        if key.last:
            self._add_whole(ident, b"".join(self._parts.pop(ident)))

    def _add_whole(self, ident: SnapshotId, content: bytes) -> None:
        """Put a snapshot where it belongs: a base comes before the deltas that were
        written while it was.
        """
        before = [one for one in self._complete if one[0] < ident]
        later = [one for one in self._complete if one[0] >= ident]
        if ident.is_base:
            self._complete = deque([*before, (ident, content), *later])
        else:
            self._complete.append((ident, content))
        for other in list(self._parts):
            if other.generation < ident.generation:
                del self._parts[other]

    def _waits_for_base(self) -> bool:
        """Whether the deltas that are here continue a base that has begun to come."""
        first, _ = self._complete[0]
        return self._needs_base and any(
            base.is_base and base < first for base in self._parts
        )

    def refuse(self) -> None:
        """See `SnapshotReader.refuse`: a base comes by itself."""
        self._needs_base = True

    def close(self) -> None:
        """See `SnapshotReader.close`."""
        if self._source is not None:
            self._source.close()
            self._source = None


class _FromTheStart:
    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        return {}

    def on_revoked(self, partitions: Iterable[Partition]) -> None:
        return


def _parts(frames: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The bytes of all frames, cut into parts, and whether each is the last."""
    held = bytearray()
    for frame in frames:
        held += frame
        while len(held) > PART_BYTES:
            yield bytes(held[:PART_BYTES]), False
            del held[:PART_BYTES]
    yield bytes(held), True
