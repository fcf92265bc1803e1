"""What all metrics cost: their share of a step of the whole line, beside the same line
without them.

Two lines with the defaults of `streamer run` read the same stream, one of them with all
metrics, by turns.
"""

from __future__ import annotations

import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from common import interleaved, new_parser, report, seconds
from streamer.build import build_pipeline
from streamer.event import encode
from streamer.metrics.monitor import Monitor
from streamer.metrics.observer import Observer
from streamer.pipeline import Pipeline
from streamer.settings import RunSettings
from streamer.sources.embedded.log import EmbeddedLog

TOPIC = "bench"
WARM_UP_STEPS = 5
ROUNDS = 3
"""A line has few, long turns: what is done by the clock is then done as often as in a
run of its own.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was found."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    add("--steps", type=int, default=300, help="Steps of each kind.")
    add("--batch-size", type=int, default=512, help="Events of a micro-batch.")
    add("--items", type=int, default=40_000, help="Items of the stream.")
    add("--users", type=int, default=20_000, help="Users of the stream.")
    report(measure, parser, arguments)


def measure(options: Namespace) -> dict[str, Any]:
    """`share` is the time inside the monitor over that of its line's steps; `ratio`
    compares the two lines.
    """
    turn = -(-options.steps // ROUNDS)
    steps = turn * ROUNDS + WARM_UP_STEPS + 2  # lines read ahead
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        _write_stream(options, directory, steps * options.batch_size)
        monitor = TimedMonitor(CollectorRegistry())
        with (
            _line(options, directory, "plain", Observer()) as plain,
            _line(options, directory, "watched", monitor) as watched,
        ):
            lines = {"plain": plain, "watched": watched}
            warm_up = {name: partial(_steps, line, 1) for name, line in lines.items()}
            interleaved(warm_up, WARM_UP_STEPS)
            monitor.seconds = 0.0
            turns = {name: partial(_steps, line, turn) for name, line in lines.items()}
            taken = interleaved(turns, ROUNDS)

    with_metrics = median(taken["watched"])
    without = median(taken["plain"])
    return {
        "share": round(monitor.seconds / sum(taken["watched"]), 5),
        "ratio": round(with_metrics / without, 4),
        "step_ms": round(1e3 * with_metrics, 3),
        "plain_step_ms": round(1e3 * without, 3),
        "metrics_us_a_step": round(1e6 * monitor.seconds / len(taken["watched"]), 1),
        "steps": len(taken["watched"]),
        "batch_size": options.batch_size,
        "items": options.items,
    }


def _timed(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def timed(self: TimedMonitor, *arguments: Any) -> Any:
        started = time.perf_counter()
        result = method(self, *arguments)
        if threading.get_ident() == self.thread:
            self.seconds += time.perf_counter() - started
        return result

    return timed


class TimedMonitor(Monitor):
    """A monitor that adds up the time that the thread that made it spends inside, with
    reading the clock.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.thread = threading.get_ident()
        self.seconds = 0.0

    beat = _timed(Monitor.beat)
    phase = _timed(Monitor.phase)
    timed = _timed(Monitor.timed)
    trained = _timed(Monitor.trained)
    refreshed = _timed(Monitor.refreshed)


def _steps(line: Pipeline, count: int) -> list[float]:
    """Seconds of some steps that train a batch; waiting for one does not count."""
    taken = []
    for _ in range(count):
        while line.ingest.queued_events < line.ingest.batcher.batch_size:
            time.sleep(0.001)
        taken.append(seconds(line.step))
    return taken


@contextmanager
def _line(
    options: Namespace, directory: Path, name: str, observer: Observer
) -> Iterator[Pipeline]:
    settings = RunSettings(
        data_dir=directory,
        topics=(TOPIC,),
        batch_size=options.batch_size,
        checkpoint_dir=directory / name,
        checkpoint_every_s=0,
        dead_letters=str(directory / f"{name}.jsonl"),
        group_id=name,
        max_age_s=0,
    )
    pipeline = build_pipeline(settings)
    pipeline.watch(observer)
    pipeline.start()
    try:
        yield pipeline
    finally:
        pipeline.close()


def _write_stream(options: Namespace, directory: Path, events: int) -> None:
    rng = np.random.default_rng(0)
    now = time.time()
    items = np.minimum(rng.zipf(1.3, events), options.items).tolist()
    users = rng.integers(0, options.users, events).tolist()
    records = []
    for user, item in zip(users, items, strict=True):
        value = encode(f"u{user}", f"i{item}", now)
        records.append((None, value, int(1000 * now)))
    with EmbeddedLog(directory) as log:
        log.create_topic(TOPIC, 1)
        log.append(TOPIC, records)


if __name__ == "__main__":
    main()
