"""`streamer demo`: a made-up stream, written by one process and learned by another, with nothing else needed.

It is `streamer replay synthetic` and `streamer run` with their defaults, side by side on one embedded log.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import streamer
from streamer.build import build_pipeline
from streamer.cli.options import GroupedCommand, option
from streamer.cli.run import stop_on_signals, watching
from streamer.display.reporting import Reporter, make_reporter
from streamer.errors import StreamerError
from streamer.replay.cli.demo_summary import printed
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.learner import Learner
    from streamer.pipeline import Pipeline, Status

TOPIC = "interactions"
LEAST_LEARNING_S = 5.0
"""However long the start took, so much time is left for learning."""
LINE_EVERY_S = 5.0

Figures = dict[str, Any]

_option = partial(option, "Options")


@click.command(cls=GroupedCommand)
@_option("--events", type=click.IntRange(512), default=150_000, help="Events to write and to learn from.")
@_option("--rate", type=click.FloatRange(1), default=4000.0, help="Events written a second.")
@_option("--seconds", type=click.FloatRange(1), default=75.0, help="Stop after so long, the start included.")
@_option("--seed", type=click.IntRange(0), default=0, help="Determines the stream.")
@_option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of log and checkpoints, kept afterwards. [default: a new temporary one]",
)
@_option(
    "--log-format",
    type=click.Choice(["auto", "panel", "plain", "json"]),
    default="auto",
    help="A live panel at a terminal, plain lines elsewhere.",
)
@_option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    default=0,
    help="Port of the live page and of /metrics; 0 for any free one.",
)
@_option("--metrics-host", default="127.0.0.1", help="Address to serve them on.")
@_option(
    "--open/--no-open",
    "opens",
    default=None,
    help="Open the live page in a browser. [default: at a terminal with a display]",
)
@_option("--json", "as_json", is_flag=True, help="At the end, print one JSON object.")
def demo(
    events: int,
    rate: float,
    seconds: float,
    seed: int,
    data_dir: Path | None,
    log_format: str,
    opens: bool | None,
    metrics_port: int,
    metrics_host: str,
    as_json: bool,
) -> None:
    """Watch a model learn: a made-up stream, an embedded log, a minute.

    One process writes events of people with tastes to the log; what is popular changes all the time. The trainer
    follows, ranks events before it learns from them, and its hit rate is compared to that of the most popular items.
    Needs no broker, no Redis, no GPU and no download. Ctrl-C ends it earlier, with the summary.
    """
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="streamer-demo-")) if data_dir is None else data_dir.absolute()
    source = f"a made-up stream in {directory}"
    with (
        watching(source, metrics_host, metrics_port) as watch,
        make_reporter(log_format, source, LINE_EVERY_S) as reporter,
    ):
        reporter.note("loading the trainer")
        figures = Demo(directory, events, rate, seed, reporter, partial(shown, watch, opens)).run(started + seconds)
        reporter.finish(None)
    if as_json:
        click.echo(json.dumps(figures))
    else:
        printed(figures, sys.stdout)


def shown(watch: Callable[[Pipeline], str | None], opens: bool | None, pipeline: Pipeline) -> None:
    """Have a pipeline watched, and the page opened where somebody would see it."""
    from streamer.web.serve import open_browser, opens_browser

    url = watch(pipeline)
    if url is not None and (opens_browser() if opens is None else opens):
        open_browser(url)


@dataclass(slots=True)
class Seen:
    """What changed while the demo ran."""

    first_cache: dict[str, float] | None = None
    hit_rates: list[tuple[int, float, float]] = field(default_factory=list)
    """Events so far, the model's HR@10 lately, and that of the most popular items."""

    def look(self, status: Status) -> None:
        """Remember what will be shown."""
        if self.first_cache is None and any(status.cache):
            self.first_cache = status.cache._asdict()
        if status.hit_rate is not None and status.most_popular_hit_rate is not None:
            at = status.accounting["consumed"]
            self.hit_rates.append((at, status.hit_rate, status.most_popular_hit_rate))


@dataclass(slots=True)
class Demo:
    """A writer and a trainer on one log.

    Args:
        directory: of log and checkpoints.
        events: how many to write and to learn from.
        rate: how many to write a second.
        seed: determines the stream.
        reporter: shows it.
        watch: is given the trainer before it runs.
    """

    directory: Path
    events: int
    rate: float
    seed: int
    reporter: Reporter
    watch: Callable[[Pipeline], None] = lambda pipeline: None
    ended_by: str = "events"
    seen: Seen = field(default_factory=Seen)

    def run(self, deadline: float) -> Figures:
        """Write and learn until all events are learned, or time is up.

        1. the trainer, as `streamer run` builds it;
        2. the writer, a process of its own;
        3. learn, until somebody or something says stop;
        4. what came of it.

        Args:
            deadline: when to stop, on the monotonic clock.

        Raises:
            StreamerError: the log cannot be written or read.
        """
        # 1.
        pipeline = build_pipeline(demo_settings(self.directory, self.events))
        pipeline.on_status = self._on_status
        self.watch(pipeline)

        def stop(reason: str) -> None:
            self.ended_by = reason
            self.reporter.note("stopping: the last step ends, and what was learned is saved")
            pipeline.stop()

        stop_on_signals(lambda: stop("you"))
        self.reporter.note("")
        self._on_status(pipeline.status)
        # 2.
        with (
            writer(self.directory, self.events, self.rate, self.seed, on_failure=lambda: stop("writer")) as failure,
            timer(max(deadline - time.monotonic(), LEAST_LEARNING_S), lambda: stop("time")),
        ):
            # 3.
            pipeline.run()
        if self.ended_by == "writer":
            raise StreamerError(f"the writer of the demo failed: {failure()}")
        # 4.
        return self._figures(pipeline)

    def _on_status(self, status: Status) -> None:
        self.seen.look(status)
        self.reporter.update(status)

    def _figures(self, pipeline: Pipeline) -> Figures:
        status, summary = pipeline.status, pipeline.summary()
        return summary | {
            "ended_by": self.ended_by,
            "lag": sum(status.lag.values()),
            "recent_hit_rate_at_10": status.hit_rate,
            "recent_most_popular_hit_rate_at_10": status.most_popular_hit_rate,
            "hit_rates": self.seen.hit_rates,
            "first_cache": self.seen.first_cache,
            "recommendations": recommendations(pipeline.learner),
            "data_dir": str(self.directory),
            "checkpoint_dir": str(self.directory / "checkpoints"),
        }


def demo_settings(directory: Path, events: int) -> RunSettings:
    """The defaults of `streamer run`, whatever the environment says."""
    return RunSettings(data_dir=directory, topics=(TOPIC,), max_events=events, checkpoint_every_s=10.0)


@contextlib.contextmanager
def writer(
    directory: Path, events: int, rate: float, seed: int, on_failure: Callable[[], None]
) -> Iterator[Callable[[], str]]:
    """`streamer replay synthetic` beside us, ended with the block; yields what tells why it failed.

    Args:
        directory: of the log.
        events: how many to write.
        rate: how many a second.
        seed: determines them.
        on_failure: called, by another thread, if it ends in failure before the block does.
    """
    options = {"events": events, "rate": rate, "seed": seed, "data-dir": directory, "topic": TOPIC}
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "streamer", "replay", "synthetic", "--restart", *arguments],
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us
    )
    words: list[bytes] = []
    ending = threading.Event()

    def watch() -> None:
        words.append(process.communicate()[1])
        if process.returncode and not ending.is_set():
            on_failure()

    watcher = threading.Thread(target=watch, name="writer", daemon=True)
    watcher.start()
    try:
        yield lambda: words[0].decode(errors="replace").strip() or f"exit code {process.returncode}"
    finally:
        ending.set()
        process.terminate()
        watcher.join(10)


def _environment() -> dict[str, str]:
    """Ours, without settings of Streamer; the child finds the packages that we have found."""
    package = str(Path(streamer.__file__).resolve().parents[1])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}
    return inherited | {"PYTHONPATH": path}


@contextlib.contextmanager
def timer(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Something happens after a time, unless the block has ended."""
    alarm = threading.Timer(seconds, action)
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def recommendations(learner: Learner, users: int = 3, most: int = 5) -> list[Figures]:
    """For a few people who were here often enough: what they had last, and what they may like next."""
    from streamer.recommender import Recommender

    often = ((learner.recent.state() >= 0).sum(axis=1) >= most).nonzero()[0]
    chosen = often[[len(often) * k // users for k in range(users)]] if len(often) >= users else often
    recommender = Recommender(learner)
    queries = [recommender.user(learner.users.id_of(row)) for row in chosen.tolist()]
    if not queries:
        return []
    found = recommender.recommend(queries, most, exclude_recent=True)
    return [
        {
            "user": query.user,
            "recent": [learner.items.id_of(row) for row in query.recent[:most]],
            "recommended": [recommended.item for recommended in items],
        }
        for query, items in zip(queries, found, strict=True)
    ]
