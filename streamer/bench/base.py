"""What benches share. A new one is a class in `streamer.bench.catalogue` and a module
with `measure(bench)`.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from uuid import uuid4

from streamer.model.setting import Settings

if TYPE_CHECKING:
    import numpy as np

K = TypeVar("K")
T = TypeVar("T")

PARTITIONS = 4
"""Of the topics that are created."""


class Bench(Settings):
    """Settings of one measurement. What a subclass says of itself is the help of its
    command.
    """

    name: ClassVar[str]
    module: ClassVar[str]
    """Has `measure(bench)`, which returns JSON values. It may load torch, so it is
    imported when it is needed.
    """

    def run(self) -> dict[str, Any]:
        """Measure."""
        result: dict[str, Any] = importlib.import_module(self.module).measure(self)
        return result


def interleaved(
    parts: Mapping[K, Callable[[], Iterable[T]]], rounds: int, warm_up: int = 0
) -> dict[K, list[T]]:
    """What each part measured in all rounds. In a round each has its turn, so that all
    meet the same machine.

    Before them are `warm_up` rounds that are not counted.
    """
    measured: dict[K, list[T]] = {name: [] for name in parts}
    for k in range(-warm_up, rounds):
        for name, part in parts.items():
            gc.collect()
            figures = part()
            if k >= 0:
                measured[name].extend(figures)
    return measured


def seconds(call: Callable[..., object], *arguments: Any) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - started


def long_tailed(
    rng: np.random.Generator, items: int, size: int, exponent: float
) -> np.ndarray[Any, Any]:
    """[size] random items, 0 the most popular: the k-th of them has a weight of (k +
    10) ** -exponent.
    """
    import numpy as np

    weights = np.cumsum((np.arange(items) + 10.0) ** -exponent)
    found: np.ndarray[Any, Any] = np.searchsorted(
        weights, rng.random(size) * weights[-1]
    )
    return found


@contextmanager
def kafka_topics(bootstrap_servers: str, count: int) -> Iterator[list[str]]:
    """Names of new topics, deleted afterwards."""
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    names = [f"streamer-bench-{uuid4().hex[:12]}" for _ in range(count)]
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers.split(","))
    try:
        admin.create_topics(
            [
                NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)
                for name in names
            ]
        )
        admin.wait_for_topics(names)
        yield names
    finally:
        admin.delete_topics(names)
        admin.close()
