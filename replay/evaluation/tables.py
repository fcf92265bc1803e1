"""Runs as tables: means over seeds, with deviations where there are several."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streamer.replay.evaluation.results import Run, settings_text
from streamer.replay.evaluation.slices import BANDS, OF_TYPE, RETRIEVED, SECOND_HALF

SESSION_TITLES = {
    ("hr", 20, "all"): "P@20",
    ("mrr", 20, "all"): "MRR@20",
    ("hr", 10, "all"): "R@10",
    ("mrr", 10, "all"): "MRR@10",
}
"""What the literature of sessions calls its figures."""
STREAM_SLICES = (
    *("all", "new", "new/returning-items", "returning-users"),
    *BANDS,
    *(f"new/{band}" for band in BANDS),
)
"""Slices of the table of a stream, all of its second half."""
USUAL_K = 10
"""The length of the list that tables look at, where it was measured."""
BELOW = "▼"
"""Marks a figure of a method that a baseline beside it exceeds."""

Figure = tuple[str, int, str]
"""Metric, k and slice."""


class ResultTable(NamedTuple):
    """Cells of a head and of rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def filled(self) -> ResultTable:
        """Without empty rows and columns."""
        rows = [row for row in self.rows if any(row[1:])]
        places = [n for n in range(len(self.head)) if any(row[n] for row in rows)]
        cut = [[row[n] for n in places] for row in (self.head, *rows)]
        return ResultTable(cut[0], cut[1:])

    def __str__(self) -> str:
        """As Markdown."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


class Mean(NamedTuple):
    """A mean over seeds; of one seed, its standard error where that is known."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        deviation = f" ± {self.deviation:.4f}" if self.deviation is not None else ""
        return f"{self.mean:.4f}{deviation}"


class Figures:
    """Means over seeds of everything that some runs measured, by what tables call a
    method or a baseline.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._values: dict[tuple[str, Figure], dict[int, float]] = defaultdict(dict)
        self._errors: dict[tuple[str, Figure], float | None] = {}
        self._stretches: dict[tuple[str, Figure], list[float]] = {}
        self.methods: dict[str, set[str]] = {}
        """The names of methods, and of the baselines beside each."""
        self.baselines: dict[str, None] = {}
        common = common_settings(runs)
        for run in runs:
            method = labelled(f"`{run.method}`", run.settings, common)
            beside = self.methods.setdefault(method, set())
            for m in run.measures:
                name = method
                if m.baseline is not None:
                    settings = run.settings_of(m.baseline)
                    name = labelled(f"baseline: {m.baseline}", settings, common)
                    self.baselines[name] = None
                    beside.add(name)
                at = (name, (m.metric, m.k, m.slice))
                # every method measures the baselines again: one value a seed
                self._values[at].setdefault(run.seed, m.value)
                self._errors[at] = m.error
                self._stretches[at] = m.stretches

    def of(self, name: str, metric: str, k: int, slice_: str) -> Mean | None:
        """One figure; None if nobody measured it."""
        at = (name, (metric, k, slice_))
        if at not in self._values:
            return None
        found = list(self._values[at].values())
        deviation = self._errors[at]
        if len(found) > 1:
            deviation = statistics.stdev(found)
        return Mean(statistics.fmean(found), deviation)

    def values(self, name: str, figure: Figure) -> Mapping[int, float]:
        """One figure by seed."""
        return self._values.get((name, figure), {})

    def error(self, name: str, figure: Figure) -> float | None:
        """The standard error of a figure over what was asked; None if it is not known."""
        return self._errors.get((name, figure))

    def stretches(self, name: str, figure: Figure) -> list[float]:
        """A figure over equal stretches of what was asked; nothing if it is not known."""
        return self._stretches.get((name, figure), [])

    def table(self, shown: Mapping[Figure, str]) -> ResultTable:
        """Baselines, then methods, by some figures and their titles."""
        rows = []
        for name in (*self.baselines, *self.methods):
            cells = [self._cell(name, figure) for figure in shown]
            rows.append([name, *cells])
        return ResultTable(["", *shown.values()], rows)

    def _cell(self, name: str, figure: Figure) -> str:
        """A figure, marked if a baseline exceeds it; empty if nobody measured it."""
        found = self.of(name, *figure)
        if found is None:
            return ""
        if not figure[1]:
            return f"{found.mean:,.1f}"
        for baseline in self.methods.get(name, ()):
            other = self.of(baseline, *figure)
            if other is not None and other.mean > found.mean:
                return f"{found} {BELOW}"
        return str(found)


def common_settings(runs: Sequence[Run]) -> dict[str, Any]:
    """Settings that are the same in all of them."""
    common = {}
    for name, value in runs[0].settings.items():
        if all(run.settings.get(name) == value for run in runs):
            common[name] = value
    return common


def labelled(name: str, settings: Mapping[str, Any], common: Iterable[str]) -> str:
    """A method or a baseline with the settings that not all have: `xir (dim=8)`."""
    own = {n: value for n, value in settings.items() if n not in common}
    return f"{name} ({settings_text(own)})" if own else name


def measured_ks(runs: Sequence[Run]) -> list[int]:
    """The lengths of lists that were measured."""
    ks = {m.k for run in runs for m in run.measures}
    return sorted(ks - {0}) or [USUAL_K]


def shown_k(runs: Sequence[Run]) -> int:
    """The length of the lists that are shown, among those that were measured."""
    ks = measured_ks(runs)
    return USUAL_K if USUAL_K in ks else ks[0]


def slice_title(slice_: str) -> str:
    """`new, reachable` for `second-half/new/returning-items`: what somebody had before
    can be predicted.
    """
    name = slice_.removeprefix(SECOND_HALF)
    name = name.replace("new/returning-items", "new/reachable")
    return name.replace("/", ", ").replace("-", " ")


def about(runs: Sequence[Run]) -> str:
    """What was run, in a sentence."""
    first = runs[0]
    parts = [f"{first.about[name]:,} {name}" for name in ("users", "items", "events")]
    if ranked := first.about.get("ranked"):
        parts.append(f"{ranked:,} asked")
    if refused := first.about.get("refused"):
        parts.append(f"refused: {settings_text(refused)}")
    seeds = len({run.seed for run in runs})
    parts.append(
        f"{seeds} seeds (mean ± deviation)"
        if seeds > 1
        else "one seed (± standard error)"
    )
    if common := settings_text(common_settings(runs)):
        parts.append(common)
    if used := settings_text(first.log):
        parts.append(f"of the log {used}")
    return f"{', '.join(parts)}."


def main_table(runs: Sequence[Run]) -> ResultTable:
    """Baselines, then methods, by the main figures of their protocol."""
    return Figures(runs).table(main_figures(runs)).filled()


def main_figures(runs: Sequence[Run]) -> dict[Figure, str]:
    """The main figures of a protocol with their titles; the first decides who wins."""
    shown: dict[Figure, str] = {}
    protocol = runs[0].protocol
    if protocol == "offline":
        for metric, title in (("recall", "Recall"), ("ndcg", "NDCG")):
            for k in measured_ks(runs):
                shown[metric, k, "all"] = f"{title}@{k}"
    elif protocol == "prequential":
        k = shown_k(runs)
        shown = stream_figures(k)
        for slice_ in runs[0].about.get("slices", {}):
            if slice_.startswith(OF_TYPE):
                name = slice_.removeprefix(OF_TYPE)
                shown["hr", k, slice_] = f"HR@{k} of type {name}"
    else:
        shown = dict(SESSION_TITLES)
    shown["step-ms", 0, "all"] = "ms a step"
    return shown


def stream_figures(k: int) -> dict[Figure, str]:
    """The figures of a stream with their titles: all are of its second half."""
    shown: dict[Figure, str] = {}
    for slice_ in STREAM_SLICES:
        shown["hr", k, SECOND_HALF + slice_] = f"HR@{k} {slice_title(slice_)}"
    for slice_ in ("all", "new"):
        half = SECOND_HALF + slice_
        shown["mrr", k, half] = f"MRR@{k} {slice_}"
        shown["hr-without-towers", k, half] = f"without towers HR@{k} {slice_}"
        for length in RETRIEVED:
            shown["towers-recall", length, half] = f"towers' Recall@{length} {slice_}"
    shown["hr", k, f"{SECOND_HALF}new-items"] = f"HR@{k} new items"
    shown["cold-share", k, "all"] = "share of cold items"
    return shown


def markdown(runs: Sequence[Run]) -> str:
    """A heading, a sentence and a table about the runs of a comparison."""
    first = runs[0]
    table = str(main_table(runs))
    parts = [f"## {first.data}, {first.protocol}", about(runs), table]
    if BELOW in table:
        parts.append(f"{BELOW}: below a baseline.")
    return "\n\n".join(parts) + "\n"
