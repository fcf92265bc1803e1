"""Writing a stream to a topic from the command line: where, how fast, with a progress
bar, until it is stopped.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from streamer.replay.events import MalformedRows
    from streamer.replay.producer import EventSink
    from streamer.replay.settings import WriteSettings
    from streamer.replay.streams import Stream


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
        with _interrupted_by_sigterm():
            if settings.resume:
                already = sink.resume(stream.name, settings.restart)
            if 0 < already < stream.total:
                click.echo(
                    f"resuming at event {already:,} of {stream.total:,}; --restart writes all again",
                    err=True,
                )
            with _progress(stream.total, already) as advance:

                def count(events: int) -> None:
                    nonlocal written
                    written += events
                    advance(events)

                produce(
                    stream.chunks(already),
                    sink,
                    pace,
                    count,
                    None if stream.has_time else time.time,
                )
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


@contextmanager
def _progress(total: int, start: int) -> Iterator[Callable[[int], None]]:
    """A progress bar, if this is a terminal; yields a function to call with the number
    of events after each write.
    """
    if not sys.stderr.isatty():
        yield lambda events: None
        return
    from rich import progress
    from rich.console import Console

    speed = progress.TextColumn("{task.fields[speed]}")
    columns = (
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        speed,
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(
        *columns, console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("", total=total, completed=start, speed="")

        def advance(events: int) -> None:
            bar.advance(task, events)
            bar.update(task, speed=f"{bar.tasks[0].speed or 0:,.0f} events/s")

        yield advance


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
