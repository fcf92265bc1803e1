"""What a person or a log sees of a run."""

from __future__ import annotations

import json
import logging
import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self

from streamer.pipeline import Status


class Reporter(Protocol):
    """Shows a run."""

    def update(self, status: Status) -> None:
        """The latest state; called about twice a second."""
        ...

    def finish(self, summary: dict[str, Any] | None) -> None:
        """The run has ended; None if the summary is shown elsewhere."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def make_reporter(kind: str, source: str) -> Reporter:
    """A reporter for `auto`, `panel`, `plain` or `json`."""
    if kind == "auto":
        kind = "panel" if sys.stderr.isatty() else "plain"
    return LogReporter(source, as_json=kind == "json")


EVERY_S = 10.0


class LogReporter:
    """A line now and then, on standard error: plain, or JSON for machines.

    Args:
        source: where events come from.
        as_json: one JSON object a line.
    """

    def __init__(self, source: str, as_json: bool = False) -> None:
        self._source, self._json = source, as_json
        self._next = 0.0

    def __enter__(self) -> Self:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_JsonLines() if self._json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
        logging.getLogger("streamer").info("learning from %s", self._source)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def update(self, status: Status) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        logging.getLogger("streamer").info("%s", described(status), extra={"fields": fields(status)})

    def finish(self, summary: dict[str, Any] | None) -> None:
        if summary is not None:
            logging.getLogger("streamer").info("%s", summarised(summary), extra={"fields": summary})


def fields(status: Status) -> dict[str, Any]:
    """The state for machines."""
    return {
        "events_per_second": round(status.events_per_second, 1),
        "lag": sum(status.lag.values()),
        "loss": status.loss,
        "hit_rate_at_10": status.hit_rate,
        "most_popular_hit_rate_at_10": status.most_popular_hit_rate,
        "cache": status.cache._asdict(),
        "queued_events": status.queued_events,
        "checkpoint_age_s": status.checkpoint_age_s,
        "users": status.users,
        "items": status.items,
        **status.accounting,
    }


def described(status: Status) -> str:
    """The state in one line."""
    parts = [f"{status.accounting.get('consumed', 0):,} events", f"{status.events_per_second:,.0f}/s"]
    parts.append(f"lag {sum(status.lag.values()):,}")
    if status.loss is not None:
        parts.append(f"loss {status.loss:.3f}")
    if status.hit_rate is not None:
        parts.append(f"HR@10 {status.hit_rate:.3f} (most popular {status.most_popular_hit_rate:.3f})")
    head, torso, tail = status.cache
    if head + torso + tail:
        parts.append(f"cache head {head:.0%} torso {torso:.0%} tail {tail:.0%}")
    if status.checkpoint_age_s is not None:
        parts.append(f"checkpoint {status.checkpoint_age_s:.0f} s ago")
    return ", ".join(parts)


def summarised(summary: dict[str, Any]) -> str:
    """The end of a run in one line."""
    return (
        f"done: {summary['consumed']:,} consumed = {summary['trained']:,} trained + {summary['filtered']:,} filtered + "
        f"{summary['dead_lettered']:,} dead-lettered; {summary['events_per_second']:,.0f} events/s; "
        f"checkpoint {summary['checkpoint']}"
    )


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": record.created, "level": record.levelname.lower(), "logger": record.name}
        line |= {"message": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
