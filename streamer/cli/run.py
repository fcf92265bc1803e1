"""`streamer run`: learn from a stream, for ever."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from streamer.cli.options import (
    GroupedCommand,
    config_option,
    event_options,
    learner_options,
    option,
    store_options,
    stream_options,
)

_RUN = "Run"


@click.command(cls=GroupedCommand, context_settings={"auto_envvar_prefix": "STREAMER"})
@config_option
@stream_options
@event_options
@option(_RUN, "--batch-size", type=click.IntRange(1), default=512, help="Events of a micro-batch.")
@option(
    _RUN,
    "--max-age",
    type=click.FloatRange(0),
    default=1.0,
    help="Seconds after which a smaller batch is trained; 0 waits for a full one.",
)
@option(
    _RUN,
    "--max-queued-events",
    type=click.IntRange(1),
    default=16_384,
    help="Reading ahead pauses while so many events wait.",
)
@option(
    _RUN,
    "--until-end",
    is_flag=True,
    help="Stop at the end of the stream as it is at the start, of the partitions that no other trainer reads.",
)
@option(_RUN, "--max-events", type=click.IntRange(1), help="Stop after so many events.")
@option(
    _RUN,
    "--evaluate",
    type=click.FloatRange(0, 1),
    default=0.02,
    help="Share of the time for ranking events before they are trained; 0 for none.",
)
@option(
    _RUN,
    "--checkpoint-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where state is kept. [default: <data-dir>/checkpoints]",
)
@option(
    _RUN,
    "--checkpoint-every",
    type=click.FloatRange(0),
    default=60.0,
    help="Seconds between checkpoints; 0 for none by time.",
)
@option(_RUN, "--checkpoint-every-events", type=click.IntRange(1), help="Events between checkpoints.")
@option(_RUN, "--keep-checkpoints", type=click.IntRange(1), default=3, help="How many checkpoints are kept.")
@option(
    _RUN,
    "--log-format",
    type=click.Choice(["auto", "panel", "plain", "json"]),
    default="auto",
    help="A live panel at a terminal, plain lines elsewhere.",
)
@option(
    _RUN,
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    help="Serve the live page, /metrics, /healthz and /readyz on this port; 0 for any free one.",
)
@option(_RUN, "--metrics-host", default="127.0.0.1", help="Address to serve them on; 0.0.0.0 for all of this machine.")
@option(_RUN, "--json", "as_json", is_flag=True, help="At the end, print one JSON object.")
@store_options
@option(
    "Sharing",
    "--share-every",
    type=click.FloatRange(0.001, 10),
    default=1.0,
    help="Seconds between exchanges with Redis: how old what is seen of other trainers may be.",
)
@learner_options
def run(as_json: bool, **options: Any) -> None:
    """Learn a two-tower retriever from a stream of events, for ever.

    Without --bootstrap-servers the topic is read from the embedded log, which `streamer replay` writes. Every option
    can also be set by an environment variable (STREAMER_BATCH_SIZE=1024) or in a file given by --config; the command
    line wins over the environment, which wins over the file.
    """
    from streamer.build import described
    from streamer.display.reporting import make_reporter

    with watching(options, described(options)) as watch:
        pipeline = build(options)
        stop_on_signals(pipeline.stop)
        with make_reporter(options["log_format"], described(options)) as reporter:
            pipeline.on_status = reporter.update
            watch(pipeline)
            pipeline.run()
            summary = pipeline.summary()
            reporter.finish(None if as_json else summary)
    if as_json:
        click.echo(json.dumps(summary))


@contextlib.contextmanager
def watching(options: dict[str, Any], source: str) -> Iterator[Callable[[Any], str | None]]:
    """Listens on the port for metrics, if there is one; yields what has a pipeline watched, and answers the address.

    Raises:
        StreamerError: it cannot listen there.
    """
    if options["metrics_port"] is None:
        yield lambda pipeline: None
        return
    from streamer.web.watched import announce, watched

    with watched(source, options["metrics_host"], options["metrics_port"]) as (monitor, url):

        def watch(pipeline: Any) -> str:
            pipeline.watch(monitor)
            announce(url)
            return url

        yield watch


def build(options: dict[str, Any]) -> Any:
    """The pipeline that the options describe."""
    if options["threads"]:
        import torch

        torch.set_num_threads(options["threads"])
    from streamer import build as wiring
    from streamer.checkpoint import CheckpointStore
    from streamer.event import EventDecoder
    from streamer.learner import Learner
    from streamer.pipeline import Pipeline, PipelineSettings
    from streamer.prequential import Prequential

    decoder, make_source, learner = wiring.checked(
        lambda: EventDecoder(wiring.event_settings(options)),
        lambda: wiring.source_factory(options),
        lambda: Learner(wiring.learner_settings(options)),
    )
    directory = options["checkpoint_dir"] or Path(options["data_dir"]) / "checkpoints"
    checkpoints = CheckpointStore(directory, options["keep_checkpoints"])
    return Pipeline(
        learner,
        make_source,
        decoder,
        wiring.dead_letters(options),
        PipelineSettings(
            batch_size=options["batch_size"],
            max_age_s=options["max_age"] or None,
            max_queued_events=options["max_queued_events"],
            checkpoint_every_s=options["checkpoint_every"] or None,
            checkpoint_every_events=options["checkpoint_every_events"],
            until_end=options["until_end"] and not options["source"],  # a file or a pipe ends by itself
            max_events=options["max_events"],
        ),
        checkpoints,
        Prequential(learner, time_share=options["evaluate"]) if options["evaluate"] else None,
        wiring.store(options),
    )


def stop_on_signals(stop: Any) -> None:
    """SIGTERM and Ctrl-C end the run after the step; a second Ctrl-C ends it at once."""

    def first(number: int, _: object) -> None:
        stop()
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))

    signal.signal(signal.SIGINT, first)
    signal.signal(signal.SIGTERM, first)
