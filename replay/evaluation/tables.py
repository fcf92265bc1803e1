"""Records as tables in Markdown: means over seeds, with deviations where there are several."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from replay.evaluation.record import Record

PAPER_GOWALLA = {
    "ssl": (0.1381, 0.1105),
    "ssl-pop": (0.1479, 0.1124),
    "mns": (0.1486, 0.1130),
    "g-tower": (0.1500, 0.1176),
    "bir": (0.1523, 0.1157),
    "xir": (0.1543, 0.1169),
}
"""The paper's figures on Gowalla: NDCG@10 as its code computes it, and Recall@10."""

OFFLINE_COLUMNS = (("recall", 10), ("recall", 20), ("ndcg", 10), ("ndcg", 20), ("authors-ndcg", 10))
PREQUENTIAL_COLUMNS = (
    ("hr", "second-half/all"),
    ("hr", "second-half/new"),
    ("ndcg", "second-half/all"),
    ("ndcg", "second-half/new"),
    ("hr", "all"),
    ("hr", "new"),
)


class Figure(NamedTuple):
    """A mean over seeds."""

    mean: float
    deviation: float | None
    seeds: int

    def __str__(self) -> str:
        deviation = f" ± {self.deviation:.4f}" if self.deviation is not None else ""
        return f"{self.mean:.4f}{deviation}"


Group = tuple[str, str, str, str]
"""Log, protocol, method or floor, and settings."""


class Figures:
    """Means over seeds of everything that some records measured."""

    def __init__(self, records: Iterable[Record]) -> None:
        values: dict[tuple[Any, ...], list[float]] = defaultdict(list)
        seen: set[tuple[Any, ...]] = set()
        for record in records:
            for m in record.measures:
                who = m["floor"] or record.method
                settings = "" if m["floor"] else told(record.settings)
                at = (record.data, record.protocol, who, settings, m["metric"], m["k"], m["slice"])
                if (*at, record.seed) not in seen:  # every method of a comparison measures the floors again
                    seen.add((*at, record.seed))
                    values[at].append(m["value"])
        self._values = values

    def of(self, group: Group, metric: str, k: int, slice_: str) -> Figure | None:
        """One figure; None if nobody measured it."""
        found = self._values.get((*group, metric, k, slice_))
        if not found:
            return None
        return Figure(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))


def told(settings: dict[str, Any]) -> str:
    """Settings for a person."""
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))


def markdown(records: Sequence[Record]) -> str:
    """Every log and protocol in a table of its own."""
    parts = []
    for data, protocol in dict.fromkeys((r.data, r.protocol) for r in records):
        ours = [r for r in records if (r.data, r.protocol) == (data, protocol)]
        make = offline_table if protocol == "offline" else prequential_table
        parts.append(f"## {data}, {protocol}\n\n{about(ours)}\n\n{make(ours)}")
    return "\n\n".join(parts) + "\n"


def about(records: Sequence[Record]) -> str:
    """What was run, in a sentence."""
    first, seeds = records[0].about, sorted({r.seed for r in records})
    sizes = f"{first['users']:,} users, {first['items']:,} items, {first['events']:,} events"
    epochs = sorted({r.about["epochs"] for r in records if "epochs" in r.about})
    passes = f", {', '.join(map(str, epochs))} epochs" if epochs else ", one pass, test then train"
    runs = f"{len(seeds)} seeds (mean ± deviation)" if len(seeds) > 1 else "one seed"
    common = told(dict(_common(records)))
    return f"{sizes}{passes}, {runs}{f', {common}' if common else ''}."


def offline_table(records: Sequence[Record]) -> str:
    """Methods by metric; beside them the paper's figures, where they are of the same log."""
    figures, groups, names = Figures(records), _groups(records), _names(records)
    paper = records[0].data == "gowalla" and records[0].about.get("events") == 1_027_464
    head = [_column(metric, k) for metric, k in OFFLINE_COLUMNS] + ["ms a step"]
    head += ["paper: Recall@10", "paper: NDCG@10 (authors')"] if paper else []
    rows = []
    for group in groups:
        cells = [figures.of(group, metric, k, "all") for metric, k in OFFLINE_COLUMNS]
        step = figures.of(group, "step-ms", 0, "all")
        row = [*map(_shown, cells), f"{step.mean:.1f}" if step else ""]
        if paper:
            row += [f"{x:.4f}" for x in PAPER_GOWALLA.get(group[2], (0.0, 0.0))[::-1]]
        rows.append([names[group[3]].format(group[2]), *row])
    return _table(["method", *head], rows)


def prequential_table(records: Sequence[Record], k: int = 10) -> str:
    """Floors, then methods, by slice."""
    figures, names = Figures(records), _names(records)
    floors = list(dict.fromkeys(m["floor"] for r in records for m in r.measures if m["floor"]))
    data = records[0].data
    head = [f"{_metric(metric)}@{k} {slice_}" for metric, slice_ in PREQUENTIAL_COLUMNS]
    groups: list[Group] = [(data, "prequential", floor, "") for floor in floors]
    rows = []
    for group in [*groups, *_groups(records)]:
        cells = [figures.of(group, metric, k, slice_) for metric, slice_ in PREQUENTIAL_COLUMNS]
        name = "floor: {}" if group in groups else names[group[3]]
        rows.append([name.format(group[2]), *map(_shown, cells)])
    return _table(["", *head], rows)


def sweep_table(records: Sequence[Record], parameter: str, metric: str, k: int, slice_: str) -> str:
    """One parameter's values by method."""
    figures = Figures(records)
    rows = []
    for record in _one_each(records):
        group = (record.data, record.protocol, record.method, told(record.settings))
        figure, step = figures.of(group, metric, k, slice_), figures.of(group, "step-ms", 0, "all")
        cells = [_shown(figure), *([f"{step.mean:.1f}"] if step else [])]
        rows.append([str(record.settings.get(parameter, "default")), record.method, *cells])
    head = [parameter, "method", f"{_metric(metric)}@{k}", *(["ms a step"] if len(rows[0]) > 3 else [])]
    return _table(head, rows)


def _one_each(records: Sequence[Record]) -> list[Record]:
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        found.setdefault((record.method, told(record.settings)), record)
    return list(found.values())


def _groups(records: Sequence[Record]) -> list[Group]:
    return list(dict.fromkeys((r.data, r.protocol, r.method, told(r.settings)) for r in records))


def _common(records: Sequence[Record]) -> list[tuple[str, Any]]:
    """Settings that are the same in all of them."""
    first = records[0].settings.items()
    return [pair for pair in first if all(pair in r.settings.items() for r in records)]


def _names(records: Sequence[Record]) -> dict[str, str]:
    """For the settings of each record, how a method with them is called; `{}` stands for the method."""
    common = _common(records)
    found = {}
    for record in records:
        rest = told({name: value for name, value in record.settings.items() if (name, value) not in common})
        found[told(record.settings)] = f"`{{}}` ({rest})" if rest else "`{}`"
    return found


def _metric(metric: str) -> str:
    return {"hr": "HR", "ndcg": "NDCG", "mrr": "MRR", "recall": "Recall", "authors-ndcg": "authors' NDCG"}[metric]


def _column(metric: str, k: int) -> str:
    return f"{_metric(metric)}@{k}"


def _shown(figure: Figure | None) -> str:
    return "" if figure is None else str(figure)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
