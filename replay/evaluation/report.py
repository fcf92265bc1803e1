"""A self-contained HTML page of a comparison: tables, curves, occurrence by popularity,
the cache over time.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.offline import get_plotlyjs

from streamer.replay.evaluation.record import DELAYS, CurvePoint, Record, settings_text
from streamer.replay.evaluation.tables import (
    BELOW,
    METRIC_NAMES,
    STEP_MS,
    Figures,
    by_log,
    by_number,
    common_settings,
    group_of,
    headline,
    labelled,
    shown_k,
    swept,
)

MODEL = "model"
MAX_MARKED = 20
"""Lines of at most this many points show them."""
LAYOUT: dict[str, Any] = {
    "height": 440,
    "template": "plotly_white",
    "hovermode": "x unified",
    "legend": {"orientation": "h", "y": -0.2},
    "margin": {"t": 48, "r": 16},
    "showlegend": True,
}
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.875rem; }
th, td { border-bottom: 1px solid #8884; padding: 0.25rem 0.6rem; text-align: right; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
td.below { color: #c5221f; }
figure { margin: 1.5rem 0; background: #fff; border-radius: 0.5rem; }
figcaption { color: #444; padding: 0 1rem 0.75rem; font-size: 0.875rem; }
"""


def page(
    title: str,
    tables: str,
    records: Sequence[Record],
    axes: Sequence[str] = (),
    fixed: Mapping[str, Any] | None = None,
) -> str:
    """The whole page: of each log and protocol its section (`##`) of the tables, as
    `markdown` made them, and plots.
    """
    sections = [
        _html(section)
        for section in re.split(r"^(?=## )", tables, flags=re.MULTILINE)
        if section.strip()
    ]
    plots = ["".join(_plots(ours, axes, fixed or {})) for ours in by_log(records)]
    parts = zip_longest(sections, plots, fillvalue="")
    body = "\n".join(chain.from_iterable(parts))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{STYLE}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<h1>{html.escape(title)}</h1>
{body}
</body>
</html>
"""


# plots ----------------------------------------------------------------------------------------------------------------

Runs = Sequence[tuple[Record, str]]
"""Records of one log, and what legends call them."""


class Curve(NamedTuple):
    """A line through those of some points that have a value of `y`."""

    points: Sequence[CurvePoint]
    x: str
    y: str
    name: str
    dash: str = "solid"


def _plots(
    records: Sequence[Record], axes: Sequence[str], fixed: Mapping[str, Any]
) -> list[str]:
    """The plots of one log and protocol; curves are of the first seed."""
    swept_runs = [swept(records, axis, fixed) for axis in axes]
    found = [_sweep(axis, runs) for axis, runs in zip(axes, swept_runs, strict=True)]
    first = min(r.seed for r in records)
    for part in swept_runs or [list(records)]:
        ours = [r for r in part if r.seed == first]
        common = common_settings(ours)
        runs = [(r, labelled(r.method, r.settings, common)) for r in ours]
        if ours[0].protocol == "offline":
            found += _offline_curves(runs)
        else:
            found += _stream_curves(runs)
        found += [*_occurrence(runs), *_compositions(runs)]
    return found


def _sweep(axis: str, records: Sequence[Record]) -> str:
    """What a setting does, and what a step costs, by its values: means over seeds."""
    figures = Figures(records)
    metric, k, slice_ = headline(records)
    label = f"{METRIC_NAMES[metric]}@{k}"
    traces = []
    for method in dict.fromkeys(r.method for r in records):
        runs = [r for r in records if r.method == method]
        places = {str(r.settings[axis]): group_of(r) for r in runs}
        values = sorted(places, key=by_number)
        for name, at, dash, y_axis in (
            (label, (metric, k, slice_), "solid", "y"),
            ("ms a step", STEP_MS, "dot", "y2"),
        ):
            means = [figures.of(places[value], *at) for value in values]
            y = [None if mean is None else mean.mean for mean in means]
            name = f"{method}: {name}"
            line = {"dash": dash}
            traces.append(go.Scatter(x=values, y=y, name=name, line=line, yaxis=y_axis))
    right_axis = {
        "title": "ms a step",
        "overlaying": "y",
        "side": "right",
        "showgrid": False,
        "tickmode": "auto",
        "rangemode": "tozero",
    }
    note = f"{label} over {slice_.replace('/', ', ')}; dotted: milliseconds of a training step. All else is the same."
    title = f"{records[0].data}: {label} by {axis}"
    layout = {"yaxis2": right_axis, "xaxis_type": "category"}
    return _plot(title, axis, label, note, traces, **layout)


def _offline_curves(runs: Runs) -> list[str]:
    recall = f"Recall@{shown_k([record for record, _ in runs])}"
    epochs = max((p["epoch"] for record, _ in runs for p in record.curve), default=1)
    layout = {"xaxis_range": [0.5, epochs + 0.5], "xaxis_dtick": -(-epochs // 20)}
    found = []
    for what, label, note in (
        (recall, recall, "Over all items, training items left out."),
        ("training loss", "loss", "Losses of different methods differ in kind."),
    ):
        lines = [Curve(r.curve, "epoch", label.lower(), name) for r, name in runs]
        title = f"{runs[0][0].data}: {what} by epoch"
        found.append(_plot(title, "epoch", label, note, _drawn(lines), **layout))
    return found


def _stream_curves(runs: Runs) -> list[str]:
    """Hit rates over the last events."""
    names = [(MODEL, name, record, "solid") for record, name in runs]
    # a baseline is drawn once, or for each feedback delay, which costs it hits
    common = common_settings([record for record, _ in runs])
    drawn = set()
    for record, _ in runs:
        delays = {
            name: value
            for name, value in record.settings.items()
            if name in DELAYS and name not in common
        }
        if settings_text(delays) not in drawn:
            drawn.add(settings_text(delays))
            for baseline in record.baselines:
                name = labelled(f"baseline: {baseline}", delays, ())
                names.append((baseline, name, record, "dot"))
    note = "Each event is ranked before it is trained."
    found = []
    for slice_, what in (("all", "all events"), ("new", "events new to their user")):
        lines = [
            Curve(record.curve, "events", f"{who}/{slice_}/recent", name, dash)
            for who, name, record, dash in names
        ]
        title = f"{runs[0][0].data}: HR@10 of {what}, over the last events"
        found.append(_plot(title, "events", "HR@10", note, _drawn(lines)))
    return found


def _occurrence(runs: Runs) -> list[str]:
    """The paper's Figure 2."""
    resampled = [run for run in runs if any(p["occurrence"] for p in run[0].by_rank)]
    if not resampled:
        return []
    lines = [
        Curve(record.by_rank, "rank", "occurrence", f"{name}: occurrence")
        for record, name in resampled
    ]
    shares = resampled[0][0].by_rank
    lines.append(Curve(shares, "rank", "popularity", "popularity", "dot"))
    note = "An item's share of everything resampled, and of all events, by its popularity rank."
    log = {"type": "log", "dtick": 1}
    layout = {"xaxis": log, "yaxis": log | {"exponentformat": "power"}}
    title = f"{runs[0][0].data}: occurrence against popularity rank"
    y = "share of an item"
    return [_plot(title, "popularity rank", y, note, _drawn(lines), **layout)]


def _compositions(runs: Runs) -> list[str]:
    """Of each run with a cache, the shares of the items in it by popularity."""
    found = []
    note = "By popularity, the most popular items first."
    for record, name in runs:
        points = [p for p in record.composition if any(_cache_shares(p).values())]
        if not points:
            continue
        x = "epoch" if "epoch" in points[0] else "events"
        bands = list(_cache_shares(points[0]))
        colours = sample_colorscale("Viridis", max(len(bands), 2))
        traces = [
            go.Scatter(
                x=[p[x] for p in points],
                y=[_cache_shares(p)[band] for p in points],
                name=band,
                stackgroup="one",
                line={"color": colour, "width": 1},
            )
            for band, colour in zip(bands, colours, strict=False)
        ]
        title = f"{record.data}, {name}: what the cache is made of"
        layout = {"yaxis_range": [0, 1]}
        found.append(_plot(title, x, "share of the cache", note, traces, **layout))
    return found


def _cache_shares(point: CurvePoint) -> dict[str, float]:
    """Shares of bands of popularity: tenths of all items, or head, torso and tail."""
    if "shares" in point:
        return {f"decile {k}": share for k, share in enumerate(point["shares"], 1)}
    return {band: point.get(band, 0.0) for band in ("head", "torso", "tail")}


def _drawn(lines: Iterable[Curve]) -> list[go.Scatter]:
    """Lines that have a point."""
    traces = []
    for line in lines:
        points = [p for p in line.points if p.get(line.y) is not None]
        if points:
            trace = go.Scatter(
                x=[p[line.x] for p in points],
                y=[p[line.y] for p in points],
                name=line.name,
                mode="lines" if len(points) > MAX_MARKED else "lines+markers",
                line={"dash": line.dash},
            )
            traces.append(trace)
    return traces


def _plot(
    title: str, x: str, y: str, note: str, traces: Sequence[go.Scatter], **layout: Any
) -> str:
    figure = go.Figure(traces, LAYOUT)
    title = html.escape(title)
    figure.update_layout(title=title, xaxis_title=x, yaxis_title=y, **layout)
    config = {"displaylogo": False, "responsive": True}
    drawn = figure.to_html(full_html=False, include_plotlyjs=False, config=config)
    caption = f"<figcaption>{html.escape(note)}</figcaption>"
    return f'<figure aria-label="{title}">{drawn}{caption}</figure>'


# tables ---------------------------------------------------------------------------------------------------------------


def _html(markdown: str) -> str:
    """Headings, paragraphs and tables."""
    found: list[str] = []
    for block in markdown.strip().split("\n\n"):
        lines = html.escape(block).splitlines()
        if lines[0].startswith("#"):
            marks, _, title = lines.pop(0).partition(" ")
            found.append(f"<h{len(marks)}>{title}</h{len(marks)}>")
        if lines and lines[0].startswith("|"):
            head, _, *rows = [_cells(line) for line in lines]
            body = "".join(_row("td", row) for row in rows)
            head_row = _row("th", head)
            found.append(
                f"<table><thead>{head_row}</thead><tbody>{body}</tbody></table>"
            )
        elif lines:
            found.append(f"<p>{' '.join(lines)}</p>")
    return "\n".join(found)


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]


def _row(tag: str, cells: Sequence[str]) -> str:
    written = ""
    for cell in cells:
        below = ' class="below"' if cell.endswith(BELOW) else ""
        written += f"<{tag}{below}>{cell}</{tag}>"
    return f"<tr>{written}</tr>"
