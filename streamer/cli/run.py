"""`streamer run`: learn from a stream, for ever."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import click

from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.settings import RunSettings

logger = logging.getLogger("streamer")


@click.command(cls=GroupedCommand)
@settings_options(RunSettings)
@option(
    "Output",
    "--json",
    "as_json",
    envvar="STREAMER_JSON",
    is_flag=True,
    help="At the end, print one JSON object.",
)
def run(settings: RunSettings, as_json: bool) -> None:
    """Train a two-tower recommender continuously from a stream of events.

    Without --bootstrap-servers the topic is read from the embedded log, which `streamer
    replay` writes. Every setting can also come from an environment variable
    (STREAMER_BATCH_SIZE=1024) or from a file given by --config; the command line wins
    over the environment, which wins over the file. Settings that experiments with the
    method need have no option of their own: --set resampler=multinomial gives them, and
    docs/settings.md lists them.
    """
    if (settings.trainers or 1) > 1 and not is_rank():
        sys.exit(launch(settings.trainers or 1, sys.argv[1:], settings.log_format))
    if is_rank() and settings.trainers is None:  # by torchrun
        settings = replace(settings, trainers=int(os.environ["WORLD_SIZE"]))
    from streamer.build import build_pipeline
    from streamer.display.reporting import make_reporter

    source = settings.described()
    is_lead = rank() == 0
    port = settings.metrics_port if is_lead else None
    show_values = settings.metrics_show_values
    with watching(source, settings.metrics_host, port, show_values) as watch:
        pipeline = build_pipeline(settings)
        stop_on_signals(pipeline.stop)
        with make_reporter(settings.log_format, source, rank=rank()) as reporter:
            pipeline.on_status = reporter.update
            watch(pipeline)
            pipeline.run()
            summary = pipeline.summary()
            reporter.finish(None if as_json or not is_lead else summary)
    if as_json and is_lead:
        click.echo(json.dumps(summary))


def is_rank() -> bool:
    """Whether this process is one of several that train together, started by
    `--trainers` or by torchrun.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(name in os.environ for name in names)


def rank() -> int:
    """The rank of this process; 0 if it is alone."""
    return int(os.environ["RANK"]) if is_rank() else 0


def launch(trainers: int, arguments: list[str], log_format: str) -> int:
    """Run `streamer ARGUMENTS` as several processes; returns the exit code."""
    from streamer.display.reporting import make_handler
    from streamer.lockstep.launch import launch_ranks

    logger.addHandler(make_handler(log_format == "json"))
    return launch_ranks(trainers, _run_command, arguments)


def _run_command(arguments: list[str]) -> None:
    from streamer.cli.main import main

    sys.argv = ["streamer", *arguments]
    main()


@contextlib.contextmanager
def watching(
    source: str, host: str, port: int | None, show_values: bool = False
) -> Iterator[Callable[[Any], str | None]]:
    """Listen on the port for metrics, if there is one; yields what has a pipeline
    watched and returns the URL.

    Raises:
        StreamerError: it cannot listen there.
    """
    if port is None:
        yield lambda pipeline: None
        return
    from streamer.web.live import monitor_server, new_monitor

    monitor = new_monitor(source)
    with monitor_server(monitor, host, port, show_values) as server:

        def watch(pipeline: Any) -> str:
            pipeline.watch(monitor)
            url = server.url
            logger.info("live page at %s, metrics at %smetrics", url, url)
            return url

        yield watch


def stop_on_signals(stop: Any) -> None:
    """SIGTERM, SIGHUP and Ctrl-C end the run after the step; a second Ctrl-C ends it at
    once.
    """

    def first(number: int, _: object) -> None:
        stop()
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))

    signal.signal(signal.SIGINT, first)
    signal.signal(signal.SIGTERM, first)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
        signal.signal(signal.SIGHUP, first)
