"""`streamer bench`: measure on this machine."""

from __future__ import annotations

import importlib
import json
from typing import Any

import click


@click.group()
def bench() -> None:
    """Measure Streamer on this machine, always against a named alternative in the same run."""


@bench.command()
@click.option("--batch-size", "-B", default=2048, show_default=True, help="Events of a micro-batch.")
@click.option("--cache-size", "-C", default=2048, show_default=True, help="Items in the cache.")
@click.option("--dim", "-d", default=32, show_default=True, help="Size of the embeddings.")
@click.option("--items", "-N", default=40_988, show_default=True, help="Items in the table.")
@click.option("--users", "-M", default=29_858, show_default=True, help="Users in the table.")
@click.option("--many-items", default=10_000_000, show_default=True, help="Items of the large table; 0 leaves it out.")
@click.option("--threads", default=None, type=int, help="Threads of torch; its own choice by default.")
@click.option("--rounds", default=10, show_default=True, help="Interleaved rounds; the best of each method counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def step(as_json: bool, **options: int | None) -> None:
    """Time of a training step, forward + backward + update, for every method.

    `plain` is the same method with whole matrices, torch.multinomial, gather and dense Adam, as the paper's authors
    write it. Rounds are interleaved, so that all methods meet the same machine.
    """
    from streamer.bench.step import StepBench, StepOptions, table

    result = StepBench(StepOptions(**options)).run()  # type: ignore[arg-type]
    click.echo(json.dumps(result) if as_json else table(result))


@bench.command()
@click.option("--events", default=40_000, show_default=True, help="Events of the stream.")
@click.option("--batch-size", "-B", type=int, help="Events of a micro-batch. [default: that of `streamer run`]")
@click.option("--bootstrap-servers", help="Kafka brokers; without them only the embedded log is measured.")
@click.option("--rounds", default=6, show_default=True, help="Interleaved rounds; the best of each counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ingest(as_json: bool, **options: Any) -> None:
    """Events per second of reading alone, of training alone, and of the whole line, with the defaults of `run`."""
    from streamer.bench.ingest import IngestBench, IngestOptions, table

    result = IngestBench(IngestOptions(**options)).run()
    click.echo(json.dumps(result) if as_json else table(result))


@bench.command()
@click.option("--events", default=1_000_000, show_default=True, help="Events of the log.")
@click.option("--plain-events", default=100_000, show_default=True, help="Of these, for the client's own producer.")
@click.option("--bootstrap-servers", help="Kafka brokers; without them only the embedded log is measured.")
@click.option("--rounds", default=3, show_default=True, help="Interleaved rounds; the best of each counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(as_json: bool, **options: Any) -> None:
    """Events per second from a file to events, and from there to a topic, each beside what one would write by hand."""
    module = importlib.import_module("streamer.replay.bench")  # imports point to this package, never from it
    result = module.ReplayBench(module.ReplayOptions(**options)).run()
    click.echo(json.dumps(result) if as_json else module.table(result))


@bench.command("store")
@click.option("--redis-url", help="Redis to use; without it a redis-server from the PATH is started.")
@click.option("--trainers", "-t", multiple=True, default=(1, 2, 4), show_default=True, help="Numbers of trainers.")
@click.option("--items", "-N", multiple=True, default=(40_988, 1_000_000), show_default=True, help="Numbers of items.")
@click.option("--batch-size", "-B", default=2048, show_default=True, help="Events of a micro-batch.")
@click.option("--cache-size", "-C", default=2048, show_default=True, help="Items in the cache.")
@click.option("--dim", "-d", default=32, show_default=True, help="Size of the embeddings.")
@click.option("--rounds", default=3, show_default=True, help="Rounds with and without Redis, by turns.")
@click.option("--seconds", default=6.0, show_default=True, help="Length of a round.")
@click.option("--entries", default=1500, show_default=True, help="Written to the log while one trainer is stopped.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench_store(as_json: bool, **options: Any) -> None:
    """What sharing through Redis costs a training step, and how long the log grows while a reader is stopped.

    Trainers are processes that train real steps. `share_of_step` is what the store takes of a trainer for each step
    (the training thread inside the store's calls, and all of the exchange thread) over what a step takes that shares
    nothing (all threads, divided by how many train); both are times on a core. The ratio beside it is the direct
    comparison: the median step with Redis over the median step without, on the wall, by turns in the same processes.
    The server's time is not a trainer's, and has its own column.
    """
    from streamer.bench.store import StoreBench, StoreOptions, table

    result = StoreBench(StoreOptions(**options)).run()
    click.echo(json.dumps(result) if as_json else table(result))


@bench.command()
@click.option("--steps", default=300, show_default=True, help="Steps of each kind.")
@click.option("--batch-size", "-B", default=512, show_default=True, help="Events of a micro-batch.")
@click.option("--items", "-N", default=40_000, show_default=True, help="Items of the stream.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def metrics(as_json: bool, **options: int) -> None:
    """What all metrics cost: their share of a step of the whole line, beside the same line without them."""
    from streamer.bench.metrics import MetricsBench, MetricsOptions, table

    result = MetricsBench(MetricsOptions(**options)).run()
    click.echo(json.dumps(result) if as_json else table(result))
