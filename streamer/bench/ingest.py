"""What reading costs the trainer: ingest alone, training alone, and the whole line."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from streamer.build import build_pipeline, source_factory
from streamer.errors import StreamerError
from streamer.event import EventDecoder, encode
from streamer.ingest.batcher import Batcher, MicroBatch
from streamer.ingest.ingest import Ingest
from streamer.ingest.reader import Reader
from streamer.ingest.stop_condition import StopCondition
from streamer.learner import Learner
from streamer.settings import RunSettings
from streamer.sources.base import RebalanceListener, Source
from streamer.sources.embedded.log import EmbeddedLog

TOPIC = "bench"
PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """What `streamer bench ingest` was asked.

    Args:
        events: events of the stream.
        batch_size: events of a micro-batch; None for the default of `streamer run`.
        bootstrap_servers: a Kafka to measure too.
        rounds: interleaved rounds; the best of each counts.
    """

    events: int = 40_000
    batch_size: int | None = None
    bootstrap_servers: str | None = None
    rounds: int = 6


class IngestBench:
    """The same stream through the parts of the line and through the whole, with the defaults of `streamer run`."""

    def __init__(self, options: IngestOptions) -> None:
        self.options = options

    def run(self) -> dict[str, Any]:
        """Events per second by kind of source; `whole_line_over_slower` is the whole against the slower part."""
        records = _records(self.options.events)
        result: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as directory:
            with EmbeddedLog(directory) as log:
                log.create_topic(TOPIC, PARTITIONS)
                log.append(TOPIC, records)
            result["embedded"] = self._measure(data_dir=Path(directory), topics=(TOPIC,))
            if self.options.bootstrap_servers:
                with _kafka_topic(self.options.bootstrap_servers, records) as topic:
                    servers = self.options.bootstrap_servers
                    result["kafka"] = self._measure(
                        data_dir=Path(directory), topics=(topic,), bootstrap_servers=servers
                    )
        return {**result, "events": self.options.events, "rounds": self.options.rounds}

    def _measure(self, **stream: Any) -> dict[str, float]:
        if self.options.batch_size:
            stream["batch_size"] = self.options.batch_size
        batches = list(_read(_settings(**stream), _Stopwatch()))
        parts: dict[str, Callable[[], float]] = {
            "ingest_only": lambda: _ingest_only(_settings(**stream)),
            "train_only": lambda: _train_only(_settings(**stream), batches),
            "whole_line": lambda: _whole_line(_settings(**stream), self.options.events),
        }
        parts["train_only"]()  # compiled loops are loaded, the allocator has grown
        best = dict.fromkeys(parts, 0.0)
        for _ in range(self.options.rounds):
            for name, part in parts.items():
                gc.collect()
                best[name] = max(best[name], self.options.events / part())
        slower = min(best["ingest_only"], best["train_only"])
        rounded = {name: round(value, 1) for name, value in best.items()}
        return {**rounded, "whole_line_over_slower": round(best["whole_line"] / slower, 3)}


def _settings(data_dir: Path, **changes: Any) -> RunSettings:
    """The defaults of `streamer run`, with a group and checkpoints of their own each time."""
    name = f"bench-{uuid4().hex[:12]}"
    return RunSettings(data_dir=data_dir, until_end=True, group_id=name, checkpoint_dir=data_dir / name, **changes)


class _Stopwatch:
    """From the moment when a source is open, which for a group may take seconds, to when it is stopped."""

    def __init__(self) -> None:
        self._opened = self._stopped = 0.0

    def watched(self, make: Callable[[], Source]) -> Callable[[], Source]:
        """Makes the same sources, and starts when one is open."""

        def make_watched() -> Source:
            source = make()
            opening = source.open

            def open_and_start(listener: RebalanceListener) -> None:
                opening(listener)
                self._opened = time.perf_counter()

            source.open = open_and_start  # type: ignore[method-assign]
            return source

        return make_watched

    def stop(self) -> None:
        self._stopped = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._stopped - self._opened


def _read(settings: RunSettings, watch: _Stopwatch) -> Iterator[MicroBatch]:
    """Poll, decode and cut all events, and stop the watch."""
    ingest = Ingest(Batcher(settings.batch_size, settings.max_age_s or None))
    make_source, decoder = watch.watched(source_factory(settings)), EventDecoder(settings)
    reader = Reader(make_source, decoder, ingest, StopCondition(until_end=True), settings.max_queued_events)
    reader.start()
    while not ingest.finished:
        with ingest.batch(0.2) as batch:
            if batch is not None and len(batch):
                yield batch
    watch.stop()
    reader.stop()


def _ingest_only(settings: RunSettings) -> float:
    """Seconds to poll, decode and cut all events."""
    watch = _Stopwatch()
    for _ in _read(settings, watch):
        pass
    return watch.seconds


def _train_only(settings: RunSettings, batches: list[MicroBatch]) -> float:
    """Seconds to learn from all events, given as batches in memory."""
    learner = Learner(settings)
    started = time.perf_counter()
    for batch in batches:
        learner.learn_batch(batch)
    return time.perf_counter() - started


def _whole_line(settings: RunSettings, events: int) -> float:
    """Seconds of the real line from the first poll to the last step; its last checkpoint is not counted."""
    watch, pipeline = _Stopwatch(), build_pipeline(settings)
    pipeline._reader._make_source = watch.watched(pipeline._reader._make_source)
    close = pipeline.close

    def stop_and_close() -> None:
        watch.stop()
        close()

    pipeline.close = stop_and_close  # type: ignore[method-assign]
    pipeline.run()
    if (trained := pipeline.accounting.trained) != events:
        raise StreamerError(f"the line trained {trained:,} of {events:,} events: there is nothing to compare")
    return watch.seconds


def _records(events: int) -> list[tuple[bytes | None, bytes, int]]:
    """A long-tailed stream in the wire format: key, value, time."""
    rng = np.random.default_rng(0)
    weight = np.cumsum(1.0 / (np.arange(20_000) + 10.0) ** 0.8)
    items = np.searchsorted(weight, rng.random(events) * weight[-1])
    users = rng.integers(0, 5_000, events)
    now_s = int(time.time()) - events  # a broker removes records by their age, however new they are to it
    return [
        (b"%d" % u, encode(f"user-{u}", f"item-{i}", now_s + k), (now_s + k) * 1000)
        for k, (u, i) in enumerate(zip(users.tolist(), items.tolist(), strict=True))
    ]


@contextmanager
def _kafka_topic(servers: str, records: list[tuple[bytes | None, bytes, int]]) -> Iterator[str]:
    """A topic with these records, deleted afterwards."""
    from kafka import KafkaAdminClient, KafkaProducer
    from kafka.admin import NewTopic

    topic = f"streamer-bench-{uuid4().hex[:12]}"
    admin = KafkaAdminClient(bootstrap_servers=servers.split(","))
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])
    try:
        producer = KafkaProducer(bootstrap_servers=servers.split(","), linger_ms=20, batch_size=1 << 18)
        for key, value, timestamp_ms in records:
            producer.send(topic, value, key=key, timestamp_ms=timestamp_ms)
        producer.close()
        yield topic
    finally:
        admin.delete_topics([topic])
        admin.close()


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    lines = [f"{result['events']:,} events, best of {result['rounds']} interleaved rounds", ""]
    lines.append(f"{'source':10} {'ingest only':>12} {'train only':>12} {'whole line':>12} {'whole / slower':>15}")
    for name in ("embedded", "kafka"):
        if name in result:
            r = result[name]
            figures = f"{r['ingest_only']:12,.0f} {r['train_only']:12,.0f} {r['whole_line']:12,.0f}"
            lines.append(f"{name:10} {figures} {r['whole_line_over_slower']:15.2f}")
    return "\n".join(lines)
