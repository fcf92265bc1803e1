"""Writing a stream to a topic from the command line: where, how fast, with a progress bar, until it is stopped."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from streamer.replay.events import Malformed
    from streamer.replay.producer import EventSink
    from streamer.replay.settings import WriteSettings
    from streamer.replay.streams import Stream


@dataclass(slots=True)
class Result:
    """What a replay did.

    Args:
        written: events that it wrote.
        already: events of the stream that the topic held before.
        total: events of the stream, if that is known.
        seconds: how long it took.
        interrupted: whether Ctrl-C or SIGTERM stopped it.
    """

    written: int = 0
    already: int = 0
    total: int | None = None
    seconds: float = 0.0
    interrupted: bool = False


def write(stream: Stream, settings: WriteSettings, as_json: bool, malformed: Malformed | None = None) -> None:
    """Write a stream to a topic, and print what was done. Ctrl-C and SIGTERM stop it; what was written stays.

    Args:
        stream: the events.
        settings: where they go, and how fast.
        as_json: whether one JSON object is printed instead of a sentence.
        malformed: what the reader of the stream left out.

    Raises:
        StreamerError: the stream cannot be read, or the topic cannot be written.
    """
    from streamer.replay.pacing import make_pace
    from streamer.replay.producer import produce

    pace = make_pace(settings.rate, settings.speed, settings.max_gap_s)
    result, started = Result(total=stream.total), time.monotonic()
    sink = open_sink(settings)
    try:
        with _interrupted_by_sigterm():
            result.already = _resumed_at(stream, sink, settings.restart) if settings.resume else 0
            with _progress(stream.total, result.already) as advance:

                def count(events: int) -> None:
                    result.written += events
                    advance(events)

                produce(stream.chunks(result.already), sink, pace, count, None if stream.has_time else time.time)
    except KeyboardInterrupt:
        result.interrupted = True
    finally:
        sink.close()
    result.seconds = round(time.monotonic() - started, 3)
    if as_json:
        bad = {} if malformed is None else {"malformed": malformed.total, "reasons": dict(malformed.by_reason)}
        click.echo(json.dumps(asdict(result) | bad | {"topic": settings.topic}))
    else:
        _print_result(result, settings)


def _resumed_at(stream: Stream, sink: EventSink, restart: bool) -> int:
    """The number of the stream's events that the topic holds."""
    if stream.name is None:
        return 0
    start = sink.resume(stream.name, restart)
    if start and (stream.total is None or start < stream.total):
        of_all = "" if stream.total is None else f" of {stream.total:,}"
        click.echo(f"resuming at event {start:,}{of_all}; --restart writes all again", err=True)
    return start


def open_sink(settings: WriteSettings) -> EventSink:
    """The topic that the settings name."""
    from streamer.build import kafka_settings
    from streamer.settings import StreamSettings

    where = {name: getattr(settings, name) for name in ("bootstrap_servers", "kafka", "kafka_config")}
    kafka = kafka_settings(StreamSettings(topics=(settings.topic,), **where))
    if kafka is not None:
        from streamer.replay.kafka.sink import KafkaSink

        return KafkaSink(kafka, settings.topic)
    from streamer.replay.producer import EmbeddedSink

    return EmbeddedSink(settings.data_dir, settings.topic, settings.partitions)


def _print_result(result: Result, settings: WriteSettings) -> None:
    where = f"{settings.topic} in {settings.bootstrap_servers or f'the embedded log {settings.data_dir}'}"
    if not result.written and result.already and not result.interrupted:
        click.echo(f"nothing left to write: {result.already:,} events are in {where}. --restart writes them again")
        return
    rate = result.written / max(result.seconds, 1e-9)
    stopped = "stopped: " if result.interrupted else ""
    click.echo(f"{stopped}{result.written:,} events written to {where}, {rate:,.0f} a second")
    if result.interrupted and settings.resume:
        click.echo("Give the same command again to resume.", err=True)


@contextmanager
def _progress(total: int | None, start: int) -> Iterator[Callable[[int], None]]:
    """A progress bar, if this is a terminal; yields a function to call with the number of events after each write."""
    if not sys.stderr.isatty():
        yield lambda events: None
        return
    from rich import progress
    from rich.console import Console

    speed = progress.TextColumn("{task.fields[speed]}")
    columns = (progress.BarColumn(), progress.MofNCompleteColumn(), speed, progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=start, speed="")

        def advance(events: int) -> None:
            bar.advance(task, events)
            bar.update(task, speed=f"{bar.tasks[0].speed or 0:,.0f} events/s")

        yield advance


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
