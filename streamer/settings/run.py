"""How a run trains, saves, shares, publishes and shows what it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from streamer.model.setting import Settings, expert_setting, setting
from streamer.model.settings import LearnerSettings
from streamer.settings.events import EventSettings
from streamer.settings.stream import StreamSettings


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
    max_events: int | None = expert_setting(
        None, "Stop after this many events.", at_least=1
    )
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
