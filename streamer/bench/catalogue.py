"""Every bench of `streamer bench` with its settings. Nothing here imports torch:
`--help` must be quick.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from streamer.bench.base import Bench
from streamer.model.setting import setting
from streamer.model.settings import LearnerSettings

BROKERS = "Kafka brokers; without them only the embedded log is measured."


@dataclass(frozen=True, kw_only=True)
class StepBench(Bench):
    """Time of a training step, forward + backward + update, for every method.

    `plain` is the same method with whole matrices, torch.multinomial, gather and dense
    Adam, as the paper's authors write it. Rounds are interleaved, so that all methods
    meet the same machine.
    """

    name: ClassVar[str] = "step"
    module: ClassVar[str] = "streamer.bench.step"

    batch_size: int = setting(2048, "Events of a micro-batch.", at_least=1)
    cache_size: int = setting(2048, "Items in the cache.", at_least=1)
    dim: int = setting(32, "Size of the embeddings.", at_least=1)
    items: int = setting(40_988, "Items in the table.", at_least=1)
    users: int = setting(29_858, "Users in the table.", at_least=1)
    many_items: int = setting(
        10_000_000, "Items of the large table; 0 leaves it out.", at_least=0
    )
    threads: int | None = setting(
        None, "Threads of torch.", at_least=1, if_none="torch decides"
    )
    rounds: int = setting(
        10, "Interleaved rounds; the best of each method counts.", at_least=1
    )


@dataclass(frozen=True, kw_only=True)
class IngestBench(Bench):
    """Events per second of reading alone, of training alone, and of the whole line,
    with the defaults of `run`.
    """

    name: ClassVar[str] = "ingest"
    module: ClassVar[str] = "streamer.bench.ingest"

    events: int = setting(40_000, "Events of the stream.", at_least=1)
    batch_size: int | None = setting(
        None, "Events of a micro-batch.", at_least=1, if_none="that of `streamer run`"
    )
    bootstrap_servers: str | None = setting(None, BROKERS, option="bootstrap-servers")
    rounds: int = setting(6, "Interleaved rounds; the best of each counts.", at_least=1)


@dataclass(frozen=True, kw_only=True)
class ReplayBench(Bench):
    """Events per second from a file to events, and from there to a topic, each beside
    what one would write by hand.
    """

    name: ClassVar[str] = "replay"
    module: ClassVar[str] = "streamer.replay.bench"

    events: int = setting(1_000_000, "Events of the log.", at_least=1)
    plain_events: int = setting(
        100_000,
        "Of these, for the client's own producer, which takes long.",
        at_least=1,
    )
    bootstrap_servers: str | None = setting(None, BROKERS, option="bootstrap-servers")
    rounds: int = setting(3, "Interleaved rounds; the best of each counts.", at_least=1)


@dataclass(frozen=True, kw_only=True)
class StoreBench(Bench):
    """What sharing through Redis costs a training step, and how long the log grows
    while a reader is stopped.

    Trainers are processes that train real steps. `share_of_step` is what the store
    takes of a trainer for each step (the training thread inside the store's calls, and
    all of the exchange thread) over what a step alone takes (all threads, divided by
    how many train); both are times on a core. The ratio beside it is the direct
    comparison: the median step with Redis over the median step alone, on the wall, by
    turns in the same processes. The server's time is not a trainer's, and has its own
    column.
    """

    name: ClassVar[str] = "store"
    module: ClassVar[str] = "streamer.bench.store"

    redis_url: str | None = setting(
        None, "Redis to use; without it one is started: redis-server or valkey-server."
    )
    trainers: tuple[int, ...] = setting(
        (1, 2, 4), "Numbers of trainers, separated by commas.", at_least=1
    )
    items: tuple[int, ...] = setting(
        (40_988, 1_000_000), "Numbers of items, separated by commas.", at_least=1
    )
    batch_size: int = setting(2048, "Events of a micro-batch.", at_least=1)
    cache_size: int = setting(2048, "Items in the cache.", at_least=1)
    dim: int = setting(32, "Size of the embeddings.", at_least=1)
    rounds: int = setting(3, "Rounds with and without Redis, by turns.", at_least=1)
    seconds: float = setting(6.0, "Length of a round.", above=0, unit="seconds")
    entries: int = setting(
        1500, "Written to the log while one trainer is stopped.", at_least=1
    )


@dataclass(frozen=True, kw_only=True)
class MetricsBench(Bench):
    """What all metrics cost: their share of a step of the whole line, beside the same
    line without them.
    """

    name: ClassVar[str] = "metrics"
    module: ClassVar[str] = "streamer.bench.metrics"

    steps: int = setting(300, "Steps of each kind.", at_least=1)
    batch_size: int = setting(512, "Events of a micro-batch.", at_least=1)
    items: int = setting(40_000, "Items of the stream.", at_least=1)
    users: int = setting(20_000, "Users of the stream.", at_least=1)


@dataclass(frozen=True, kw_only=True)
class MemoryBench(Bench):
    """Bytes of memory that a user and an item take, by part, of a long-tailed stream
    with the defaults of `run`.

    Three of four users and half of the items come with their first event; the others
    come again in proportion to the events that they had. `rss_over_parts` is what the
    process grew by over the sum of all parts.
    """

    name: ClassVar[str] = "memory"
    module: ClassVar[str] = "streamer.bench.memory"

    events: int = setting(300_000, "Events of the stream.", at_least=1)
    new_users: float = setting(
        0.75, "Share of events of a user who never came before.", above=0, at_most=1
    )
    new_items: float = setting(
        0.48, "Share of events of an item that never came before.", above=0, at_most=1
    )
    optimizer: str = setting(
        LearnerSettings.optimizer, "Optimizer of the embedding tables."
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointBench(Bench):
    """What checkpoints cost: pause, bytes, seconds and memory, and training beside them
    over training without.

    A share of all ids has events. What a checkpoint costs is measured by turns with one
    and without, and counted once in the time between checkpoints. The full one before
    it is written in the background, and measured too; so is a restart.
    """

    name: ClassVar[str] = "checkpoint"
    module: ClassVar[str] = "streamer.bench.checkpoint"

    ids: tuple[int, ...] = setting(
        (400_000, 1_000_000, 4_000_000, 16_000_000),
        "Numbers of users and items together, separated by commas.",
        at_least=1000,
    )
    changed_share: float = setting(
        0.01, "Share of the ids that have events.", above=0, at_most=1
    )
    every_s: float = setting(20.0, "Time between checkpoints.", above=0, unit="seconds")
    rounds: int = setting(5, "Turns with a checkpoint and without.", at_least=1)
    directory: Path | None = setting(
        None, "Where to write.", if_none="a temporary directory"
    )


@dataclass(frozen=True, kw_only=True)
class ServeBench(Bench):
    """Requests of recommendations: how many a second, and how long one waits, beside a
    plain handler around faiss.

    The server is a process of its own, as `streamer serve` starts it; requests come
    from this one. Waiting is measured with an open loop: requests are due at a steady
    rate, and one that is sent late has waited. `alternative` is a FastAPI handler
    around `faiss.IndexFlatIP` over the same number of vectors, which knows nothing but
    vectors.
    """

    name: ClassVar[str] = "serve"
    module: ClassVar[str] = "streamer.bench.serve"

    items: int = setting(
        40_000, "Items of the smaller model; its trainer runs beside it.", at_least=1000
    )
    many_items: int = setting(
        1_000_000, "Items of the larger one; 0 leaves it out.", at_least=0
    )
    rate: float = setting(300.0, "Requests a second of the open loop.", above=0)
    events_per_second: float = setting(
        1000.0, "Events a second that the trainer beside it learns.", above=0
    )
    seconds: float = setting(
        15.0, "Length of each measurement.", above=0, unit="seconds"
    )
    connections: int = setting(16, "Connections at a time.", at_least=1)


@dataclass(frozen=True, kw_only=True)
class FreshnessBench(Bench):
    """From an event to the first moment at which a request sees it, with writer,
    trainer and server side by side.

    `recent_items_s`: the event is among its user's recent items; `new_item_s`: its
    item, which was new, can be recommended; `vectors_s`: its vectors are updated. Each
    since the record was written.
    """

    name: ClassVar[str] = "freshness"
    module: ClassVar[str] = "streamer.bench.freshness"

    events_per_second: float = setting(1000.0, "Events written per second.", above=0)
    new_items_per_second: float = setting(
        10.0, "Of these, of items that nobody had before.", at_least=0
    )
    items: int = setting(20_000, "Items of the other events.", at_least=1)
    users: int = setting(10_000, "Users.", at_least=1)
    seconds: float = setting(
        30.0, "Length of the measurement.", above=0, unit="seconds"
    )
    warm_up: float = setting(
        30.0, "Time before it, after the first answer.", at_least=0, unit="seconds"
    )
    bootstrap_servers: str | None = setting(
        None,
        "Kafka brokers; without them the embedded log is used.",
        option="bootstrap-servers",
    )


@dataclass(frozen=True, kw_only=True)
class ScaleBench(Bench):
    """Events per second of groups of trainers in lockstep, one thread each, and what
    communication takes of a step.

    All train the same events with the defaults of `run`, by turns. `two_ranks_over_one`
    and `communication_share` are those of the largest batch with local negatives; `one`
    is a group of one, `plain` a trainer without a group. On a machine that has other
    work the wall says little: `on_cores` compares what the busiest rank took of a core.
    """

    name: ClassVar[str] = "scale"
    module: ClassVar[str] = "streamer.bench.scale"

    trainers: tuple[int, ...] = setting(
        (1, 2), "Numbers of trainers, separated by commas.", at_least=1
    )
    batch_sizes: tuple[int, ...] = setting(
        (2048, 8192), "Events of a step, of all trainers together.", at_least=64
    )
    items: int = setting(40_988, "Items of the stream.", at_least=1)
    users: int = setting(29_858, "Users of the stream.", at_least=64)
    parts: int = setting(
        4, "In how many parts a step is computed; see `streamer run`.", at_least=1
    )
    steps: int = setting(8, "Steps of a turn.", at_least=1)
    rounds: int = setting(5, "Turns of each; the median counts.", at_least=1)


BENCHES: tuple[type[Bench], ...] = (
    StepBench,
    IngestBench,
    ReplayBench,
    StoreBench,
    MetricsBench,
    CheckpointBench,
    MemoryBench,
    ServeBench,
    FreshnessBench,
    ScaleBench,
)
