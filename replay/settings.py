"""Settings of `streamer replay` and `compare`: which log, where events go, and what is
measured.

What a setting is, and how text becomes one: `streamer.model.setting`. Nothing here
loads DuckDB or torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Literal

from streamer.model.setting import Settings, changed, setting
from streamer.settings import StreamSettings

FIELDS = ("user_id", "item_id", "timestamp", "rating", "event_type")
"""The fields of an event that a column of a log can hold, by our own names."""
DEFAULT_PARTITIONS = 4
"""Of a new topic of the embedded log."""


@dataclass(frozen=True, kw_only=True)
class ReadingSettings(Settings):
    """How a log is read; the defaults read it as its format says."""

    heading: ClassVar[str] = "Log"

    columns: Mapping[str, str] = setting(
        {},
        f"Column of a field, e.g. user_id=uid, or its number, user_id=1; ours are {', '.join(FIELDS)}. "
        "Repeat it for several.",
        metavar="OURS=THEIRS",
        option="column",
        also="field",
    )
    item_features: tuple[str, ...] | None = setting(
        None,
        "Column with a feature of the item; price:float for a number. Repeat it for several.",
        if_none="those that the data set is known for",
        metavar="COLUMN",
    )
    user_features: tuple[str, ...] | None = setting(
        None,
        "The same for the user.",
        if_none="those that the data set is known for",
        metavar="COLUMN",
    )
    seed: int = setting(
        0,
        "Seed for shuffling events of equal time, and for --sample-users.",
        at_least=0,
    )
    delimiter: str | None = setting(
        None, "Text between columns.", if_none="as the file shows"
    )
    header: bool | None = setting(
        None, "Whether the first line names the columns.", if_none="as the file shows"
    )
    memory_limit: str = setting(
        "1GB",
        "Memory for reading and sorting; the rest goes to disk, where TMPDIR says.",
    )
    threads: int | None = setting(
        None, "Number of CPU threads.", at_least=1, if_none="one for each core"
    )

    def problems(self) -> list[str]:
        found = super().problems()
        for field, column in self.columns.items():
            if field not in FIELDS:
                found.append(
                    f"column: there is no field {field!r}, only {', '.join(FIELDS)}"
                )
            if not column:
                found.append(f"column: {field} needs the name of a column")
        if self.delimiter is not None and not 1 <= len(self.delimiter.encode()) <= 4:
            found.append(
                f"delimiter is {self.delimiter!r}: it must have 1 to 4 characters"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class LogSettings(ReadingSettings):
    """Which events of a log make the stream, and in which order; by default all of
    them, in the order of their times.

    The filters are applied in the order in which they stand here; `limit` cuts the
    finished stream.
    """

    heading: ClassVar[str] = "Filters, in this order"

    event_types: tuple[str, ...] = setting(
        (), "Only events of this type. Repeat it for several."
    )
    min_rating: float | None = setting(
        None, "Only events with at least this rating.", if_none="as the data set says"
    )
    since: str | None = setting(
        None,
        "Only events at this time or later: ISO 8601 (UTC unless it says otherwise), or seconds.",
        metavar="TIME",
    )
    until: str | None = setting(None, "Only events before this time.", metavar="TIME")
    sample_users: float | None = setting(
        None,
        "Only this number of users, or this share of them (0.1), chosen by the seed.",
        above=0,
        metavar="N",
    )
    k_core: int = setting(
        0,
        "Only users and items with at least K events each among the events that remain.",
        at_least=0,
        metavar="K",
    )
    limit: int | None = setting(
        None, "Only the first events, up to this number.", at_least=1
    )

    def problems(self) -> list[str]:
        found = super().problems()
        sample = self.sample_users
        if (
            sample is not None
            and 1 <= sample < math.inf
            and not float(sample).is_integer()
        ):
            found.append(
                f"sample-users is {sample}: it must be a share below 1, or a whole number of users"
            )
        return [*found, *self._time_problems()]

    def _time_problems(self) -> Iterator[str]:
        times = {}
        for name, text in (("since", self.since), ("until", self.until)):
            if text is None:
                continue
            try:
                times[name] = parse_time(text)
            except ValueError:
                yield f"{name} is {text!r}: write 2014-11-11, 2014-11-11T08:30:00+08:00 or seconds since the epoch"
        if len(times) == 2 and times["since"] >= times["until"]:
            yield f"since is {self.since!r} and until is {self.until!r}: no time lies between"


def parse_time(text: str) -> float:
    """Seconds since the epoch of a text that is a number of them, or ISO 8601 (UTC
    unless it says otherwise).

    Raises:
        ValueError: it is neither.
    """
    try:
        seconds = float(text)
    except ValueError:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r} is not a time")
    return seconds


@dataclass(frozen=True, kw_only=True)
class WriteSettings(Settings):
    """Where events are written, and how fast."""

    heading: ClassVar[str] = "Writing"

    topic: str = setting("interactions", "Topic to write to.")
    data_dir: Path = changed(
        StreamSettings,
        "data_dir",
        StreamSettings.data_dir,
        help="Directory of the embedded log.",
    )
    partitions: int | None = setting(
        None,
        "Partitions of a new topic of the embedded log.",
        at_least=1,
        if_none=str(DEFAULT_PARTITIONS),
    )
    bootstrap_servers: str | None = changed(
        StreamSettings,
        "bootstrap_servers",
        None,
        help="Write to Kafka instead: host:port[,host:port].",
    )
    kafka: Mapping[str, str] = changed(StreamSettings, "kafka", {})
    kafka_config: Path | None = changed(StreamSettings, "kafka_config", None)
    restart: bool = setting(
        False,
        "Write all events again, also those that the same command has written before.",
    )
    resume: bool = setting(
        True,
        "Continue after the events that the same command has written before. --no-resume writes all again and records "
        "no progress: it needs neither transactions nor rights to Kafka's group and transactional ids "
        "streamer-replay-<name>.",
    )
    rate: float | None = setting(
        None, "Events per second.", above=0, if_none="as fast as possible"
    )
    speed: float | None = setting(
        None, "Multiple of real time: 60 writes an hour of events in a minute.", above=0
    )
    max_gap_s: float | None = setting(
        None, "With --speed: the longest pause between events.", above=0, unit="seconds"
    )

    ENVIRONMENT: ClassVar[tuple[str, ...]] = (
        "topic",
        "data_dir",
        "bootstrap_servers",
        "kafka",
        "kafka_config",
    )
    """Settings that environment variables may set, as for `streamer run`: they say
    where, not how fast.
    """

    def problems(self) -> list[str]:
        found = super().problems()
        if self.rate is not None and self.speed is not None:
            found.append("rate and --speed are two paces: give one of them")
        if self.max_gap_s is not None and self.speed is None:
            found.append("max-gap limits the pauses of --speed: give that too")
        return found


@dataclass(frozen=True, kw_only=True)
class PathSettings(Settings):
    """Which log is written."""

    heading: ClassVar[str] = "Log"

    path: str = setting(
        "", "File, directory or pattern; plain or compressed. Required.", metavar="PATH"
    )
    catalogue_topic: str | None = setting(
        None,
        "First write catalogue events of the items that a file beside the log describes, to this topic; it may be that "
        "of the events, where `streamer run` tells them apart by --catalogue-type catalogue.",
        metavar="TOPIC",
    )

    def problems(self) -> list[str]:
        found = super().problems()
        if not self.path:
            found.append("path is not given: name a file, a directory or a pattern")
        return found


@dataclass(frozen=True, kw_only=True)
class ReplaySettings(WriteSettings, LogSettings, PathSettings):
    """All settings of `streamer replay <data set>`."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(LogSettings):
    """Which runs `streamer compare` makes, and on which log."""

    heading: ClassVar[str] = "Runs"

    data: str = setting("", "Log to read. Required.", metavar="PATH")
    format: str | None = setting(
        None,
        "Format of the log, one that `streamer replay --help` lists.",
        if_none="guessed",
    )
    protocol: Literal["offline", "prequential", "sessions", "periods"] = setting(
        "prequential",
        "Prequential: the pipeline of `streamer run`, each event ranked before it is trained. Offline: the paper's. "
        "Sessions: learn sessions, freeze, predict the last item of each line of the test. Periods: the files of a "
        "pattern, each tested by what was learned of those before.",
    )
    test: str | None = setting(
        None,
        "What the log is tested on: of sessions, prefixes with their next item; of offline, pairs of the same format.",
        metavar="PATH",
        if_none="a share of the log",
    )
    sample: int | None = setting(
        None,
        "Sessions and periods: test only this number of prefixes.",
        at_least=1,
        if_none="all",
    )
    seeds: int = setting(1, "Number of seeds, from 0.", at_least=1)
    changes: tuple[str, ...] = setting(
        (),
        "A setting: prequential has the options of `streamer run` for the model, its method and learning, and "
        "batch_size, ks, delay_seconds, ...; offline has epochs, learning_rate, l2, dim, batch_size, "
        "cache_weight, draws, cache_size, ... Repeat it for several.",
        option="set",
        metavar="NAME=VALUE",
    )
    over: tuple[str, ...] = setting(
        (),
        "A setting and its values, one run for each; lambda is the cache's weight. Repeat it for several settings, of "
        "which one at a time is changed.",
        option="over",
        metavar="NAME=V1,V2,...",
    )

    def problems(self) -> list[str]:
        found = super().problems()
        if not self.data:
            found.append("data is not given: name a log")
        if self.protocol == "sessions" and self.test is None:
            found.append("test is not given: name the prefixes to test on")
        if self.protocol in ("prequential", "periods") and self.test is not None:
            found.append(f"test: the {self.protocol} protocol has none, leave it out")
        return found

    @property
    def log_name(self) -> str:
        """What figures call the log: `logs/gowalla.inter.gz` is gowalla."""
        return Path(self.data).name.split(".")[0]
