"""How fast logs become streams: a made-up csv file on its way to a topic, each part
beside what one writes by hand.
"""

from __future__ import annotations

import csv
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import datetime
from itertools import chain, islice
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
from streamer.bench.catalogue import ReplayBench
from streamer.replay.datasets import open_log
from streamer.replay.events import Events
from streamer.replay.producer import EmbeddedSink, EventSink, produce
from streamer.sources.kafka.settings import KafkaSettings

TOPIC = "bench"
TMALL_HEADER = "user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type"
LOG = "log.csv"
WITH_FEATURES = "user_log_format1.csv"
STREAMER = "streamer"
PRODUCER = "json.dumps, KafkaProducer.send"


def measure(bench: ReplayBench) -> dict[str, Any]:
    """Events per second of each part, of its alternative, and the ratio."""
    with (
        tempfile.TemporaryDirectory(prefix="streamer-bench-") as name,
        ExitStack() as stack,
    ):
        directory = Path(name)
        path = directory / LOG
        with_features = directory / WITH_FEATURES
        write_csv(path, bench.events)
        write_tmall(with_features, bench.events)
        events = list(_read(path))

        def new_log() -> Path:
            return directory / uuid4().hex

        calls: dict[tuple[str, str], Callable[[], object]] = {
            ("read", STREAMER): lambda: list(_read(path)),
            ("read", "csv.DictReader, sorted"): lambda: read_by_hand(path),
            ("read_features", STREAMER): lambda: list(_read(with_features, "tmall")),
            ("read_features", "csv.DictReader, sorted"): lambda: features_by_hand(
                with_features
            ),
            ("embedded", STREAMER): lambda: _write(
                EmbeddedSink(new_log(), TOPIC, PARTITIONS), events
            ),
            ("embedded", "json.dumps, a row an event in sqlite3"): lambda: (
                sqlite_by_hand(new_log(), events)
            ),
            ("file_to_embedded", STREAMER): lambda: _write(
                EmbeddedSink(new_log(), TOPIC, PARTITIONS), _read(path)
            ),
        }
        if servers := bench.bootstrap_servers:
            topics = iter(stack.enter_context(kafka_topics(servers, 3 * bench.rounds)))
            calls |= {
                ("kafka", STREAMER): lambda: _to_kafka(servers, next(topics), events),
                ("kafka", PRODUCER): lambda: producer_by_hand(
                    servers, next(topics), events, bench.plain_events
                ),
                ("file_to_kafka", STREAMER): lambda: _to_kafka(
                    servers, next(topics), _read(path)
                ),
            }
        turns = {
            key: (lambda call=call: [seconds(call)]) for key, call in calls.items()
        }
        taken = interleaved(turns, bench.rounds)
    counts = {("kafka", PRODUCER): min(bench.plain_events, bench.events)}
    rates = {
        key: counts.get(key, bench.events) / min(times) for key, times in taken.items()
    }
    result: dict[str, Any] = {"events": bench.events, "rounds": bench.rounds}
    for (part, way), rate in rates.items():
        if way == STREAMER:
            result[part] = {"events_per_second": round(rate)}
        else:
            ratio = round(rates[part, STREAMER] / rate, 2)
            result[part] |= {
                "alternative_events_per_second": round(rate),
                "ratio": ratio,
                "alternative": way,
            }
    return result


def write_csv(path: Path, events: int) -> None:
    """A long-tailed log with a header, not sorted by time."""
    rng, users, items = _users_and_items(events)
    times = 1_600_000_000 + rng.integers(0, 10_000_000, events)
    rows = zip(users, items, times.tolist(), strict=True)
    path.write_text(
        "user_id,item_id,timestamp\n"
        + "".join(f"user-{u},item-{i},{t}\n" for u, i, t in rows)
    )


def write_tmall(path: Path, events: int) -> None:
    """The same as Tmall's log: a category, a seller and a brand for each item, and days
    for times.
    """
    rng, users, items = _users_and_items(events)
    days = (100 * rng.integers(5, 12, events) + rng.integers(1, 29, events)).tolist()
    rows = "".join(
        f"{u},{i},{i % 1600},{i % 5000},{i % 8400},{d},0\n"
        for u, i, d in zip(users, items, days, strict=True)
    )
    path.write_text(f"{TMALL_HEADER}\n{rows}")


def _users_and_items(events: int) -> tuple[np.random.Generator, list[int], list[int]]:
    rng = np.random.default_rng(0)
    items = long_tailed(rng, 50_000, events, 0.8).tolist()
    return rng, rng.integers(0, 30_000, events).tolist(), items


# ours -----------------------------------------------------------------------------------------------------------------


def _read(path: Path, kind: str = "csv") -> Iterator[Events]:
    with open_log(path, kind) as log:
        yield from log.batches()


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
    users = [row["user_id"] for row in rows]
    items = [row["item_id"] for row in rows]
    return Events(users, items, [float(row["timestamp"]) for row in rows])


def features_by_hand(path: Path) -> Events:
    """The same of Tmall's log, with a dictionary of features for each event."""
    with path.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["time_stamp"]))
    days = {row["time_stamp"] for row in rows}
    times_s = {
        d: datetime.strptime(f"2014{int(d):04}+0000", "%Y%m%d%z").timestamp()
        for d in days
    }
    features = [
        {name: row[name] for name in ("cat_id", "seller_id", "brand_id")}
        for row in rows
    ]
    users = [row["user_id"] for row in rows]
    items = [row["item_id"] for row in rows]
    return Events(
        users,
        items,
        [times_s[row["time_stamp"]] for row in rows],
        item_features=features,
    )


def sqlite_by_hand(directory: Path, events: list[Events]) -> None:
    """A row an event, all of a chunk in one transaction."""
    directory.mkdir()
    db = sqlite3.connect(directory / "log.sqlite3")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, key BLOB, value BLOB)")
    for chunk in events:
        with db:
            db.executemany(
                "INSERT INTO log (key, value) VALUES (?, ?)", _encoded_by_hand(chunk)
            )
    db.close()


def producer_by_hand(
    servers: str, topic: str, events: Iterable[Events], count: int
) -> None:
    """One `send` for each of the first events."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=servers.split(","), linger_ms=20, batch_size=1 << 17
    )
    for key, value in islice(chain.from_iterable(map(_encoded_by_hand, events)), count):
        producer.send(topic, value, key)
    producer.flush()
    producer.close()


def _encoded_by_hand(chunk: Events) -> Iterator[tuple[bytes, bytes]]:
    for user, item, time_s in zip(
        chunk.users, chunk.items, chunk.timestamps_s or (), strict=True
    ):
        event = {"user_id": user, "item_id": item, "timestamp": time_s}
        yield user.encode(), json.dumps(event).encode()
