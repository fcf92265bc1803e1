"""What sharing through Redis costs a training step.

Trainers are processes that train real steps. `share_of_step` is what the store takes of
a trainer for each step (the training thread inside the store's calls, and all of the
exchange thread) over what a step alone takes (all threads, divided by how many train);
both are times on a core. The ratio beside it is the direct comparison: the median step
with Redis over the median step alone, on the wall, by turns in the same processes. The
server's time is not a trainer's, and has its own column.

Times on a core hardly depend on what else the machine does, and are at most what the
clock on the wall shows. Trainers that share the cores of one machine take longer for a
step: exchanges are put so much further apart that as many steps lie between two of them
as on machines of their own.
"""

from __future__ import annotations

import os
import secrets
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from statistics import median
from typing import Any

from common import interleaved, new_parser, numbers, report, rounded
from processes import RemoteObject, call_all, local_redis
from store_trainer import Job, Measured, StoreTrainer
from streamer.cache_store.redis.admin import StoreAdmin
from streamer.cache_store.redis.connection import connect
from streamer.cache_store.redis.schema import Keys

TIMEOUT_S = 30.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was found."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    add("--redis-url", help="Redis to use; without it one is started.")
    add("--trainers", type=numbers, default=(1, 2, 4), help="Numbers of trainers.")
    items = (40_988, 1_000_000)
    add("--items", type=numbers, default=items, help="Numbers of items.")
    add("--batch-size", type=int, default=2048, help="Events of a micro-batch.")
    add("--cache-size", type=int, default=2048, help="Items in the cache.")
    add("--dim", type=int, default=32, help="Size of the embeddings.")
    add("--rounds", type=int, default=3, help="With and without Redis, by turns.")
    add("--seconds", type=float, default=6.0, help="Length of a round.")
    report(measure, parser, arguments)


def measure(options: Namespace) -> dict[str, Any]:
    """A row for each number of trainers and items, and whether every event was counted
    once.
    """
    rows: list[dict[str, Any]] = []
    is_exact = True
    with ExitStack() as stack:
        url = options.redis_url or stack.enter_context(local_redis())
        for items in options.items:
            with _model(url) as model, closing(_Trainers()) as trainers:
                for count in sorted(options.trainers):
                    join_s = trainers.start(options, url, model, items, count)
                    row = {"trainers": count, "items": items, "join_s": join_s}
                    row |= _measure_trainers(options, url, trainers.running)
                    rows.append(rounded(row, 4))
                is_exact &= _is_exact(url, model, items, trainers.running)
    return {
        "rows": rows,
        "max_share_of_step": max(row["share_of_step"] for row in rows),
        "exact": is_exact,
        "options": vars(options) | {"redis_url": None, "cores": _cores()},
    }


class _Trainers:
    """Trainers of one model, more and more of them."""

    def __init__(self) -> None:
        self.running: list[RemoteObject] = []

    def start(
        self, options: Namespace, url: str, model: str, items: int, count: int
    ) -> float:
        """Start trainers until there are `count`; returns how long joining took."""
        new = []
        for index in range(len(self.running), count):
            sizes = (options.batch_size, options.cache_size, options.dim)
            job = Job(url, model, items, index, *sizes)
            new.append(RemoteObject(StoreTrainer, job))
        self.running += new
        return max((trainer.result() for trainer in new), default=0.0)

    def close(self) -> None:
        for trainer in self.running:
            trainer.close()


def _measure_trainers(
    options: Namespace, url: str, trainers: list[RemoteObject]
) -> dict[str, float]:
    """Rounds alone and with Redis by turns, after one of each that is not counted."""
    call_all(trainers, "set_threads", max(1, _cores() // len(trainers)))
    latest: list[Measured] = []

    def train_alone() -> list[Measured]:
        latest[:] = call_all(trainers, "train", "alone", options.seconds)
        return latest

    def train_with_redis() -> list[Measured]:
        before_s = _server_cpu_s(url)
        on_wall = _median_ms(latest, "step_s")
        stretch = max(1.0, on_wall / _median_ms(latest, "step_cpu_s"))
        found: list[Measured] = call_all(
            trainers, "train", "redis", options.seconds, stretch
        )
        found[0].server_cpu_s = _server_cpu_s(url) - before_s
        return found

    parts = {"alone": train_alone, "redis": train_with_redis}
    return figures(**interleaved(parts, options.rounds, warm_up=1))


def figures(alone: list[Measured], redis: list[Measured]) -> dict[str, float]:
    """Medians of steps; the rest in milliseconds and bytes for each step."""
    step_ms = _median_ms(redis, "step_s")
    alone_step_ms = _median_ms(alone, "step_s")
    step_cpu_ms = _median_ms(alone, "step_cpu_s")
    calls_cpu_ms = 1e3 * _per_step(redis, "calls_cpu_s")
    exchange_cpu_ms = 1e3 * _per_step(redis, "exchange_cpu_s")
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
        "steps": sum(len(measured.step_s) for measured in redis),
    }


def _median_ms(measured: list[Measured], name: str) -> float:
    steps: list[float] = []
    for one in measured:
        steps += getattr(one, name)
    return 1e3 * median(steps)


def _per_step(measured: list[Measured], name: str) -> float:
    steps = sum(len(one.step_s) for one in measured)
    return float(sum(getattr(one, name) for one in measured) / steps)


def _is_exact(
    url: str, model: str, items: int, trainers: Sequence[RemoteObject]
) -> bool:
    """Whether the store has counted every event once."""
    contributed = sum(trainer.call("sent") or trainer.result() for trainer in trainers)
    with closing(StoreAdmin(url, Keys(model), timeout_s=TIMEOUT_S)) as admin:
        summary = admin.summary()
        assert summary is not None
        contents = admin.contents(summary.entries)
    return int(contents.counts.sum()) == items + contributed


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _server_cpu_s(url: str) -> float:
    with closing(connect(url, TIMEOUT_S)) as client:
        used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


@contextmanager
def _model(url: str) -> Iterator[str]:
    """The name of a model that is removed afterwards."""
    name = f"bench-{secrets.token_hex(4)}"
    yield name
    with closing(StoreAdmin(url, Keys(name), timeout_s=TIMEOUT_S)) as admin:
        admin.reset()


if __name__ == "__main__":
    main()
