"""The catalogue as the tables of `docs/metrics.md`.

    python -m streamer.metrics.table docs/metrics.md

writes them anew between the two marks.
"""

from __future__ import annotations

import sys
from pathlib import Path

from streamer.metrics.catalogue import GROUPS, Group, Label, Metric

BEGIN, END = "<!-- metrics: begin -->", "<!-- metrics: end -->"


def tables() -> str:
    """All metrics, a table for each group."""
    return "\n\n".join(_table(group) for group in GROUPS)


def with_tables(text: str) -> str:
    """The text, with the tables between its marks.

    Raises:
        ValueError: it has no marks.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no {BEGIN} ... {END} to write the tables between")
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def _table(group: Group) -> str:
    head = [f"### {group.title}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *(_row(metric) for metric in group.metrics)])


def _row(metric: Metric) -> str:
    labels = "; ".join(_described(label) for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


def _described(label: Label) -> str:
    values = ", ".join(f"`{value}`" for value in label.values)
    return f"`{label.name}`: {values or label.bound}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
