"""Writes the tables of docs/ that come from the code, between marks: metrics and settings.

python docs/generate.py [--check]
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

from streamer.metrics.catalogue import GROUPS, Label, Metric
from streamer.model.setting import Setting, Settings
from streamer.replay.evaluation.settings import OfflineSettings, PrequentialSettings
from streamer.replay.settings import EvaluationSettings, ReplaySettings
from streamer.serve.settings import ServeSettings
from streamer.settings import RunSettings

DOCS = Path(__file__).parent


def metrics() -> str:
    """All metrics, a table for each group."""

    def metric_row(metric: Metric) -> str:
        labels = "; ".join(described(label) for label in metric.labels)
        return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"

    def described(label: Label) -> str:
        return f"`{label.name}`: {', '.join(f'`{value}`' for value in label.values) or label.bound}"

    head = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    return "\n\n".join(
        "\n".join([f"### {title}", "", *head, *map(metric_row, found)])
        for title, found in GROUPS.items()
    )


def escaped(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "&#124;").replace("<", "&lt;")


def settings(
    kind: type[Settings], known: type[Settings] | None = None, given: str = ""
) -> str:
    """All settings of a class, a table for each heading, but for those that another class has with the same default.

    `given` is how all of them are given on the command line; empty: each by its option, if it has one.
    """
    hidden = [row(s, given) for s in known.all().values()] if known is not None else []
    tables = []
    for heading, group in itertools.groupby(
        kind.all().values(), key=lambda s: s.heading
    ):
        rows = [row(s, given) for s in group]
        shown = [cells for cells in rows if cells not in hidden]
        if shown:
            head = [
                "| option | in Python | default | values | meaning |",
                "|---|---|---|---|---|",
            ]
            lines = [
                f"| {' | '.join(escaped(cell) for cell in cells)} |" for cells in shown
            ]
            tables.append("\n".join([f"### {heading}", "", *head, *lines]))
    return "\n\n".join(tables)


def row(s: Setting, given: str) -> list[str]:
    """The cells of one setting."""
    way = given or ("--set " if s.about.expert else "--")
    values = [*s.choices, s.range().removeprefix("of "), s.about.unit]
    default = s.default_text() or ("no" if s.base is bool else "")
    fixed = " *Fixed.*" if s.about.fixed else ""
    return [
        f"`{way}{s.option}`",
        f"`{s.name}`",
        default,
        ", ".join(v for v in values if v),
        s.about.help + fixed,
    ]


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
