"""Events per second from a file to events, and from there to a topic, each beside what
one would write by hand.

The file is a made-up log: a csv, and one in the columns of Tmall's with features.
"""

from __future__ import annotations

import csv
import json
import sqlite3
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from itertools import chain, islice
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
    seconds,
)
from streamer.replay.datasets import open_log
from streamer.replay.events import Events
from streamer.replay.kafka.sink import KafkaSink
from streamer.replay.producer import EmbeddedSink, EventSink, produce
from streamer.sources.kafka.settings import KafkaSettings

TOPIC = "bench"
TMALL_HEADER = "user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type"
TMALL_FEATURES = ("cat_id", "seller_id", "brand_id")
LOG = "log.csv"
WITH_FEATURES = "user_log_format1.csv"
STREAMER = "streamer"
READER = "csv.DictReader, sorted"
SQLITE = "json.dumps, a row an event in sqlite3"
PRODUCER = "json.dumps, KafkaProducer.send"
Calls = dict[tuple[str, str], Callable[[], object]]
"""By part, and by whose way it is done in."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was found."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    add("--events", type=int, default=1_000_000, help="Events of the log.")
    plain = "Of these, for the client's own producer, which takes long."
    add("--plain-events", type=int, default=100_000, help=plain)
    add("--rounds", type=int, default=3, help="By turns; the best of each counts.")
    add_brokers(parser, "without them only the embedded log is measured")
    report(measure, parser, arguments)


def measure(options: Namespace) -> dict[str, Any]:
    """Events per second of each part, of its alternative, and the ratio."""
    with (
        tempfile.TemporaryDirectory(prefix="streamer-bench-") as name,
        ExitStack() as stack,
    ):
        directory = Path(name)
        calls = _embedded_calls(directory, options.events)
        if servers := options.bootstrap_servers:
            topics = stack.enter_context(kafka_topics(servers, 3 * options.rounds))
            calls |= _kafka_calls(directory, servers, iter(topics), options)
        turns = {key: _turn(call) for key, call in calls.items()}
        taken = interleaved(turns, options.rounds)

    rates = {key: options.events / min(times) for key, times in taken.items()}
    if by_hand := taken.get(("kafka", PRODUCER)):
        plain_events = min(options.plain_events, options.events)
        rates["kafka", PRODUCER] = plain_events / min(by_hand)

    result: dict[str, Any] = {"events": options.events, "rounds": options.rounds}
    for (part, way), rate in rates.items():
        if way == STREAMER:
            result[part] = {"events_per_second": round(rate)}
            continue
        result[part]["alternative_events_per_second"] = round(rate)
        result[part]["ratio"] = round(rates[part, STREAMER] / rate, 2)
        result[part]["alternative"] = way
    return result


def _turn(call: Callable[[], object]) -> Callable[[], list[float]]:
    return lambda: [seconds(call)]


def _embedded_calls(directory: Path, count: int) -> Calls:
    path = directory / LOG
    with_features = directory / WITH_FEATURES
    write_csv(path, count)
    write_tmall(with_features, count)
    events = list(_read(path))

    def write(batches: Iterable[Events]) -> None:
        _write(EmbeddedSink(directory / uuid4().hex, TOPIC, PARTITIONS), batches)

    return {
        ("read", STREAMER): lambda: list(_read(path)),
        ("read", READER): lambda: read_by_hand(path),
        ("read_features", STREAMER): lambda: list(_read(with_features, "tmall")),
        ("read_features", READER): lambda: features_by_hand(with_features),
        ("embedded", STREAMER): lambda: write(events),
        ("embedded", SQLITE): lambda: sqlite_by_hand(directory / uuid4().hex, events),
        ("file_to_embedded", STREAMER): lambda: write(_read(path)),
    }


def _kafka_calls(
    directory: Path, servers: str, topics: Iterator[str], options: Namespace
) -> Calls:
    """Each call writes to the next of the topics."""
    path = directory / LOG
    events = list(_read(path))

    def write(batches: Iterable[Events]) -> None:
        topic = next(topics)
        _write(KafkaSink(KafkaSettings(servers, topic), topic), batches)

    def write_by_hand() -> None:
        producer_by_hand(servers, next(topics), events, options.plain_events)

    return {
        ("kafka", STREAMER): lambda: write(events),
        ("kafka", PRODUCER): write_by_hand,
        ("file_to_kafka", STREAMER): lambda: write(_read(path)),
    }


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


# ours ---------------------------------------------------------------------------------


def _read(path: Path, kind: str = "csv") -> Iterator[Events]:
    with open_log(path, kind) as log:
        yield from log.batches()


def _write(sink: EventSink, batches: Iterable[Events]) -> None:
    sink.resume("bench")
    produce((events.records() for events in batches), sink)
    sink.close()


# by hand ------------------------------------------------------------------------------


def read_by_hand(path: Path) -> Events:
    """A dictionary a row, sorted by time, as columns."""
    with path.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["timestamp"]))
    users = [row["user_id"] for row in rows]
    items = [row["item_id"] for row in rows]
    times_s = [float(row["timestamp"]) for row in rows]
    return Events(users, items, times_s)


def features_by_hand(path: Path) -> Events:
    """The same of Tmall's log, with a dictionary of features for each event."""
    with path.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["time_stamp"]))
    users = [row["user_id"] for row in rows]
    items = [row["item_id"] for row in rows]
    days = [row["time_stamp"] for row in rows]
    day_times_s = {}
    for day in set(days):
        date = datetime.strptime(f"2014{int(day):04}+0000", "%Y%m%d%z")
        day_times_s[day] = date.timestamp()
    times_s = [day_times_s[day] for day in days]
    features = [{name: row[name] for name in TMALL_FEATURES} for row in rows]
    return Events(users, items, times_s, item_features=features)


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


if __name__ == "__main__":
    main()
