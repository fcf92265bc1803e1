"""What tables and plots show of all that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replay.evaluation.record import Record

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
