"""From an event to the first moment at which a request sees it, with writer, trainer
and server side by side.

`recent_items_s`: the event is among its user's recent items; `new_item_s`: its item,
which was new, can be recommended; `vectors_s`: its vectors are updated. Each since the
record was written.
"""

from __future__ import annotations

import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from kafka import KafkaProducer

from common import (
    PARTITIONS,
    add_brokers,
    kafka_topics,
    long_tailed,
    new_parser,
    report,
)
from processes import free_port, streamer_process, wait_for
from streamer.event import encode
from streamer.sources.embedded.log import EmbeddedLog

TICK_S = 0.02
"""Events are written this often."""
LOOK_S = 0.5
"""How often it is asked whether to go on writing."""

KeyValue = tuple[bytes, bytes]
Write = Callable[[list[KeyValue]], None]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was found."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    add("--events-per-second", type=float, default=1000.0, help="Events written.")
    new = "Of these, of items that nobody had before."
    add("--new-items-per-second", type=float, default=10.0, help=new)
    add("--items", type=int, default=20_000, help="Items of the other events.")
    add("--users", type=int, default=10_000, help="Users.")
    add("--seconds", type=float, default=30.0, help="Length of the measurement.")
    warm_up = "Seconds before it, after the first response."
    add("--warm-up", type=float, default=30.0, help=warm_up)
    add_brokers(parser, "without them the embedded log is used")
    report(measure, parser, arguments)


def measure(options: Namespace) -> dict[str, Any]:
    """Waits of the three kinds, as the server saw them."""
    with (
        tempfile.TemporaryDirectory() as name,
        _topic(options, Path(name)) as (topic, write),
    ):
        common = ["--data-dir", name, "--topic", topic]
        if options.bootstrap_servers:
            common += ["--bootstrap-servers", options.bootstrap_servers]
        published = Path(name) / "published"
        port = free_port()
        run = ["--publish-dir", published, "--group-id", topic, "--log-format", "plain"]
        serve = ["--from", published, "--port", port]
        url = f"http://127.0.0.1:{port}"
        writer = _Writer(options, write)
        with (
            streamer_process("run", *common, *run) as trainer,
            streamer_process("serve", *common, *serve) as server,
        ):
            writer.write_until(lambda: _is_ready(url, server, trainer))
            writer.write_for(options.warm_up)
            writer.write_for(options.seconds)
            status_url = f"{url}/status?last_s={options.seconds}"
            status = wait_for(status_url, server, trainer)
    return {
        **status["freshness"],
        "source": "kafka" if options.bootstrap_servers else "embedded",
        "options": vars(options),
        "load": round(os.getloadavg()[0], 2),
    }


class _Writer:
    """Writes events at a steady rate."""

    def __init__(self, options: Namespace, write: Write) -> None:
        self._options = options
        self._write = write
        self._rng = np.random.default_rng(0)
        self._began = time.monotonic()
        self._written = 0
        self._new_items = 0.0

    def write_for(self, seconds: float) -> None:
        """Write for some time."""
        end = time.monotonic() + seconds
        self.write_until(lambda: time.monotonic() >= end)

    def write_until(self, done: Callable[[], bool]) -> None:
        """Write until something has happened."""
        rate = self._options.events_per_second
        looked = 0.0
        while True:
            now = time.monotonic()
            if now - looked > LOOK_S:
                looked = now
                if done():
                    return
            due = int((now - self._began) * rate) - self._written
            if due > 0:
                self._write(self._records(due))
            time.sleep(TICK_S)

    def _records(self, count: int) -> list[KeyValue]:
        options = self._options
        new_share = options.new_items_per_second / options.events_per_second
        users = self._rng.integers(0, options.users, count).tolist()
        items = long_tailed(self._rng, options.items, count, 1.0).tolist()
        now = time.time()
        records = []
        for user_number, item_number in zip(users, items, strict=True):
            user = f"u{user_number}"
            item = f"i{item_number}"
            self._new_items += new_share
            if self._new_items >= 1:
                self._new_items -= 1
                item = f"new {self._written}"
            self._written += 1
            records.append((user.encode(), encode(user, item, now)))
        return records


def _is_ready(url: str, *beside: Any) -> bool:
    found = wait_for(f"{url}/status", *beside)
    return bool(found["ready"] and found["items"] > 100)


@contextmanager
def _topic(options: Namespace, directory: Path) -> Iterator[tuple[str, Write]]:
    """A new topic, and what writes records to it."""
    if options.bootstrap_servers is None:
        topic = f"bench-{uuid4().hex[:8]}"
        with EmbeddedLog(directory) as log:
            log.create_topic(topic, PARTITIONS)

            def append(records: list[KeyValue]) -> None:
                now_ms = round(time.time() * 1000)
                log.append(topic, [(key, value, now_ms) for key, value in records])

            yield topic, append
        return

    brokers = options.bootstrap_servers
    with kafka_topics(brokers, 1) as (topic,):
        producer = KafkaProducer(bootstrap_servers=brokers.split(","), linger_ms=0)

        def send(records: list[KeyValue]) -> None:
            for key, value in records:
                producer.send(topic, value, key)
            producer.flush()

        try:
            yield topic, send
        finally:
            producer.close(timeout=5)


if __name__ == "__main__":
    main()
