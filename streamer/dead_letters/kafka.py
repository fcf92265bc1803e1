"""Dead letters to a Kafka topic.

A dead letter has the key and the value of its record. Its headers say the rest, as
text: `reason`, `detail`, `topic`, `partition`, `offset`, `timestamp_ms` (the record's
own time; a dead letter's is that of its writing, or brokers would refuse it or remove
it at once), and `index` if it is one event of an array. A value too large for the topic is
cut short, and `truncated_from` says how many bytes it had.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kafka import KafkaAdminClient, KafkaProducer, errors

from streamer.dead_letters.base import (
    KEPT_VALUE_BYTES,
    DeadLetter,
    DeadLetters,
    FileDeadLetters,
)
from streamer.errors import SourceError, SourceUnavailable, StreamerError
from streamer.sources.kafka.client import (
    ClientLog,
    connect,
    hang_up,
    is_transient,
    streamer_error,
    to_streamer_error,
)
from streamer.sources.kafka.settings import KafkaSettings

log = logging.getLogger(__name__)

MAX_WAITING_BYTES = 32 << 20
"""Reading pauses while more than this is not acknowledged."""
KEPT_OF_DETAIL = 2_000
MAX_REFUSED_BESIDE = 5
RETRY_S = 5.0
TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
CONFIG = {"linger_ms": 20, "batch_size": 1 << 16, "max_block_ms": 1_000}


def create_topic(
    settings: KafkaSettings,
    topic: str,
    *,
    beside: Iterable[str] = (),
    dry_run: bool = False,
) -> Literal["exists", "created", "possible"]:
    """Create a topic with the brokers' defaults unless it is there; or only see that it
    could be created.

    Args:
        settings: how to connect.
        topic: its name.
        beside: topics without which it is not created, as one of them may be misspelt.
        dry_run: whether it is not created in any case.

    Raises:
        SourceUnavailable: no broker responds.
        SourceError: we may not create it.
    """
    problem = (
        f"there is no topic {topic!r} for dead letters, and it cannot be created; "
        "create it, or give --dead-letters a file"
    )
    admin = connect(KafkaAdminClient, settings.admin_config())
    with contextlib.closing(admin), to_streamer_error(problem):
        existing = admin.list_topics()
        if topic in existing:
            return "exists"
        only_ask = dry_run or not set(beside) <= set(existing)
        try:
            admin.create_topics(
                [topic], validate_only=only_ask, wait_for_metadata=not only_ask
            )
        except errors.TopicAlreadyExistsError:
            return "exists"  # somebody was quicker
    return "possible" if only_ask else "created"


@dataclass(slots=True)
class _Waiting:
    """A dead letter that is not acknowledged."""

    letter: DeadLetter
    promise: Any = None
    """The client's, once it is sent."""
    is_cut: bool = False
    """Whether only the beginning of its value is kept."""
    refused_beside: int = 0
    """How often it was refused because of another one in its batch."""

    def content(self) -> tuple[bytes, list[tuple[str, bytes]]]:
        """Return value and headers, cut short if they must be."""
        value = self.letter.value or b""
        headers = _headers(self.letter)
        if self.is_cut:
            headers.append(("truncated_from", b"%d" % len(value)))
            value = value[:KEPT_VALUE_BYTES]
        return value, headers


class KafkaDeadLetters(DeadLetters):
    """Writes dead letters to a topic without waiting for it; `flush` waits until all
    replicas in sync have them.

    What the brokers refuse for good goes to a file. While they do not respond, dead
    letters wait: `MAX_WAITING_BYTES` at most, and what comes with one more batch.

    Args:
        settings: of the source; cluster and client settings are the same.
        topic: where the dead letters go.
        refused: the file for those that are refused; it is made when there are any.
        flush_timeout_s: how long `flush` waits at most.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        refused: Path | str,
        flush_timeout_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        self._settings = settings
        self._refused_path = Path(refused)
        self._flush_timeout_s = flush_timeout_s
        self._clock = clock
        self._where = f"dead letters to topic {topic!r} of {settings.where}"
        self._producer: Any = None
        self._topic_is_there = False
        self._unsent: deque[_Waiting] = deque()
        self._sent: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._problem: StreamerError | None = None  # why they wait
        self._retry_at = 0.0
        self._refused: FileDeadLetters | None = None

    def open(self) -> None:
        """See `DeadLetters.open`: connect, and create the topic if it is missing. Before
        there are any, only if the topics are there that they would come from.
        """
        if not self._topic_is_there:
            beside = () if self._unsent else self._settings.topics
            state = create_topic(self._settings, self.topic, beside=beside)
            if state == "created":
                log.info("Created the topic %r for dead letters", self.topic)
            self._topic_is_there = state != "possible"
        if self._producer is None:
            # Dead letters may come twice, so nothing is gained by idempotence, which
            # ends a client that failed once.
            config = CONFIG | self._settings.producer_config()
            config["enable_idempotence"] = False
            self._producer = connect(KafkaProducer, config)

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """See `DeadLetters.write`. If Kafka does not respond, that is logged, and they
        wait.
        """
        for letter in letters:
            self._unsent.append(_Waiting(letter))
            self._waiting_bytes += letter.size
        self._work()

    def backpressure_reason(self) -> str | None:
        """See `DeadLetters.backpressure_reason`."""
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self._work()
        if self._waiting_bytes <= MAX_WAITING_BYTES:
            return None
        why = self._problem or ClientLog.attach().last_warning() or "no response yet"
        size_mb = self._waiting_bytes / 1e6
        return f"{size_mb:.0f} MB of dead letters are unacknowledged ({why})"

    def flush(self) -> None:
        """See `DeadLetters.flush`. What failed is tried again at once, whoever ends a run
        may have no other time; after an error, they wait for the next call.
        """
        deadline = self._clock() + self._flush_timeout_s
        self._work()
        self._retry_at = 0.0
        self._work()
        while self._sent and not self._unsent:
            left_s = deadline - self._clock()
            if left_s <= 0:
                why = f"are not acknowledged in {self._flush_timeout_s:g} s"
                self._wait_for(SourceUnavailable(f"{self._where} {why}"))
                break
            with contextlib.suppress(errors.KafkaError):  # `_work` finds what it was
                self._sent[0].promise.get(timeout=min(0.2, left_s))
            self._work()
        if self._sent or self._unsent:
            assert self._problem is not None
            raise self._problem
        if self._refused is not None:
            self._refused.flush()

    def close(self) -> None:
        """See `DeadLetters.close`."""
        try:
            self.flush()
        finally:
            producer = self._producer
            self._producer = None
            if producer is not None:
                hang_up(producer, drop_unsent=bool(self._sent or self._unsent))
            if self._refused is not None:
                self._refused.close()
                self._refused = None

    def _work(self) -> None:
        """Forget what is acknowledged, and send what is not sent. If that fails, the
        problem is kept, and it is tried later.
        """
        while self._sent and self._sent[0].promise.is_done:
            waiting = self._sent.popleft()
            if waiting.promise.failed():
                self._failed(waiting, waiting.promise.exception)
            else:
                self._acknowledged(waiting)
        if not self._unsent or self._clock() < self._retry_at:
            return
        try:
            self.open()
        except SourceUnavailable as error:
            self._wait_for(error)
        except SourceError as error:  # the topic is gone
            while self._unsent:
                self._refuse(self._unsent.popleft(), error)
        while self._unsent and self._clock() >= self._retry_at:
            self._send(self._unsent.popleft())

    def _send(self, waiting: _Waiting) -> None:
        value, headers = waiting.content()
        try:
            waiting.promise = self._producer.send(
                self.topic, value, waiting.letter.key, headers
            )
        except errors.KafkaError as error:
            self._failed(waiting, error)
        else:
            self._sent.append(waiting)

    def _failed(self, waiting: _Waiting, error: errors.KafkaError) -> None:
        """Prepare to send a dead letter again, later or cut short; or put it into the
        file.
        """
        if is_transient(error):
            # The topic may be gone; it is looked for before the next try.
            self._topic_is_there = False
            self._wait_for(streamer_error(error, self._where))
        elif isinstance(error, TOO_LARGE) and not waiting.is_cut:
            waiting.is_cut = True
        elif (
            type(error) is errors.KafkaError
            and waiting.refused_beside < MAX_REFUSED_BESIDE
        ):
            waiting.refused_beside += 1
        else:
            self._refuse(waiting, error)
            return
        self._unsent.append(waiting)

    def _refuse(self, waiting: _Waiting, error: Exception) -> None:
        if self._refused is None:
            self._refused = FileDeadLetters(self._refused_path)
            log.warning(
                "%s are refused: %s; what is refused goes to %s",
                self._where,
                error,
                self._refused_path,
            )
        self._refused.write([waiting.letter])
        self._waiting_bytes -= waiting.letter.size

    def _acknowledged(self, waiting: _Waiting) -> None:
        self._waiting_bytes -= waiting.letter.size
        if self._problem is not None and not self._unsent:
            self._problem = None
            self._retry_at = 0.0
            log.warning("%s are written again", self._where)

    def _wait_for(self, problem: StreamerError) -> None:
        if self._problem is None:
            log.warning("%s; dead letters wait, and so do checkpoints", problem)
        self._problem = problem
        self._retry_at = self._clock() + RETRY_S


def _headers(letter: DeadLetter) -> list[tuple[str, bytes]]:
    headers = [
        ("reason", letter.reason.encode()),
        ("detail", letter.detail[:KEPT_OF_DETAIL].encode()),
        ("topic", letter.topic.encode()),
        ("partition", b"%d" % letter.partition),
        ("offset", b"%d" % letter.offset),
        ("timestamp_ms", b"%d" % letter.timestamp_ms),
    ]
    if letter.index is not None:
        headers.append(("index", b"%d" % letter.index))
    return headers
