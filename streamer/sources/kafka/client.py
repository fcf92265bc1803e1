"""What a consumer and a producer of Kafka have in common: connecting, closing, errors
and a quiet log.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from kafka import errors

from streamer.errors import SettingsError, SourceError, SourceUnavailable
from streamer.sources.kafka import private

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0

ADVICE = {
    errors.SaslAuthenticationFailedError: "check sasl_mechanism, sasl_username and sasl_password",
    errors.UnsupportedSaslMechanismError: "check sasl_mechanism",
    errors.TopicAuthorizationFailedError: "this user needs rights on the topic",
    errors.GroupAuthorizationFailedError: "this user needs the right to read with this group_id",
    errors.UnsupportedCodecError: "update Streamer, or let the producer choose another compression",
    errors.FencedInstanceIdError: "another trainer runs with a copy of this checkpoint directory, or with the same "
    "group_instance_id: stop one; a copy becomes another trainer when its file trainer-id is deleted",
    errors.InconsistentGroupProtocolError: "its members use another partition_assignment_strategy, or it is "
    "not a group of consumers: choose another group_id",
    errors.InvalidSessionTimeoutError: "the broker does not allow this session_timeout_ms",
    errors.CorruptRecordError: "if no replica has it undamaged, remove the records up to it (kafka-delete-records)",
}
"""What to try, by the client's error."""


class ClientLog(logging.Handler):
    """Takes the client's own warnings, which come in floods while a broker is away.

    They go to our log at debug level; the last one is kept to explain what we say
    ourselves, and so is a refusal, which the client takes for one more reason to try
    again.
    """

    refusal: errors.KafkaError | None = None
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
            if isinstance(
                part,
                errors.SaslAuthenticationFailedError
                | errors.UnsupportedSaslMechanismError,
            ):
                self.refusal = part

    def last_warning(self, age_s: float = 10.0) -> str:
        """The client's last warning, if it is not older."""
        return self._last if time.monotonic() - self._last_at <= age_s else ""

    @classmethod
    def attach(cls) -> ClientLog:
        """Listen to the client's loggers, once in a process; who has set them up goes
        on seeing them.
        """
        logger = logging.getLogger("kafka")
        others = [
            handler
            for handler in logger.handlers
            if not isinstance(handler, logging.NullHandler)
        ]
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
    try:
        return make(**config, kafka_client=remember), networks[-1]
    except Exception as error:
        for network in networks:
            network.close()
        raise _why_not_connected(
            client_log.refusal or error, config, client_log.last_warning()
        ) from error


def hang_up(producer: Any, *, drop_unsent: bool) -> None:
    """Close a producer; what it could not send is dropped, or waited for a little."""
    if drop_unsent:
        private.drop_unsent(producer)
    with contextlib.suppress(errors.KafkaError):
        producer.close(timeout=CLOSE_TIMEOUT_S)


def _why_not_connected(
    error: Exception, config: dict[str, Any], last_warning: str
) -> Exception:
    servers = ", ".join(config["bootstrap_servers"])
    if isinstance(error, errors.KafkaTimeoutError):
        seconds = config["bootstrap_timeout_ms"] / 1000
        said = f" ({last_warning})" if last_warning else ""
        advice = "is it running, and are its address and security_protocol right?"
        if "SASL" in config.get("security_protocol", ""):
            advice += " It may also hang up on a wrong login: check sasl_username and sasl_password"
        return SourceUnavailable(
            f"no Kafka broker responded at {servers} within {seconds:g} s{said}; {advice}"
        )
    if isinstance(error, errors.KafkaError) and not isinstance(
        error, errors.KafkaConfigurationError
    ):
        return streamer_error(error, f"Kafka at {servers} does not let us in")
    return SettingsError([f"Kafka client for {servers}: {error}"])


def is_transient(error: errors.KafkaError) -> bool:
    """True if the client itself gets over it: a broker is away, a leader moves."""
    if isinstance(error, errors.CorruptRecordError):
        return False
    return isinstance(error, errors.RetriableError | errors.UnknownBrokerIdError)


def streamer_error(error: errors.KafkaError, where: str) -> SourceError:
    """Return what happened, where, and what to try."""
    kind = SourceUnavailable if is_transient(error) else SourceError
    for refusal, advice in ADVICE.items():
        if isinstance(error, refusal):
            return kind(f"{where}: {error}; {advice}")
    return kind(f"{where}: {error}")


@contextlib.contextmanager
def to_streamer_error(where: str, *, ignore_transient: bool = False) -> Iterator[None]:
    """Turn the client's errors into ours; transient ones may be logged and ignored."""
    try:
        yield
    except errors.KafkaError as error:
        if not (ignore_transient and is_transient(error)):
            raise streamer_error(error, where) from error
        log.debug("%s: %s", where, error)
