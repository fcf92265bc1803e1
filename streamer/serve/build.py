"""From settings to the parts of a server: where it reads what its trainer has learned,
and the events themselves.

Heavy modules are imported where they are needed, as in `streamer.build`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from streamer.build import kafka_settings
from streamer.errors import SourceUnavailable
from streamer.serve.settings import ServeSettings
from streamer.settings import FIELDS
from streamer.sources.base import Source

if TYPE_CHECKING:
    from streamer.snapshot.places import SnapshotReader


def snapshot_reader(settings: ServeSettings) -> SnapshotReader:
    """Where a server reads the states of its trainer."""
    directory = settings.from_dir or settings.checkpoint_dir
    if directory is not None:
        from streamer.snapshot.places import DirectoryReader

        return DirectoryReader(directory, asks=settings.from_dir is not None)
    from streamer.snapshot.topic import TopicReader
    from streamer.sources.kafka.tail import KafkaTail

    kafka = kafka_settings(settings)
    topic = settings.publish_topic
    assert kafka is not None
    assert topic is not None
    ours = replace(
        kafka, topics=topic, auto_offset_reset="earliest", start_timestamp_ms=None
    )
    return TopicReader(lambda: KafkaTail(ours))


def nothing_published(settings: ServeSettings) -> str:
    """What to say while there is no state that could be served: where it is looked for,
    and how the trainer has to be started.
    """
    if settings.publish_topic is not None:
        topic = settings.publish_topic
        return (
            f"Nothing to serve yet: the topic {topic!r} holds no whole state. Start the "
            f"trainer with --publish-topic {topic}."
        )
    directory = settings.from_dir or settings.checkpoint_dir
    assert directory is not None
    what = f"{directory} holds no whole state"
    if not directory.is_dir():
        what = f"there is no directory {directory}"
    option = "--checkpoint-dir" if settings.from_dir is None else "--publish-dir"
    advice = f"Start the trainer with {option} {directory}"
    for checkpoints in (directory / "checkpoints", directory.parent / "checkpoints"):
        if settings.from_dir is not None and checkpoints.is_dir():
            advice += f", or serve its checkpoints with --checkpoint-dir {checkpoints}"
            break
    return f"Nothing to serve yet: {what}. {advice}."


def event_tail(settings: ServeSettings) -> Callable[[], Source]:
    """Makes the source with which a server reads all events, whoever else reads them."""
    if (kafka := kafka_settings(settings)) is not None:
        from streamer.sources.kafka.tail import KafkaTail

        # a server has no positions to insist on
        start = "latest" if settings.start == "latest" else "earliest"
        ours = replace(kafka, auto_offset_reset=start)
        return lambda: KafkaTail(ours)
    from streamer.sources.embedded.database import LOG_FILE
    from streamer.sources.embedded.source import EmbeddedSource

    def embedded() -> Source:
        if not (settings.data_dir / LOG_FILE).exists():
            raise SourceUnavailable(
                f"Only what the trainer publishes is served: there is no log of events "
                f"in {settings.data_dir}. Give the trainer's --data-dir or "
                "--bootstrap-servers, or --no-tail if there is none to read"
            )
        return EmbeddedSource(settings.data_dir, settings.all_topics, group=None)

    return embedded


def event_writer(settings: ServeSettings) -> Callable[[str, str], None]:
    """Writes an event of a user and an item, which happened now, to the stream that a
    server tails.

    It connects when it is used for the first time. It may raise `SourceError`.
    """
    topic = settings.topics[0]
    names = {ours: settings.name_of(ours) for ours in FIELDS}
    kind = {}
    if settings.event_types:
        kind[names["event_type"]] = settings.event_types[0]
    append: Callable[[bytes, bytes], None] | None = None

    def write(user: str, item: str) -> None:
        nonlocal append
        append = append or _appender(settings, topic)
        event = {
            names["user_id"]: user,
            names["item_id"]: item,
            names["timestamp"]: time.time(),
        }
        append(user.encode(), msgspec.json.encode(event | kind))

    return write


def catalogue_writer(settings: ServeSettings) -> Callable[[str, bool], None] | None:
    """Writes to the topic of the catalogue whether an item is hidden; None if there is
    none. It connects when it is used for the first time, and may raise `SourceError`.
    """
    topic = settings.catalogue_topic
    if topic is None:
        return None
    append: Callable[[bytes, bytes], None] | None = None

    def write(item: str, hidden: bool) -> None:
        nonlocal append
        append = append or _appender(settings, topic)
        names = map(settings.name_of, ("item_id", "hidden"))
        event = dict(zip(names, (item, hidden), strict=True))
        # a key of its own: compaction must not drop what describes the item
        append(f"hidden {item}".encode(), msgspec.json.encode(event))

    return write


def _appender(settings: ServeSettings, topic: str) -> Callable[[bytes, bytes], None]:
    """Appends a record of key and value to a topic."""
    if (kafka := kafka_settings(settings)) is not None:
        from kafka import KafkaProducer

        from streamer.sources.kafka.client import connect, to_streamer_error

        producer = connect(
            KafkaProducer, {"max_block_ms": 5_000} | kafka.producer_config()
        )

        def send(key: bytes, value: bytes) -> None:
            with to_streamer_error(f"topic {topic!r} of Kafka"):
                producer.send(topic, value, key).get(timeout=5)

        return send
    from streamer.sources.embedded.log import EmbeddedLog

    log = EmbeddedLog(settings.data_dir)

    def append(key: bytes, value: bytes) -> None:
        now_ms = round(1000 * time.time())
        log.append(topic, [(key, value, now_ms)])

    return append
