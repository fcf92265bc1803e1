"""What a person or a log sees of a run: a live panel at a terminal, lines elsewhere,
and a summary at the end.

All of it goes to standard error; standard output is for results.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    from rich.console import Console

    from streamer.metrics.status import Status

EVERY_S = 10.0
REFRESHES_PER_SECOND = 3
PREPARING = "waiting for the first events; the first step of all compiles kernels, which takes some seconds"
LEVEL_STYLES = {
    logging.WARNING: "yellow",
    logging.ERROR: "bold red",
    logging.CRITICAL: "bold red",
}

logger = logging.getLogger("streamer")


class Reporter(ABC):
    """Shows a run, from where it is entered to where it is left."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    @abstractmethod
    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @abstractmethod
    def update(self, status: Status) -> None:
        """The latest state; called about twice a second."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Say what is going on besides; empty to say nothing. May be called from a
        signal handler.
        """

    @abstractmethod
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
        return RankReporter(rank, as_json=kind == "json")
    if kind == "auto":
        unicode = (
            (getattr(sys.stderr, "encoding", None) or "").lower().startswith("utf")
        )
        shows_panels = (
            sys.stderr.isatty()
            and unicode
            and os.environ.get("TERM", "") not in ("", "dumb")
        )
        kind = "panel" if shows_panels else "plain"
    if kind == "panel":
        return PanelReporter(source)
    return LogReporter(source, as_json=kind == "json", every_s=every_s)


class LogReporter(Reporter):
    """A line every `every_s` seconds: plain, or JSON for machines."""

    def __init__(
        self, source: str, as_json: bool = False, every_s: float = EVERY_S
    ) -> None:
        super().__init__()
        self._source = source
        self._json = as_json
        self._every_s = every_s
        self._next = 0.0
        self._note = ""

    def __enter__(self) -> Self:
        self._stack.enter_context(_logging_to(make_handler(self._json)))
        logger.info("learning from %s", self._source)
        return self

    def update(self, status: Status) -> None:
        if self._note:
            note = self._note
            self._note = ""
            logger.info("%s", note)
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        logger.info("%s", described(status), extra={"fields": fields(status)})

    def note(self, text: str) -> None:
        self._note = text  # logged with the next update: a signal may have come in the middle of a log line

    def finish(self, summary: dict[str, Any] | None) -> None:
        if summary is None:
            return
        if self._json:
            logger.info("done", extra={"fields": summary})
            return
        for label, text in summary_rows(summary):
            logger.info("%s", f"{label:<10} {text}")


class RankReporter(Reporter):
    """The warnings of a rank other than 0."""

    def __init__(self, rank: int, as_json: bool) -> None:
        super().__init__()
        self._rank = rank
        self._json = as_json

    def __enter__(self) -> Self:
        self._stack.enter_context(
            _logging_to(
                make_handler(self._json, f"rank {self._rank}: "), logging.WARNING
            )
        )
        return self

    def update(self, status: Status) -> None:
        """Rank 0 shows the state."""

    def note(self, text: str) -> None:
        """Rank 0 shows it."""

    def finish(self, summary: dict[str, Any] | None) -> None:
        """Rank 0 shows the summary."""


def make_handler(as_json: bool, prefix: str = "") -> logging.Handler:
    """Log lines on standard error: plain, or JSON for machines."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter(f"%(asctime)s %(levelname)s {prefix}%(message)s")
    handler.setFormatter(_JsonLines() if as_json else plain)
    return handler


class PanelReporter(Reporter):
    """A live panel on a console of rich, with log messages above it."""

    def __init__(self, source: str, console: Console | None = None) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live

        from streamer.display.panel import RunPanel

        self.console = console or Console(stderr=True)
        self._panel = RunPanel(source)
        self._live = Live(
            get_renderable=lambda: self._panel,
            console=self.console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="crop",
        )

    def __enter__(self) -> Self:
        self._stack.enter_context(_logging_to(_ConsoleHandler(self.console)))
        self._stack.enter_context(self._live)
        self.console.show_cursor(
            True
        )  # a second Ctrl-C ends the process at once: nobody would bring it back
        return self

    def update(self, status: Status) -> None:
        self._panel.update(
            dataclasses.replace(status)
        )  # a copy: drawn by another thread while the run goes on

    def note(self, text: str) -> None:
        self._panel.note = text

    def finish(self, summary: dict[str, Any] | None) -> None:
        self._live.stop()
        if summary is None:
            return
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, text in summary_rows(summary):
            grid.add_row(label, Text(text, "bold green" if label == "done" else ""))
        self.console.print(grid)


# the state ------------------------------------------------------------------------------------------------------------


def fields(status: Status) -> dict[str, Any]:
    """The state for machines."""
    return {
        "events_per_second": round(status.events_per_second, 1),
        "lag": sum(status.lag.values()),
        "loss": status.loss,
        "hit_rate_at_10": status.hit_rate,
        "best_baseline": status.best_baseline.name
        if status.best_baseline is not None
        else None,
        "best_baseline_hit_rate_at_10": status.best_baseline.hit_rate
        if status.best_baseline is not None
        else None,
        "cache": status.cache._asdict(),
        "queued_events": status.queued_events,
        "checkpoint_age_s": status.checkpoint_age_s,
        "users": status.users,
        "items": status.items,
        **status.accounting,
    }


def described(status: Status) -> str:
    """The state in one line."""
    if not status.steps:
        return PREPARING
    parts = [
        f"{status.accounting.get('consumed', 0):,} events",
        f"{status.events_per_second:,.0f}/s",
    ]
    parts.append(f"lag {sum(status.lag.values()):,}")
    if status.loss is not None:
        parts.append(f"loss {status.loss:.3f}")
    if status.hit_rate is not None and (baseline := status.best_baseline) is not None:
        below = ", the model is below it" if baseline.hit_rate > status.hit_rate else ""
        parts.append(
            f"HR@10 {status.hit_rate:.3f} (baseline {baseline.name} {baseline.hit_rate:.3f}{below})"
        )
    if any(status.cache):
        parts.append("cache " + shares_described(status.cache._asdict(), " "))
    if lost := status.accounting.get("lost"):
        parts.append(f"lost {lost:,}")
    if dead := status.accounting.get("dead_lettered"):
        parts.append(f"{dead:,} dead letters")
    if status.backpressure_reason:
        parts.append(f"reading stops: {status.backpressure_reason}")
    if status.checkpoint_age_s is not None:
        parts.append(f"checkpoint {status.checkpoint_age_s:.0f} s ago")
    return ", ".join(parts)


def shares_described(cache: dict[str, float], separator: str = ", ") -> str:
    """The cache's composition in words."""
    return separator.join(f"{band} {share:.0%}" for band, share in cache.items())


# the summary ----------------------------------------------------------------------------------------------------------


def summary_rows(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The end of a run as labels and texts."""
    events = summary["events_this_run"]
    seconds = summary["seconds"]
    yield (
        "done",
        f"{events:,} events in {seconds:,.1f} s, {summary['events_per_second']:,.0f} events/s",
    )
    yield "consumed", accounting_described(summary)
    if summary["dead_letters"]:
        yield (
            "",
            ", ".join(
                f"{reason} {count:,}"
                for reason, count in summary["dead_letters"].items()
            ),
        )
    if summary["lost"]:
        yield (
            "lost",
            f"{summary['lost']:,} records that retention removed before they were read",
        )
    yield (
        "known",
        f"{summary['users']:,} users, {summary['items']:,} items, after {summary['steps']:,} steps",
    )
    if summary["hit_rate_at_10"] is not None:
        baseline = summary["best_baseline"]
        baseline_rate = summary["best_baseline_hit_rate_at_10"]
        yield (
            "HR@10",
            f"{summary['hit_rate_at_10']:.3f} over the whole run; best baseline, {baseline}, {baseline_rate:.3f}",
        )
    if any(summary["cache"].values()):
        yield "cache", shares_described(summary["cache"])
    yield "checkpoint", summary["checkpoint"] or "none"


def accounting_described(counts: dict[str, Any]) -> str:
    """What became of every event."""
    return (
        f"{counts['consumed']:,} = {counts['trained']:,} trained + {counts['filtered']:,} filtered"
        f" + {counts['dead_lettered']:,} dead-lettered"
    )


# logging --------------------------------------------------------------------------------------------------------------


@contextmanager
def _logging_to(handler: logging.Handler, least: int = logging.INFO) -> Iterator[None]:
    """Everything that is logged goes to this handler alone; afterwards, to where it
    went before.
    """
    root = logging.getLogger()
    handlers = root.handlers[:]
    level = root.level
    root.handlers = [handler]
    root.setLevel(least)
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)


class _ConsoleHandler(logging.Handler):
    """Messages on a rich console, above a live panel."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        from rich.text import Text

        try:
            at = time.strftime("%H:%M:%S", time.localtime(record.created))
            text = Text.assemble(
                (at, "dim"),
                " ",
                (self.format(record), LEVEL_STYLES.get(record.levelno, "")),
            )
            self._console.print(text)
        except Exception:
            self.handleError(record)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        line |= {"message": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(
            line, enc_hook=str
        ).decode()  # numbers that are not finite become null
