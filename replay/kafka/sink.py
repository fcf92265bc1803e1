"""Events to a topic of Kafka, each exactly once, also if the writer is killed and
starts again.

Each write is a transaction: Kafka commits its events together with the position after
them, or neither. The position is what the group `streamer-replay-<name>` has committed
for partition 0 of the topic:

    offset     how many events of the replay the topic holds
    metadata   "4 partitions", as the topic had then: with another number a user's events would not stay in order

Brokers forget it with the topic, or seven days after the last write
(`offsets.retention.minutes`); the replay then begins anew.

The transactional id is `streamer-replay-<name>-<topic>`. A writer that starts with it
completes or aborts the transaction that the writer before left open, and fences that
writer: the brokers take nothing more from it.

Readers have to ask for committed records, by the client's
`isolation_level=read_committed`. Other readers also see the events of a write that a
kill cut off, and see them again when the replay goes on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from kafka import (
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
    errors,
)

from streamer.errors import SourceError, SourceUnavailable, UnknownTopic
from streamer.replay.events import Record
from streamer.sources.kafka.client import (
    connect,
    is_transient,
    streamer_error,
    to_streamer_error,
)
from streamer.sources.kafka.settings import KafkaSettings

GROUP_PREFIX = "streamer-replay-"
DEFAULTS = {
    "delivery_timeout_ms": 120_000,
    "transaction_timeout_ms": 60_000,
    "batch_size": 1 << 19,
    "linger_ms": 5,
}
TOPIC_TIMEOUT_MS = 10_000
CLOSE_TIMEOUT_S = 5.0
RETRY_PAUSE_S = 0.5


class KafkaSink:
    """A topic of a Kafka cluster. One write is on its way while the caller makes the
    next one ready.

    A record has the time at which it is written: by the time of its event, a broker
    would remove an old one at once. Brokers that create topics when they are asked for
    one create this one. The settings are those of a source: cluster and client settings
    are the same.

    Raises:
        SourceUnavailable: no broker responds.
        SourceError: there is no such topic, or we may not write to it.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._clock = clock
        self._where = f"topic {topic!r} of {settings.where}"
        self._config = DEFAULTS | settings.producer_config()
        self._config["allow_auto_create_topics"] = settings.client.get(
            "allow_auto_create_topics", True
        )
        self._timeout_s = self._config["delivery_timeout_ms"] / 1000
        self._transaction_timeout_s = self._config["transaction_timeout_ms"] / 1000
        # without `resume` there is no group, and there are no transactions
        self._group: str | None = None
        # the replay's events in the topic, with those on their way
        self._position = 0
        # those of the last write, and the attempt to write them; none when it is safe
        self._events: Sequence[Record] = ()
        self._attempt: Future[None] | None = None
        self._producer: Any = connect(
            KafkaProducer, {"max_block_ms": TOPIC_TIMEOUT_MS} | self._config
        )
        try:
            self._metadata = f"{self._count_partitions()} partitions"
        except BaseException:
            self.close()
            raise

    def _count_partitions(self) -> int:
        try:
            with to_streamer_error(self._where):
                return len(self._producer.partitions_for(self._topic))
        except SourceUnavailable as error:
            problem = "there is no such topic, and the brokers do not create it. Create it first"
            raise UnknownTopic(f"{self._where}: {problem}") from error
        except ValueError as error:  # the name is not allowed
            raise SourceError(f"{self._where}: {error}") from error

    def resume(self, replay: str, restart: bool = False) -> int:
        """See `EventSink.resume`."""
        self._group = GROUP_PREFIX + replay
        self._begin_transactions()
        self._position = 0 if restart else self._committed_position()
        if restart:
            self.write([])
        return self._position

    def _begin_transactions(self) -> Any:
        """A new producer, which has settled and fenced what the one before has begun."""
        self._disconnect()
        transactional_id = f"{self._group}-{self._topic}"
        producer = self._producer = connect(
            KafkaProducer, {"transactional_id": transactional_id} | self._config
        )
        needs = f"rights for {transactional_id!r}, and as many brokers as transaction.state.log.replication.factor says"
        with to_streamer_error(
            f"no transactions in {self._where} (they need {needs}; --no-resume writes without them)"
        ):
            producer.init_transactions()
        return producer

    def _committed_position(self) -> int:
        config = self._settings.consumer_config() | {
            "group_id": self._group,
            "isolation_level": "read_committed",
        }
        with (
            contextlib.closing(connect(KafkaConsumer, config)) as consumer,
            to_streamer_error(f"group {self._group!r}"),
        ):
            found = consumer.committed(
                TopicPartition(self._topic, 0),
                metadata=True,
                timeout_ms=1000 * self._timeout_s,
            )
        if found is not None and found.metadata != self._metadata:
            problem = f"it had {found.metadata} then, and has {self._metadata} now. --restart begins anew"
            raise SourceError(f"cannot resume this replay in {self._where}: {problem}")
        return 0 if found is None else int(found.offset)

    def write(self, events: Sequence[Record]) -> None:
        """Begin to write events, once the write before is safe."""
        self._finish()
        self._events = events
        self._position = self._position + len(events)
        self._attempt = _in_background(
            self._write, self._producer, events, self._position
        )

    def close(self) -> None:
        """See `EventSink.close`."""
        try:
            self._finish()
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        with contextlib.suppress(errors.KafkaError):  # it has not sent everything
            self._producer.close(CLOSE_TIMEOUT_S)

    def _finish(self) -> None:
        """Return when the last write is safe. A transaction whose outcome is unknown is
        tried again for a while.
        """
        deadline = time.monotonic() + self._timeout_s
        while self._attempt is not None:
            try:
                self._attempt.result(
                    self._timeout_s
                    if self._group is None
                    else self._transaction_timeout_s
                )
                self._attempt = None
            except (SourceError, TimeoutError) as error:
                self._attempt = None
                if not isinstance(error, SourceUnavailable | TimeoutError):
                    raise
                if self._group is None or time.monotonic() > deadline:
                    problem = f"the brokers have not taken a write within {self._timeout_s:g} s; see whether they run"
                    raise SourceUnavailable(
                        f"{self._where}: {problem}, and start it again ({error})"
                    ) from error
                self._attempt = _in_background(
                    self._write, None, self._events, self._position
                )

    def _write(self, producer: Any, events: Sequence[Record], position: int) -> None:
        """Write events and, in the same transaction, the position after them. Without a
        producer, do it again:

        1. begin transactions anew, which settles whether the last one was committed; 2.
           look at the committed position;
        3. write if it is still the one before the events.

        Raises SourceUnavailable if nobody knows whether the brokers have them,
        SourceError if they do not take them.
        """
        try:
            if producer is None:
                time.sleep(RETRY_PAUSE_S)
                producer = self._begin_transactions()
                committed = self._committed_position()
                if committed == position:
                    return
                if events and committed != position - len(
                    events
                ):  # (without events it is a restart)
                    raise errors.ProducerFencedError
            if self._group is None:
                self._send_all(producer, events)
                return
            producer.begin_transaction()
            self._send_all(producer, events)
            offsets = {
                TopicPartition(self._topic, 0): OffsetAndMetadata(
                    position, self._metadata, -1
                )
            }
            producer.send_offsets_to_transaction(offsets, self._group)
            producer.commit_transaction()
        except errors.KafkaError as error:
            if _is_fenced(error):
                problem = "another process continues this replay, or a transaction took too long"
                advice = "Nothing was doubled; make sure that it runs only once, and start it again"
                raise SourceError(f"{self._where}: {problem}. {advice}") from error
            if isinstance(error, errors.BrokerResponseError) and not is_transient(
                error
            ):
                with contextlib.suppress(errors.KafkaError):
                    producer.abort_transaction()
                raise streamer_error(error, f"events to {self._where}") from error
            raise SourceUnavailable(f"events to {self._where}: {error}") from error

    def _send_all(self, producer: Any, events: Sequence[Record]) -> None:
        """Return when the brokers have all events; the client would also commit a
        transaction that lacks some.
        """
        time_ms = round(self._clock() * 1000)
        sent: list[Any] = []
        for key, value, _ in events:
            # without a key it would be given to any partition
            sent.append(
                producer.send(self._topic, value, key or b"", timestamp_ms=time_ms)
            )
        for future in sent:
            future.get(self._timeout_s)


def _is_fenced(error: errors.KafkaError) -> bool:
    """Whether another producer has our transactional id now. Once a request was refused
    for that, the client raises a plain KafkaError from all later calls, which quotes it.
    """
    text = str(error)
    return "ProducerFencedError" in text or "InvalidProducerEpochError" in text


def _in_background(work: Callable[..., None], *arguments: Any) -> Future[None]:
    """Run in a daemon thread: kafka-python may wait for a response without end, which
    must not keep the process.
    """
    done: Future[None] = Future()

    def run() -> None:
        try:
            done.set_result(work(*arguments))  # type: ignore[func-returns-value]
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="kafka-sink", daemon=True).start()
    return done
