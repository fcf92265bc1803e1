"""A trainer with a writer and a server beside it: what `streamer up` and `streamer
demo` run.

The trainer is the pipeline of `streamer run`, in this process; `streamer replay` and
`streamer serve` are processes of their own, which end with it, however it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from streamer.build import build_pipeline
from streamer.cli.run import stop_on_signals, watching
from streamer.display.reporting import Reporter, make_reporter
from streamer.errors import StreamerError
from streamer.model.setting import Settings, setting
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.learner import OnlineLearner
    from streamer.metrics.status import Status
    from streamer.pipeline import Pipeline

logger = logging.getLogger("streamer")

Figures = dict[str, Any]
Ended = Callable[[int, str], None]
"""Called with the exit code of a process that has ended, and with the JSON object that it
printed last.
"""

HOST = "127.0.0.1"
PORT = 8080
LINE_EVERY_S = 5.0
FIRST_ANSWER_S = 10.0
"""An answer is shown when everything is learned, and a first one after this time."""
MIN_LEARNING_S = 5.0
"""Time that is left for learning, however long the start took."""
RETRY_S = 0.2
ANSWERED = 3
"""Items of the answer that is shown."""
SAMPLED_USERS = 1000
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class PartsSettings(Settings):
    """Settings of whatever runs several parts at once."""

    port: int | None = setting(
        None,
        "Port of the server and its page; 0 for any free one.",
        at_least=0,
        at_most=65_535,
        if_none=f"{PORT}, or any free one if that is taken",
    )
    metrics_port: int = setting(
        0,
        "Port of the live page and of /metrics; 0 for any free one.",
        at_least=0,
        at_most=65_535,
    )
    open: bool | None = setting(
        None, "Open the live page in a browser.", if_none="at a terminal with a display"
    )
    log_format: Literal["auto", "panel", "plain", "json"] = setting(
        "auto", "A live panel at a terminal, plain lines elsewhere."
    )


@dataclass(frozen=True, kw_only=True)
class PartsPlan:
    """Which parts there are, and when they end."""

    source: str
    """Where events come from, for a person."""
    trainer: RunSettings
    writer: Sequence[str] = ()
    """Arguments of the `streamer replay` that writes the stream; empty if another does."""
    server: Sequence[str]
    """Arguments of `streamer serve`, but for the port."""
    ends: bool
    """Whether all parts end when everything is learned; or else when they are stopped."""
    seconds: float | None = None
    """They stop waiting for that after this time; None: never."""


class PartsAddress(NamedTuple):
    """Where the parts can be reached, and since when."""

    listening: socket.socket
    """On which the server answers; bound once, before anything else is started."""
    live_page: str | None
    started: float
    """When the command was given, on the monotonic clock."""


def run_parts(plan: PartsPlan, settings: PartsSettings) -> Figures:
    """Run all parts until everything is learned, somebody stops them, or time is up;
    returns what came of it.

    Raises:
        StreamerError: a part failed.
    """
    from streamer.web.live import open_browser, opens_browser

    started = time.monotonic()
    with (
        listen_for_server(settings.port) as listening,
        watching(plan.source, HOST, settings.metrics_port) as watch,
        make_reporter(settings.log_format, plan.source, LINE_EVERY_S) as reporter,
    ):
        reporter.note("loading the trainer")
        pipeline = build_pipeline(plan.trainer)
        url = watch(pipeline)
        opens = opens_browser() if settings.open is None else settings.open
        if url is not None and opens:
            open_browser(url)
        reporter.note("")
        parts = Parts(plan, pipeline, reporter, PartsAddress(listening, url, started))
        stop_on_signals(lambda: parts.stop("you"))
        reporter.update(pipeline.status)
        parts.run()
        reporter.finish(None)
    return pipeline.summary() | {
        "ended_by": parts.ended_by,
        "lag": sum(pipeline.status.lag.values()),
        "server": parts.url,
        "answer": parts.answer,
        "data_dir": str(plan.trainer.data_dir),
        "checkpoint_dir": str(plan.trainer.checkpoints),
    }


class Parts:
    """The trainer, on the thread that runs it, and two processes beside it. The thread
    "answers" asks the server, as anybody would.
    """

    def __init__(
        self,
        plan: PartsPlan,
        pipeline: Pipeline,
        reporter: Reporter,
        place: PartsAddress,
    ) -> None:
        self.url = f"http://{HOST}:{place.listening.getsockname()[1]}/"
        self.ended_by = ""
        self.answer: Figures | None = None
        """The latest one of the server."""
        self._plan = plan
        self._pipeline = pipeline
        self._reporter = reporter
        self._place = place
        self._written: int | None = None if plan.writer else 0
        """Events that the whole stream has; None while it is being written."""
        self._user: str | None = None
        self._learned_steps = 0
        self._learned = threading.Event()
        self._ending = threading.Event()
        pipeline.on_status = self._on_status

    def run(self) -> None:
        """Train until `stop`, and end the other parts with it."""
        failures: dict[str, Callable[[], str]] = {}
        descriptor = self._place.listening.fileno()
        parts = {"server": [*self._plan.server, "--descriptor", str(descriptor)]}
        if self._plan.writer:
            parts["writer"] = list(self._plan.writer)
        asking = threading.Thread(target=self._ask, name="answers", daemon=True)
        with contextlib.ExitStack() as stack:
            for name, arguments in parts.items():
                ended = functools.partial(self._part_ended, name)
                part = child(arguments, ended, [descriptor] if name == "server" else [])
                failures[name] = stack.enter_context(part)
            self._place.listening.close()  # if the server ends, nobody listens
            asking.start()
            try:
                self._pipeline.run()
            finally:
                self._end("events")
                asking.join()
        if self.ended_by in failures:
            why = failures[self.ended_by]()
            raise StreamerError(f"the {self.ended_by} has ended: {why}")

    def stop(self, reason: str) -> None:
        """End all parts; the first reason counts. May be called from a signal handler."""
        self._end(reason)
        self._reporter.note("stopping after this step; what was learned is being saved")
        self._pipeline.stop()

    def _end(self, reason: str) -> None:
        self.ended_by = self.ended_by or reason
        self._ending.set()
        self._learned.set()  # whoever waits for it need not any more

    def _part_ended(self, part: str, code: int, output: str) -> None:
        if part != "writer" or code:
            self.stop(part)
            return
        written = json.loads(output)
        self._written = written["total"]
        if malformed := written.get("malformed"):
            logger.warning("%s rows are not events: %s", malformed, written["reasons"])

    def _on_status(self, status: Status) -> None:
        """See whether everything is learned; on the training thread, between two steps."""
        self._reporter.update(status)
        if self._user is None and status.users:
            self._user = example_user(self._pipeline.learner)
        is_assigned = bool(status.partitions) and len(status.lag) == len(
            status.partitions
        )
        is_behind = bool(status.queued_events or sum(status.lag.values()))
        written = self._written
        if written is None or is_behind or not is_assigned:
            return
        if status.accounting["consumed"] >= written and not self._learned.is_set():
            self._learned_steps = status.steps
            self._learned.set()

    # what the server answers ----------------------------------------------------------

    def _ask(self) -> None:
        """Show what the server answers: first soon, then when everything is learned."""
        if not self._learned.wait(FIRST_ANSWER_S):
            self._show_answer()
        left_s = None
        if self._plan.seconds is not None:
            left_s = self._place.started + self._plan.seconds - time.monotonic()
            left_s = max(left_s, MIN_LEARNING_S)
        in_time = self._learned.wait(left_s)
        if self.answer is None or self.answer["step"] < self._learned_steps:
            self._show_answer()
        if self._plan.ends and not self._ending.is_set():
            self.stop("events" if in_time else "time")

    def _show_answer(self) -> None:
        """Wait until the server knows what is learned so far, and show what it answers."""
        while not self._ending.is_set():
            if self._learned.is_set() and self._user is None:
                return  # nobody to ask for: the stream is empty
            if self._user is not None:
                url = recommendations_url(self.url, self._user)
                answer = fetch(url)
                if (
                    answer is not None
                    and answer["known"]
                    and answer["step"] >= self._learned_steps
                ):
                    self.answer = answer
                    self._show(answer)
                    return
            self._ending.wait(RETRY_S)

    def _show(self, answer: Figures) -> None:
        if self._plan.ends and self._learned.is_set():
            return  # the command prints it at its end
        lines = [*answer_lines(self.url, answer), f"Recommendations: {self.url}"]
        if self._place.live_page is not None:
            lines.append(f"Live page: {self._place.live_page}")
        self._reporter.show("\n".join([*lines, "Ctrl-C ends all parts."]))


def recommendations_url(server: str, user: str) -> str:
    """What to ask a server for a user."""
    quoted = urllib.parse.quote(user, safe="")
    return f"{server}users/{quoted}/recommendations?k={ANSWERED}"


def answer_lines(server: str, answer: Figures) -> Iterator[str]:
    """A request as a person would send it, and what was answered."""
    url = recommendations_url(server, answer["user"])
    yield f"$ curl -s {shlex.quote(url)}"
    yield json.dumps(answer)


def fetch(url: str) -> Figures | None:
    """What an address answers; None if it does not, or not yet."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            found: Figures = json.load(response)
            return found
    except OSError:
        return None


def example_user(learner: OnlineLearner) -> str:
    """A user with many recent items, among the first ones; there is at least one user."""
    state = learner.state
    rows = state.users.used[:SAMPLED_USERS]
    known = (state.recent.of(rows).items >= 0).sum(axis=1)
    return state.users.id_of(rows[int(known.argmax())])


def listen_for_server(port: int | None) -> socket.socket:
    """A socket that listens on a port; without one, on the usual port or on any free one.

    Raises:
        StreamerError: the port is taken.
    """
    from streamer.web.server import listen

    if port is None:
        with contextlib.suppress(StreamerError):
            return listen(HOST, PORT, "--")
    return listen(HOST, port or 0, "--")


# a process of its own -----------------------------------------------------------------


@contextlib.contextmanager
def child(
    arguments: Sequence[str], on_end: Ended, descriptors: Sequence[int] = ()
) -> Iterator[Callable[[], str]]:
    """A command of `streamer` in a process that ends with the block; yields a function
    that says why it ended.

    `on_end` is called, by another thread, if it ends before the block does. The process
    inherits the descriptors.
    """
    environment = {}
    for name, value in os.environ.items():
        if not name.startswith("STREAMER_") or name.startswith("STREAMER_KAFKA_"):
            environment[name] = value
    code = "from streamer.replay.cli.parts import be_child; be_child()"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(os.getpid()), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for us
        pass_fds=descriptors,
    )
    last_line = ""
    is_over = threading.Event()

    def wait() -> None:
        nonlocal last_line
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            last_line = line.strip() or last_line
            output = line if line.startswith("{") else output
        process.wait()
        if not is_over.is_set():
            on_end(process.returncode, output)

    waiting = threading.Thread(target=wait, name=arguments[0], daemon=True)
    waiting.start()
    try:
        yield lambda: f"exit code {process.returncode}; its last line: {last_line}"
    finally:
        is_over.set()
        process.terminate()
        waiting.join(10)
        process.kill()
        waiting.join()


def be_child() -> None:
    """Run the command of a child, which ends when its parent does, even by SIGKILL."""
    from streamer.cli.main import main

    parent, *arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before we asked
        sys.exit(1)
    sys.argv = ["streamer", *arguments]
    main()
