"""Settings of a run: `RunSettings` holds all settings of `streamer run`, by the same
names everywhere.

Each group is a class of its own, so that a part of the line asks for its own settings
only. The model's groups are in `streamer.model.settings`. What a setting is, and how
text becomes one: `streamer.model.setting`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from streamer.model.setting import Settings, expert_setting, setting
from streamer.model.settings import LearnerSettings

FIELDS = (
    "user_id", "item_id", "timestamp", "user_features", "item_features", "event_type", "rating", "weight",
    "title", "deleted",
)  # fmt: skip
"""The fields of an event by our own names; the last two are those of catalogue events."""
MAX_RECORD_BYTES = 1 << 24
"""No record can be allowed to be larger: more of a compressed one is never in memory."""


@dataclass(frozen=True, kw_only=True)
class StreamSettings(Settings):
    """Where events come from."""

    heading: ClassVar[str] = "Stream"

    topics: tuple[str, ...] = setting(
        ("interactions",), "Topic to read; repeat it for several.", common=True
    )
    catalogue_topic: str | None = setting(
        None,
        "Topic of catalogue events: each creates, describes or deletes an item. Read from its beginning.",
        metavar="TOPIC",
    )
    bootstrap_servers: str | None = setting(
        None,
        "Kafka brokers, host:port[,host:port]; without it the embedded log is read.",
        common=True,
    )
    group_id: str = setting("streamer", "Kafka consumer group.", common=True)
    kafka: Mapping[str, str] = setting(
        {},
        "Any setting of the Kafka client, e.g. sasl_mechanism=PLAIN; also as STREAMER_KAFKA_<NAME>.",
        metavar="NAME=VALUE",
    )
    kafka_config: Path | None = setting(
        None, "File with settings of the Kafka client, name=value lines."
    )
    start: Literal["earliest", "latest", "error"] = setting(
        "earliest", "Where to begin in a partition without a committed offset."
    )
    start_timestamp: str | None = setting(
        None,
        "Begin at this time instead: seconds or milliseconds since the epoch, or ISO 8601.",
        metavar="TIME",
    )
    source: str | None = setting(
        None,
        "Read JSON lines from a file instead; - for standard input.",
        metavar="FILE",
        common=True,
    )
    data_dir: Path = setting(
        Path("streamer-data"),
        "Directory of the embedded log, and of checkpoints unless --checkpoint-dir is given.",
        common=True,
    )

    @property
    def all_topics(self) -> tuple[str, ...]:
        """Everything to read: the topics, and that of the catalogue."""
        return (*self.topics, *self.from_beginning)

    @property
    def from_beginning(self) -> tuple[str, ...]:
        """Topics that are read from their beginning, wherever others start."""
        return (self.catalogue_topic,) if self.catalogue_topic else ()

    @property
    def start_timestamp_ms(self) -> int | None:
        """`start_timestamp` in milliseconds since the epoch.

        Raises:
            ValueError: it is not a valid time.
        """
        if self.start_timestamp is None:
            return None
        return _milliseconds(self.start_timestamp)

    def described(self) -> str:
        """Where events come from, for a person."""
        if self.source:
            return "standard input" if self.source == "-" else self.source
        where = f"in the embedded log {self.data_dir}"
        if self.bootstrap_servers:
            where = f"at {self.bootstrap_servers}"
        return f"{', '.join(self.all_topics)} {where}"

    def problems(self) -> list[str]:
        found = super().problems()
        try:
            _ = self.start_timestamp_ms
        except ValueError:
            found.append(
                f"start-timestamp is {self.start_timestamp!r}: give seconds since the epoch or ISO 8601"
            )
        if self.catalogue_topic in self.topics:
            found.append(
                f"catalogue-topic is {self.catalogue_topic!r}, and so is topic: in a topic of both, name the type of "
                "catalogue events by --catalogue-type"
            )
        if self.catalogue_topic and self.source:
            found.append(
                "catalogue-topic: a file has no topics; name the type of its catalogue events by --catalogue-type"
            )
        if self.start == "error" and not self.bootstrap_servers and not self.source:
            found.append(
                "start is 'error': that is for Kafka only; the embedded log has earliest and latest"
            )
        return found


def _milliseconds(time: str) -> int:
    try:
        number = float(time)
    except ValueError:
        moment = datetime.datetime.fromisoformat(time)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        number = moment.timestamp()
    return int(number if abs(number) >= 1e11 else number * 1000)


@dataclass(frozen=True, kw_only=True)
class EventSettings(Settings):
    """What the events of a topic look like, which of them count, and how large they may
    be.
    """

    heading: ClassVar[str] = "Events"

    fields: Mapping[str, str] = setting(
        {},
        "Name of a field in your records, e.g. user_id=uid or item_id=event.product.id; repeat it for several.",
        metavar="OURS=THEIRS",
        option="field",
        common=True,
    )
    event_types: tuple[str, ...] = setting(
        (), "Train only on events of this type; repeat it for several."
    )
    deletion_types: tuple[str, ...] = setting(
        (),
        "Events of this type, e.g. item_deleted, say that their item does not exist any more: it is forgotten. They "
        "need no user; repeat it for several.",
    )
    catalogue_types: tuple[str, ...] = setting(
        (),
        "Events of this type, e.g. item, are catalogue events: they create, describe or delete their item, and need no "
        "user; repeat it for several.",
    )
    min_rating: float | None = setting(
        None, "Train only on events with at least this rating."
    )
    max_id_length: int = expert_setting(
        256, "Maximum length of an id.", at_least=1, unit="characters"
    )
    max_features: int = expert_setting(
        64,
        "Maximum number of features of a user, and of an item, in one event.",
        at_least=1,
    )
    max_feature_length: int = expert_setting(
        256,
        "Maximum length of a feature's name or category.",
        at_least=1,
        unit="characters",
    )
    max_record_bytes: int = expert_setting(
        1 << 20,
        "Maximum size of a record's value.",
        at_least=1,
        at_most=MAX_RECORD_BYTES,
        unit="bytes",
    )
    max_events_per_record: int = expert_setting(
        10_000, "Maximum number of events in one record (an array).", at_least=1
    )

    def name_of(self, field: str) -> str:
        """What the topic calls one of our fields."""
        return self.fields.get(field, field)

    def problems(self) -> list[str]:
        found = [*super().problems(), *self._field_problems()]
        if not all(self.event_types):
            found.append(
                f"event-type is {self.event_types!r}: each must be text that is not empty"
            )
        taken = set(self.event_types)
        for option, given in (
            ("deletion-type", self.deletion_types),
            ("catalogue-type", self.catalogue_types),
        ):
            if not all(given) or set(given) & taken:
                found.append(
                    f"{option} is {given!r}: each must be text that is not empty, and of no other kind"
                )
            taken |= set(given)
        return found

    def _field_problems(self) -> Iterator[str]:
        for ours, theirs in self.fields.items():
            if ours not in FIELDS:
                yield f"field: there is no field {ours!r}, only {', '.join(FIELDS)}"
            if (
                not isinstance(theirs, str)
                or not theirs
                or any(c in '"\\' or c < " " for c in theirs)
            ):
                yield f"field: {ours} cannot be called {theirs!r}: no quotes, backslashes or control characters"
        ours_of: dict[str, list[str]] = {}
        for ours in FIELDS:
            ours_of.setdefault(self.name_of(ours), []).append(ours)
        for theirs, several in ours_of.items():
            if len(several) > 1:
                yield f"field: {theirs!r} is the name of several fields: {', '.join(several)}"


@dataclass(frozen=True, kw_only=True)
class PipelineSettings(Settings):
    """How micro-batches are cut, evaluated and saved."""

    heading: ClassVar[str] = "Run"
    save_at_start: ClassVar[bool] = False
    """Whether a checkpoint is saved before anything is trained, as a start from nothing
    would begin elsewhere.
    """

    batch_size: int = setting(512, "Number of events in a micro-batch.", at_least=1)
    max_age_s: float = setting(
        1.0, "A batch that is not full is trained when its oldest event has waited this long; 0: never.",
        at_least=0, unit="seconds",
    )  # fmt: skip
    max_queued_events: int = expert_setting(
        16_384, "Reading ahead pauses while this many events wait.", at_least=1
    )
    until_end: bool = setting(
        False,
        "Stop at the end that the stream has now, in all partitions that no other trainer reads.",
    )
    max_events: int | None = setting(None, "Stop after this many events.", at_least=1)
    evaluation_share: float = expert_setting(
        0.02,
        "Share of the time spent on ranking events before they are trained; 0: none.",
        at_least=0,
        at_most=1,
    )
    checkpoint_every_s: float = setting(
        60.0, "Time between checkpoints; 0: none by time.", at_least=0, unit="seconds"
    )
    checkpoint_every_events: int | None = setting(
        None, "Events between checkpoints.", at_least=1
    )
    keep_checkpoints: int = setting(3, "Number of checkpoints to keep.", at_least=1)
    from_checkpoint: Path | None = setting(
        None,
        "Checkpoint to start from, a .base or .delta file, instead of the newest; later ones are superseded.",
        if_none="the newest",
    )
    checkpoint_dir: Path | None = setting(
        None, "Directory of the checkpoints.", if_none="<data-dir>/checkpoints"
    )
    embedded_retention_mb: int = expert_setting(
        1_000,
        "Size of the embedded log from which on what every consumer group has committed is removed; 0: never.",
        at_least=0,
        unit="megabytes",
    )
    dead_letters: str | None = setting(
        None,
        "Topic (Kafka) or file (a name with a slash, or that ends with .jsonl) for records that are not valid events.",
        if_none="<topic>.dead-letters",
        metavar="NAME",
    )
    max_dead_letter_share: float = setting(
        0.5, "Pause before training and committing while more than this share of the last thousand records are dead "
        "letters.", at_least=0, at_most=1, metavar="SHARE",
    )  # fmt: skip
    accept_dead_letters: bool = setting(
        False, "Go on however many dead letters there are, also if no record is an event."
    )  # fmt: skip
    threads: int | None = setting(
        None,
        "Number of CPU threads of the training step.",
        at_least=1,
        if_none="all cores",
    )


@dataclass(frozen=True, kw_only=True)
class SharingSettings(Settings):
    """What several trainers of one model share through Redis."""

    heading: ClassVar[str] = "Sharing"

    redis_url: str | None = setting(
        None,
        "Redis through which trainers share: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://.",
    )
    model_name: str = setting(
        "default", "Name of the model; several may share a Redis.", option="model"
    )
    redis_namespace: str = setting(
        "streamer", "Prefix of all keys in Redis, without colons."
    )
    share_every_s: float = expert_setting(
        1.0, "Time between exchanges with Redis; limits how old the view of other trainers is.",
        at_least=0.001, at_most=10, unit="seconds")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PublishSettings(Settings):
    """Where servers find what is learned."""

    heading: ClassVar[str] = "Publishing"

    publish_dir: Path | None = setting(
        None,
        "Directory to publish changes to, for `streamer serve --from`.",
        common=True,
    )
    publish_topic: str | None = setting(
        None, "Kafka topic to publish changes to, of one partition.", metavar="TOPIC"
    )
    publish_every_s: float = setting(
        0.5, "Time between published deltas.", at_least=0.01, unit="seconds"
    )

    def problems(self) -> list[str]:
        found = super().problems()
        if self.publish_dir is not None and self.publish_topic is not None:
            found.append("publish-dir and publish-topic: give one of them")
        return found


@dataclass(frozen=True, kw_only=True)
class GroupSettings(Settings):
    """Several processes that train one model together."""

    heading: ClassVar[str] = "Group"

    trainers: int | None = setting(
        None,
        "Train with this many processes together: the model is the same for any number.",
        at_least=1,
        if_none="one, outside of any group",
        common=True,
    )
    parts: int = expert_setting(
        4, "In how many parts a group computes each step: a power of two, and at least the number of trainers.",
        at_least=1, at_most=1024)  # fmt: skip
    group_timeout_s: float = setting(
        15.0, "A trainer that the others have not heard of for this long is given up.", at_least=1, unit="seconds"
    )  # fmt: skip

    def problems(self) -> list[str]:
        found = super().problems()
        if self.parts & (self.parts - 1):
            found.append(f"parts is {self.parts}: choose a power of two")
        if self.trainers is not None and self.trainers > self.parts:
            found.append(
                f"parts is {self.parts}: there must be at least as many as trainers ({self.trainers})"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class OutputSettings(Settings):
    """What people and programs see of a run."""

    heading: ClassVar[str] = "Output"

    log_format: Literal["auto", "panel", "plain", "json"] = setting(
        "auto", "A live panel at a terminal, plain lines elsewhere."
    )
    metrics_port: int | None = setting(
        None,
        "Serve the live page, /metrics, /healthz and /readyz on this port; 0 for any free one.",
        at_least=0,
        at_most=65_535,
        common=True,
    )
    metrics_host: str = setting(
        "127.0.0.1", "Address to serve them on; 0.0.0.0 for all of this machine."
    )
    metrics_show_values: bool = setting(
        False, "Let the live page show everybody how dead letters begin."
    )


@dataclass(frozen=True, kw_only=True)
class RunSettings(
    LearnerSettings,
    OutputSettings,
    PublishSettings,
    GroupSettings,
    SharingSettings,
    PipelineSettings,
    EventSettings,
    StreamSettings,
):
    """All settings of `streamer run`."""

    def problems(self) -> list[str]:
        found = super().problems()
        catalogue = self.catalogue_topic or self.catalogue_types
        if catalogue and self.redis_url:
            found.append(
                "redis-url: each trainer would read a part of the catalogue only; train with one, or without it"
            )
        if self.trainers is None:
            return found
        if self.source:
            found.append(
                "trainers: a file cannot be read by several; write it into a topic with `streamer replay`"
            )
        if self.resampler == "multinomial":
            found.append(
                "trainers: a group draws by systematic resampling only; leave out resampler"
            )
        return found

    @property
    def save_at_start(self) -> bool:  # type: ignore[override]
        return self.start == "latest" or self.start_timestamp is not None

    @property
    def checkpoints(self) -> Path:
        """The checkpoint directory."""
        return self.checkpoint_dir or self.data_dir / "checkpoints"
