"""Published snapshots as records of a topic of one partition.

A snapshot is cut into records that brokers take. The key of each says which part of
which snapshot it is, as JSON; the value is a stretch of its bytes:

    {"generation": 1207, "number": 13, "part": 0, "last": true}

A generation's number is the end of the topic when it began, so that it is higher than
all before. What no reader needs any more is removed: two bases stay in the topic.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, errors

from streamer.errors import SourceError, SourceUnavailable
from streamer.snapshot.chain import Checkpoint
from streamer.snapshot.places import Found, check_follows
from streamer.snapshot.snapshot import Snapshot, SnapshotEnd
from streamer.sources.base import Source, StartAt
from streamer.sources.kafka.client import connect, hang_up, to_streamer_error
from streamer.sources.kafka.settings import KafkaSettings

PART_BYTES = 900_000
"""Below what a broker takes by default (`message.max.bytes`), with room for key and
batch.
"""
TIMEOUT_S = 30.0
MAX_RECORDS = 500
MAX_UNSENT = 8
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
        self._offsets: dict[int, int] = {}  # where each snapshot begins, by number

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

    def write(self, end: SnapshotEnd, frames: Iterable[bytes]) -> None:
        """See `Place.write`."""
        if self._producer is None:
            config = CONFIG | self._settings.producer_config()
            self._producer = connect(KafkaProducer, config)
        try:
            with to_streamer_error(self._where):
                promises = []
                for part, (value, last) in enumerate(_parts(frames)):
                    key = _encode_key(_Key(end.generation, end.number, part, last))
                    promises.append(
                        self._producer.send(self._topic, value, key, partition=0)
                    )
                    # a large one must not fill the client's memory
                    if len(promises) > MAX_UNSENT:
                        promises[-MAX_UNSENT].get(timeout=TIMEOUT_S)
                for promise in promises:
                    promise.get(timeout=TIMEOUT_S)
                self._offsets[end.number] = promises[0].get().offset
        except SourceError as error:
            # a client that failed once cannot write in order any more: the next try has
            # a new one
            self.close()
            raise SourceUnavailable(str(error)) from error

    def prune(self, number: int) -> None:
        """See `Place.prune`. Brokers that do not let us remove records keep them."""
        self._offsets = {n: at for n, at in self._offsets.items() if n >= number}
        first = min(self._offsets.values())
        with contextlib.suppress(SourceError, errors.KafkaError):
            admin = connect(KafkaAdminClient, self._settings.admin_config())
            try:
                admin.delete_records({TopicPartition(self._topic, 0): first})
            finally:
                admin.close()

    def base_wanted(self) -> bool:
        """See `Place.base_wanted`: brokers check and keep what they are sent."""
        return False

    def close(self) -> None:
        """See `Place.close`."""
        if self._producer is not None:
            hang_up(self._producer, drop_unsent=True)
            self._producer = None


class TopicReader:
    """Reads the snapshots of a topic.

    Args:
        make_source: reads the topic from its beginning.
    """

    def __init__(self, make_source: Callable[[], Source]) -> None:
        self._make_source = make_source
        self._source: Source | None = None
        self._generation = 0  # the newest that was seen
        self._parts: list[bytes] = []  # of the snapshot that is being read
        self._complete: deque[tuple[str, bytes]] = deque()
        self._collected: list[Snapshot] = []  # follow each other

    def poll(self, served: SnapshotEnd | None, timeout_s: float) -> Found:
        """See `SnapshotReader.poll`."""
        if not self._complete:
            self._read(timeout_s)
        while self._complete:
            snapshot = Snapshot.of_bytes(*self._complete.popleft())
            if served is not None and not _is_newer(snapshot.end, served):
                continue  # doubled, or of a trainer that has a successor
            if served is not None and snapshot.end.previous == served.link:
                self._collected = []
                return snapshot
            if self._collect(snapshot):
                chain = self._collected
                self._collected = []
                return Checkpoint(chain)
            if len(self._collected) == 1:
                check_follows(snapshot.end, served)
        return None

    def _collect(self, snapshot: Snapshot) -> bool:
        """Add a snapshot to those that it follows; True if they have every row."""
        end = snapshot.end
        if self._collected:
            last = self._collected[-1].end
            if not _is_newer(end, last):
                return False
            if end.previous != last.link:
                self._collected = []
        self._collected.append(snapshot)
        self._collected = [o for o in self._collected if o.end.number >= end.first]
        return self._collected[0].end.number == end.first

    def _read(self, timeout_s: float) -> None:
        if self._source is None:
            source = self._make_source()
            source.open(StartAt({}))
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
        if key.generation < self._generation:
            return  # of a trainer that has a successor
        self._generation = key.generation
        if key.part == 0:
            self._parts = []
        elif len(self._parts) != key.part:
            return  # one is missing: it was removed, or all are written again
        self._parts.append(value)
        if key.last:
            name = f"snapshot {key.number} of generation {key.generation}"
            self._complete.append((name, b"".join(self._parts)))
            self._parts = []

    def refuse(self) -> None:
        """See `SnapshotReader.refuse`: what comes next has every row sooner or later."""

    def close(self) -> None:
        """See `SnapshotReader.close`."""
        if self._source is not None:
            self._source.close()
            self._source = None


def _is_newer(end: SnapshotEnd, than: SnapshotEnd) -> bool:
    return (end.generation, end.number) > (than.generation, than.number)


def _parts(frames: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The bytes of all frames, cut into parts, and whether each is the last."""
    held = bytearray()
    for frame in frames:
        held += frame
        while len(held) > PART_BYTES:
            yield bytes(held[:PART_BYTES]), False
            del held[:PART_BYTES]
    yield bytes(held), True
