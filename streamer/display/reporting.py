"""What a person or a log sees of a run: a live panel at a terminal, lines elsewhere,
and a summary at the end.

All of it goes to standard error; standard output is for results.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from streamer.metrics.status import Status

EVERY_S = 10.0
REFRESHES_PER_SECOND = 3
BAR = 24
"""Characters of a progress bar."""

MAX_WIDTH = 120
STYLES = {"done": "bold green", "dead": "yellow", "lost": "yellow", "warning": "yellow"}
"""Of texts, by their labels."""

AGAINST = {
    "above": "the model is above it",
    "below": "the model is below it",
    "equal": "no difference beyond the standard error",
}
"""What a comparison with the best baseline comes to."""

Row = tuple[str, str]
"""A label and its text."""

logger = logging.getLogger("streamer")


class Reporter:
    """Shows a run, from where it is entered to where it is left; this one shows what is
    logged, and nothing else.
    """

    def __init__(self, handler: logging.Handler, least: int = logging.INFO) -> None:
        self._handler = handler
        self._least = least
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Begin: everything that is logged goes to the handler alone until the end."""
        root = logging.getLogger()
        self._stack.callback(setattr, root, "handlers", root.handlers)
        self._stack.callback(root.setLevel, root.level)
        root.handlers = [self._handler]
        root.setLevel(self._least)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def update(self, status: Status) -> None:
        """The latest state; called about twice a second."""

    def note(self, text: str) -> None:
        """Say what is going on besides; empty to say nothing. May be called from a
        signal handler.
        """

    def show(self, text: str) -> None:
        """Print lines for a person, from any thread."""
        sys.stderr.write(f"{text}\n")

    def finish(self, summary: dict[str, Any] | None) -> None:
        """The run has ended; None if the summary is shown elsewhere."""


def make_reporter(
    kind: str, source: str, every_s: float = EVERY_S, rank: int = 0
) -> Reporter:
    """A reporter for `panel`, `plain`, `json` or `auto`, which is a panel at a terminal
    that can show it.

    Of a group, rank 0 shows the run; the others log what goes wrong, with their rank
    before it.
    """
    if rank:
        handler = make_handler(kind == "json", f"rank {rank}: ")
        return Reporter(handler, logging.WARNING)
    if kind == "auto":
        encoding = getattr(sys.stderr, "encoding", None) or ""
        has_unicode = encoding.lower().startswith("utf")
        is_capable = os.environ.get("TERM", "") not in ("", "dumb")
        shows_panels = sys.stderr.isatty() and has_unicode and is_capable
        kind = "panel" if shows_panels else "plain"
    if kind == "panel":
        return PanelReporter(source)
    return LogReporter(source, as_json=kind == "json", every_s=every_s)


class LogReporter(Reporter):
    """A line every `every_s` seconds: plain, or JSON for machines."""

    def __init__(
        self, source: str, as_json: bool = False, every_s: float = EVERY_S
    ) -> None:
        super().__init__(make_handler(as_json))
        self._source = source
        self._json = as_json
        self._every_s = every_s
        self._next = 0.0
        self._note = ""
        self._has_begun = threading.Event()

    def __enter__(self) -> Self:
        super().__enter__()
        logger.info("learning from %s", self._source)
        waiting = threading.Thread(target=self._prepare, name="preparing", daemon=True)
        self._stack.callback(waiting.join)
        self._stack.callback(self._has_begun.set)
        waiting.start()
        return self

    def _prepare(self) -> None:
        """Log how far the kernels are: the first step may take a minute, and reports
        nothing meanwhile.
        """
        shown = ""
        while not self._has_begun.wait(self._every_s or EVERY_S):
            if shown != (shown := preparing()):
                logger.info("%s", shown)

    def update(self, status: Status) -> None:
        if status.steps:
            self._has_begun.set()
        if self._note:
            logger.info("%s", self._note)
            self._note = ""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        logger.info("%s", described(status), extra={"fields": status.figures()})

    def note(self, text: str) -> None:
        # logged with the next update: a signal may have come in the middle of a line
        self._note = text

    def finish(self, summary: dict[str, Any] | None) -> None:
        if summary is None:
            return
        if self._json:
            logger.info("done", extra={"fields": summary})
            return
        for label, text in summary_rows(summary):
            logger.info("%s", f"{label:<10} {text}")


class PanelReporter(Reporter):
    """A live panel on a console of rich, with log messages above it; the live page has
    charts.
    """

    def __init__(self, source: str, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.highlighter import NullHighlighter
        from rich.live import Live
        from rich.logging import RichHandler
        from rich.spinner import Spinner

        self.console = console or Console(stderr=True)
        handler = RichHandler(
            console=self.console,
            show_path=False,
            log_time_format="%H:%M:%S",
            omit_repeated_times=False,
            highlighter=NullHighlighter(),
        )
        super().__init__(handler)
        self._source = source
        self._started = time.monotonic()
        self._figures: dict[str, Any] | None = None
        self._note = ""
        self._spinner = Spinner("dots")
        self._live = Live(
            get_renderable=self.panel,
            console=self.console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="crop",
        )

    def __enter__(self) -> Self:
        super().__enter__()
        self._stack.enter_context(self._live)
        # a second Ctrl-C ends the process at once: nobody would bring it back
        self.console.show_cursor(True)
        return self

    def update(self, status: Status) -> None:
        if status.steps:
            self._figures = status.figures()

    def note(self, text: str) -> None:
        self._note = text

    def show(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def panel(self) -> RenderableType:
        """The panel as it is now; called by another thread while the run goes on."""
        from rich.panel import Panel
        from rich.text import Text

        contents: RenderableType = self._spinner
        if self._figures is None:
            self._spinner.update(text=Text(self._note or preparing(BAR)))
        else:
            rows = [*live_rows(self._figures), ("", self._note)]
            contents = _grid([row for row in rows if row[1]])
        elapsed = timedelta(seconds=int(time.monotonic() - self._started))
        return Panel(
            contents,
            title=Text.assemble(("streamer", "bold"), (f" · {self._source}", "dim")),
            title_align="left",
            subtitle=Text(str(elapsed), "dim"),
            subtitle_align="right",
            border_style="dim",
            width=min(self.console.width, MAX_WIDTH),
        )

    def finish(self, summary: dict[str, Any] | None) -> None:
        self._live.stop()
        if summary is not None:
            self.console.print(_grid(summary_rows(summary), overflow="fold"))


def _grid(
    rows: Iterable[Row], overflow: Literal["fold", "ellipsis"] = "ellipsis"
) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=overflow == "ellipsis", overflow=overflow)
    for label, text in rows:
        grid.add_row(label, Text(text, STYLES.get(label, "")))
    return grid


def make_handler(as_json: bool, prefix: str = "") -> logging.Handler:
    """Log lines on standard error: plain, or JSON for machines."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter(f"%(asctime)s %(levelname)s {prefix}%(message)s")
    handler.setFormatter(_JsonLines() if as_json else plain)
    return handler


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # numbers that are not finite become null
        return msgspec.json.encode(line, enc_hook=str).decode()


# texts --------------------------------------------------------------------------------


def preparing(bar: int = 0) -> str:
    """How far the kernels are that the first step needs: compiled, or loaded from the
    cache; with a bar that is `bar` characters wide.
    """
    from streamer.model.jit import LOOPS

    ready = sum(bool(loop.signatures) for loop in LOOPS)
    done = "━" * round(bar * ready / max(1, len(LOOPS)))
    kernels = f"{ready} of at most {len(LOOPS)} kernels are compiled, once for all runs"
    return f"{done:─<{bar}} waiting for the first events; {kernels}".lstrip()


def described(status: Status) -> str:
    """The state in one line."""
    if not status.steps:
        return preparing()
    return ", ".join(f"{label} {text}" for label, text in live_rows(status.figures()))


def live_rows(figures: dict[str, Any]) -> Iterator[Row]:
    """A running line as labels and texts."""
    yield "speed", f"{figures['events_per_second']:,.0f} events/s"
    yield "lag", f"{figures['lag']:,}; {figures['queued_events']:,} in the queue"
    if figures["loss"] is not None:
        yield "loss", f"{figures['loss']:.3f}"
    yield from _learned_rows(figures)
    age_s = figures["checkpoint_age_s"]
    yield "checkpoint", "none yet" if age_s is None else f"{age_s:.0f} s ago"
    for warning in figures["warnings"]:
        yield "warning", warning


def summary_rows(summary: dict[str, Any]) -> Iterator[Row]:
    """The end of a run as labels and texts."""
    speed = f"{summary['events_per_second']:,.0f} events/s"
    events = f"{summary['events_this_run']:,} events"
    yield "done", f"{events} in {summary['seconds']:,.1f} s, {speed}"
    yield from _learned_rows(summary)
    yield "checkpoint", summary["checkpoint"] or "none"


def _learned_rows(figures: dict[str, Any]) -> Iterator[Row]:
    """What became of the events, and what was learned from them."""
    yield (
        "consumed",
        f"{figures['consumed']:,} = {figures['trained']:,} trained + "
        f"{figures['filtered']:,} filtered + {figures['dead_lettered']:,} dead-lettered",
    )
    reasons = figures["dead_letters"].items()
    if reasons:
        yield "dead", ", ".join(f"{reason} {count:,}" for reason, count in reasons)
    if figures["lost"]:
        yield "lost", f"{figures['lost']:,} records that retention removed unread"
    known = f"{figures['users']:,} users, {figures['items']:,} items"
    yield "known", f"{known}, after {figures['steps']:,} steps"
    hit_rate = figures["hit_rate_at_10"]
    if hit_rate is not None:
        error = figures["hit_rate_standard_error"]
        events = figures["hit_rate_events"]
        rate = f"{hit_rate:.3f} ± {error:.3f} of {events:,} ranked events"
        baseline = figures["best_baseline_hit_rate_at_10"]
        best = f"best baseline {figures['best_baseline']} {baseline:.3f}"
        yield "HR@10", f"{rate}; {best}: {AGAINST[figures['against_baseline']]}"
    cache = figures["cache"].items()
    if any(share for _, share in cache):
        yield "cache", " ".join(f"{band} {share:.0%}" for band, share in cache)
