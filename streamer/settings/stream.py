"""Where events come from."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from streamer.model.setting import Settings, setting


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
    def log_names(self) -> tuple[str, ...]:
        """The names of what is read, as its partitions have them."""
        if self.source:
            return ("stdin" if self.source == "-" else Path(self.source).name,)
        return self.all_topics

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
