"""Dead letters to a Kafka topic.

A letter is written as it was read: the same key, value and timestamp. Its headers say the rest, as text:
`reason`, `detail`, `topic`, `partition`, `offset`, and `index` if it is one event of an array. A value too large
for the topic is cut short, and `truncated_from` says how many bytes it had.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kafka import KafkaProducer, errors

from streamer.sources.kafka.client import connect, in_our_words
from streamer.sources.kafka.settings import KafkaSettings

MOST_PENDING = 10_000
KEPT_OF_LARGE_BYTES = 65_536
KEPT_OF_DETAIL = 2_000
MOST_FAILURES = 5
"""How often a letter is tried that is said to be too large."""


class Letter(Protocol):
    """What we need of a dead letter."""

    @property
    def reason(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def index(self) -> int | None: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


@dataclass(slots=True)
class _Pending:
    """A letter that is not known to be safe."""

    letter: Letter
    promise: Any = None  # the client's, once it is sent
    cut: bool = False  # it is too large
    failures: int = 0


class KafkaDeadLetters:
    """Writes letters with an idempotent producer; `flush` waits until all replicas in sync have them.

    Args:
        settings: of the source; cluster and client settings are the same.
        topic: where the letters go; brokers that create topics on writing create it.
        flush_timeout_s: how long `flush` waits at most.
    """

    def __init__(self, settings: KafkaSettings, topic: str, flush_timeout_s: float = 30.0) -> None:
        self.topic = topic
        self._settings = settings
        self._flush_timeout_s = flush_timeout_s
        self._where = f"dead letters to topic {topic!r} of Kafka at {', '.join(settings.bootstrap_servers)}"
        self._producer: Any = None
        self._pending: deque[_Pending] = deque()

    def open(self) -> None:
        """Connect now, rather than with the first letter. May be called twice.

        Raises:
            SourceUnavailable: no broker responds.
        """
        if self._producer is None:
            config = {"max_block_ms": 10_000, "linger_ms": 5} | self._settings.producer_config()
            self._producer = connect(KafkaProducer, config)

    def write(self, letters: Sequence[Letter]) -> None:
        """Take letters; they are safe only after `flush`, which comes by itself when many are waiting.

        Raises:
            SourceUnavailable: Kafka does not respond; the letters are kept, for `flush` to try again.
            SourceError: Kafka does not take them.
        """
        self._pending.extend(_Pending(letter) for letter in letters)
        if len(self._pending) > MOST_PENDING:
            self.flush()
        else:
            self._send_all()

    def flush(self) -> None:
        """Return when every letter taken so far is safe. After an error, they wait for the next call.

        Raises:
            SourceUnavailable: Kafka does not respond.
            SourceError: Kafka does not take them.
        """
        deadline = time.monotonic() + self._flush_timeout_s
        while self._pending:
            self._send_all()
            if self._is_safe(self._pending[0], deadline):
                self._pending.popleft()

    def close(self) -> None:
        """Flush and let go. May be called twice."""
        try:
            self.flush()
        finally:
            self._hang_up()

    def _send_all(self) -> None:
        self.open()
        for pending in self._pending:
            if pending.promise is None:
                self._send(pending)

    def _send(self, pending: _Pending) -> None:
        """Hand a letter to the client, cut short if it must be."""
        letter, value, headers = pending.letter, pending.letter.value or b"", _headers(pending.letter)
        if pending.cut:
            headers.append(("truncated_from", str(len(value)).encode()))
            value = value[:KEPT_OF_LARGE_BYTES]
        timestamp_ms = letter.timestamp_ms if letter.timestamp_ms >= 0 else None
        try:
            pending.promise = self._producer.send(self.topic, value, letter.key, headers, None, timestamp_ms)
        except errors.KafkaError as error:
            self._cut_or_raise(pending, error)

    def _is_safe(self, pending: _Pending, deadline: float) -> bool:
        """Wait until a letter is safe; False if it has to be sent again."""
        if pending.promise is None:
            return False
        try:
            pending.promise.get(timeout=max(0.0, deadline - time.monotonic()))
        except errors.KafkaError as error:
            if pending.promise.is_done:
                self._start_over()
            self._cut_or_raise(pending, error)
            return False
        return True

    def _cut_or_raise(self, pending: _Pending, error: errors.KafkaError) -> None:
        """Prepare to send a letter again that is too large, or that failed together with one; else raise."""
        pending.failures += 1
        if not isinstance(error, errors.MessageSizeTooLargeError) or pending.failures > MOST_FAILURES:
            raise in_our_words(error, self._where) from error
        pending.cut = len(pending.letter.value or b"") > KEPT_OF_LARGE_BYTES

    def _start_over(self) -> None:
        """Take another client: an idempotent one takes no more letters after one has failed."""
        self._hang_up()
        for pending in self._pending:
            pending.promise = None

    def _hang_up(self) -> None:
        """Close the client. It would wait for letters that it cannot send, so those are taken from it first."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        if self._pending:
            producer._sender.force_close()
        with contextlib.suppress(errors.KafkaError):
            producer.close(timeout=5)


def _headers(letter: Letter) -> list[tuple[str, bytes]]:
    headers = {
        "reason": str(letter.reason),
        "detail": letter.detail[:KEPT_OF_DETAIL],
        "topic": letter.topic,
        "partition": str(letter.partition),
        "offset": str(letter.offset),
    }
    if letter.index is not None:
        headers["index"] = str(letter.index)
    return [(name, text.encode()) for name, text in headers.items()]
