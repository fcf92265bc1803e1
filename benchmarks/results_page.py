"""Fills the tables of docs/results.md from what `streamer compare` and `streamer sweep` have found.

    python benchmarks/results_page.py OUT_DIR [OUT_DIR ...]

Each directory is an `--out` of a comparison. A table stands between `<!-- table: LOG PROTOCOL -->` (or
`<!-- sweep: LOG PARAMETER -->`, `<!-- stream: LOG PARAMETER -->`, or `<!-- plain: METHOD PARAMETER -->` for id towers
without anything else) and `<!-- end -->`; what stands between them is replaced, all other text is kept. The rows behind
the tables are written beside the page, to docs/results.json.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import TypeVar

import msgspec

from streamer.prequential.slices import SECOND_HALF
from streamer.replay.evaluation.record import Record, Records, result_rows
from streamer.replay.evaluation.tables import STREAM_FIGURES, about, main_table, sweep_table

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
MARK = re.compile(r"(<!-- (table|sweep|plain|stream): (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
TIMED = "draws"
"""The sweep that was run on a quiet machine: milliseconds of all others are left out."""
KEPT = {"recall": (10, 20), "ndcg": (10, 20), "authors-ndcg": (10, 20), "hr": (10,)}
KEPT |= {"step-ms": (0,), "events-per-second": (0,)}
DEFAULT = "xir"
Key = TypeVar("Key")
SLICES = ("all", "new", *(SECOND_HALF + slice_ for _, slice_ in STREAM_FIGURES))


def filled(page: str, records: Sequence[Record]) -> str:
    """The page with its tables made anew."""
    return MARK.sub(lambda found: f"{found[1]}\n{_made(found[2], found[3], found[4], records)}\n\n{found[5]}", page)


def _made(kind: str, data: str, what: str, records: Sequence[Record]) -> str:
    records = records if what == TIMED else [_untimed(r) for r in records]
    if kind == "sweep":
        ours = [r for r in records if (r.data, r.protocol) == (data, "offline") and what in r.settings]
        return f"{about(ours)}\n\n{sweep_table(ours, what)}" if ours else "Not run yet."
    if kind == "stream":
        return stream_table([r for r in records if r.data == data and r.protocol == "prequential"], what)
    if kind == "plain":
        return plain_table([r for r in records if r.protocol == "prequential"], data, what)
    ours = [r for r in records if (r.data, r.protocol) == (data, what) and not r.settings]
    return f"{about(ours)}\n\n{main_table(ours)}" if ours else "Not run yet."


def _untimed(record: Record) -> Record:
    return msgspec.structs.replace(record, measures=[m for m in record.measures if m.metric != "step-ms"])


def stream_table(records: Sequence[Record], parameter: str) -> str:
    """The default method by the values of a parameter: hit rates of the second half, all / new, means over seeds."""
    ours = [r for r in records if r.method == DEFAULT and r.settings.keys() <= {parameter}]
    hits = _hits((r.settings.get(parameter, "default"), r) for r in ours)
    lines = [f"| {parameter} | `{DEFAULT}`: HR@10 all / new |", "|---|---|"]
    return "\n".join([*lines, *(f"| {value} | {_shown(*hits[value])} |" for value in sorted(hits, key=str))])


def plain_table(records: Sequence[Record], method: str, parameter: str) -> str:
    """The defaults, and plain id towers by the values of a parameter: hit rates of the second halves, all / new.

    Each is the mean over its seeds.
    """
    defaults = _hits((r.data, r) for r in records if r.method == DEFAULT and not r.settings)
    plain = _hits(((r.settings[parameter], r.data), r) for r in records if r.method == method and _is_plain(r))
    logs, values = list(defaults), sorted({value for value, _ in plain})
    lines = [f"| | {' | '.join(logs)} |", "|---" * (1 + len(logs)) + "|"]
    lines.append(f"| defaults, `{DEFAULT}` | {' | '.join(_shown(*defaults[log]) for log in logs)} |")
    for value in values:
        cells = []
        for log in logs:
            (every, new), (_, ours) = plain[value, log], defaults[log]
            cells.append(f"{_shown(every, new)} ({ours / new:.1f} x)")
        lines.append(f"| plain `{method}`, {parameter} {value} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _is_plain(record: Record) -> bool:
    return record.settings.get("user_ids") == "true" and record.settings.get("recent_items") == "0"


def _hits(runs: Iterable[tuple[Key, Record]]) -> dict[Key, tuple[float, float]]:
    """The mean hit rates of the runs of each key."""
    found: dict[Key, list[tuple[float, float]]] = {}
    for key, record in runs:
        found.setdefault(key, []).append(_hits_of(record))
    return {key: (mean(every for every, _ in hits), mean(new for _, new in hits)) for key, hits in found.items()}


def _hits_of(record: Record) -> tuple[float, float]:
    found = {m.slice: m.value for m in record.measures if (m.metric, m.k, m.floor) == ("hr", 10, None)}
    return found["second-half/all"], found["second-half/new"]


def _shown(every: float, new: float) -> str:
    return f"{every:.4f} / {new:.4f}"


def rows(records: Sequence[Record]) -> list[dict[str, object]]:
    """The rows that the tables are made of."""
    untimed = [r if TIMED in r.settings else _untimed(r) for r in records]
    return [r for r in result_rows(untimed) if r["k"] in KEPT.get(r["metric"], ()) and r["slice"] in SLICES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", type=Path, nargs="+")
    records = [record for directory in parser.parse_args().directories for record in Records(directory).all()]
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), records), encoding="utf-8")
    lines = ",\n".join(json.dumps(row) for row in rows(records))
    PAGE.with_suffix(".json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
