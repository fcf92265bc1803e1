"""What reading costs the trainer: ingest alone, training alone, and the whole line,
with the defaults of a run.

Beside it the whole line where every second record is a dead letter, and on Kafka where
it reads what is not committed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from streamer.bench.base import (
    PARTITIONS,
    interleaved,
    kafka_topics,
    long_tailed,
    seconds,
)
from streamer.bench.catalogue import IngestBench
from streamer.build import build_pipeline, source_factory
from streamer.errors import StreamerError
from streamer.event import EventDecoder, encode
from streamer.ingest.batcher import Batcher, MicroBatch
from streamer.ingest.ingest import Ingest
from streamer.ingest.reader import Reader
from streamer.ingest.stop_condition import StopCondition
from streamer.learner import Learner
from streamer.metrics.observer import Observer
from streamer.settings import RunSettings
from streamer.sources.embedded.log import EmbeddedLog

TOPIC = "bench"
HALF_BAD = "bench-half-bad"
Record = tuple[bytes | None, bytes, int]


def measure(bench: IngestBench) -> dict[str, Any]:
    """Events per second by kind of source; `whole_line_over_slower` compares the whole
    line with its slower part.
    """
    records = _records(bench.events)
    half_bad = [
        (key, value[: len(value) // (1 + k % 2)], time_ms)
        for k, (key, value, time_ms) in enumerate(records)
    ]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        with EmbeddedLog(directory) as log:
            for topic, written in ((TOPIC, records), (HALF_BAD, half_bad)):
                log.create_topic(topic, PARTITIONS)
                log.append(topic, written)
        result = {"embedded": _rates(bench, Path(directory), TOPIC, HALF_BAD)}
        if servers := bench.bootstrap_servers:
            topics = stack.enter_context(kafka_topics(servers, 3))
            _produce(servers, topics[0], records)
            _produce(servers, topics[1], half_bad)
            stream = {"bootstrap_servers": servers, "dead_letters": topics[2]}
            result["kafka"] = _rates(
                bench, Path(directory), topics[0], topics[1], **stream
            )
    return {**result, "events": bench.events, "rounds": bench.rounds}


def _rates(
    bench: IngestBench, data_dir: Path, topic: str, half_bad: str, **stream: Any
) -> dict[str, float]:
    if bench.batch_size:
        stream = stream | {"batch_size": bench.batch_size}

    def settings(**changes: Any) -> RunSettings:
        """The defaults of `streamer run`, with a group and checkpoints of their own
        each time.
        """
        name = f"bench-{uuid4().hex[:12]}"
        own = {"group_id": name, "checkpoint_dir": data_dir / name, "topics": (topic,)}
        return RunSettings(data_dir=data_dir, until_end=True, **stream | own | changes)

    batches: list[MicroBatch] = []
    _read(settings(), batches)
    _train(settings(), batches)  # compiled loops are loaded, the allocator has grown
    parts = {
        "ingest_only": lambda: [_read(settings(), [])],
        "train_only": lambda: [_train(settings(), batches)],
        "whole_line": lambda: [_run(settings(), bench.events)],
        "whole_line_half_bad": lambda: [
            _run(settings(topics=(half_bad,)), bench.events)
        ],
    }
    if "bootstrap_servers" in stream:
        uncommitted = {"isolation_level": "read_uncommitted"}
        parts["whole_line_read_uncommitted"] = lambda: [
            _run(settings(kafka=uncommitted), bench.events)
        ]
    best = {
        name: bench.events / min(taken)
        for name, taken in interleaved(parts, bench.rounds).items()
    }
    over_slower = best["whole_line"] / min(best["ingest_only"], best["train_only"])
    return {name: round(rate, 1) for name, rate in best.items()} | {
        "whole_line_over_slower": round(over_slower, 3)
    }


class _Stopwatch(Observer):
    """Runs from the first poll that finds records, after a group is joined, to the last
    batch.
    """

    def __init__(self) -> None:
        self._began = self._ended = 0.0

    def timed(self, phase: str, seconds: float) -> None:
        if phase == "poll" and not self._began:
            self._began = time.perf_counter() - seconds

    def trained(self, batch: MicroBatch) -> None:
        self._ended = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._ended - self._began


def _read(settings: RunSettings, batches: list[MicroBatch]) -> float:
    """Seconds to poll, decode and cut all events into batches, which are appended to
    the list.
    """
    watch = _Stopwatch()
    ingest = Ingest(Batcher(settings.batch_size, settings.max_age_s or None))
    source = source_factory(settings)
    decoder = EventDecoder(settings, settings.catalogue_topic)
    end = StopCondition(until_end=True)
    reader = Reader(
        source, decoder, ingest, end, settings.max_queued_events, timed=watch.timed
    )
    reader.start()
    while not ingest.finished:
        with ingest.batch(0.2) as batch:
            if batch is not None and len(batch):
                batches.append(batch)
                watch.trained(batch)
    reader.stop()
    return watch.seconds


def _train(settings: RunSettings, batches: Iterable[MicroBatch]) -> float:
    """Seconds to learn from all events, given as batches in memory."""
    learner = Learner(settings)
    return sum(seconds(learner.learn_batch, batch) for batch in batches)


def _run(settings: RunSettings, events: int) -> float:
    """Seconds of the real line from the first poll to the last step; its last
    checkpoint is not counted.
    """
    watch = _Stopwatch()
    pipeline = build_pipeline(settings)
    pipeline.watch(watch)
    pipeline.run()
    if (consumed := pipeline.accounting.consumed) != events:
        raise StreamerError(
            f"the line consumed {consumed:,} of {events:,} events: there is nothing to compare"
        )
    return watch.seconds


def _records(events: int) -> list[Record]:
    """A long-tailed stream in the wire format: key, value, time."""
    rng = np.random.default_rng(0)
    items = long_tailed(rng, 20_000, events, 0.8)
    users = rng.integers(0, 5_000, events)
    now_s = (
        int(time.time()) - events
    )  # a broker removes records by their age, however new they are to it
    return [
        (b"%d" % u, encode(f"user-{u}", f"item-{i}", now_s + k), (now_s + k) * 1000)
        for k, (u, i) in enumerate(zip(users.tolist(), items.tolist(), strict=True))
    ]


def _produce(servers: str, topic: str, records: Iterable[Record]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=servers.split(","), linger_ms=20, batch_size=1 << 18
    )
    for key, value, timestamp_ms in records:
        producer.send(topic, value, key=key, timestamp_ms=timestamp_ms)
    producer.close()
