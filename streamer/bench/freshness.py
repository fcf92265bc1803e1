"""`streamer bench freshness`: from an event to the first moment at which a request sees
it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from streamer.bench.base import PARTITIONS, kafka_topics, long_tailed
from streamer.bench.catalogue import FreshnessBench
from streamer.bench.processes import free_port, process, wait_for
from streamer.event import encode

TICK_S = 0.02
"""Events are written this often."""

Write = Callable[[list[tuple[bytes, bytes]]], None]


def measure(bench: FreshnessBench) -> dict[str, Any]:
    """Waits of the three kinds, as the server saw them."""
    with (
        tempfile.TemporaryDirectory() as name,
        _topic(bench, Path(name)) as (topic, stream, write),
    ):
        directory = Path(name)
        events = _Events(bench, write)
        common = ("--data-dir", directory, "--topic", topic, *stream)
        points = directory / "points"
        with process(
            "run",
            *common,
            "--publish-dir",
            points,
            "--group-id",
            topic,
            "--log-format",
            "plain",
        ) as trainer:
            port = free_port()
            with process("serve", *common, "--from", points, "--port", port) as server:
                url = f"http://127.0.0.1:{port}"
                events.until(lambda: _ready(url, server, trainer))
                events.until_time(bench.warm_up)
                events.until_time(bench.seconds)
                found = wait_for(
                    f"{url}/status?last_s={bench.seconds}", server, trainer
                )
    options = {name: getattr(bench, name) for name in FreshnessBench.all()}
    source = "kafka" if bench.bootstrap_servers else "embedded"
    return {
        **found["freshness"],
        "source": source,
        "options": options,
        "load": round(os.getloadavg()[0], 2),
    }


class _Events:
    """Writes events at a steady rate."""

    def __init__(self, bench: FreshnessBench, write: Write) -> None:
        self._bench = bench
        self._write = write
        self._rng = np.random.default_rng(0)
        self._began = time.monotonic()
        self._written = 0
        self._new = 0.0

    def until_time(self, seconds: float) -> None:
        """Write for some time."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end)

    def until(self, done: Callable[[], bool]) -> None:
        """Write until something has happened."""
        looked = 0.0
        while True:
            if time.monotonic() - looked > 0.5:
                looked = time.monotonic()
                if done():
                    return
            due = (
                int((time.monotonic() - self._began) * self._bench.events_per_second)
                - self._written
            )
            if due > 0:
                self._write(self._records(due))
            time.sleep(TICK_S)

    def _records(self, count: int) -> list[tuple[bytes, bytes]]:
        bench = self._bench
        users = self._rng.integers(0, bench.users, count).tolist()
        items = [
            f"i{i}" for i in long_tailed(self._rng, bench.items, count, 1.0).tolist()
        ]
        for k in range(count):
            self._new += bench.new_items_per_second / bench.events_per_second
            if self._new >= 1:
                self._new -= 1
                items[k] = f"new {self._written + k}"
        self._written += count
        now = time.time()
        return [
            (f"u{u}".encode(), encode(f"u{u}", item, now))
            for u, item in zip(users, items, strict=True)
        ]


def _ready(url: str, *beside: Any) -> bool:
    found = wait_for(f"{url}/status", *beside)
    return bool(found["ready"] and found["items"] > 100)


@contextmanager
def _topic(
    bench: FreshnessBench, directory: Path
) -> Iterator[tuple[str, tuple[Any, ...], Write]]:
    """A new topic, the options that lead there, and what writes records to it."""
    if bench.bootstrap_servers is None:
        from streamer.sources.embedded.log import EmbeddedLog

        with EmbeddedLog(directory) as log:
            topic = f"bench-{uuid4().hex[:8]}"
            log.create_topic(topic, PARTITIONS)
            yield topic, (), lambda rows: _append(log, topic, rows)
        return
    from kafka import KafkaProducer

    with kafka_topics(bench.bootstrap_servers, 1) as (topic,):
        producer = KafkaProducer(
            bootstrap_servers=bench.bootstrap_servers.split(","), linger_ms=0
        )

        def send(rows: list[tuple[bytes, bytes]]) -> None:
            for key, value in rows:
                producer.send(topic, value, key)
            producer.flush()

        try:
            yield topic, ("--bootstrap-servers", bench.bootstrap_servers), send
        finally:
            producer.close(timeout=5)


def _append(log: Any, topic: str, rows: list[tuple[bytes, bytes]]) -> None:
    now_ms = round(time.time() * 1000)
    log.append(topic, [(key, value, now_ms) for key, value in rows])
