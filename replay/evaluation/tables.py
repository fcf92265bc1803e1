"""Records as tables in Markdown: means over seeds, with deviations where there are several."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streamer.prequential.slices import SPLITS
from streamer.replay.evaluation.record import Record
from streamer.replay.evaluation.selection import (
    by_number,
    common_settings,
    headline,
    measured_ks,
    refused,
    shown_k,
    swept,
)

PAPER_GOWALLA = {
    "ssl": (0.1381, 0.1105),
    "ssl-pop": (0.1479, 0.1124),
    "mns": (0.1486, 0.1130),
    "g-tower": (0.1500, 0.1176),
    "bir": (0.1523, 0.1157),
    "xir": (0.1543, 0.1169),
}
"""The paper's figures on Gowalla: NDCG@10 as its code computes it, and Recall@10."""

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
                settings = told(record.floor_settings if m["floor"] else record.settings)
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
    listed = {name: "+".join(map(str, v)) if isinstance(v, (list, tuple)) else v for name, v in settings.items()}
    return ", ".join(f"{name}={value}" for name, value in sorted(listed.items()))


def markdown(records: Sequence[Record]) -> str:
    """Every log and protocol in a table of its own."""
    parts = []
    for data, protocol in dict.fromkeys((r.data, r.protocol) for r in records):
        ours = [r for r in records if (r.data, r.protocol) == (data, protocol)]
        parts += [f"## {data}, {protocol}", about(ours)]
        parts += [offline_table(ours)] if protocol == "offline" else _prequential_tables(ours)
    return "\n\n".join(parts) + "\n"


def sweep_markdown(records: Sequence[Record], parameters: Sequence[str], fixed: Mapping[str, Any]) -> str:
    """Every log in a section, every parameter in a table of its own.

    Args:
        records: what was measured.
        parameters: the settings that were changed one at a time.
        fixed: the settings of all runs.
    """
    parts = []
    for data, protocol in dict.fromkeys((r.data, r.protocol) for r in records):
        ours = [r for r in records if (r.data, r.protocol) == (data, protocol)]
        parts += [f"## {data}, {protocol}", about(ours)]
        for parameter in parameters:
            changed = swept(ours, parameter, fixed)
            parts += [f"### {parameter}", sweep_table(changed, parameter, *headline(changed))]
    return "\n\n".join(parts) + "\n"


def _prequential_tables(records: Sequence[Record]) -> list[str]:
    parts = [prequential_table(records)]
    for prefix, what in (("", "all events"), ("new/", "events new to their user, known items left out")):
        parts += [f"HR@{shown_k(records)} by user and item, {what}:", slices_table(records, prefix)]
    return parts


def about(records: Sequence[Record]) -> str:
    """What was run, in a sentence."""
    first, seeds = records[0].about, sorted({r.seed for r in records})
    users, items = f"{first['users']:,} users{_tested(records)}", f"{first['items']:,} items"
    sizes = f"{users}, {items}, {first['events']:,} events{_ranked(records)}"
    epochs = sorted({r.about["epochs"] for r in records if "epochs" in r.about})
    passes = f", {', '.join(map(str, epochs))} epochs" if epochs else ", one pass, test then train"
    runs = f"{len(seeds)} seeds (mean ± deviation)" if len(seeds) > 1 else "one seed"
    common, part = told(common_settings(records)), told(records[0].log)
    return f"{sizes}{passes}, {runs}{f', {common}' if common else ''}{f'; of the log {part}' if part else ''}."


def _tested(records: Sequence[Record]) -> str:
    """How many users have a test item, if not all."""
    counts = {r.about["users_tested"] for r in records if "users_tested" in r.about}
    return "" if counts <= {records[0].about["users"]} else f" ({_range(counts)} tested)"


def _ranked(records: Sequence[Record]) -> str:
    """How many events of a stream were ranked, if not all: those that the line refuses are not."""
    counts = {r.about["slices"]["all"] for r in records if "slices" in r.about}
    if counts <= {records[0].about["events"]}:
        return ""
    reasons = refused(records[0].about.get("accounting", {}))
    return f" ({_range(counts)} ranked{f'; refused: {reasons}' if reasons else ''})"


def _range(counts: set[int]) -> str:
    few, many = min(counts), max(counts)
    return f"{few:,}" if few == many else f"{few:,} to {many:,}"


def offline_table(records: Sequence[Record]) -> str:
    """Methods by metric; beside them the paper's figures, where they are of the same log."""
    figures, groups, names = Figures(records), _groups(records), _names(records)
    paper = records[0].data == "gowalla" and records[0].about.get("events") == 1_027_464
    columns = [(metric, k) for metric in ("recall", "ndcg") for k in measured_ks(records)] + [
        ("authors-ndcg", shown_k(records))
    ]
    head = [_column(metric, k) for metric, k in columns] + ["ms a step"]
    head += ["paper: Recall@10", "paper: NDCG@10 (authors')"] if paper else []
    rows = []
    for group in groups:
        cells = [figures.of(group, metric, k, "all") for metric, k in columns]
        row = [*map(_shown, cells), _step(figures, group)]
        if paper:
            row += [f"{x:.4f}" for x in PAPER_GOWALLA[group[2]][::-1]] if group[2] in PAPER_GOWALLA else ["", ""]
        rows.append([names[group[3]].format(group[2]), *row])
    return _table(["method", *head], rows)


def prequential_table(records: Sequence[Record]) -> str:
    """Floors, then methods: all events and those new to their user, of the second half and of the whole stream."""
    k, figures = shown_k(records), Figures(records)
    head = [f"{_metric(metric)}@{k} {slice_}" for metric, slice_ in PREQUENTIAL_COLUMNS]
    rows = []
    for name, group in _floors_and_methods(records):
        cells = [figures.of(group, metric, k, slice_) for metric, slice_ in PREQUENTIAL_COLUMNS]
        rows.append([name, *map(_shown, cells), _step(figures, group)])
    return _table(["", *head, "ms a step"], rows)


def slices_table(records: Sequence[Record], prefix: str = "") -> str:
    """The hit rates of floors and methods by what is known of user and item, with the number of events first.

    Args:
        prefix: `new/` for events new to their user.
    """
    k, figures, events = shown_k(records), Figures(records), records[0].about.get("slices", {})
    rows = [["events", *(f"{events[prefix + split]:,}" if prefix + split in events else "" for split in SPLITS)]]
    for name, group in _floors_and_methods(records):
        rows.append([name, *(_shown(figures.of(group, "hr", k, prefix + split)) for split in SPLITS)])
    return _table(["", *(split.replace("-", " ") for split in SPLITS)], rows)


def _floors_and_methods(records: Sequence[Record]) -> list[tuple[str, Group]]:
    """What tables call each, and where its figures are."""
    names, common = _names(records), common_settings(records)
    found: dict[Group, str] = {}
    for record in records:
        rest = told({name: value for name, value in record.floor_settings.items() if name not in common})
        for floor in dict.fromkeys(m["floor"] for m in record.measures if m["floor"]):
            group = (record.data, record.protocol, floor, told(record.floor_settings))
            found[group] = f"floor: {floor}" + (f" ({rest})" if rest else "")
    found |= {group: names[group[3]].format(group[2]) for group in _groups(records)}
    return [(name, group) for group, name in found.items()]


def sweep_table(records: Sequence[Record], parameter: str, metric: str, k: int, slice_: str) -> str:
    """One parameter's values by method."""
    figures = Figures(records)
    rows = []
    for record in _one_each(records):
        group = (record.data, record.protocol, record.method, told(record.settings))
        cells = [_shown(figures.of(group, metric, k, slice_)), _step(figures, group)]
        rows.append([str(record.settings.get(parameter, "default")), record.method, *cells])
    where = "" if slice_ == "all" else f" {slice_}"
    rows.sort(key=lambda row: by_number(row[0]))
    return _table([parameter, "method", f"{_metric(metric)}@{k}{where}", "ms a step"], rows)


def _step(figures: Figures, group: Group) -> str:
    """Milliseconds of a training step, where they were measured."""
    step = figures.of(group, "step-ms", 0, "all")
    return "" if step is None else f"{step.mean:.1f}"


def _one_each(records: Sequence[Record]) -> list[Record]:
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        found.setdefault((record.method, told(record.settings)), record)
    return list(found.values())


def _groups(records: Sequence[Record]) -> list[Group]:
    return list(dict.fromkeys((r.data, r.protocol, r.method, told(r.settings)) for r in records))


def _names(records: Sequence[Record]) -> dict[str, str]:
    """For the settings of each record, how a method with them is called; `{}` stands for the method."""
    common = common_settings(records)
    found = {}
    for record in records:
        rest = told({name: value for name, value in record.settings.items() if name not in common})
        found[told(record.settings)] = f"`{{}}` ({rest})" if rest else "`{}`"
    return found


def _metric(metric: str) -> str:
    return {"hr": "HR", "ndcg": "NDCG", "mrr": "MRR", "recall": "Recall", "authors-ndcg": "authors' NDCG"}[metric]


def _column(metric: str, k: int) -> str:
    return f"{_metric(metric)}@{k}"


def _shown(figure: Figure | None) -> str:
    return "" if figure is None else str(figure)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns in which nothing stands are left out."""
    shown = [at for at in range(len(head)) if any(row[at] for row in rows)]
    lines = [[head[at] for at in shown], ["---"] * len(shown), *([row[at] for at in shown] for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
