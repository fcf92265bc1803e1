"""What metrics cost: two lines with the defaults of a run on the same stream, one of
them with all metrics, in turn.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from streamer.bench.base import interleaved, seconds
from streamer.bench.catalogue import MetricsBench
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


def measure(bench: MetricsBench) -> dict[str, Any]:
    """`share` is the time inside the monitor over that of its line's steps; `ratio`
    compares the two lines.
    """
    turn = -(-bench.steps // ROUNDS)
    steps = turn * ROUNDS + WARM_UP_STEPS + 2  # lines read ahead
    with tempfile.TemporaryDirectory() as directory:
        _write_stream(bench, directory, steps * bench.batch_size)
        monitor = TimedMonitor(CollectorRegistry())
        with (
            _line(bench, directory, "plain", Observer()) as plain,
            _line(bench, directory, "watched", monitor) as watched,
        ):
            lines = {"plain": plain, "watched": watched}
            interleaved(
                {name: partial(_steps, line, 1) for name, line in lines.items()},
                WARM_UP_STEPS,
            )
            monitor.seconds = 0.0
            taken = interleaved(
                {name: partial(_steps, line, turn) for name, line in lines.items()},
                ROUNDS,
            )
    with_metrics = median(taken["watched"])
    without = median(taken["plain"])
    return {
        "share": round(monitor.seconds / sum(taken["watched"]), 5),
        "ratio": round(with_metrics / without, 4),
        "step_ms": round(1e3 * with_metrics, 3),
        "plain_step_ms": round(1e3 * without, 3),
        "metrics_us_a_step": round(1e6 * monitor.seconds / len(taken["watched"]), 1),
        "steps": len(taken["watched"]),
        "batch_size": bench.batch_size,
        "items": bench.items,
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
    learned = _timed(Monitor.learned)
    trained = _timed(Monitor.trained)
    refreshed = _timed(Monitor.refreshed)


def _steps(line: Pipeline, count: int) -> list[float]:
    """Seconds of some steps that train a batch; waiting for one does not count."""
    taken = []
    for _ in range(count):
        while line.queued_events < line.settings.batch_size:
            time.sleep(0.001)
        taken.append(seconds(line.step))
    return taken


@contextmanager
def _line(
    bench: MetricsBench, directory: str, name: str, observer: Observer
) -> Iterator[Pipeline]:
    settings = RunSettings(
        data_dir=Path(directory),
        topics=(TOPIC,),
        batch_size=bench.batch_size,
        checkpoint_dir=Path(directory) / name,
        checkpoint_every_s=0,
        dead_letters=str(Path(directory) / f"{name}.jsonl"),
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


def _write_stream(bench: MetricsBench, directory: str, events: int) -> None:
    rng = np.random.default_rng(0)
    now = time.time()
    items = np.minimum(rng.zipf(1.3, events), bench.items).tolist()
    users = rng.integers(0, bench.users, events).tolist()
    with EmbeddedLog(directory) as log:
        log.create_topic(TOPIC, 1)
        pairs = zip(users, items, strict=True)
        log.append(
            TOPIC,
            [(None, encode(f"u{u}", f"i{i}", now), int(1000 * now)) for u, i in pairs],
        )
