"""Settings of a Kafka source: our own few, and any setting of the Kafka client, checked
by name and type.

    KafkaSettings("broker:9092", "interactions", client={"security_protocol": "SSL",
    "ssl_cafile": "ca.pem"})

The client's settings have the names of kafka-python; Kafka's own spelling with dots
works too (`ssl.cafile`). They come from options, a file or the environment as text, or
from Python as values:

    client_settings(settings_from_file("client.properties") |
    settings_from_environment(os.environ))
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from streamer.errors import SettingsError
from streamer.settings import StreamSettings

RESET_POLICIES = ("earliest", "latest", "error")
ENVIRONMENT_PREFIX = "STREAMER_KAFKA_"

ALIASES = {
    "sasl_username": "sasl_plain_username",
    "sasl_password": "sasl_plain_password",
    "bootstrap_server": "bootstrap_servers",
}

OURS = {
    "bootstrap_servers",
    "group_id",
    "auto_offset_reset",
    "enable_auto_commit",
    "auto_commit_interval_ms",
    "default_offset_commit_callback",
    "max_poll_records",
    "consumer_timeout_ms",
    "key_deserializer",
    "value_deserializer",
    "key_serializer",
    "value_serializer",
    "kafka_client",
    "partition_assignment_strategy",
    "transactional_id",
    "partitioner",
    "acks",
    "enable_idempotence",
}
"""Client settings that cannot be given: Streamer has a setting of its own, or decides
itself.
"""

FROM_PYTHON = {
    "api_version",
    "metric_reporters",
    "sasl_oauth_token_provider",
    "selector",
    "socket_options",
    "ssl_context",
}

CLIENT_DEFAULTS: dict[str, Any] = {
    "client_id": "streamer",
    "allow_auto_create_topics": False,  # a misspelt topic must be an error, not a new topic
    "isolation_level": "read_committed",  # what was aborted is not learned
    "metrics_enabled": False,
    # Not the cooperative one: after a lost session, kafka-python 3.0 still claims to
    # own the partitions that others took over meanwhile, and may be given them back
    # while those still read them.
    "partition_assignment_strategy": (StickyPartitionAssignor,),
    "reconnect_backoff_max_ms": 2_000,  # a broker that is back is found soon
    "metadata_max_age_ms": 20_000,  # new partitions are found within half a minute
}
"""Where Streamer's defaults differ from the client's."""


@dataclass(frozen=True)
class KafkaSettings:
    """How to read topics of a Kafka cluster.

    Args:
        bootstrap_servers: `host:port`, several separated by commas or as a sequence.
        topics: the topics to read.
        group_id: the consumer group; its members share the partitions.
        auto_offset_reset: where a partition starts that has no position: `earliest` or
            `latest`; `error` stops there, and also where a position is gone, which the
            others get over.
        start_timestamp_ms: partitions without a position start at the first record at
            or after this time, in milliseconds since the epoch; those that have none so
            young, at the end.
        from_beginning: those of the topics that start at their beginning in any case.
        trainer: what tells this trainer's commits from those of others, and makes it a
            static member of the group: after a crash it gets its partitions back at
            once. None for a reader that keeps no state.
        client: other settings of the client, by name; see `client_settings`.
        open_timeout_s: how long to wait for the first answer of a broker.
        join_timeout_s: how long to wait for the group to let us in. If others join, a
            member that died holds a group up until its session expires (the client's
            `session_timeout_ms`, 45 s).
        close_timeout_s: how long leaving may take at most.

    Raises:
        SettingsError: with every problem found.
    """

    bootstrap_servers: str | tuple[str, ...]
    topics: str | tuple[str, ...]
    group_id: str = StreamSettings.group_id
    auto_offset_reset: str = StreamSettings.start
    start_timestamp_ms: int | None = None
    from_beginning: tuple[str, ...] = ()
    trainer: str | None = None
    client: Mapping[str, Any] = field(
        default_factory=dict, repr=False
    )  # may hold passwords
    open_timeout_s: float = 5.0
    join_timeout_s: float = 90.0
    close_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        problems: list[str] = []
        object.__setattr__(self, "bootstrap_servers", _names(self.bootstrap_servers))
        object.__setattr__(self, "topics", _names(self.topics))
        try:
            object.__setattr__(self, "client", client_settings(self.client))
        except SettingsError as error:
            problems += error.problems
        for name in ("bootstrap_servers", "topics", "group_id"):
            if not getattr(self, name):
                problems.append(f"{name}: must not be empty")
        if self.auto_offset_reset not in RESET_POLICIES:
            policies = ", ".join(RESET_POLICIES)
            problems.append(
                f"auto_offset_reset: must be {policies}, not {self.auto_offset_reset!r}"
            )
        if self.start_timestamp_ms is not None and self.start_timestamp_ms < 0:
            problems.append("start_timestamp_ms: is negative")
        if problems:
            raise SettingsError(problems)

    @property
    def where(self) -> str:
        """What to call this cluster in messages."""
        return f"Kafka at {', '.join(self.bootstrap_servers)}"

    def consumer_config(self) -> dict[str, Any]:
        """What to give to `KafkaConsumer`. The reset policy is ours, so that no reset
        goes without a word.
        """
        member = (
            {"group_instance_id": f"streamer-{self.trainer}"} if self.trainer else {}
        )
        return (
            member
            | self._config(KafkaConsumer.DEFAULT_CONFIG)
            | {
                "group_id": self.group_id,
                "auto_offset_reset": "none",
                "enable_auto_commit": False,
            }
        )

    def producer_config(self) -> dict[str, Any]:
        """What to give to `KafkaProducer`."""
        return self._config(KafkaProducer.DEFAULT_CONFIG) | {
            "acks": "all",
            "enable_idempotence": True,
        }

    def admin_config(self) -> dict[str, Any]:
        """What to give to `KafkaAdminClient`."""
        return self._config(KafkaAdminClient.DEFAULT_CONFIG)

    def _config(self, known: Iterable[str]) -> dict[str, Any]:
        config = (
            CLIENT_DEFAULTS
            | {"bootstrap_timeout_ms": round(self.open_timeout_s * 1000)}
            | dict(self.client)
        )
        chosen = {name: value for name, value in config.items() if name in known}
        return chosen | {"bootstrap_servers": list(self.bootstrap_servers)}


def client_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings for the Kafka client, and turn text into values of the right type.

    Raises:
        SettingsError: names every setting that is unknown, not ours to give, or of the
            wrong type.
    """
    settings = {}
    problems = []
    for written, value in given.items():
        name = _client_name(written)
        try:
            settings[name] = _checked(name, value)
        except ValueError as error:
            problems.append(f"Kafka client setting {written!r}: {error}")
    if problems:
        raise SettingsError(problems)
    return settings


def settings_from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Client settings from variables like `STREAMER_KAFKA_SASL_PASSWORD`, without
    fields of `KafkaSettings`.
    """
    found = {
        _client_name(name.removeprefix(ENVIRONMENT_PREFIX)): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    own = {*KafkaSettings.__dataclass_fields__, "start_timestamp"}
    return {name: value for name, value in found.items() if name not in own}


def settings_from_file(path: str | Path) -> dict[str, str]:
    """Client settings from a file of `name=value` lines.

    Raises:
        SettingsError: the file cannot be read or is malformed.
    """
    settings: dict[str, str] = {}
    try:
        for number, line in enumerate(Path(path).read_text().splitlines(), start=1):
            name, equals, value = line.strip().partition("=")
            if not name or name.startswith(("#", "!")):
                continue
            if not equals:
                raise ValueError(f"line {number} is not name=value")
            settings[name.strip()] = value.strip()
    except (OSError, ValueError) as error:
        raise SettingsError(
            [f"Kafka client settings {str(path)!r}: {error}"]
        ) from error
    return settings


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    parts = given.split(",") if isinstance(given, str) else list(given)
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _client_name(written: str) -> str:
    name = written.strip().lower().replace(".", "_").replace("-", "_")
    return ALIASES.get(name, name)


_KNOWN: dict[str, Any] = {
    **KafkaProducer.DEFAULT_CONFIG,
    **KafkaConsumer.DEFAULT_CONFIG,
}


def _checked(name: str, value: Any) -> Any:
    """The value in the right type.

    Raises:
        ValueError: why it cannot be.
    """
    if name in OURS:
        raise ValueError("cannot be given: Streamer decides it, or has its own setting")
    if name not in _KNOWN:
        close = difflib.get_close_matches(
            name, [*(_KNOWN.keys() - OURS), *ALIASES], n=3
        )
        raise ValueError(
            "there is no such setting"
            + (f"; did you mean {' or '.join(close)}?" if close else "")
        )
    if name in FROM_PYTHON:
        if isinstance(value, str):
            raise ValueError("can only be given from Python, not as text")
        return value
    kind = int if name.endswith("_bytes") else type(_KNOWN[name])
    if kind not in (bool, int, float, str):
        return value
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
