"""`streamer replay`: write events to a topic, at a pace."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamer.options import F, GroupedCommand, option, pairs

if TYPE_CHECKING:
    from replay.events import Record
    from replay.producer import EventSink

Options = dict[str, Any]

_TOPIC, _PACE, _EVENTS, _OUTPUT = "Topic", "Pace", "Events", "Output"

_own_option = partial(option, envvar=None)  # `run` has options of these names that mean something else


@click.group()
def replay() -> None:
    """Write events to a topic, at a pace, for `streamer run` to learn from.

    Without --bootstrap-servers they go to the embedded log, which is created if it is not there.
    """


def topic_options(function: F) -> F:
    """Where events are written, and how fast."""
    for decorate in reversed(
        [
            option(_TOPIC, "--topic", default="interactions", help="Topic to write to."),
            option(
                _TOPIC,
                "--data-dir",
                type=click.Path(file_okay=False, path_type=Path),
                default=Path("streamer-data"),
                help="Directory of the embedded log.",
            ),
            option(
                _TOPIC,
                "--partitions",
                type=click.IntRange(1),
                help="Partitions of a new topic of the embedded log. [default: 4]",
            ),
            option(
                _TOPIC,
                "--bootstrap-servers",
                help="Write to Kafka instead: host:port[,host:port].",
            ),
            option(
                _TOPIC,
                "--kafka",
                multiple=True,
                metavar="NAME=VALUE",
                help="Any setting of the Kafka client; also as STREAMER_KAFKA_<NAME>.",
            ),
            option(
                _TOPIC,
                "--kafka-config",
                type=click.Path(dir_okay=False, path_type=Path),
                help="File with settings of the Kafka client (.properties or .toml).",
            ),
            _own_option(_PACE, "--rate", type=float, help="Events a second. [default: as fast as possible]"),
            _own_option(_PACE, "--speed", type=float, help="Times real time: 60 writes an hour of events in a minute."),
            _own_option(_PACE, "--max-gap", type=float, help="With --speed: longest pause between events, in seconds."),
            _own_option(_OUTPUT, "--json", "as_json", is_flag=True, help="At the end, print one JSON object."),
        ]
    ):
        function = decorate(function)
    return function


@replay.command(cls=GroupedCommand)
@_own_option(
    _EVENTS,
    "--path",
    required=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="File of JSON lines, plain or .gz; - for standard input.",
)
@_own_option(
    _EVENTS,
    "--field",
    multiple=True,
    metavar="OURS=THEIRS",
    help="Name of a field in the file, e.g. user_id=uid; it is written by our name. Repeat it for several.",
)
@_own_option(_EVENTS, "--limit", type=click.IntRange(1), help="Write no more than so many events.")
@topic_options
def jsonl(path: str, field: tuple[str, ...], limit: int | None, **options: Any) -> None:
    """Write the events of a file of JSON lines.

    A line is an event, {"user_id": "ann", "item_id": 42, "timestamp": 1700000000}, or an array of events. A line that
    is none is reported with its number, and the rest goes on.
    """
    from replay.lines import JsonLines
    from streamer.event import EventSettings

    reader = JsonLines(path, EventSettings(fields=pairs(field, "field")))
    result = write(reader, options, limit)
    bad = reader.malformed
    finish(result | {"malformed": bad.total, "reasons": dict(bad.by_reason)}, options)
    for place in bad.places:
        click.echo(f"{path}, {place}", err=True)
    if bad.total:
        more = f", the first {len(bad.places)} are listed" if bad.total > len(bad.places) else ""
        click.echo(f"{bad.total:,} malformed events were left out{more}", err=True)


@replay.command(cls=GroupedCommand)
@_own_option(_EVENTS, "--events", type=click.IntRange(1), default=100_000, help="How many.")
@_own_option(_EVENTS, "--seed", type=click.IntRange(0), default=0, help="Determines all of them.")
@topic_options
def synthetic(events: int, seed: int, **options: Any) -> None:
    """Write a made-up stream: long-tailed, with tastes, sessions and drift."""
    from replay.synthetic import SyntheticSettings, SyntheticStream

    stream = SyntheticStream(SyntheticSettings(seed=seed))
    finish(write((chunk.records() for chunk in stream), options, events), options)


# what the subcommands share -------------------------------------------------------------------------------------------


def write(chunks: Iterable[Sequence[Record]], options: Options, limit: int | None) -> Options:
    """Write a stream to where the options say. Ctrl-C and SIGTERM end it; what was written stays.

    Raises:
        StreamerError: the stream cannot be read, or not be written.
    """
    from replay.pacing import make_pace
    from replay.producer import produce

    pace = make_pace(options["rate"], options["speed"], options["max_gap"])
    started, written, interrupted = time.monotonic(), 0, False
    sink = open_sink(options)

    def count(events: int) -> None:
        nonlocal written
        written += events
        advance(events)

    try:
        with _progress(limit) as advance, _interrupted_by_sigterm():
            produce(chunks, sink, pace, limit, count)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        sink.close()
    seconds = time.monotonic() - started
    return {"written": written, "seconds": round(seconds, 3), "interrupted": interrupted}


def open_sink(options: Options) -> EventSink:
    """The topic that the options name."""
    from streamer.wiring import kafka_settings

    reading = {"topics": (options["topic"],), "group_id": "streamer", "start": "earliest", "start_timestamp": None}
    settings = kafka_settings(options | reading)
    if settings is not None:
        from replay.kafka_sink import KafkaSink

        return KafkaSink(settings, options["topic"])
    from replay.producer import EmbeddedSink

    return EmbeddedSink(options["data_dir"], options["topic"], options["partitions"])


def finish(result: Options, options: Options) -> None:
    """Say what was done."""
    if options["as_json"]:
        click.echo(json.dumps(result | {"topic": options["topic"]}))
        return
    where = options["bootstrap_servers"] or f"the embedded log {options['data_dir']}"
    stopped = "stopped: " if result["interrupted"] else ""
    rate = result["written"] / max(result["seconds"], 1e-9)
    click.echo(f"{stopped}{result['written']:,} events written to {options['topic']} in {where}, {rate:,.0f} a second")


@contextmanager
def _progress(total: int | None) -> Iterator[Any]:
    """A progress bar for a person at a terminal; yields what to call with each number of events written."""
    if not sys.stderr.isatty():
        yield lambda events: None
        return
    from rich import progress
    from rich.console import Console

    speed = progress.TextColumn("{task.fields[speed]}")
    columns = (progress.BarColumn(), progress.MofNCompleteColumn(), speed, progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, speed="")

        def advance(events: int) -> None:
            bar.advance(task, events)
            bar.update(task, speed=f"{bar.tasks[0].speed or 0:,.0f} events/s")

        yield advance


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
