"""What the live page shows: the state of a pipeline as plain values."""

from __future__ import annotations

import time
from typing import Any

from streamer.dead_letters.base import DeadLetter
from streamer.metrics.health import Verdict
from streamer.metrics.monitor import Monitor
from streamer.metrics.sampler_report import SamplerReport
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
    status = monitor.status
    rows = monitor.timeline.run() if span == "run" else monitor.timeline.recent()
    return {
        "now": time.time(),
        "started": monitor.started_at,
        "source": monitor.source,
        "build": monitor.build,
        "alive": _verdict(monitor.health.alive()),
        "ready": _verdict(monitor.health.ready()),
        "timeline": {"span": span, "columns": monitor.timeline.columns, "rows": rows},
        "figures": _figures(status) if status is not None else None,
        "cache": _cache(monitor.sampler_report)
        if monitor.sampler_report is not None
        else None,
        "ranking": _ranking(status) if status is not None else None,
        "partitions": _partitions(status) if status is not None else [],
        "ranks": _ranks(status) if status is not None else [],
        "dead_letters": {
            "reasons": dict(status.accounting.get("dead_letters", {}))
            if status is not None
            else {},
            "recent": [
                _letter(at, letter, show_values) for at, letter in monitor.letters()
            ],
            "shows_values": show_values,
            "held_up": status.backpressure_reason if status is not None else None,
        },
        "store": _store(status) if status is not None else None,
        "checkpoint": _checkpoint(monitor, status) if status is not None else None,
        "publishing": _publishing(status) if status is not None else None,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {"ok": verdict.ok, "reason": verdict.reason}


def _figures(status: Status) -> dict[str, Any]:
    return {
        "events_per_second": status.events_per_second,
        "lag": sum(status.lag.values()),
        "queued_events": status.queued_events,
        "loss": status.loss,
        "hit_rate": status.hit_rate,
        "best_baseline": status.best_baseline._asdict()
        if status.best_baseline is not None
        else None,
        "steps": status.steps,
        "users": status.users,
        "items": status.items,
        "limits": status.limits._asdict() if status.limits is not None else None,
        "evicted": status.evicted,
        "rebalances": status.rebalances,
        **{
            name: status.accounting.get(name, 0)
            for name in ("consumed", "trained", "filtered", "dead_lettered")
        },
    }


def _ranking(status: Status) -> dict[str, Any]:
    return {
        "influence": status.influence,
        "towers": str(status.towers) if status.towers is not None else None,
    }


def _cache(report: SamplerReport) -> dict[str, Any]:
    return {
        "slots": report.slots,
        "distinct": report.distinct,
        "entropy": report.entropy,
        "turnover": report.turnover,
        "overlap": report.overlap,
        "age_s": report.age_s,
        "divergence": report.divergence,
        "top": [top._asdict() for top in report.top],
        "curve": report.curve,
    }


def _partitions(status: Status) -> list[dict[str, Any]]:
    """Our partitions; of a file nobody knows the lag."""
    return [
        {
            "topic": p.topic,
            "partition": p.number,
            "position": position,
            "lag": status.lag.get(p),
        }
        for p, position in sorted(status.partitions.items())
    ]


def _ranks(status: Status) -> list[dict[str, Any]]:
    """The trainers of a group; none if this one trains alone."""
    return [
        member._asdict() | {"partitions": [p.number for p in member.partitions]}
        for member in status.members
    ]


def _letter(at: float, letter: DeadLetter, show_values: bool) -> dict[str, Any]:
    """What is known of a letter; its detail may quote what it holds."""
    value = letter.value or b""
    shown = value[: 4 * SHOWN_VALUE].decode(errors="replace")[:SHOWN_VALUE]
    return {
        "time": at,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "reason": str(letter.reason),
        "detail": letter.detail if show_values else "",
        "value": shown if show_values else "",
    }


def _store(status: Status) -> dict[str, Any]:
    store = status.store
    return {
        "kind": store.kind,
        "live": store.live,
        "problem": store.problem,
        "round_trip_s": store.round_trip_s,
        "staleness_s": store.staleness_s,
        "backlog_events": store.backlog_events,
        "errors": sum(store.errors.values()),
    }


def _checkpoint(monitor: Monitor, status: Status) -> dict[str, Any]:
    return {
        "age_s": monitor.checkpoint_age_s()
        if status.checkpoint_age_s is not None
        else None,
        "unsaved_events": status.saves.unsaved_events,
        "duration_s": status.saves.seconds,
        "longest_pause_s": status.saves.longest_pause_s,
        "size_bytes": status.saves.size_bytes,
        "deltas": status.saves.deltas,
        "failed": status.saves.failed,
    }


def _publishing(status: Status) -> dict[str, Any] | None:
    published = status.publishing
    if published is None:
        return None
    age_s = time.time() - published.at_s if published.at_s is not None else None
    return {
        "generation": published.generation,
        "age_s": age_s,
        "problem": published.problem,
    }
