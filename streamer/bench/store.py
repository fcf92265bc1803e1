"""What sharing costs a training step, and whether the log stays bounded however slow a
reader is.

`catalogue.StoreBench` says what the figures are. Times on a core hardly depend on what
else the machine does, and are at most what the clock on the wall shows. Trainers that
share the cores of one machine take longer for a step: exchanges are put so much further
apart that as many steps lie between two of them as on machines of their own.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict
from statistics import median
from typing import Any

from streamer.bench.base import interleaved
from streamer.bench.catalogue import StoreBench
from streamer.bench.redis_server import local_server
from streamer.bench.store_trainer import (
    Job,
    Measured,
    TrainerProcess,
    call_all,
    seed_of,
)
from streamer.cache_store.errors import StoreError
from streamer.cache_store.redis.admin import StoreAdmin
from streamer.cache_store.redis.connection import connect
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.server import HARD_LOG_LENGTH, SOFT_LOG_LENGTH
from streamer.errors import SharingError

HURRY_S = 0.005
"""Seconds between exchanges while a reader is stopped: as many entries as possible."""
MAX_PAUSE_S = 30.0


def measure(bench: StoreBench) -> dict[str, Any]:
    """A row for each number of trainers and items, and the log while a reader is
    stopped.
    """
    rows: list[dict[str, Any]] = []
    stopped: dict[str, Any] = {}
    with ExitStack() as stack:
        url = bench.redis_url or stack.enter_context(local_server())
        for items in bench.items:
            with _model(url, items) as model, ExitStack() as processes:
                trainers: list[TrainerProcess] = []
                for count in sorted(bench.trainers):
                    sizes = (bench.batch_size, bench.cache_size, bench.dim)
                    jobs = [
                        Job(url, model, items, index, *sizes)
                        for index in range(len(trainers), count)
                    ]
                    new = [
                        processes.enter_context(closing(TrainerProcess(job)))
                        for job in jobs
                    ]
                    trainers += new
                    row = {
                        "trainers": count,
                        "items": items,
                        "join_s": max((t.result() for t in new), default=0.0),
                    }
                    row |= _measure_trainers(bench, url, trainers)
                    rows.append({name: round(value, 4) for name, value in row.items()})
                stopped = stopped or _stop_a_reader(bench, url, model, items, trainers)
    return {
        "rows": rows,
        "max_share_of_step": max(row["share_of_step"] for row in rows),
        **stopped,
        "options": asdict(bench) | {"redis_url": None, "cores": _cores()},
    }


def _measure_trainers(
    bench: StoreBench, url: str, trainers: list[TrainerProcess]
) -> dict[str, float]:
    """Rounds alone and with Redis by turns, after one of each that is not counted."""
    call_all(trainers, "set_threads", max(1, _cores() // len(trainers)))
    latest: list[Measured] = []

    def train_alone() -> list[Measured]:
        latest[:] = call_all(trainers, "train", "alone", bench.seconds)
        return latest

    def train_with_redis() -> list[Measured]:
        before_s = _server_cpu_s(url)
        stretch = max(
            1.0, _median_ms(latest, "step_s") / _median_ms(latest, "step_cpu_s")
        )
        found: list[Measured] = call_all(
            trainers, "train", "redis", bench.seconds, stretch
        )
        found[0].server_cpu_s = _server_cpu_s(url) - before_s
        return found

    parts = {"alone": train_alone, "redis": train_with_redis}
    return figures(**interleaved(parts, bench.rounds, warm_up=1))


def figures(alone: list[Measured], redis: list[Measured]) -> dict[str, float]:
    """Medians of steps; the rest in milliseconds and bytes for each step."""
    step_ms = _median_ms(redis, "step_s")
    alone_step_ms = _median_ms(alone, "step_s")
    step_cpu_ms = _median_ms(alone, "step_cpu_s")
    calls_cpu_ms, exchange_cpu_ms = (
        1e3 * _per_step(redis, name) for name in ("calls_cpu_s", "exchange_cpu_s")
    )
    return {
        "share_of_step": (calls_cpu_ms + exchange_cpu_ms) / step_cpu_ms,
        "step_ms": step_ms,
        "alone_step_ms": alone_step_ms,
        "step_over_alone": step_ms / alone_step_ms,
        "step_cpu_ms": step_cpu_ms,
        "calls_ms": 1e3 * _per_step(redis, "calls_s"),
        "calls_cpu_ms": calls_cpu_ms,
        "exchange_cpu_ms": exchange_cpu_ms,
        "server_cpu_ms": 1e3 * _per_step(redis, "server_cpu_s"),
        "sent_bytes": _per_step(redis, "sent_bytes"),
        "received_bytes": _per_step(redis, "received_bytes"),
        "steps": sum(len(m.step_s) for m in redis),
    }


def _median_ms(measured: list[Measured], name: str) -> float:
    return 1e3 * float(median(s for m in measured for s in getattr(m, name)))


def _per_step(measured: list[Measured], name: str) -> float:
    return float(
        sum(getattr(m, name) for m in measured) / sum(len(m.step_s) for m in measured)
    )


def _stop_a_reader(
    bench: StoreBench, url: str, model: str, items: int, trainers: list[TrainerProcess]
) -> dict[str, Any]:
    """One trainer is stopped in the middle of what it does, and the others go on as
    fast as they can.

    1. all hurry;
    2. one is stopped; entries are written;
    3. it goes on; everything is sent, and every event must have been counted once.
    """
    with closing(StoreAdmin(url, Keys(model))) as admin:
        # 1.
        for trainer in trainers:
            trainer.ask("hurry", HURRY_S)
        summary = admin.summary()
        first = number = summary.number if summary is not None else 0
        # 2.
        longest = 0
        deadline = time.monotonic() + MAX_PAUSE_S
        with trainers[-1].paused() if len(trainers) > 1 else nullcontext():
            while number - first < bench.entries and time.monotonic() < deadline:
                if (summary := admin.summary()) is not None:
                    longest = max(longest, summary.log_length)
                    number = summary.number
                time.sleep(0.002)
        # 3.
        for trainer in trainers:
            trainer.stop.set()
        contributed = sum(trainer.result() for trainer in trainers)
        _, contents = admin.contents()
    return {
        "log_length_max": longest,
        "log_length_soft": SOFT_LOG_LENGTH,
        "log_length_bound": HARD_LOG_LENGTH,
        "log_entries_while_stopped": number - first,
        "exact": bool(
            contents.events == int(contents.counts.sum()) == items + contributed
        ),
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _server_cpu_s(url: str) -> float:
    with closing(connect(url, 30.0)) as client:
        used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


@contextmanager
def _model(url: str, items: int) -> Iterator[str]:
    """The name of a model with this many items, removed afterwards; `SharingError` if
    Redis cannot be used.
    """
    name = f"bench-{secrets.token_hex(4)}"
    try:
        with closing(RedisServer(url, Keys(name), timeout_s=30.0)) as server:
            server.seed(seed_of(items, secrets.token_hex(8)))
        yield name
        with closing(StoreAdmin(url, Keys(name), timeout_s=30.0)) as admin:
            admin.reset()
    except StoreError as error:
        raise SharingError(str(error)) from error
