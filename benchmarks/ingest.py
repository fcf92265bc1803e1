"""Events per second of reading alone, of training alone, and of the whole line, with
the defaults of `streamer run`.

Beside it the whole line where every second record is a dead letter, and on Kafka where
it reads what is not committed.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from kafka import KafkaProducer

from common import (
    PARTITIONS,
    add_brokers,
    interleaved,
    kafka_topics,
    long_tailed,
    new_parser,
    report,
    rounded,
    seconds,
)
from streamer.build import build_pipeline, source_factory
from streamer.errors import StreamerError
from streamer.event import EventDecoder, encode
from streamer.ingest.batcher import Batcher, MicroBatch
from streamer.ingest.ingest import Ingest
from streamer.ingest.reader import Reader, StopCondition
from streamer.learner import OnlineLearner
from streamer.metrics.observer import Observer
from streamer.settings import RunSettings
from streamer.sources.embedded.log import EmbeddedLog

TOPIC = "bench"
HALF_BAD = "bench-half-bad"
Record = tuple[bytes | None, bytes, int]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was found."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    add("--events", type=int, default=40_000, help="Events of the stream.")
    add("--batch-size", type=int, help="Events of a micro-batch, if not the default.")
    add("--rounds", type=int, default=6, help="By turns; the best of each counts.")
    add_brokers(parser, "without them only the embedded log is measured")
    report(measure, parser, arguments)


def measure(options: Namespace) -> dict[str, Any]:
    """Events per second by kind of source; `whole_line_over_slower` compares the whole
    line with its slower part.
    """
    records = _records(options.events)
    half_bad = list(records)
    for k in range(1, len(records), 2):
        key, value, time_ms = records[k]
        half_bad[k] = (key, value[: len(value) // 2], time_ms)

    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with EmbeddedLog(directory) as log:
            for topic, written in ((TOPIC, records), (HALF_BAD, half_bad)):
                log.create_topic(topic, PARTITIONS)
                log.append(topic, written)
        result["embedded"] = _Line(options, directory, TOPIC, HALF_BAD).rates()

        if servers := options.bootstrap_servers:
            with kafka_topics(servers, 3) as (topic, half_bad_topic, dead_letters):
                _produce(servers, topic, records)
                _produce(servers, half_bad_topic, half_bad)
                line = _Line(options, directory, topic, half_bad_topic)
                line.common["bootstrap_servers"] = servers
                line.common["dead_letters"] = dead_letters
                result["kafka"] = line.rates()
    return {**result, "events": options.events, "rounds": options.rounds}


class _Line:
    """The line from a topic to a learner, and its parts."""

    def __init__(
        self, options: Namespace, data_dir: Path, topic: str, half_bad: str
    ) -> None:
        self._events = options.events
        self._rounds = options.rounds
        self._data_dir = data_dir
        self._topic = topic
        self._half_bad = half_bad
        self.common: dict[str, Any] = {"accept_dead_letters": True}
        """Settings of all runs."""
        if options.batch_size:
            self.common["batch_size"] = options.batch_size

    def rates(self) -> dict[str, float]:
        """Events per second of the parts and of the whole line."""
        batches: list[MicroBatch] = []
        self._read(batches)
        self._train(batches)  # compiled loops are loaded, the allocator has grown
        parts: dict[str, Callable[[], list[float]]] = {
            "ingest_only": lambda: [self._read([])],
            "train_only": lambda: [self._train(batches)],
            "whole_line": lambda: [self._run()],
            "whole_line_half_bad": lambda: [self._run(topics=(self._half_bad,))],
        }
        if "bootstrap_servers" in self.common:
            kafka = {"isolation_level": "read_uncommitted"}
            parts["whole_line_read_uncommitted"] = lambda: [self._run(kafka=kafka)]

        rates = {}
        for name, taken in interleaved(parts, self._rounds).items():
            rates[name] = self._events / min(taken)
        slower = min(rates["ingest_only"], rates["train_only"])
        over_slower = rates["whole_line"] / slower
        return rounded(rates, 1) | {"whole_line_over_slower": round(over_slower, 3)}

    def _settings(self, **changes: Any) -> RunSettings:
        """The defaults of `streamer run`, with a group and checkpoints of their own
        each time.
        """
        name = f"bench-{uuid4().hex[:12]}"
        own = {
            "data_dir": self._data_dir,
            "checkpoint_dir": self._data_dir / name,
            "group_id": name,
            "topics": (self._topic,),
            "until_end": True,
        }
        return RunSettings(**self.common | own | changes)

    def _read(self, batches: list[MicroBatch]) -> float:
        """Seconds to poll, decode and cut all events into batches, which are appended
        to the list.
        """
        settings = self._settings()
        watch = _Stopwatch()
        ingest = Ingest(Batcher(settings.batch_size, settings.max_age_s or None))
        reader = Reader(
            source_factory(settings),
            EventDecoder(settings, settings.catalogue_topic),
            ingest,
            StopCondition(until_end=True),
            settings.max_queued_events,
        )
        reader.timed = watch.timed
        reader.start()
        while not ingest.finished:
            with ingest.batch(0.2) as batch:
                if batch is not None and len(batch):
                    batches.append(batch)
                    watch.trained(batch)
        reader.stop()
        return watch.seconds

    def _train(self, batches: Iterable[MicroBatch]) -> float:
        """Seconds to learn from all events, given as batches in memory."""
        learner = OnlineLearner(self._settings())
        return sum(seconds(learner.learn_batch, batch) for batch in batches)

    def _run(self, **changes: Any) -> float:
        """Seconds of the real line from the first poll to the last step; its last
        checkpoint is not counted.
        """
        watch = _Stopwatch()
        pipeline = build_pipeline(self._settings(**changes))
        pipeline.watch(watch)
        pipeline.run()
        consumed = pipeline.accounting.consumed
        if consumed != self._events:
            raise StreamerError(
                f"the line consumed {consumed:,} of {self._events:,} events: "
                "there is nothing to compare"
            )
        return watch.seconds


class _Stopwatch(Observer):
    """Runs from the first poll that finds records, after a group is joined, to the last
    batch.
    """

    def __init__(self) -> None:
        self._began = 0.0
        self._ended = 0.0

    def timed(self, phase: str, seconds: float) -> None:
        if phase == "poll" and not self._began:
            self._began = time.perf_counter() - seconds

    def trained(self, batch: MicroBatch) -> None:
        self._ended = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._ended - self._began


def _records(events: int) -> list[Record]:
    """A long-tailed stream in the wire format: key, value, time."""
    rng = np.random.default_rng(0)
    items = long_tailed(rng, 20_000, events, 0.8).tolist()
    users = rng.integers(0, 5_000, events).tolist()
    # A broker removes records by their age, however new they are to it.
    time_s = int(time.time()) - events
    records: list[Record] = []
    for user, item in zip(users, items, strict=True):
        value = encode(f"user-{user}", f"item-{item}", time_s)
        records.append((b"%d" % user, value, time_s * 1000))
        time_s += 1
    return records


def _produce(servers: str, topic: str, records: Iterable[Record]) -> None:
    producer = KafkaProducer(
        bootstrap_servers=servers.split(","), linger_ms=20, batch_size=1 << 18
    )
    for key, value, timestamp_ms in records:
        producer.send(topic, value, key=key, timestamp_ms=timestamp_ms)
    producer.close()


if __name__ == "__main__":
    main()
