"""What tables and plots show of all that was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from streamer.replay.evaluation.record import Record

USUAL_K = 10
"""The length of the list that they look at, where it was measured."""


def measured_ks(records: Sequence[Record]) -> list[int]:
    """Lengths of lists that were measured."""
    return sorted({m["k"] for r in records for m in r.measures if m["k"]}) or [USUAL_K]


def shown_k(records: Sequence[Record]) -> int:
    """The one that is shown."""
    ks = measured_ks(records)
    return USUAL_K if USUAL_K in ks else ks[0]


def headline(records: Sequence[Record]) -> tuple[str, int, str]:
    """Metric, k and slice of the one figure that sums up a run."""
    metric, slice_ = ("recall", "all") if records[0].protocol == "offline" else ("hr", "second-half/all")
    return metric, shown_k(records), slice_


def common_settings(records: Sequence[Record]) -> dict[str, Any]:
    """Settings that are the same in all of them."""
    first = records[0].settings.items()
    return {name: value for name, value in first if all(r.settings.get(name) == value for r in records)}


def swept(records: Sequence[Record], axis: str, fixed: Mapping[str, Any]) -> list[Record]:
    """The runs of a sweep that differ in one setting alone.

    Args:
        records: of all its settings.
        axis: the setting.
        fixed: settings of every run; the axis may be among them.
    """
    rest = _without(fixed, axis)
    return [r for r in records if axis in r.settings and _without(r.settings, axis) == rest]


def _without(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {other: value for other, value in settings.items() if other != name}


def by_number(value: str) -> tuple[float, str]:
    """A key that puts numbers in their order, before all else."""
    try:
        return float(value), ""
    except ValueError:
        return math.inf, value


def refused(accounting: Mapping[str, Any]) -> str:
    """How many events the line refused, by reason, most first; empty if it refused none."""
    reasons = sorted(accounting.get("dead_letters", {}).items(), key=lambda pair: -pair[1])
    return ", ".join(f"{count:,} {reason}" for reason, count in reasons)
