"""What watching costs: the whole line with all metrics on, and the share of it that they take."""

from __future__ import annotations

import contextlib
import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from streamer.build import build_pipeline
from streamer.event import encode
from streamer.metrics.monitor import Monitor
from streamer.metrics.observer import Observer
from streamer.settings import RunSettings
from streamer.sources.embedded.log import EmbeddedLog

TOPIC = "bench"
WARM_STEPS = 5
ROUNDS = 3
"""Each line runs in so many stretches: what is done by the clock is then done as often as in a run of its own."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """What `streamer bench metrics` was asked.

    Args:
        steps: steps that are measured, of each kind.
        batch_size: events of a micro-batch.
        items: items of the stream.
        users: users of the stream.
    """

    steps: int = 300
    batch_size: int = 512
    items: int = 40_000
    users: int = 20_000


class MetricsBench:
    """Two lines with the defaults of `streamer run` on the same stream, one of them watched, in turn."""

    def __init__(self, options: MetricsOptions) -> None:
        self.options = options

    def run(self) -> dict[str, Any]:
        """`share` is the time inside the monitor over that of the watched line's steps; `ratio` compares both lines."""
        with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
            self._write(directory)
            stopwatch = Stopwatch()
            watched = stack.enter_context(self._line(directory, "watched", stopwatch.timing(_monitor())))
            plain = stack.enter_context(self._line(directory, "plain", Observer()))
            for line in (watched, plain) * WARM_STEPS:
                _timed_step(line)
            stopwatch.seconds = 0.0
            gc.collect()
            took: dict[Any, list[float]] = {watched: [], plain: []}
            for line in (plain, watched) * ROUNDS:
                took[line] += [_timed_step(line) for _ in range(-(-self.options.steps // ROUNDS))]
        return self._result(took[watched], took[plain], stopwatch.seconds)

    def _result(self, watched: list[float], plain: list[float], seconds: float) -> dict[str, Any]:
        with_metrics, without = median(watched), median(plain)
        return {
            "share": round(seconds / sum(watched), 5),
            "ratio": round(with_metrics / without, 4),
            "step_ms": round(1e3 * with_metrics, 3),
            "plain_step_ms": round(1e3 * without, 3),
            "metrics_us_a_step": round(1e6 * seconds / len(watched), 1),
            "steps": len(watched),
            "batch_size": self.options.batch_size,
            "items": self.options.items,
        }

    def _write(self, directory: str) -> None:
        """More events than are needed: both lines read ahead."""
        rng = np.random.default_rng(0)
        count = (self.options.steps + ROUNDS + WARM_STEPS + 2) * self.options.batch_size
        items = np.minimum(rng.zipf(1.3, count), self.options.items)
        users = rng.integers(0, self.options.users, count)
        now = time.time()
        with EmbeddedLog(directory) as log:
            log.create_topic(TOPIC, 1)
            pairs = zip(users.tolist(), items.tolist(), strict=True)
            log.append(TOPIC, [(None, encode(f"u{u}", f"i{i}", now), int(1000 * now)) for u, i in pairs])

    @contextlib.contextmanager
    def _line(self, directory: str, name: str, observer: Observer) -> Any:
        settings = RunSettings(
            data_dir=Path(directory),
            topics=(TOPIC,),
            batch_size=self.options.batch_size,
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


def _monitor() -> Monitor:
    return Monitor(CollectorRegistry())


def _timed_step(pipeline: Any) -> float:
    """Seconds of one step that trains a batch; the wait for one does not count."""
    while not pipeline._ingest.queued_events >= pipeline.settings.batch_size:
        time.sleep(0.001)
    started = time.perf_counter()
    pipeline.step()
    return time.perf_counter() - started


class Stopwatch:
    """Adds up the time inside an observer, its own reading of the clock included."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timing(self, monitor: Monitor) -> Monitor:
        """The same monitor, with every call of the training thread timed."""
        for name in ("beat", "learned", "trained", "refreshed", "phase"):
            setattr(monitor, name, self._timed(getattr(monitor, name)))
        for timer in monitor._timers.values():
            timer._tell = self._timed(timer._tell)
        return monitor

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            answer = call(*arguments)
            self.seconds += time.perf_counter() - started
            return answer

        return timed


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    return "\n".join(
        [
            f"{result['steps']:,} steps of {result['batch_size']:,} events, {result['items']:,} items",
            "",
            f"{'a step with all metrics':38} {result['step_ms']:8.2f} ms",
            f"{'a step without':38} {result['plain_step_ms']:8.2f} ms",
            f"{'of it for metrics':38} {1e-3 * result['metrics_us_a_step']:8.3f} ms",
            f"{'share of a step':38} {result['share']:8.2%}",
            f"{'medians, with over without':38} {result['ratio']:8.3f}",
        ]
    )
