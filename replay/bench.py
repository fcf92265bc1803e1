"""How fast logs become streams: from a file to events, and from there to a topic."""

from __future__ import annotations

import csv
import gc
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from streamer.replay.datasets import open_log
from streamer.replay.events import Events
from streamer.replay.producer import EmbeddedSink, EventSink, produce
from streamer.sources.kafka.settings import KafkaSettings

TOPIC = "bench"
PARTITIONS = 4
TMALL_HEADER = "user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type"
LOG, WITH_FEATURES = "log.csv", "user_log_format1.csv"
Part = Callable[[], object]
Parts = dict[str, dict[str, tuple[Part, int]]]
"""What is measured -> who does it, Streamer first -> how, and how many events."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What `streamer bench replay` was asked.

    Args:
        events: of the log.
        plain_events: of it that the client's own producer writes; it takes long.
        bootstrap_servers: a Kafka to measure too.
        rounds: interleaved rounds; the best of each counts.
    """

    events: int = 1_000_000
    plain_events: int = 100_000
    bootstrap_servers: str | None = None
    rounds: int = 3


class ReplayBench:
    """A made-up csv file on its way to a topic, and beside each part what one would write by hand."""

    def __init__(self, options: ReplayOptions) -> None:
        self.options = options

    def run(self) -> dict[str, Any]:
        """Events per second of each part, of its alternative, and the ratio."""
        with tempfile.TemporaryDirectory(prefix="streamer-bench-") as name:
            directory = Path(name)
            write_csv(directory / LOG, self.options.events)
            write_tmall(directory / WITH_FEATURES, self.options.events)
            events = list(_read(directory / LOG))
            parts = self._embedded(directory, events)
            if not (servers := self.options.bootstrap_servers):
                return self._measured(parts)
            with _topics(servers, 3 * self.options.rounds) as names:
                return self._measured(parts | self._kafka(servers, names, directory, events))

    def _embedded(self, directory: Path, events: list[Events]) -> Parts:
        path, count = directory / LOG, self.options.events
        return {
            "read": {
                "streamer": (lambda: list(_read(path)), count),
                "csv.DictReader, sorted": (lambda: read_by_hand(path), count),
            },
            "read_features": {
                "streamer": (lambda: list(_read(directory / WITH_FEATURES, "tmall")), count),
                "csv.DictReader, sorted": (lambda: features_by_hand(directory / WITH_FEATURES), count),
            },
            "embedded": {
                "streamer": (lambda: _to_embedded(directory / uuid4().hex, events), count),
                "json.dumps, a row an event in sqlite3": (
                    lambda: sqlite_by_hand(directory / uuid4().hex, events),
                    count,
                ),
            },
            "file_to_embedded": {"streamer": (lambda: _to_embedded(directory / uuid4().hex, _read(path)), count)},
        }

    def _kafka(self, servers: str, names: Iterator[str], directory: Path, events: list[Events]) -> Parts:
        count, plain = self.options.events, min(self.options.plain_events, self.options.events)
        return {
            "kafka": {
                "streamer": (lambda: _to_kafka(servers, next(names), events), count),
                "json.dumps, KafkaProducer.send": (
                    lambda: producer_by_hand(servers, next(names), _first(events, plain)),
                    plain,
                ),
            },
            "file_to_kafka": {"streamer": (lambda: _to_kafka(servers, next(names), _read(directory / LOG)), count)},
        }

    def _measured(self, parts: Parts) -> dict[str, Any]:
        best = {(part, way): 0.0 for part, ways in parts.items() for way in ways}
        for _ in range(self.options.rounds):
            for part, way in best:
                run, events = parts[part][way]
                gc.collect()
                best[part, way] = max(best[part, way], events / _seconds(run))
        return {
            "events": self.options.events,
            "rounds": self.options.rounds,
            **{part: self._compared({way: best[part, way] for way in ways}) for part, ways in parts.items()},
        }

    def _compared(self, rates: dict[str, float]) -> dict[str, Any]:
        ours, *others = rates.items()
        found: dict[str, Any] = {"events_per_second": round(ours[1])}
        for name, rate in others:
            found |= {
                "alternative": name,
                "alternative_events_per_second": round(rate),
                "ratio": round(ours[1] / rate, 2),
            }
        return found


def write_csv(path: Path, events: int) -> None:
    """A long-tailed log with a header, not sorted by time."""
    rng = np.random.default_rng(0)
    users, items = _users_and_items(rng, events)
    times = 1_600_000_000 + rng.integers(0, 10_000_000, events)
    rows = zip(users, items, times.tolist(), strict=True)
    path.write_text("user_id,item_id,timestamp\n" + "".join(f"user-{u},item-{i},{t}\n" for u, i, t in rows))


def write_tmall(path: Path, events: int) -> None:
    """The same as Tmall's log: a category, a seller and a brand for each item, and days for times."""
    rng = np.random.default_rng(0)
    users, items = _users_and_items(rng, events)
    days = (100 * rng.integers(5, 12, events) + rng.integers(1, 29, events)).tolist()
    rows = "".join(
        f"{u},{i},{i % 1600},{i % 5000},{i % 8400},{d},0\n" for u, i, d in zip(users, items, days, strict=True)
    )
    path.write_text(f"{TMALL_HEADER}\n{rows}")


def _users_and_items(rng: np.random.Generator, events: int) -> tuple[list[int], list[int]]:
    weight = np.cumsum(1.0 / (np.arange(50_000) + 10.0) ** 0.8)
    items: list[int] = np.searchsorted(weight, rng.random(events) * weight[-1]).tolist()
    return rng.integers(0, 30_000, events).tolist(), items


# ours -----------------------------------------------------------------------------------------------------------------


def _read(path: Path, kind: str = "csv") -> Iterator[Events]:
    with open_log(path, kind) as log:
        yield from log.batches()


def _to_embedded(directory: Path, events: Any) -> None:
    _write(EmbeddedSink(directory, TOPIC, PARTITIONS), events)


def _to_kafka(servers: str, topic: str, events: Any) -> None:
    from streamer.replay.kafka.sink import KafkaSink

    _write(KafkaSink(KafkaSettings(servers, topic), topic), events)


def _write(sink: EventSink, events: Any) -> None:
    sink.resume("bench")
    produce((chunk.records() for chunk in events), sink)
    sink.close()


# by hand --------------------------------------------------------------------------------------------------------------


def read_by_hand(path: Path) -> Events:
    """A dictionary a row, sorted by time, as columns."""
    with path.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["timestamp"]))
    users, items = [row["user_id"] for row in rows], [row["item_id"] for row in rows]
    return Events(users, items, [float(row["timestamp"]) for row in rows])


def features_by_hand(path: Path) -> Events:
    """The same of Tmall's log, with a dictionary of features for each event."""
    with path.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["time_stamp"]))
    days = {row["time_stamp"] for row in rows}
    seconds = {d: datetime.strptime(f"2014{int(d):04}+0000", "%Y%m%d%z").timestamp() for d in days}
    features = [{name: row[name] for name in ("cat_id", "seller_id", "brand_id")} for row in rows]
    users, items = [row["user_id"] for row in rows], [row["item_id"] for row in rows]
    return Events(users, items, [seconds[row["time_stamp"]] for row in rows], item_features=features)


def sqlite_by_hand(directory: Path, events: list[Events]) -> None:
    """A row an event, all of a chunk in one transaction."""
    directory.mkdir()
    db = sqlite3.connect(directory / "log.sqlite3")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, key BLOB, value BLOB)")
    for chunk in events:
        with db:
            db.executemany("INSERT INTO log (key, value) VALUES (?, ?)", _encoded_by_hand(chunk))
    db.close()


def producer_by_hand(servers: str, topic: str, events: list[Events]) -> None:
    """One `send` an event."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=servers.split(","), linger_ms=20, batch_size=1 << 17)
    for chunk in events:
        for key, value in _encoded_by_hand(chunk):
            producer.send(topic, value, key)
    producer.flush()
    producer.close()


def _encoded_by_hand(chunk: Events) -> Iterator[tuple[bytes, bytes]]:
    for user, item, time_s in zip(chunk.users, chunk.items, chunk.timestamps_s or (), strict=True):
        event = {"user_id": user, "item_id": item, "timestamp": time_s}
        yield user.encode(), json.dumps(event).encode()


# ----------------------------------------------------------------------------------------------------------------------


def _first(events: list[Events], count: int) -> list[Events]:
    found = []
    for chunk in events:
        found.append(chunk[:count])
        count -= len(found[-1])
    return found


def _seconds(part: Part) -> float:
    started = time.perf_counter()
    part()
    return time.perf_counter() - started


@contextmanager
def _topics(servers: str, count: int) -> Iterator[Iterator[str]]:
    """Empty topics, deleted afterwards."""
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    names = [f"streamer-bench-{uuid4().hex[:12]}" for _ in range(count)]
    admin = KafkaAdminClient(bootstrap_servers=servers.split(","))
    try:
        admin.create_topics([NewTopic(name, num_partitions=PARTITIONS, replication_factor=1) for name in names])
        admin.wait_for_topics(names)
        yield iter(names)
    finally:
        admin.delete_topics(names)
        admin.close()


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    titles = {
        "read": "file to events",
        "read_features": "the same with features",
        "embedded": "events to embedded log",
        "file_to_embedded": "file to embedded log",
        "kafka": "events to Kafka",
        "file_to_kafka": "file to Kafka",
    }
    lines = [f"{result['events']:,} events of a csv file, best of {result['rounds']} interleaved rounds", ""]
    lines.append(f"{'events a second':24} {'streamer':>12} {'by hand':>12} {'ratio':>7}")
    for part, title in titles.items():
        if part in result:
            r = result[part]
            line = f"{title:24} {r['events_per_second']:12,}"
            if "ratio" in r:
                line += f" {r['alternative_events_per_second']:12,} {r['ratio']:7.1f}  {r['alternative']}"
            lines.append(line)
    return "\n".join(lines)
