"""What the live page shows: the state of a pipeline as plain values."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from streamer.dead_letters.base import DeadLetter
from streamer.metrics.monitor import Monitor
from streamer.metrics.status import Status

SHOWN_VALUE = 160
"""Characters of a dead letter's value that are shown."""


def page_data(
    monitor: Monitor, span: str = "recent", show_values: bool = False
) -> dict[str, Any]:
    """Everything that the page shows.

    Args:
        monitor: what watches the line.
        span: of the charts: `recent` for the last minutes, `run` for all of it.
        show_values: also what dead letters hold.
    """
    timeline = monitor.timeline
    rows = timeline.run() if span == "run" else timeline.recent()
    status = monitor.status or Status()
    return {
        "now": time.time(),
        "started": monitor.started_at,
        "source": monitor.source,
        "build": monitor.build,
        "alive": monitor.health.alive()._asdict(),
        "ready": monitor.health.ready()._asdict(),
        "timeline": {"span": span, "columns": timeline.columns, "rows": rows},
        "figures": _figures(status) if monitor.status is not None else None,
        "cache": _cache(monitor),
        "ranking": {
            "influence": status.influence,
            "towers": str(status.towers) if status.towers is not None else None,
        },
        "partitions": _partitions(status),
        "members": _members(status),
        "dead_letters": {
            "reasons": status.accounting.get("dead_letters", {}),
            "recent": _dead_letters(monitor, show_values),
            "shows_values": show_values,
            "backpressure_reason": status.backpressure_reason,
        },
        "store": dataclasses.asdict(status.store),
        "checkpoint": _checkpoint(monitor, status),
        "publishing": _publishing(status),
    }


def _figures(status: Status) -> dict[str, Any]:
    baseline = status.best_baseline
    names = ("consumed", "trained", "filtered", "dead_lettered")
    counts = {name: status.accounting.get(name, 0) for name in names}
    return {
        "events_per_second": status.events_per_second,
        "lag": sum(status.lag.values()),
        "queued_events": status.queued_events,
        "loss": status.loss,
        "hit_rate": status.hit_rate,
        "best_baseline": baseline._asdict() if baseline is not None else None,
        "steps": status.steps,
        "users": status.users,
        "items": status.items,
        "limits": status.limits._asdict() if status.limits is not None else None,
        "evicted": status.evicted,
        "rebalances": status.rebalances,
        **counts,
    }


def _cache(monitor: Monitor) -> dict[str, Any] | None:
    report = monitor.sampler_report
    if report is None:
        return None
    figures = dataclasses.asdict(report)
    figures["top"] = [top._asdict() for top in report.top]
    return figures


def _partitions(status: Status) -> list[dict[str, Any]]:
    """Our partitions; of a file nobody knows the lag."""
    return [
        {
            "topic": partition.topic,
            "partition": partition.number,
            "position": position,
            "lag": status.lag.get(partition),
        }
        for partition, position in sorted(status.partitions.items())
    ]


def _members(status: Status) -> list[dict[str, Any]]:
    """The trainers of a group; none if this one trains alone."""
    members = []
    for member in status.members:
        figures = member._asdict()
        figures["partitions"] = [partition.number for partition in member.partitions]
        members.append(figures)
    return members


def _dead_letters(monitor: Monitor, show_values: bool) -> list[dict[str, Any]]:
    """The latest dead letters; their details may quote what they hold."""
    return [
        {
            "time": time_s,
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
            "reason": str(letter.reason),
            "detail": letter.detail if show_values else "",
            "value": _shown_value(letter) if show_values else "",
        }
        for time_s, letter in monitor.letters()
    ]


def _shown_value(letter: DeadLetter) -> str:
    value = (letter.value or b"")[: 4 * SHOWN_VALUE]
    return value.decode(errors="replace")[:SHOWN_VALUE]


def _checkpoint(monitor: Monitor, status: Status) -> dict[str, Any]:
    is_saved = status.checkpoint_age_s is not None
    age_s = monitor.checkpoint_age_s() if is_saved else None
    return {"age_s": age_s, **dataclasses.asdict(status.saves)}


def _publishing(status: Status) -> dict[str, Any] | None:
    published = status.publishing
    if published is None:
        return None
    age_s = time.time() - published.at_s if published.at_s is not None else None
    return {"age_s": age_s, **dataclasses.asdict(published)}
