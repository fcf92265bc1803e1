"""Writes the tables of docs/ that come from the code, between marks: metrics and settings.

python docs/generate.py [--check]
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

from streamer.metrics.catalogue import GROUPS, Label, Metric
from streamer.model.setting import Settings, setting_rows
from streamer.replay.evaluation.offline import OfflineSettings
from streamer.replay.evaluation.prequential import PrequentialSettings
from streamer.replay.settings import EvaluationSettings, ReplaySettings
from streamer.settings import RunSettings, ServeSettings

DOCS = Path(__file__).parent


def metrics() -> str:
    """All metrics, a table for each group."""

    def row(metric: Metric) -> str:
        labels = "; ".join(described(label) for label in metric.labels)
        return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"

    def described(label: Label) -> str:
        return f"`{label.name}`: {', '.join(f'`{value}`' for value in label.values) or label.bound}"

    head = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    return "\n\n".join(
        "\n".join([f"### {title}", "", *head, *map(row, found)])
        for title, found in GROUPS.items()
    )


def escaped(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "&#124;").replace("<", "&lt;")


def settings(
    kind: type[Settings], known: type[Settings] | None = None, given: str = "--"
) -> str:
    """All settings of a class, a table for each heading, but for those that another class has with the same default.

    `given` is how they are given on the command line.
    """
    rows = set(setting_rows(known)) if known is not None else set()
    tables = []
    for heading, group in itertools.groupby(
        (r for r in setting_rows(kind) if r not in rows), key=lambda r: r[0]
    ):
        head = [
            f"### {heading}",
            "",
            "| option | in Python | default | values | meaning |",
            "|---|---|---|---|---|",
        ]
        cells = ([f"`{given}{o}`", f"`{n}`", d, v, m] for _, o, n, d, v, m in group)
        tables.append(
            "\n".join(
                [
                    *head,
                    *(f"| {' | '.join(escaped(c) for c in row)} |" for row in cells),
                ]
            )
        )
    return "\n\n".join(tables)


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "metrics.md": {"metrics": metrics},
    "settings.md": {
        "run": lambda: settings(RunSettings),
        "serve": lambda: settings(ServeSettings, RunSettings),
        "prequential": lambda: settings(PrequentialSettings, RunSettings, "--set "),
        "offline": lambda: settings(OfflineSettings, RunSettings, "--set "),
        "replay": lambda: settings(ReplaySettings),
        "evaluation": lambda: settings(EvaluationSettings, ReplaySettings),
    },
}
"""File -> mark -> the table between its marks."""


def generated(name: str) -> str:
    """A file as it should be."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for mark, table in TABLES[name].items():
        before, begin, rest = text.partition(f"<!-- {mark}: begin -->")
        _, end, after = rest.partition(f"<!-- {mark}: end -->")
        if not begin or not end:
            raise SystemExit(
                f"docs/{name} has no marks <!-- {mark}: begin --> and <!-- {mark}: end -->"
            )
        text = f"{before}{begin}\n\n{table()}\n\n{end}{after}"
    return text


def main() -> None:
    stale = [
        name
        for name in TABLES
        if generated(name) != (DOCS / name).read_text(encoding="utf-8")
    ]
    if "--check" in sys.argv[1:]:
        sys.exit(
            f"stale: {', '.join(f'docs/{name}' for name in stale)}; run `make docs`"
            if stale
            else 0
        )
    for name in stale:
        (DOCS / name).write_text(generated(name), encoding="utf-8")
        print(f"docs/{name} is written")


if __name__ == "__main__":
    main()
