"""`streamer demo`: a made-up stream, written by one process and learned by another,
with nothing else needed.

It is `streamer replay synthetic` and `streamer run` with their defaults, side by side
on one embedded log; and `streamer serve`, if that is wanted.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

import streamer
from streamer.build import build_pipeline
from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.cli.run import is_rank, launch, rank, stop_on_signals, watching
from streamer.display.reporting import Reporter, make_reporter
from streamer.errors import StreamerError
from streamer.model.setting import Settings, setting
from streamer.replay.cli.demo_summary import Figures, print_summary
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.learner import Learner
    from streamer.metrics.status import Status
    from streamer.pipeline import Pipeline

TOPIC = "interactions"
MIN_LEARNING_S = 5.0
"""Time that is left for learning, however long the start took."""
LINE_EVERY_S = 5.0
START_S = 60.0
"""How long the trainers of a group wait for each other to start."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings(Settings):
    """All settings of `streamer demo`."""

    events: int = setting(
        150_000, "Number of events to write and to learn from.", at_least=512
    )
    rate: float = setting(4000.0, "Events written per second.", at_least=1)
    seconds: float = setting(
        75.0, "Stop after this time, starting included.", at_least=1, unit="seconds"
    )
    seed: int = setting(0, "Seed of the stream.", at_least=0)
    trainers: int = setting(
        1,
        "Number of processes that train the model together.",
        at_least=1,
        at_most=4,
    )
    data_dir: Path | None = setting(
        None,
        "Directory of log and checkpoints, kept afterwards.",
        if_none="a new temporary one",
    )
    log_format: Literal["auto", "panel", "plain", "json"] = setting(
        "auto", "A live panel at a terminal, plain lines elsewhere."
    )
    metrics_port: int = setting(
        0,
        "Port of the live page and of /metrics; 0 for any free one.",
        at_least=0,
        at_most=65_535,
    )
    metrics_host: str = setting("127.0.0.1", "Address to serve them on.")
    serve: bool = setting(
        False,
        "Serve recommendations meanwhile, with a page to click on items, and go on until Ctrl-C.",
    )
    serve_port: int = setting(
        8080, "Port of the server and its page.", at_least=1, at_most=65_535
    )
    open: bool | None = setting(
        None, "Open the live page in a browser.", if_none="at a terminal with a display"
    )


@click.command(cls=GroupedCommand)
@settings_options(DemoSettings, environment=())
@option(
    "Options",
    "--json",
    "as_json",
    is_flag=True,
    help="At the end, print one JSON object.",
)
def demo(settings: DemoSettings, as_json: bool) -> None:
    """Watch a model learn from a made-up stream for about a minute.

    A second process writes events of made-up users to an embedded log; what is popular
    changes all the time. The trainer ranks events before it learns from them, and
    compares its hit rate with that of the best trivial recommender. The demo needs no
    broker, no Redis, no GPU and no download. Ctrl-C ends it early, with the summary.
    """
    deadline = time.monotonic() + (settings.seconds if not settings.serve else math.inf)
    directory = settings.data_dir or Path(tempfile.mkdtemp(prefix="streamer-demo-"))
    directory = directory.absolute()
    if settings.trainers > 1 and not is_rank():
        arguments = [*sys.argv[1:], "--data-dir", str(directory)]
        sys.exit(
            launch(settings.trainers, arguments, settings.log_format, restart=False)
        )
    if rank():
        train(demo_settings(settings, directory))
        return
    source = f"a made-up stream in {directory}"
    with (
        watching(source, settings.metrics_host, settings.metrics_port) as watch,
        make_reporter(settings.log_format, source, LINE_EVERY_S) as reporter,
    ):
        reporter.note("loading the trainer")
        figures = run_demo(settings, directory, deadline, reporter, watch)
        reporter.finish(None)
    if as_json:
        click.echo(json.dumps(figures))
    else:
        print_summary(figures, sys.stdout)


def run_demo(
    settings: DemoSettings,
    directory: Path,
    deadline: float,
    reporter: Reporter,
    watch: Callable[[Pipeline], str | None],
) -> Figures:
    """Write and learn until all events are learned, somebody stops it, or time is up;
    returns what came of it.

    Args:
        directory: of log and checkpoints.
        deadline: when to stop, on the monotonic clock.
        watch: has the trainer watched, and returns the address of the live page.
    """
    from streamer.web.live import open_browser, opens_browser

    ended_by = "events"
    first_cache = None
    hit_rates = []

    def stop(reason: str) -> None:
        nonlocal ended_by
        ended_by = reason
        reporter.note("stopping after this step; what was learned is being saved")
        pipeline.stop()

    def on_status(status: Status) -> None:
        nonlocal first_cache
        events = status.accounting.get("consumed", 0)
        if first_cache is None and any(status.cache):
            first_cache = status.cache._asdict()
        if status.hit_rate is not None and status.best_baseline is not None:
            hit_rates.append((events, status.hit_rate, status.best_baseline.hit_rate))
        reporter.update(status)
        if (
            ended_by == "events"
            and time.monotonic() >= deadline
            and events < settings.events
        ):
            stop("time")

    # 1. the trainer, as `streamer run` builds it
    pipeline = build_pipeline(demo_settings(settings, directory))
    pipeline.on_status = on_status
    url = watch(pipeline)
    if url is not None and (
        opens_browser() if settings.open is None else settings.open
    ):
        open_browser(url)
    stop_on_signals(lambda: stop("you"))
    deadline = max(deadline, time.monotonic() + MIN_LEARNING_S)
    reporter.note("")
    on_status(pipeline.status)
    # 2. the writer, and the server if one is wanted, are processes of their own, while
    # we learn
    with contextlib.ExitStack() as stack:
        why = {}
        for part, arguments in children(settings, directory).items():
            why[part] = stack.enter_context(
                child(arguments, functools.partial(stop, part))
            )
        if settings.serve:
            reporter.note(
                f"recommendations at http://127.0.0.1:{settings.serve_port}/, until Ctrl-C"
            )
        pipeline.run()
    if ended_by in why:
        raise StreamerError(f"the {ended_by} of the demo failed: {why[ended_by]()}")
    # 3. what came of it
    status = pipeline.status
    return pipeline.summary() | {
        "ended_by": ended_by,
        "lag": sum(status.lag.values()),
        "recent_hit_rate_at_10": status.hit_rate,
        "recent_best_baseline": status.best_baseline._asdict()
        if status.best_baseline is not None
        else None,
        "hit_rates": hit_rates,
        "first_cache": first_cache,
        "recommendations": recommendations(pipeline.learner),
        "data_dir": str(directory),
        "checkpoint_dir": str(directory / "checkpoints"),
    }


def train(settings: RunSettings) -> None:
    """Train beside the process that shows the demo, which also ends it."""
    pipeline = build_pipeline(settings)
    stop_on_signals(pipeline.stop)
    pipeline.run()


def demo_settings(settings: DemoSettings, directory: Path) -> RunSettings:
    """The defaults of `streamer run`, whatever the environment says."""
    found = RunSettings(
        data_dir=directory,
        topics=(TOPIC,),
        max_events=settings.events,
        checkpoint_every_s=10.0,
    )
    if settings.serve:
        found = replace(found, max_events=None, publish_dir=directory / "points")
    if settings.trainers > 1:
        found = replace(found, trainers=settings.trainers, group_timeout_s=START_S)
    return found


def children(settings: DemoSettings, directory: Path) -> dict[str, list[str]]:
    """The commands that run beside the trainer: the writer, and the server if one is
    wanted.
    """
    stream = {"data-dir": directory, "topic": TOPIC}
    write = {"events": settings.events, "rate": settings.rate, "seed": settings.seed}
    found = {"writer": ["replay", "synthetic", "--restart", *_options(write | stream)]}
    if settings.serve:
        serve = {"from": directory / "points", "port": settings.serve_port}
        found["server"] = ["serve", "--clicks", *_options(serve | stream)]
    return found


def _options(values: Mapping[str, object]) -> list[str]:
    return [
        text for name, value in values.items() for text in (f"--{name}", str(value))
    ]


@contextlib.contextmanager
def child(
    arguments: Sequence[str], on_failure: Callable[[], None]
) -> Iterator[Callable[[], str]]:
    """A command in a process that ends with the block; yields a function that says why
    it failed.

    `on_failure` is called, by another thread, if it ends in failure before the block
    does.
    """
    package = str(
        Path(streamer.__file__).resolve().parents[1]
    )  # the child finds the packages that we have found
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("STREAMER_")
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [package, os.environ.get("PYTHONPATH")])
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "streamer", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us
    )
    errors: list[bytes] = []
    ending = threading.Event()

    def wait() -> None:
        errors.append(process.communicate()[1])
        if process.returncode and not ending.is_set():
            on_failure()

    waiting = threading.Thread(target=wait, name=arguments[0], daemon=True)
    waiting.start()
    try:
        yield (
            lambda: (
                errors[0].decode(errors="replace").strip()
                or f"exit code {process.returncode}"
            )
        )
    finally:
        ending.set()
        process.terminate()
        waiting.join(10)


def recommendations(learner: Learner, users: int = 3, most: int = 5) -> list[Figures]:
    """For a few people who were here often enough: what they had last, and what they
    may like next.
    """
    from streamer.recommender import Recommender

    users_ = learner.state.users.used
    often = users_[(learner.state.recent.of(users_).items >= 0).sum(axis=1) >= most]
    chosen = often
    if len(often) >= users:
        chosen = often[[len(often) * k // users for k in range(users)]]
    recommender = Recommender(learner)
    queries = [
        recommender.user(learner.state.users.id_of(row)) for row in chosen.tolist()
    ]
    found = recommender.recommend(queries, most, exclude_seen=True) if queries else []
    return [
        {
            "user": query.user,
            "recent": [learner.state.items.id_of(row) for row in query.recent[:most]],
            "recommended": [recommended.item for recommended in items],
        }
        for query, items in zip(queries, found, strict=True)
    ]
