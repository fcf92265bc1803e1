"""What a consumer and a producer of Kafka have in common: connecting, closing, errors
and a quiet log.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import wraps
from typing import Any, TypeVar

from kafka import errors
from kafka.net.connection import KafkaConnection

from streamer.errors import (
    SettingsError,
    SourceError,
    SourceUnavailable,
    StreamerError,
)
from streamer.sources.kafka import private

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_TIMEOUT_S = 5.0

ADVICE = {
    errors.SaslAuthenticationFailedError: "check sasl_mechanism, sasl_username and sasl_password",
    errors.UnsupportedSaslMechanismError: "check sasl_mechanism",
    errors.TopicAuthorizationFailedError: "this user needs rights on the topic",
    errors.GroupAuthorizationFailedError: "this user needs the right to read with this group_id",
    errors.UnsupportedCodecError: "update Streamer, or let the producer choose another compression",
    errors.FencedInstanceIdError: "another trainer runs with a copy of this checkpoint directory, or with the same "
    "group_instance_id: stop one; a copy becomes another trainer when its file trainer-id is deleted",
    errors.InconsistentGroupProtocolError: "its members are no trainers: choose another group_id",
    errors.InvalidSessionTimeoutError: "the broker does not allow this session_timeout_ms",
    errors.CorruptRecordError: "if no replica has it undamaged, remove the records up to it (kafka-delete-records)",
}
"""What to try, by the client's error."""

REFUSALS = (errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError)
"""Wrong at the start; later, the login has changed, and may be put right."""
TRANSIENT = (
    errors.RetriableError,
    errors.UnknownBrokerIdError,
    # the group goes on without us, and the client joins it again
    errors.CommitFailedError,
    errors.IllegalGenerationError,
    errors.RebalanceInProgressError,
    errors.UnknownMemberIdError,
    *REFUSALS,
)


class ClientLog(logging.Handler):
    """Takes the client's own warnings, which come in floods while a broker is away.

    They go to our log at debug level; the last one is kept to explain what we say
    ourselves, and so is a refusal, which the client takes for one more reason to try
    again.
    """

    refusal: errors.KafkaError | None = None
    hung_up = False
    """Whether a broker has responded the last time and then hung up, as some do on a
    wrong login.
    """
    _last = ""
    _last_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        log.debug("%s: %s", record.name, message)
        if (record.name, record.levelno) == ("kafka.net.selector", logging.WARNING):
            return  # it complains of slow tasks, which parsing large responses is
        self._last = message
        self._last_at = time.monotonic()
        for part in record.args if isinstance(record.args, tuple) else ():
            if isinstance(part, REFUSALS):
                self.refusal = part
            elif isinstance(part, KafkaConnection):
                self.hung_up = part.broker_version is not None

    def last_warning(self, age_s: float = 10.0) -> str:
        """The client's last warning, if it is not older."""
        return self._last if time.monotonic() - self._last_at <= age_s else ""

    @classmethod
    def attach(cls) -> ClientLog:
        """Listen to the client's loggers, once in a process; who has set them up goes
        on seeing them.
        """
        logger = logging.getLogger("kafka")
        others = [h for h in logger.handlers if type(h) is not logging.NullHandler]
        for handler in others:
            if isinstance(handler, cls):
                return handler
        if logger.level == logging.NOTSET and not others:
            logger.setLevel(logging.WARNING)
            logger.propagate = False
        ours = cls()
        logger.addHandler(ours)
        return ours


def connect(make: Any, config: dict[str, Any]) -> Any:
    """Make a client: `KafkaConsumer`, `KafkaProducer` or `KafkaAdminClient`.

    Raises:
        SourceUnavailable: no broker responds in time.
        SourceError: a broker responds, but refuses the connection.
        SettingsError: the client does not accept its settings.
    """
    return connect_with_network(make, config)[0]


def connect_with_network(make: Any, config: dict[str, Any]) -> tuple[Any, Any]:
    """Make a client, and return it with its `KafkaNetClient`; raises as `connect` does.

    A client that reaches no broker is taken apart again: kafka-python would leave its
    thread running.
    """
    networks: list[Any] = []
    make_network: Callable[..., Any] = make.DEFAULT_CONFIG["kafka_client"]

    def remember(**settings: Any) -> Any:
        network = make_network(**settings)
        # kafka-python does not pass this on, and would have the broker create a topic
        # again that was deleted
        if "allow_auto_create_topics" in settings:
            create = settings["allow_auto_create_topics"]
            network.cluster.config["allow_auto_create_topics"] = create
        networks.append(network)
        return network

    client_log = ClientLog.attach()
    client_log.refusal = None
    client_log.hung_up = False
    try:
        return make(**config, kafka_client=remember), networks[-1]
    except Exception as error:
        for network in networks:
            network.close()
        raise _why_not_connected(error, config, client_log) from error


def in_thread(call: Callable[[], T]) -> futures.Future[T]:
    """Have a call done by a thread that nobody has to wait for: the client may never
    return.
    """
    result: futures.Future[T] = futures.Future()

    def work() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=work, name="streamer-kafka", daemon=True).start()
    return result


def hang_up(producer: Any, *, drop_unsent: bool) -> None:
    """Close a producer; what it could not send is dropped, or waited for a little."""
    if drop_unsent:
        private.drop_unsent(producer)
    with contextlib.suppress(errors.KafkaError):
        producer.close(timeout=CLOSE_TIMEOUT_S)


def _why_not_connected(
    error: Exception, config: dict[str, Any], client_log: ClientLog
) -> Exception:
    servers = ", ".join(config["bootstrap_servers"])
    refusal = client_log.refusal
    if (
        refusal is None
        and client_log.hung_up
        and "SASL" in config.get("security_protocol", "")
    ):
        refusal = errors.SaslAuthenticationFailedError("it hangs up while we log in")
    if refusal is not None:
        message = _with_advice(refusal, f"Kafka at {servers} does not let us in")
        return SourceError(message)
    if isinstance(error, errors.KafkaTimeoutError):
        seconds = config["bootstrap_timeout_ms"] / 1000
        last_warning = client_log.last_warning()
        said = f" ({last_warning})" if last_warning else ""
        return SourceUnavailable(
            f"no Kafka broker responded at {servers} within {seconds:g} s{said}; is it "
            "running, and are its address and security_protocol right?"
        )
    if isinstance(error, errors.KafkaError) and not isinstance(
        error, errors.KafkaConfigurationError
    ):
        return streamer_error(error, f"Kafka at {servers} does not let us in")
    return SettingsError([f"Kafka client for {servers}: {error}"])


def is_transient(error: Exception) -> bool:
    """True if the client itself gets over it: a broker is away, a leader moves."""
    return isinstance(error, TRANSIENT)


def streamer_error(error: Exception, where: str) -> SourceError:
    """Return what happened, where, and what to try."""
    kind = SourceUnavailable if is_transient(error) else SourceError
    return kind(_with_advice(error, where))


def _with_advice(error: Exception, where: str) -> str:
    what = str(error) if isinstance(error, errors.KafkaError) else repr(error)
    for kind, advice in ADVICE.items():
        if isinstance(error, kind):
            return f"{where}: {what}; {advice}"
    return f"{where}: {what}"


@contextlib.contextmanager
def to_streamer_error(where: str) -> Iterator[None]:
    """Turn all errors of the client into ours, with the client's as `__cause__`."""
    try:
        yield
    except StreamerError:
        raise
    except Exception as error:
        raise streamer_error(error, where) from error


class GuardedClient:
    """A client of kafka-python that raises no errors but ours.

    Args:
        client: the client, or a part of it.
        where: what to call it in messages.
    """

    def __init__(self, client: Any, where: str) -> None:
        self._client = client
        self._where = where

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return self._guarded(found) if callable(found) else found

    def private(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of `private.py`."""
        return self._guarded(function)(self._client, *arguments)

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with to_streamer_error(self._where):
                return function(*arguments, **named)

        return call
