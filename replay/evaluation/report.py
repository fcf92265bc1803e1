"""A self-contained HTML page of a comparison: tables, curves, occurrence by popularity,
the cache over time.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

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
    plots = ["".join(_plots(ours, axes, fixed or {})) for ours in by_log(records)]
    sections = [
        _html(section)
        for section in re.split(r"^(?=## )", tables, flags=re.MULTILINE)
        if section.strip()
    ]
    body = "\n".join(
        part for pair in zip_longest(sections, plots, fillvalue="") for part in pair
    )
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


def _plots(
    records: Sequence[Record], axes: Sequence[str], fixed: Mapping[str, Any]
) -> list[str]:
    """The plots of one log and protocol; curves are of the first seed."""
    groups = [swept(records, axis, fixed) for axis in axes]
    found = [_sweep(axis, group) for axis, group in zip(axes, groups, strict=True)]
    first = min(r.seed for r in records)
    for group in groups or [list(records)]:
        ours = [r for r in group if r.seed == first]
        names = [labelled(r.method, r.settings, common_settings(ours)) for r in ours]
        runs = list(zip(ours, names, strict=True))
        found += (
            _offline_curves(runs)
            if ours[0].protocol == "offline"
            else _stream_curves(runs)
        )
        found += [*_ranks(runs), *_compositions(runs)]
    return found


Runs = Sequence[tuple[Record, str]]
"""Records of one log, and what legends call them."""


def _sweep(axis: str, records: Sequence[Record]) -> str:
    """What a setting does, and what a step costs, by its values: means over seeds."""
    figures, (metric, k, slice_) = Figures(records), headline(records)
    label = f"{METRIC_NAMES[metric]}@{k}"
    traces = []
    for method in dict.fromkeys(r.method for r in records):
        groups = {
            str(r.settings[axis]): group_of(r) for r in records if r.method == method
        }
        values = sorted(groups, key=by_number)
        for name, at, dash, y_axis in (
            (label, (metric, k, slice_), "solid", "y"),
            ("ms a step", STEP_MS, "dot", "y2"),
        ):
            means = [figures.of(groups[value], *at) for value in values]
            y = [None if mean is None else mean.mean for mean in means]
            traces.append(
                go.Scatter(
                    x=values,
                    y=y,
                    name=f"{method}: {name}",
                    line={"dash": dash},
                    yaxis=y_axis,
                )
            )
    right_axis = {
        "title": "ms a step",
        "overlaying": "y",
        "side": "right",
        "showgrid": False,
        "tickmode": "auto",
    }
    note = f"{label} over {slice_.replace('/', ', ')}; dotted: milliseconds of a training step. All else is the same."
    layout = {"yaxis2": right_axis | {"rangemode": "tozero"}, "xaxis_type": "category"}
    return _plot(
        f"{records[0].data}: {label} by {axis}", axis, label, note, traces, **layout
    )


def _offline_curves(runs: Runs) -> list[str]:
    recall = f"Recall@{shown_k([record for record, _ in runs])}"
    found = []
    epochs = max((p["epoch"] for record, _ in runs for p in record.curve), default=1)
    for what, label, note in (
        (recall, recall, "Over all items, training items left out."),
        ("training loss", "loss", "Losses of different methods differ in kind."),
    ):
        traces = [
            t
            for record, name in runs
            for t in _line(record.curve, "epoch", label.lower(), name)
        ]
        layout = {"xaxis_range": [0.5, epochs + 0.5], "xaxis_dtick": -(-epochs // 20)}
        found.append(
            _plot(
                f"{runs[0][0].data}: {what} by epoch",
                "epoch",
                label,
                note,
                traces,
                **layout,
            )
        )
    return found


def _stream_curves(runs: Runs) -> list[str]:
    """Hit rates since the start over the time of the stream, and over its last events
    by their number.
    """
    lines = [(MODEL, name, record.curve, "solid") for record, name in runs]
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
            lines += [
                (f, labelled(f"baseline: {f}", delays, ()), record.curve, "dot")
                for f in record.baselines
            ]
    timed = all(record.about.get("has_time") for record, _ in runs)
    found = []
    for slice_, what in (("all", "all events"), ("new", "events new to their user")):
        for kind, how in (
            ("overall", "since the start"),
            ("recent", "over the last events"),
        ):
            x, axis = (
                ("time", "time of the stream")
                if timed and kind == "overall"
                else ("events", "events")
            )
            traces = [
                t
                for w, name, curve, dash in lines
                for t in _line(curve, x, f"{w}/{slice_}/{kind}", name, dash)
            ]
            title = f"{runs[0][0].data}: HR@10 of {what}, {how}"
            found.append(
                _plot(
                    title,
                    axis,
                    "HR@10",
                    "Each event is ranked before it is trained.",
                    traces,
                )
            )
    return found


def _ranks(runs: Runs) -> list[str]:
    """The paper's Figure 2."""
    drawn = [
        (record, name)
        for record, name in runs
        if any(p["occurrence"] for p in record.by_rank)
    ]
    if not drawn:
        return []
    lines = [
        (record.by_rank, "occurrence", f"{name}: occurrence", "solid")
        for record, name in drawn
    ]
    lines.append((drawn[0][0].by_rank, "popularity", "popularity", "dot"))
    traces = [
        t
        for points, y, name, dash in lines
        for t in _line(points, "rank", y, name, dash)
    ]
    note = "An item's share of everything resampled, and of all events, by its popularity rank."
    log = {"type": "log", "dtick": 1}
    layout = {"xaxis": log, "yaxis": log | {"exponentformat": "power"}}
    title = f"{runs[0][0].data}: occurrence against popularity rank"
    return [_plot(title, "popularity rank", "share of an item", note, traces, **layout)]


def _compositions(runs: Runs) -> list[str]:
    """Of each run with a cache, the shares of the items in it by popularity."""
    found = []
    for record, name in runs:
        points = [
            p
            for p in record.composition
            if p.get("shares") or any(p.get(b) for b in ("head", "torso", "tail"))
        ]
        if not points:
            continue
        axis = "events"
        layout = {}
        bands = {
            band: [p.get(band) for p in points] for band in ("head", "torso", "tail")
        }
        if "shares" in points[0]:
            axis = "epoch"
            layout = {"xaxis_dtick": -(-len(points) // 20)}
            bands = {
                f"decile {k + 1}": [p["shares"][k] for p in points]
                for k in range(len(points[0]["shares"]))
            }
        colours = sample_colorscale("Viridis", max(len(bands), 2))
        x = [p[axis] for p in points]
        traces = [
            go.Scatter(
                x=x,
                y=shares,
                name=band,
                stackgroup="one",
                line={"color": colour, "width": 1},
            )
            for (band, shares), colour in zip(bands.items(), colours, strict=False)
        ]
        title = f"{record.data}, {name}: what the cache is made of"
        note = "By popularity, the most popular items first."
        found.append(
            _plot(
                title,
                axis,
                "share of the cache",
                note,
                traces,
                yaxis_range=[0, 1],
                **layout,
            )
        )
    return found


def _line(
    points: Sequence[CurvePoint], x: str, y: str, name: str, dash: str = "solid"
) -> list[go.Scatter]:
    """A line through the points that have a value; none if there is no such point."""
    there = [p for p in points if p.get(y) is not None]
    mode = "lines" if len(there) > MAX_MARKED else "lines+markers"
    places = [
        datetime.fromtimestamp(p[x], UTC).isoformat() if x == "time" else p[x]
        for p in there
    ]
    return (
        [
            go.Scatter(
                x=places,
                y=[p[y] for p in there],
                name=name,
                mode=mode,
                line={"dash": dash},
            )
        ]
        if there
        else []
    )


def _plot(
    title: str, x: str, y: str, note: str, traces: Iterable[go.Scatter], **layout: Any
) -> str:
    figure = go.Figure(list(traces), LAYOUT)
    figure.update_layout(
        title=html.escape(title), xaxis_title=x, yaxis_title=y, **layout
    )
    drawn = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        config={"displaylogo": False, "responsive": True},
    )
    return f'<figure aria-label="{html.escape(title)}">{drawn}<figcaption>{html.escape(note)}</figcaption></figure>'


# tables ---------------------------------------------------------------------------------------------------------------


def _html(markdown: str) -> str:
    """Headings, paragraphs and tables."""
    found: list[str] = []
    for block in markdown.strip().split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("#"):
            level = len(lines[0]) - len(lines[0].lstrip("#"))
            found.append(
                f"<h{level}>{html.escape(lines.pop(0).lstrip('# '))}</h{level}>"
            )
        if lines and lines[0].startswith("|"):
            rows = [
                [
                    html.escape(cell.strip().replace("`", ""))
                    for cell in line.strip("|").split("|")
                ]
                for line in lines
            ]
            head = "".join(f"<th>{cell}</th>" for cell in rows[0])
            body = "".join(
                "<tr>" + "".join(map(_td, row)) + "</tr>" for row in rows[2:]
            )
            found.append(
                f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            )
        elif lines:
            found.append(f"<p>{html.escape(' '.join(lines))}</p>")
    return "\n".join(found)


def _td(cell: str) -> str:
    return (
        f'<td class="below">{cell}</td>' if cell.endswith(BELOW) else f"<td>{cell}</td>"
    )
