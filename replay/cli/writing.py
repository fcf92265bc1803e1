"""Writing a stream to a topic from the command line: where, how fast, with a progress bar, until it is stopped."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from streamer.replay.pacing import make_pace

if TYPE_CHECKING:
    from streamer.replay.events import Malformed
    from streamer.replay.producer import EventSink
    from streamer.replay.streams import Stream

Options = Mapping[str, Any]


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


def write(stream: Stream, options: Options) -> Result:
    """Write a stream to the topic that the options name. Ctrl-C and SIGTERM stop it; what was written stays.

    Raises:
        StreamerError: the stream cannot be read, or the topic cannot be written.
    """
    from streamer.replay.producer import produce

    pace = make_pace(options["rate"], options["speed"], options["max_gap"])
    result, started = Result(total=stream.total), time.monotonic()
    sink = open_sink(options)
    try:
        with _interrupted_by_sigterm():
            result.already = 0 if options["no_resume"] else _resume(stream, sink, options["restart"])
            with _progress(stream.total, result.already) as advance:

                def count(events: int) -> None:
                    result.written += events
                    advance(events)

                stamp = None if stream.has_time else time.time
                produce(stream.chunks(result.already), sink, pace, count, stamp)
    except KeyboardInterrupt:
        result.interrupted = True
    finally:
        sink.close()
    result.seconds = round(time.monotonic() - started, 3)
    return result


def _resume(stream: Stream, sink: EventSink, restart: bool) -> int:
    """The number of the stream's events that the topic holds."""
    if stream.name is None:
        return 0
    start = sink.resume(stream.name, restart)
    if start and (stream.total is None or start < stream.total):
        of_all = "" if stream.total is None else f" of {stream.total:,}"
        click.echo(f"going on at event {start:,}{of_all}; --restart writes all again", err=True)
    return start


def open_sink(options: Options) -> EventSink:
    """The topic that the options name."""
    from streamer.build import kafka_settings
    from streamer.settings import StreamSettings

    names = ("bootstrap_servers", "kafka_config")
    where = StreamSettings(topics=(options["topic"],), kafka=dict(options["kafka"]), **{n: options[n] for n in names})
    settings = kafka_settings(where)
    if settings is not None:
        from streamer.replay.kafka.sink import KafkaSink

        return KafkaSink(settings, options["topic"])
    from streamer.replay.producer import EmbeddedSink

    return EmbeddedSink(options["data_dir"], options["topic"], options["partitions"])


def finish(result: Result, options: Options, malformed: Malformed | None = None) -> None:
    """Print what the replay did."""
    if options["as_json"]:
        bad = {} if malformed is None else {"malformed": malformed.total, "reasons": dict(malformed.by_reason)}
        figures = {name: getattr(result, name) for name in Result.__slots__}
        click.echo(json.dumps(figures | bad | {"topic": options["topic"]}))
        return
    place = options["bootstrap_servers"] or f"the embedded log {options['data_dir']}"
    where = f"{options['topic']} in {place}"
    if not result.written and result.already and not result.interrupted:
        click.echo(f"nothing left to write: {result.already:,} events are in {where}. --restart writes them again")
        return
    rate = result.written / max(result.seconds, 1e-9)
    stopped = "stopped: " if result.interrupted else ""
    click.echo(f"{stopped}{result.written:,} events written to {where}, {rate:,.0f} a second")
    if result.interrupted and not options["no_resume"]:
        click.echo("The same command goes on from here.", err=True)


def report(malformed: Malformed, path: object) -> None:
    """Print what was no event, and where."""
    for example in malformed.examples:
        click.echo(f"{path}, {example}", err=True)
    if malformed.total:
        listed = len(malformed.examples)
        more = f", the first {listed} are listed" if malformed.total > listed else ""
        click.echo(f"{malformed.total:,} malformed events were left out{more}", err=True)


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
