"""What the scripts of this directory share: options and output, rounds by turns,
synthetic streams, topics.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from streamer.cli.output import render

K = TypeVar("K")
T = TypeVar("T")

PARTITIONS = 4
"""Of the topics that are created."""


class _Help(
    argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter
):
    """Help that keeps the lines of the description and names each default."""


def new_parser(description: str | None) -> ArgumentParser:
    """A parser with the option that all scripts have: `--json`."""
    parser = ArgumentParser(description=description, formatter_class=_Help)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    return parser


def add_brokers(parser: ArgumentParser, without: str) -> None:
    """Add `--bootstrap-servers`; `without` says what is measured without it."""
    parser.add_argument("--bootstrap-servers", help=f"Kafka brokers; {without}.")


def numbers(text: str) -> tuple[int, ...]:
    """Numbers separated by commas."""
    return tuple(int(number) for number in text.split(","))


def report(
    measure: Callable[[Namespace], dict[str, Any]],
    parser: ArgumentParser,
    arguments: Sequence[str] | None,
) -> None:
    """Measure with the parsed options, and print what was found."""
    options = parser.parse_args(arguments)
    as_json = options.json
    del options.json
    result = measure(options)
    print(json.dumps(result) if as_json else render(result))


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


def rounded(figures: Mapping[str, float], digits: int) -> dict[str, float]:
    """The same figures with so many digits after the point."""
    return {name: round(figure, digits) for name, figure in figures.items()}


def long_tailed(
    rng: np.random.Generator, items: int, size: int, exponent: float
) -> np.ndarray[Any, Any]:
    """[size] random items, 0 the most popular: the k-th of them has a weight of (k +
    10) ** -exponent.
    """
    weights = np.cumsum((np.arange(items) + 10.0) ** -exponent)
    return np.searchsorted(weights, rng.random(size) * weights[-1])


@contextmanager
def kafka_topics(bootstrap_servers: str, count: int) -> Iterator[list[str]]:
    """Names of new topics, deleted afterwards."""
    names = [f"streamer-bench-{uuid4().hex[:12]}" for _ in range(count)]
    topics = [NewTopic(name, PARTITIONS, replication_factor=1) for name in names]
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers.split(","))
    try:
        admin.create_topics(topics)
        admin.wait_for_topics(names)
        yield names
    finally:
        admin.delete_topics(names)
        admin.close()
