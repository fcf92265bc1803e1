"""Events to a topic of Kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from kafka import KafkaProducer, errors

from replay.events import Record
from streamer.errors import SourceError, UnknownTopic
from streamer.sources.kafka_client import connect, explained
from streamer.sources.kafka_settings import KafkaSettings

MOST_UNSENT = 20_000
"""Records that may be on their way; the client itself knows no limit."""


class KafkaSink:
    """A topic of a Kafka cluster; brokers that create topics on writing create it.

    Args:
        settings: of a source; cluster and client settings are the same.
        topic: the topic.

    Raises:
        SourceUnavailable: no broker answers.
        SourceError: there is no such topic, or we may not write to it.
    """

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._where = f"events to topic {topic!r} of Kafka at {', '.join(settings.bootstrap_servers)}"
        self._unsent: list[Any] = []
        config = {"max_block_ms": 10_000, "linger_ms": 20, "batch_size": 1 << 17} | settings.producer_config()
        self._producer: Any = connect(KafkaProducer, config)
        try:
            self._check_topic()
        except BaseException:
            self._hang_up()
            raise

    def write(self, events: Sequence[Record]) -> None:
        """Hand records to the client; waits for the brokers when many are on their way."""
        send, topic = self._producer.send, self._topic
        with explained(self._where):
            # The record's own time is that of writing: by the event's, a broker would remove old logs at once.
            self._unsent += [send(topic, value, key) for key, value, _ in events]
            if len(self._unsent) > MOST_UNSENT:
                self._flush()

    def close(self) -> None:
        """See `EventSink.close`."""
        if self._producer is None:
            return
        try:
            with explained(self._where):
                self._flush()
        finally:
            self._hang_up()

    def _check_topic(self) -> None:
        with explained(self._where):
            try:
                self._producer.partitions_for(self._topic)
            except ValueError as error:  # the name is not allowed
                raise SourceError(f"{self._where}: {error}") from error
            except errors.KafkaTimeoutError as error:
                why = "there is no such topic, and the brokers do not create it. Create it first"
                raise UnknownTopic(f"{self._where}: {why}") from error

    def _flush(self) -> None:
        """Wait until the brokers have everything.

        Raises:
            KafkaError: they do not take some of it.
        """
        self._producer.flush()
        sent, self._unsent = self._unsent, []
        for promise in sent:
            promise.get(timeout=0)

    def _hang_up(self) -> None:
        producer, self._producer = self._producer, None
        with contextlib.suppress(errors.KafkaError):
            producer.close(timeout=5)
