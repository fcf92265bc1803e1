"""Points as records of a topic of one partition.

A point is cut into records that brokers take. The key of each says which part of which
point it is, as JSON; the value is a stretch of the point's bytes:

    {"generation": 1207, "base": false, "sequence": 13, "part": 0, "last": true}

A generation's number is the end of the topic when it began, so that it is higher than
all before. Records before the base before the last are removed: the topic holds two
bases and the deltas after them.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, errors

from streamer.errors import CorruptCheckpoint, SourceError, SourceUnavailable
from streamer.publish.points import Point, PointId
from streamer.snapshot.frames import HEADER, frame_header
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
    """Which part of which point a record is."""

    generation: int
    base: bool
    sequence: int
    part: int
    last: bool


_encode_key = msgspec.json.Encoder().encode
_decode_key = msgspec.json.Decoder(_Key).decode


class KafkaWriter:
    """Writes points to a topic of Kafka, which is created if it is missing."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._where = (
            f"topic {topic!r} of Kafka at {', '.join(settings.bootstrap_servers)}"
        )
        self._producer: Any = None
        # offsets at which the last two bases begin
        self._base_at = 0
        self._base_before = 0

    def begin(self) -> int:
        """See `Writer.begin`."""
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
                    f"{self._where} has {len(partitions)} partitions: points need a topic of one"
                )
            end: int = consumer.end_offsets([TopicPartition(self._topic, 0)])[
                TopicPartition(self._topic, 0)
            ]
        return end + 1

    def write(self, point: PointId, frames: Iterable[bytes]) -> None:
        """See `Writer.write`."""
        if self._producer is None:
            self._producer = connect(
                KafkaProducer, CONFIG | self._settings.producer_config()
            )
        try:
            with to_streamer_error(self._where):
                promises = deque[Any]()
                first: int | None = None
                for part, (value, last) in enumerate(_parts(frames)):
                    key = _encode_key(_Key(*point, part, last))
                    promises.append(
                        self._producer.send(self._topic, value, key, partition=0)
                    )
                    if (
                        len(promises) > 8 or last
                    ):  # a base must not fill the client's memory
                        done = [p.get(timeout=TIMEOUT_S) for p in promises]
                        first = done[0].offset if first is None else first
                        promises.clear()
        except SourceError as error:
            # a client that failed once cannot write in order any more: the next try has a new one
            self._hang_up()
            raise SourceUnavailable(str(error)) from error
        if point.base and first is not None:
            self._base_before = self._base_at
            self._base_at = first

    def prune(self, base: PointId) -> None:
        """See `Writer.prune`. Brokers that do not let us remove records keep them."""
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
        """See `Writer.close`."""
        self._hang_up()

    def _hang_up(self) -> None:
        producer = self._producer
        self._producer = None
        if producer is not None:
            hang_up(producer, drop_unsent=True)


class TopicReader:
    """Reads the points of a topic.

    Args:
        make_source: reads the topic from its beginning.
    """

    def __init__(self, make_source: Callable[[], Source]) -> None:
        self._make_source = make_source
        self._source: Source | None = None
        self._parts: dict[PointId, list[bytes]] = {}
        self._complete: deque[Point] = deque()

    def poll(self, timeout_s: float) -> Point | None:
        """See `Reader.poll`."""
        if self._complete:
            return self._complete.popleft()
        if self._source is None:
            source = self._make_source()
            source.open(_FromTheStart())
            self._source = source
        for chunk in self._source.poll(MAX_RECORDS, timeout_s):
            for key, value in zip(chunk.keys, chunk.values, strict=True):
                self._add(key, value)
        if self._source.problem is not None:
            raise SourceUnavailable(self._source.problem)
        return self._complete.popleft() if self._complete else None

    def _add(self, raw: bytes | None, value: bytes) -> None:
        try:
            key = _decode_key(raw or b"")
        except msgspec.MsgspecError:
            return  # nothing of ours
        point = PointId(key.generation, key.base, key.sequence)
        if key.part == 0:
            self._parts[point] = []
        parts = self._parts.get(point)
        if parts is None or len(parts) != key.part:
            self._parts.pop(
                point, None
            )  # one is missing: it was removed, or is written again from the start
            return
        parts.append(value)
        if key.last:
            self._complete.append(Point(point, _frames(self._parts.pop(point))))
            self._parts = {
                other: kept
                for other, kept in self._parts.items()
                if other.generation >= point.generation
            }

    def refuse(self, point: PointId) -> None:
        """See `Reader.refuse`: the next base comes by itself."""

    def close(self) -> None:
        """See `Reader.close`."""
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


def _frames(parts: list[bytes]) -> Iterator[bytearray]:
    """The frames of a point.

    Raises:
        CorruptCheckpoint: they do not fit the bytes.
    """
    whole = memoryview(b"".join(parts))
    at = 0
    while at < len(whole):
        _, length = frame_header(whole[at : at + HEADER.size])
        end = at + HEADER.size + length
        if end > len(whole):
            raise CorruptCheckpoint("a point ends inside a frame")
        yield bytearray(whole[at:end])
        at = end
