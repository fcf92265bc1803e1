"""`streamer demo`: a made-up stream, written by one process and learned by another,
with nothing else needed.

It is `streamer replay synthetic` and `streamer run` with their defaults, side by side
on one embedded log; and `streamer serve`, if that is wanted.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np

from streamer.build import build_pipeline
from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.cli.run import stop_on_signals, watching
from streamer.display.reporting import Reporter, make_reporter
from streamer.errors import StreamerError
from streamer.model.setting import Settings, setting
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.learner import Learner
    from streamer.pipeline import Pipeline

Figures = dict[str, Any]

TOPIC = "interactions"
ENDS = {
    "events": "All events are learned.",
    "time": "Time was up.",
    "you": "You stopped it.",
}
MIN_LEARNING_S = 5.0
"""Time that is left for learning, however long the start took."""
LINE_EVERY_S = 5.0


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
    started = time.monotonic()
    directory = settings.data_dir or Path(tempfile.mkdtemp(prefix="streamer-demo-"))
    directory = directory.absolute()
    source = f"a made-up stream in {directory}"
    with (
        watching(source, "127.0.0.1", settings.metrics_port) as watch,
        make_reporter(settings.log_format, source, LINE_EVERY_S) as reporter,
    ):
        reporter.note("loading the trainer")
        figures = run_demo(settings, directory, started, reporter, watch)
        reporter.finish(None)
    click.echo(json.dumps(figures) if as_json else "\n".join(summary(figures)))


def run_demo(
    settings: DemoSettings,
    directory: Path,
    started: float,
    reporter: Reporter,
    watch: Callable[[Pipeline], str | None],
) -> Figures:
    """Write and learn until all events are learned, somebody stops it, or time is up;
    returns what came of it.

    Args:
        directory: of log and checkpoints.
        started: when the command was given, on the monotonic clock.
        watch: has the trainer watched, and returns the address of the live page.
    """
    from streamer.web.live import open_browser, opens_browser

    ended_by = "events"

    def stop(reason: str) -> None:
        nonlocal ended_by
        if ended_by == "events":  # the first reason counts
            ended_by = reason
        reporter.note("stopping after this step; what was learned is being saved")
        pipeline.stop()

    # 1. the trainer, as `streamer run` builds it
    pipeline = build_pipeline(demo_settings(settings, directory))
    pipeline.on_status = reporter.update
    url = watch(pipeline)
    opens = opens_browser() if settings.open is None else settings.open
    if url is not None and opens:
        open_browser(url)
    stop_on_signals(lambda: stop("you"))
    reporter.note("")
    reporter.update(pipeline.status)
    left_s = started + settings.seconds - time.monotonic()
    timer = threading.Timer(max(left_s, MIN_LEARNING_S), stop, ["time"])
    timer.daemon = True
    if not settings.serve:
        timer.start()
    # 2. the writer, and the server if one is wanted, are processes of their own, while
    # we learn
    why = {}
    with contextlib.ExitStack() as stack:
        for part, arguments in children(settings, directory).items():
            failed = functools.partial(stop, part)
            why[part] = stack.enter_context(child(arguments, failed))
        if settings.serve:
            reporter.note(
                f"recommendations at http://127.0.0.1:{settings.serve_port}/, until Ctrl-C"
            )
        pipeline.run()
    timer.cancel()
    if ended_by in why:
        raise StreamerError(f"the {ended_by} of the demo failed: {why[ended_by]()}")
    # 3. what came of it
    return pipeline.summary() | {
        "ended_by": ended_by,
        "lag": sum(pipeline.status.lag.values()),
        "recommendations": recommendations(pipeline.learner),
        "data_dir": str(directory),
        "checkpoint_dir": str(directory / "checkpoints"),
    }


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
    return found


def children(settings: DemoSettings, directory: Path) -> dict[str, list[str]]:
    """The commands that run beside the trainer: the writer, and the server if one is
    wanted.
    """
    stream = ["--data-dir", str(directory), "--topic", TOPIC]
    amount = ["--events", str(settings.events), "--rate", str(settings.rate)]
    found = {"writer": ["replay", "synthetic", "--restart", *amount, *stream]}
    if settings.serve:
        points = ["--from", str(directory / "points")]
        port = ["--port", str(settings.serve_port)]
        found["server"] = ["serve", "--clicks", *points, *port, *stream]
    return found


@contextlib.contextmanager
def child(
    arguments: Sequence[str], on_failure: Callable[[], None]
) -> Iterator[Callable[[], str]]:
    """A command in a process that ends with the block; yields a function that says why
    it failed.

    `on_failure` is called, by another thread, if it ends in failure before the block
    does.
    """
    environment = {}
    for name, value in os.environ.items():
        if not name.startswith("STREAMER_"):
            environment[name] = value
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "streamer", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for us
    )
    errors: list[str] = []
    ending = threading.Event()

    def wait() -> None:
        errors.append(process.communicate()[1].strip())
        if process.returncode and not ending.is_set():
            on_failure()

    waiting = threading.Thread(target=wait, name=arguments[0], daemon=True)
    waiting.start()
    try:
        yield lambda: errors[0] or f"exit code {process.returncode}"
    finally:
        ending.set()
        process.terminate()
        waiting.join(10)


def recommendations(learner: Learner, users: int = 3, most: int = 5) -> list[Figures]:
    """For a few people who were here often enough: what they had last, and what they
    may like next.
    """
    state = learner.state
    rows = state.users.used
    recent = state.recent.of(rows).items
    often = np.flatnonzero((recent >= 0).sum(axis=1) >= most)
    step = max(1, len(often) // users)
    found = []
    for place in often[: users * step : step].tolist():
        user = state.users.id_of(rows[place])
        recommended = learner.recommend(user, most, exclude_seen=True)
        found.append(
            {
                "user": user,
                "recent": [state.items.id_of(row) for row in recent[place, :most]],
                "recommended": [one.item for one in recommended],
            }
        )
    return found


# the end ------------------------------------------------------------------------------


def summary(figures: Figures) -> Iterator[str]:
    """Lines that a person reads at the end, as at the end of `streamer run`, and what
    to try next.
    """
    from streamer.display.reporting import summary_rows

    yield ENDS[figures["ended_by"]]
    for label, text in summary_rows(figures):
        yield f"  {label:<12}{text}"
    if figures["lag"]:
        yield f"  {'lag':<12}{figures['lag']:,} events were written but not learned yet"
    for one in figures["recommendations"]:
        yield ""
        yield f"  {one['user']:<12}had       {', '.join(one['recent'])}"
        yield f"  {'':<12}may like  {', '.join(one['recommended'])}"
    yield ""
    yield "Where to look next"
    for command in _commands(figures):
        yield f"  {command}"


def _commands(figures: Figures) -> Iterator[str]:
    """What to try next, ready to be pasted."""
    program = "streamer"
    if not shutil.which(program):
        program = f"{shlex.quote(sys.executable)} -m streamer"
    checkpoints = f"--checkpoint-dir {shlex.quote(figures['checkpoint_dir'])}"
    data = f"--data-dir {shlex.quote(figures['data_dir'])}"
    yield f"{program} demo --serve   # recommendations over HTTP, and a page to click on them"
    yield f"{program} inspect {checkpoints}"
    for one in figures["recommendations"][:1]:
        yield f"{program} recommend {checkpoints} --user {shlex.quote(one['user'])} -k 10"
    yield f"{program} export {checkpoints} --out vectors.npz"
    yield f"{program} replay synthetic {data} --events 50000 --seed 1"
    yield f"{program} run {data} --until-end"
