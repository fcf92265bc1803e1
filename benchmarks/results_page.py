"""Fills the tables of docs/results.md from what `streamer compare` has found.

    python benchmarks/results_page.py [OUT_DIR ...]

Each directory is an `--out` of a comparison. Means over its seeds go to the small file
docs/figures.json, in place of earlier ones of the same log, protocol, method and
settings. Then each of these marks of the page gets its table from that file, up to
`<!-- end -->`; a cell without a figure says "not measured":

    <!-- public -->            public test sets, published figures and ours
    <!-- stream: LOG -->       the default method beside the best baseline of each slice
    <!-- delay -->             hits by the delay of learning, and a plot of them
    <!-- offline: LOG -->      methods by the paper's protocol
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from streamer.replay.evaluation.results import Results, Run, settings_text
from streamer.replay.evaluation.slices import SECOND_HALF
from streamer.replay.evaluation.tables import (
    SESSION_TITLES,
    STREAM_SLICES,
    Figure,
    Figures,
    Mean,
    ResultTable,
    slice_title,
)

DOCS = Path(__file__).parents[1] / "docs"
MARK = re.compile(r"(<!-- (\w+)(?:: (\S+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
DEFAULT = "xir"
MISSING = "not measured"
PUBLIC = {
    "diginetica": ("P@20 / MRR@20", "54.22 / 19.04, GCE-GNN (SIGIR 2020)"),
    "yoochoose64": ("P@20 / MRR@20", "72.64 / 31.93, GraphFine (AAAI 2026)"),
    "ader-diginetica": ("P@20 / MRR@20", "50.21 / 17.32, ADER (RecSys 2020)"),
    "ader-yoochoose": ("P@20 / MRR@20", "72.38 / 36.71, ADER (RecSys 2020)"),
    "gowalla-bars": (
        "Recall@20 / NDCG@20",
        "18.72 / 15.57, SimpleX (BARS leaderboard)",
    ),
}
"""What is measured on a public set, and the best that is published, in percent."""
DELAYS = {
    "0": "0",
    "60": "1 minute",
    "3600": "1 hour",
    "86400": "1 day",
    "604800": "1 week",
}
KEPT: set[Figure] = {
    *SESSION_TITLES,
    *(("hr", 10, SECOND_HALF + slice_) for slice_ in STREAM_SLICES),
    *(("hr-without-towers", 10, SECOND_HALF + slice_) for slice_ in ("all", "new")),
    *((metric, 20, SECOND_HALF + "all") for metric in ("hr", "mrr")),
    *((metric, k, "all") for metric in ("recall", "ndcg") for k in (10, 20)),
}
"""The figures that the page shows."""

Row = dict[str, Any]


def rows_of(runs: Sequence[Run]) -> Iterator[Row]:
    """Means over seeds of each method and baseline with the same settings."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        key = (run.data, run.protocol, settings_text(run.settings))
        groups.setdefault(key, []).append(run)
    for (data, protocol, settings), group in groups.items():
        figures = Figures(group)
        for name in (*figures.baselines, *figures.methods):
            found = {}
            for figure in sorted(KEPT):
                if mean := figures.of(name, *figure):
                    rounded = [None if x is None else round(x, 5) for x in mean]
                    found["{}@{} {}".format(*figure)] = rounded
            yield {
                "data": data,
                "protocol": protocol,
                "who": name.strip("`").removeprefix("baseline: "),
                "baseline": name in figures.baselines,
                "settings": settings,
                "seeds": len({run.seed for run in group}),
                "figures": found,
            }


class Page:
    """The figures behind the page, and its tables."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def filled(self, text: str) -> str:
        """The text with every table made anew."""
        tables = {
            "public": lambda _: self.public(),
            "stream": self.stream,
            "delay": lambda _: self.delays(),
            "offline": self.offline,
        }

        def table(found: re.Match[str]) -> str:
            return f"{found[1]}\n{tables[found[2]](found[3])}\n\n{found[5]}"

        return MARK.sub(table, text)

    def public(self) -> ResultTable:
        """Public sets: what is published, the best baseline and ours, in percent."""
        rows = []
        for data, (measured, published) in PUBLIC.items():
            metrics = ("hr@20 all", "mrr@20 all")
            if measured.startswith("Recall"):
                metrics = ("recall@20 all", "ndcg@20 all")
            ours = []
            baselines = []
            for row in self._of(data):
                means = [self._mean(row, metric) for metric in metrics]
                percents = [f"{100 * mean.mean:.2f}" for mean in means if mean]
                if len(percents) == len(metrics):
                    cell = " / ".join(percents)
                    (baselines if row["baseline"] else ours).append((cell, row))
            for found in (ours, baselines):
                found.sort(key=lambda one: float(one[0].split()[0]))
            best = MISSING
            if ours:
                cell, row = ours[-1]
                best = f"**{cell}** (`{row['who']}`, {_seeds(row)})"
            baseline = (
                f"{baselines[-1][0]} {baselines[-1][1]['who']}" if baselines else ""
            )
            rows.append([data, measured, published, baseline, best])
        head = ["set", "%", "best published", "best baseline", "Streamer"]
        return ResultTable(head, rows)

    def stream(self, data: str) -> ResultTable:
        """Of each slice of the second half: the default method, the best baseline, and
        the ratio.
        """
        rows = []
        found = [row for row in self._of(data) if not row["settings"]]
        for slice_ in STREAM_SLICES:
            figure = f"hr@10 {SECOND_HALF}{slice_}"
            means = {row["who"]: self._mean(row, figure) for row in found}
            best = {row["who"]: means[row["who"]] for row in found if row["baseline"]}
            own = means.get(DEFAULT)
            known = {who: mean.mean for who, mean in best.items() if mean}
            if own is None or not known:
                rows.append([slice_title(slice_), MISSING, MISSING, ""])
                continue
            who = max(known, key=lambda name: known[name])
            ratio = f"{own.mean / known[who]:.3f}"
            cells = [str(own), f"{known[who]:.4f} {who}", ratio]
            rows.append([slice_title(slice_), *cells])
        seeds = [f", {_seeds(row)}" for row in found if row["who"] == DEFAULT]
        ours = f"`{DEFAULT}`" + "".join(seeds)
        return ResultTable(["HR@10", ours, "best baseline", "ratio"], rows)

    def delays(self) -> str:
        """HR@20 and MRR@20 by the delay of learning: a table, and a plot of the share
        that is left of HR@20.
        """
        rows = []
        lines = []
        for data in ("gowalla-time", "tmall", "yoochoose64"):
            shares = []
            first = None
            cells = [data]
            for delay in DELAYS:
                wanted = f"delay_seconds={delay}"
                cell = MISSING
                for row in self._of(data):
                    if row["baseline"] or wanted not in row["settings"].split(", "):
                        continue
                    hits = self._mean(row, f"hr@20 {SECOND_HALF}all")
                    mrr = self._mean(row, f"mrr@20 {SECOND_HALF}all")
                    if hits and mrr:
                        cell = f"{hits.mean:.4f} / {mrr.mean:.4f}"
                        first = first or hits.mean
                        shares.append(round(100 * hits.mean / first, 1))
                cells.append(cell)
            rows.append(cells)
            if len(shares) == len(DELAYS):
                lines.append(f"    line {shares}")
        table = ResultTable(["HR@20 / MRR@20", *DELAYS.values()], rows)
        names = ", ".join(f'"{name}"' for name in DELAYS.values())
        plot = [
            "```mermaid",
            "xychart-beta",
            '    title "HR@20 that is left, %, by delay of learning"',
            f"    x-axis [{names}]",
            '    y-axis "%" 0 --> 100',
            *lines,
            "```",
        ]
        return "\n".join([str(table), "", *plot]) if lines else str(table)

    def offline(self, data: str) -> ResultTable:
        """Methods by the paper's protocol."""
        titles = {
            "recall@10 all": "Recall@10",
            "recall@20 all": "Recall@20",
            "ndcg@10 all": "NDCG@10",
            "ndcg@20 all": "NDCG@20",
        }
        rows = []
        for row in self._of(data):
            means = [self._mean(row, figure) for figure in titles]
            cells = [str(mean or "") for mean in means]
            rows.append([f"`{row['who']}`", row["settings"], _seeds(row), *cells])
        if not rows:
            return ResultTable(["method"], [[MISSING]])
        head = ["method", "settings", "seeds", *titles.values()]
        return ResultTable(head, rows).filled()

    def _of(self, data: str) -> list[Row]:
        return [row for row in self._rows if row["data"] == data]

    def _mean(self, row: Row, figure: str) -> Mean | None:
        found = row["figures"].get(figure)
        return Mean(*found) if found else None


def _seeds(row: Row) -> str:
    return f"{row['seeds']} seeds" if row["seeds"] > 1 else "one seed"


def _key(row: Row) -> tuple[str, ...]:
    return (row["data"], row["protocol"], row["who"], row["settings"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", type=Path, nargs="*")
    runs: list[Run] = []
    for directory in parser.parse_args().directories:
        runs += Results(directory).runs
    file = DOCS / "figures.json"
    rows = {_key(row): row for row in json.loads(file.read_text(encoding="utf-8"))}
    rows |= {_key(row): row for row in rows_of(runs)}
    lines = ",\n".join(json.dumps(row) for row in rows.values())
    file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    page = DOCS / "results.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(Page(list(rows.values())).filled(text), encoding="utf-8")


if __name__ == "__main__":
    main()
