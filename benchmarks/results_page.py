"""Fills the tables of docs/results.md from what `streamer compare` and `streamer sweep`
have found.

    python benchmarks/results_page.py OUT_DIR [OUT_DIR ...]

Each directory is an `--out` of a comparison. What stands between one of these marks and
`<!-- end -->` is replaced:

    <!-- table: LOG PROTOCOL -->     methods and baselines with the defaults
    <!-- slices: LOG PROTOCOL -->    the default method beside the best baseline of each slice
    <!-- towers: LOG PROTOCOL -->    the towers' own lists, by batch size and method, where the towers alone rank
    <!-- paper: LOG PROTOCOL -->     methods with the epochs of the paper
    <!-- sweep: LOG PARAMETER -->    one parameter

All other text is kept, and so is a table without a run. The rows behind the tables are
written beside the page, to docs/results.json; those of other runs stay there.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from streamer.replay.evaluation.record import Record, Records, result_rows
from streamer.replay.evaluation.sliced import RETRIEVED
from streamer.replay.evaluation.slices import SECOND_HALF
from streamer.replay.evaluation.tables import (
    STREAM_FIGURES,
    Figures,
    about,
    by_number,
    group_of,
    main_table,
    slice_title,
    sweep_table,
)

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
MARK = re.compile(
    r"(<!-- (table|slices|towers|paper|sweep): (\S+) (\S+) -->\n)(.*?)(<!-- end -->)",
    re.DOTALL,
)
TIMED = "draws"
"""The sweep run on a quiet machine: times of other offline runs are left out; those of
streams are CPU time.
"""
KEPT = {
    "recall": (10, 20),
    "ndcg": (10, 20),
    "authors-ndcg": (10, 20),
    "hr": (10, *RETRIEVED),
}
KEPT |= {
    "step-ms": (0,),
    "events-per-second": (0,),
    "hr-without-towers": (10,),
    "towers-recall": RETRIEVED,
}
DEFAULT = "xir"
SLICES = ("all", "new", *(SECOND_HALF + slice_ for _, slice_ in STREAM_FIGURES))
PAPER_EPOCHS = "100"


def filled(page: str, records: Sequence[Record]) -> str:
    """The page with the tables made anew of which there are runs."""

    def table(found: re.Match[str]) -> str:
        made = _made(found[2], found[3], found[4], records)
        return f"{found[1]}\n{made}\n\n{found[6]}" if made else found[0]

    return MARK.sub(table, page)


def _made(kind: str, data: str, what: str, records: Sequence[Record]) -> str:
    """A table; empty if nothing was run for it."""
    records = [r for r in records if r.data == data]
    records = records if what == TIMED else [_untimed(r) for r in records]
    if kind == "sweep":
        ours = [r for r in records if r.protocol == "offline" and what in r.settings]
        return f"{about(ours)}\n\n{sweep_table(ours, what)}" if ours else ""
    ours = [r for r in records if r.protocol == what and _belongs(kind, r.settings)]
    if not ours:
        return ""
    makers = {
        "slices": slices_table,
        "towers": towers_table,
        "table": main_table,
        "paper": main_table,
    }
    return f"{about(ours)}\n\n{makers[kind](ours)}"


def _belongs(kind: str, settings: dict[str, Any]) -> bool:
    if kind == "towers":
        return settings.get("rerank") == "false"
    return settings.get("epochs") == PAPER_EPOCHS if kind == "paper" else not settings


def _untimed(record: Record) -> Record:
    kept = {"events-per-second"} if record.protocol == "prequential" else set()
    return msgspec.structs.replace(
        record, measures=[m for m in record.measures if m.k or m.metric in kept]
    )


def slices_table(records: Sequence[Record]) -> str:
    """Of each slice of the second half: the default method, the best baseline, and the
    ratio; means over seeds.
    """
    figures = Figures(records)
    group = next(group_of(r) for r in records if r.method == DEFAULT)
    baselines = {
        baseline: group_of(r, baseline) for r in records for baseline in r.baselines
    }
    lines = [f"| HR@10 | `{DEFAULT}` | best baseline | ratio |", "|---|---|---|---|"]
    for metric, slice_ in STREAM_FIGURES:
        if metric != "hr":
            continue
        at = ("hr", 10, SECOND_HALF + slice_)
        found = {
            baseline: mean
            for baseline, where in baselines.items()
            if (mean := figures.of(where, *at))
        }
        ours = figures.of(group, *at)
        best = max(found, key=lambda baseline: found[baseline].mean)
        assert ours is not None
        ratio = f"{ours.mean / found[best].mean:.3f}"
        lines.append(
            f"| {slice_title(slice_)} | {ours} | {found[best]} {best} | {ratio} |"
        )
    return "\n".join(lines)


def towers_table(records: Sequence[Record]) -> str:
    """What the towers' own lists hold of the second half, means over seeds."""
    shown = [
        (k, SECOND_HALF + slice_)
        for slice_ in ("all", "new", "new/tail")
        for k in RETRIEVED
    ]
    head = [
        "batch",
        "method",
        *(f"Recall@{k} {slice_title(slice_)}" for k, slice_ in shown),
    ]
    figures = Figures(records)
    rows = {}
    for r in records:
        batch = str(r.settings.get("batch_size", 512))
        means = [figures.of(group_of(r), "hr", k, slice_) for k, slice_ in shown]
        rows[by_number(batch), r.method] = [
            batch,
            f"`{r.method}`",
            *(str(mean or "") for mean in means),
        ]
    lines = [head, ["---"] * len(head), *(rows[key] for key in sorted(rows))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The rows that the tables are made of."""
    untimed = [r if TIMED in r.settings else _untimed(r) for r in records]
    return [
        r
        for r in result_rows(untimed)
        if r["k"] in KEPT.get(r["metric"], ()) and r["slice"] in SLICES
    ]


def _comparison(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["data"],
        row["protocol"],
        json.dumps(row.get("settings", {}), sort_keys=True),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", type=Path, nargs="+")
    records = [
        record
        for directory in parser.parse_args().directories
        for record in Records(directory).all()
    ]
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), records), encoding="utf-8")
    made = rows(records)
    file = PAGE.with_suffix(".json")
    anew = {_comparison(row) for row in made}
    kept = [
        row
        for row in json.loads(file.read_text(encoding="utf-8"))
        if _comparison(row) not in anew
    ]
    lines = ",\n".join(json.dumps(row) for row in [*kept, *made])
    file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
