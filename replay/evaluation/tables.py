"""Records as tables in Markdown: means over seeds, with deviations where there are
several.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streamer.replay.evaluation.record import Record, refused, settings_text
from streamer.replay.evaluation.sliced import RETRIEVED
from streamer.replay.evaluation.slices import BANDS, SECOND_HALF, SPLITS

METRIC_NAMES = {
    "hr": "HR",
    "ndcg": "NDCG",
    "mrr": "MRR",
    "recall": "Recall",
    "authors-ndcg": "authors' NDCG",
    "hr-without-towers": "without towers HR",
    "towers-recall": "towers' Recall",
    "cold-share": "cold items",
}
STREAM_FIGURES = (
    ("hr", "all"),
    ("hr", "new"),
    ("hr", "new/returning-items"),
    ("hr", "returning-users"),
    *(("hr", band) for band in BANDS),
    *(("hr", f"new/{band}") for band in BANDS),
    ("ndcg", "all"),
    ("ndcg", "new"),
)
"""Metrics and slices of the main table of a stream, all of its second half."""
TOWERS_FIGURES = tuple(
    ("towers-recall", k, SECOND_HALF + slice_)
    for slice_ in ("all", "new")
    for k in RETRIEVED
)
"""What of the second half the towers' own lists hold."""
CATALOGUE_FIGURES = (
    ("hr", "new-items"),
    ("hr", f"{SECOND_HALF}new-items"),
    ("cold-share", "all"),
)
"""First events of items, which only a catalogue can predict, and the
share of such items in lists.
"""
USUAL_K = 10
"""The length of the list that tables and plots look at, where it was measured."""
STEP_MS = ("step-ms", 0, "all")
SPEED = ("events-per-second", 0, "all")
BELOW = "▼"
"""Marks a figure of a method that a baseline beside it exceeds."""
PAPER_GOWALLA = {
    "ssl": ("0.1105", "0.1381"),
    "ssl-pop": ("0.1124", "0.1479"),
    "mns": ("0.1130", "0.1486"),
    "g-tower": ("0.1176", "0.1500"),
    "bir": ("0.1157", "0.1523"),
    "xir": ("0.1169", "0.1543"),
}
"""The paper's figures on Gowalla: Recall@10, and NDCG@10 as its code computes it."""
PAPER_GOWALLA_EVENTS = 1_027_464

Figure = tuple[str, int, str]
"""Metric, k and slice."""
Group = tuple[str, str, str, str]
"""Log, protocol, method or baseline, and settings: runs that differ only in their seeds."""


def headline(records: Sequence[Record]) -> Figure:
    """The one figure that sums up a run."""
    if records[0].protocol == "offline":
        return "recall", shown_k(records), "all"
    return "hr", shown_k(records), f"{SECOND_HALF}all"


def shown_k(records: Sequence[Record]) -> int:
    """The length of the lists that are shown, among those that were measured."""
    ks = _measured_ks(records)
    return USUAL_K if USUAL_K in ks else ks[0]


def _measured_ks(records: Sequence[Record]) -> list[int]:
    return sorted({m.k for r in records for m in r.measures if m.k}) or [USUAL_K]


def _title(figure: Figure, offline: bool) -> str:
    metric, k, slice_ = figure
    if figure in (STEP_MS, SPEED):
        return "ms a step" if figure == STEP_MS else "events/s"
    return f"{METRIC_NAMES[metric]}@{k}" + (
        "" if offline else f" {slice_title(slice_)}"
    )


def slice_title(slice_: str) -> str:
    """`new, reachable` for `second-half/new/returning-items`: what somebody had before
    can be predicted.
    """
    name = slice_.removeprefix(SECOND_HALF).replace(
        "new/returning-items", "new/reachable"
    )
    return name.replace("/", ", ").replace("-", " ")


# which runs belong together -------------------------------------------------------------------------------------------


def by_log(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each log and protocol."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        found[record.data, record.protocol].append(record)
    return list(found.values())


def swept(
    records: Sequence[Record], axis: str, fixed: Mapping[str, Any]
) -> list[Record]:
    """The runs of a sweep that differ in one setting alone, the axis; `fixed` are the
    settings of every run.
    """
    rest = _without(fixed, [axis])
    return [
        r
        for r in records
        if axis in r.settings and _without(r.settings, [axis]) == rest
    ]


def common_settings(records: Sequence[Record]) -> dict[str, Any]:
    """Settings that are the same in all of them."""
    first = records[0].settings.items()
    return {
        name: value
        for name, value in first
        if all(r.settings.get(name) == value for r in records)
    }


def _without(settings: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def labelled(name: str, settings: Mapping[str, Any], common: Iterable[str]) -> str:
    """A method or a baseline with the settings that not all have: `xir (dim=8)`."""
    rest = settings_text(_without(settings, common))
    return f"{name} ({rest})" if rest else name


def by_number(value: str) -> tuple[float, str]:
    """A key that puts numbers in their order, before all else."""
    try:
        return float(value), ""
    except ValueError:
        return math.inf, value


def group_of(record: Record, baseline: str | None = None) -> Group:
    """Where the figures of a record's method, or of a baseline beside it, belong."""
    return (
        record.data,
        record.protocol,
        baseline or record.method,
        settings_text(record.settings_of(baseline)),
    )


# means ----------------------------------------------------------------------------------------------------------------


class Mean(NamedTuple):
    """A mean over seeds."""

    mean: float
    deviation: float | None
    seeds: int

    def __str__(self) -> str:
        deviation = f" ± {self.deviation:.4f}" if self.deviation is not None else ""
        return f"{self.mean:.4f}{deviation}"


class Figures:
    """Means over seeds of everything that some records measured."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._values: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
        # those that were measured beside a method
        self._baselines: dict[Group, set[Group]] = defaultdict(set)
        for record in records:
            groups = {
                baseline: group_of(record, baseline)
                for baseline in (None, *record.baselines)
            }
            self._baselines[groups[None]] |= {
                groups[baseline] for baseline in record.baselines
            }
            for m in record.measures:  # every method of a comparison measures the baselines again: one value a seed
                self._values[*groups[m.baseline], m.metric, m.k, m.slice].setdefault(
                    record.seed, m.value
                )

    def of(self, group: Group, metric: str, k: int, slice_: str) -> Mean | None:
        """One figure; None if nobody measured it."""
        found = list(self._values.get((*group, metric, k, slice_), {}).values())
        if not found:
            return None
        return Mean(
            statistics.fmean(found),
            statistics.stdev(found) if len(found) > 1 else None,
            len(found),
        )

    def cell(self, group: Group, figure: Figure) -> str:
        """One figure as a table shows it, marked if a baseline exceeds it; empty if
        nobody measured it.
        """
        found = self.of(group, *figure)
        if found is None:
            return ""
        if figure == STEP_MS:
            return f"{found.mean:.1f}"
        if figure == SPEED:
            return f"{found.mean:,.0f}"
        baselines = [self.of(where, *figure) for where in self._baselines[group]]
        below = any(baseline and baseline.mean > found.mean for baseline in baselines)
        return f"{found} {BELOW}" if below else str(found)


# tables ---------------------------------------------------------------------------------------------------------------


def markdown(
    records: Sequence[Record],
    axes: Sequence[str] = (),
    fixed: Mapping[str, Any] | None = None,
) -> str:
    """Every log and protocol in a section. A sweep changes the settings `axes`; each
    has a table of its own.
    """
    parts = []
    for ours in by_log(records):
        parts += [f"## {ours[0].data}, {ours[0].protocol}", about(ours)]
        for axis in axes:
            parts += [f"### {axis}", sweep_table(swept(ours, axis, fixed or {}), axis)]
        if not axes:
            parts.append(main_table(ours))
        if not axes and ours[0].protocol == "prequential":
            parts.append(
                f"Over the second half of the stream. {BELOW}: below a baseline. HR without towers: the ranker reads "
                "zero for their inner product. Towers' Recall: of the towers' own list of all items, without counts "
                f"and ranker, over {ours[0].about.get('retrieved', 0):,} events of the whole stream, evenly chosen. "
                "events/s: ranked and learned from, by time on a core."
            )
            for prefix, what in (
                ("", "all events"),
                ("new/", "events new to their user, known items left out"),
            ):
                title = f"HR@{shown_k(ours)} by user and item over the whole stream, {what}:"
                parts += [title, slices_table(ours, prefix)]
    return "\n\n".join(parts) + "\n"


def about(records: Sequence[Record]) -> str:
    """What was run, in a sentence."""
    first = records[0].about
    seeds = {r.seed for r in records}
    tested = {r.about["users_tested"] for r in records if "users_tested" in r.about}
    ranked = {r.about["slices"]["all"] for r in records if "slices" in r.about}
    epochs = sorted({r.about["epochs"] for r in records if "epochs" in r.about})
    done = "ranked"
    if reasons := refused(first.get("accounting", {})):
        done += f"; refused: {reasons}"
    parts = [
        _counted("users", first["users"], tested, "tested"),
        f"{first['items']:,} items",
        _counted("events", first["events"], ranked, done),
        "one pass, test then train",
        "one seed",
    ]
    if epochs:
        parts[-2] = f"{', '.join(map(str, epochs))} epochs"
    if len(seeds) > 1:
        parts[-1] = f"{len(seeds)} seeds (mean ± deviation)"
    if common := settings_text(common_settings(records)):
        parts.append(common)
    used = settings_text(records[0].log)
    return f"{', '.join(parts)}{f'; of the log {used}' if used else ''}."


def _counted(what: str, total: int, some: set[int], done: str) -> str:
    """`5,000 events`, or `5,000 events (4,000 to 4,500 ranked)` if not all of them
    were.
    """
    if some <= {total}:
        return f"{total:,} {what}"
    numbers = " to ".join(f"{n:,}" for n in sorted({min(some), max(some)}))
    return f"{total:,} {what} ({numbers} {done})"


def main_table(records: Sequence[Record]) -> str:
    """Baselines, then methods, by the main figures of their protocol, and those of the
    paper on its own log.
    """
    figures = Figures(records)
    k = shown_k(records)
    offline = records[0].protocol == "offline"
    shown: list[Figure] = [
        (metric, k, SECOND_HALF + slice_) for metric, slice_ in STREAM_FIGURES
    ]
    shown += [
        ("hr-without-towers", k, SECOND_HALF + slice_) for slice_ in ("all", "new")
    ]
    shown += TOWERS_FIGURES
    if any(record.settings.get("catalogue") for record in records):
        shown += [(metric, k, slice_) for metric, slice_ in CATALOGUE_FIGURES]
    if offline:
        shown = [
            (metric, any_k, "all")
            for metric in ("recall", "ndcg")
            for any_k in _measured_ks(records)
        ]
        shown.append(("authors-ndcg", k, "all"))
    shown += [SPEED, STEP_MS]
    head = ["method" if offline else "", *(_title(figure, offline) for figure in shown)]
    named = _baselines_and_methods(records)
    rows = [
        [name, *(figures.cell(group, figure) for figure in shown)]
        for group, name in named
    ]
    if (
        offline
        and records[0].data == "gowalla"
        and records[0].about.get("events") == PAPER_GOWALLA_EVENTS
    ):
        head += ["paper: Recall@10", "paper: NDCG@10 (authors')"]
        rows = [
            [*row, *PAPER_GOWALLA.get(group[2], ("", ""))]
            for row, (group, _) in zip(rows, named, strict=True)
        ]
    return _table(head, rows)


def slices_table(records: Sequence[Record], prefix: str = "") -> str:
    """The hit rates of baselines and methods by what is known of user and item, with the
    number of events first.

    The prefix `new/` is for events new to their user.
    """
    k = shown_k(records)
    figures = Figures(records)
    events = records[0].about.get("slices", {})
    shown = ["new" if prefix else "all", *(prefix + split for split in SPLITS)]
    counts = [f"{events[name]:,}" if name in events else "" for name in shown]
    rows = [["events", *counts]]
    for group, name in _baselines_and_methods(records):
        cells = [figures.cell(group, ("hr", k, slice_)) for slice_ in shown]
        rows.append([name, *cells])
    titles = [slice_title(slice_.removeprefix(prefix)) for slice_ in shown]
    return _table(["", *titles], rows)


def sweep_table(records: Sequence[Record], parameter: str) -> str:
    """One parameter's values by method."""
    figures = Figures(records)
    shown = (headline(records), STEP_MS)
    rows = []
    for group, record in {group_of(record): record for record in records}.items():
        value = str(record.settings.get(parameter, "default"))
        rows.append(
            [value, record.method, *(figures.cell(group, figure) for figure in shown)]
        )
    rows.sort(key=lambda row: by_number(row[0]))
    titles = [_title(figure, records[0].protocol == "offline") for figure in shown]
    return _table([parameter, "method", *titles], rows)


def _baselines_and_methods(records: Sequence[Record]) -> list[tuple[Group, str]]:
    """Where the figures of each are, and what tables call it."""
    baselines = {}
    methods = {}
    common = common_settings(records)
    for record in records:
        methods[group_of(record)] = labelled(
            f"`{record.method}`", record.settings, common
        )
        for baseline in record.baselines:
            baselines[group_of(record, baseline)] = labelled(
                f"baseline: {baseline}", record.settings_of(baseline), common
            )
    return [*baselines.items(), *methods.items()]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Empty rows and columns are left out."""
    rows = [row for row in rows if any(row[1:])]
    filled = [at for at in range(len(head)) if any(row[at] for row in rows)]
    lines = [
        [head[at] for at in filled],
        ["---"] * len(filled),
        *([row[at] for at in filled] for row in rows),
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
