"""`streamer replay`: write the events of a data set to a topic, at a pace."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.errors import SettingsError
from streamer.replay.cli.logs import opened_log
from streamer.replay.datasets import DATASETS, DatasetFormat
from streamer.replay.settings import LogSettings, ReplaySettings, WriteSettings

if TYPE_CHECKING:
    from rich.progress import Progress

    from streamer.replay.events import MalformedRows
    from streamer.replay.producer import EventSink
    from streamer.replay.streams import Stream


@click.group()
def replay() -> None:
    """Write the events of a data set to a topic, for `streamer run` to learn from.

    Events are written in the order of their times, those of equal time shuffled by a
    seed, with the user as key. Without --bootstrap-servers they go to the embedded log,
    which is created if it is not there.

    A replay that was stopped or killed resumes when the same command is given again: no
    event is lost or doubled. --restart writes all of them again.

    In Kafka, events are written by transactions. A reader that does not ask for
    committed records (isolation_level=read_committed) also sees the events of a
    transaction that was cut off, and again when the replay resumes.
    """


_json_option = option(
    "Output",
    "--json",
    "as_json",
    is_flag=True,
    help="At the end, print one JSON object.",
)


def add_command(dataset: DatasetFormat) -> None:
    """Add the command of a data set."""

    @replay.command(name=dataset.name, cls=GroupedCommand, help=dataset.help)
    @settings_options(ReplaySettings, environment=WriteSettings.ENVIRONMENT)
    @_json_option
    def command(settings: ReplaySettings, as_json: bool) -> None:
        write_log(dataset.name, settings, as_json)


for _dataset in DATASETS.values():
    add_command(_dataset)


@replay.command(cls=GroupedCommand)
@option(
    "Events",
    "--events",
    type=click.IntRange(1),
    default=100_000,
    help="Number of events.",
)
@option(
    "Events", "--seed", type=click.IntRange(0), default=0, help="Seed of the stream."
)
@settings_options(WriteSettings, environment=WriteSettings.ENVIRONMENT)
@_json_option
def synthetic(settings: WriteSettings, events: int, seed: int, as_json: bool) -> None:
    """Write a made-up stream: long-tailed, with tastes, sessions and drift.

    Events have no times of their own: they happen when they are written. With --speed 1
    a session of eight events begins every two seconds.
    """
    from streamer.replay.streams import synthetic_stream

    write(synthetic_stream(events, seed), settings, as_json)


def write_log(kind: str, settings: ReplaySettings, as_json: bool) -> None:
    """Write the events of a data set, and its catalogue before if that is wanted."""
    from streamer.replay.streams import catalogue_stream, log_name, log_stream

    with opened_log(settings.path, kind, settings.only(LogSettings)) as log:
        if settings.speed is not None and not log.has_time:
            raise SettingsError(
                [
                    f"--speed follows the times of events, and {log.path} has none: give --rate instead"
                ]
            )
        name = log_name(log, settings)
        if (topic := settings.catalogue_topic) is not None:
            catalogue = catalogue_stream(log.catalogue(), f"{name}-catalogue")
            at_once = replace(
                settings, topic=topic, rate=None, speed=None, max_gap_s=None
            )
            write(catalogue, at_once, as_json)
        write(log_stream(log, name), settings, as_json, log.malformed)


def write(
    stream: Stream,
    settings: WriteSettings,
    as_json: bool,
    malformed: MalformedRows | None = None,
) -> None:
    """Write a stream to a topic, and print what was done, also what its reader found
    malformed.

    Ctrl-C and SIGTERM stop it; what was written stays.
    """
    from streamer.replay.pacing import Pace
    from streamer.replay.producer import produce

    pace = Pace(settings.rate, settings.speed, settings.max_gap_s)
    started = time.monotonic()
    already = 0
    written = 0
    interrupted = False
    sink = open_sink(settings)
    try:
        with _interrupted_by_sigterm(), _progress() as bar:
            if settings.resume:
                already = sink.resume(stream.name, settings.restart)
            if 0 < already < stream.total:
                click.echo(
                    f"resuming at event {already:,} of {stream.total:,}; --restart writes all again",
                    err=True,
                )
            task = bar.add_task("", total=stream.total, completed=already)

            def count(events: int) -> None:
                nonlocal written
                written += events
                bar.advance(task, events)

            stamp = None if stream.has_time else time.time
            produce(stream.chunks(already), sink, pace, count, stamp)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        sink.close()
    seconds = round(time.monotonic() - started, 3)
    if as_json:
        result: dict[str, Any] = {
            "written": written,
            "already": already,
            "total": stream.total,
            "seconds": seconds,
            "interrupted": interrupted,
            "topic": settings.topic,
        }
        if malformed is not None:
            result["malformed"] = malformed.total
            result["reasons"] = dict(malformed.by_reason)
        click.echo(json.dumps(result))
        return
    log = settings.bootstrap_servers or f"the embedded log {settings.data_dir}"
    where = f"{settings.topic} in {log}"
    if not written and already and not interrupted:
        click.echo(
            f"nothing left to write: {already:,} events are in {where}. --restart writes them again"
        )
        return
    stopped = "stopped: " if interrupted else ""
    rate = written / max(seconds, 1e-9)
    click.echo(f"{stopped}{written:,} events written to {where}, {rate:,.0f} a second")
    if interrupted and settings.resume:
        click.echo("Give the same command again to resume.", err=True)


def open_sink(settings: WriteSettings) -> EventSink:
    """The topic that the settings name."""
    from streamer.build import kafka_settings
    from streamer.settings import StreamSettings

    where = {
        name: getattr(settings, name)
        for name in ("bootstrap_servers", "kafka", "kafka_config")
    }
    kafka = kafka_settings(StreamSettings(topics=(settings.topic,), **where))
    if kafka is not None:
        from streamer.replay.kafka.sink import KafkaSink

        return KafkaSink(kafka, settings.topic)
    from streamer.replay.producer import EmbeddedSink

    return EmbeddedSink(settings.data_dir, settings.topic, settings.partitions)


def _progress() -> Progress:
    """A progress bar, if this is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    hidden = not sys.stderr.isatty()
    return Progress(console=Console(stderr=True), transient=True, disable=hidden)


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
