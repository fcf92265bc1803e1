"""A self-contained HTML page of a comparison: tables, curves, occurrence by popularity, the cache over time."""

from __future__ import annotations

import html
import re
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.offline import get_plotlyjs

from streamer.replay.evaluation.record import DELAYS, Record
from streamer.replay.evaluation.selection import by_number, common_settings, headline, shown_k, swept
from streamer.replay.evaluation.tables import told

HEIGHT = 440
MODEL = "model"
MOST_MARKED = 20
"""Lines of so few points show them."""

Point = dict[str, Any]

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.875rem; }
th, td { border-bottom: 1px solid #8884; padding: 0.25rem 0.6rem; text-align: right; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
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
    """The whole page.

    Args:
        title: of the page.
        tables: in Markdown; only headings, paragraphs and tables, a section (`##`) for each log and protocol.
        records: what was measured.
        axes: of a sweep: the settings that were changed one at a time.
        fixed: of a sweep: the settings of all runs.
    """
    figures = ["".join(_figures(group, axes, fixed or {})) for group in _by_log(records)]
    sections = [_html(section) for section in re.split(r"^(?=## )", tables, flags=re.MULTILINE) if section.strip()]
    body = "\n".join(part for pair in zip_longest(sections, figures, fillvalue="") for part in pair)
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


def _by_log(records: Sequence[Record]) -> list[list[Record]]:
    keys = dict.fromkeys((r.data, r.protocol) for r in records)
    return [[r for r in records if (r.data, r.protocol) == key] for key in keys]


def _figures(records: Sequence[Record], axes: Sequence[str], fixed: Mapping[str, Any]) -> list[str]:
    """The plots of one log and protocol; curves are of the first seed."""
    first = min(r.seed for r in records)
    shown = [r for r in records if r.seed == first]
    if not axes:
        return _curves_and_shares(shown)
    changed = [(axis, swept(records, axis, fixed)) for axis in axes]
    sweeps = [_sweep(axis, group) for axis, group in changed]
    curves = [_curves_and_shares([r for r in group if r in shown]) for _, group in changed]
    return [*sweeps, *(figure for figures in curves for figure in figures)]


def _curves_and_shares(records: Sequence[Record]) -> list[str]:
    make = _offline_curves if records[0].protocol == "offline" else _stream_curves
    return [*make(records), *_ranks(records), *_compositions(records)]


def _sweep(axis: str, records: Sequence[Record]) -> str:
    """What a setting does, and what a step costs, by its values: means over seeds."""
    metric, k, slice_ = headline(records)
    label = f"{metric.upper() if metric == 'hr' else metric.capitalize()}@{k}"
    figure = go.Figure()
    for method in dict.fromkeys(r.method for r in records):
        ours = [r for r in records if r.method == method]
        for name, at, right in ((label, (metric, k, slice_), False), ("ms a step", ("step-ms", 0, "all"), True)):
            x = sorted(dict.fromkeys(str(r.settings[axis]) for r in ours), key=by_number)
            y = [_mean([r for r in ours if str(r.settings[axis]) == value], *at) for value in x]
            line = {"dash": "dot" if right else "solid"}
            figure.add_scatter(x=x, y=y, name=f"{method}: {name}", line=line, yaxis="y2" if right else "y")
    right_axis = {"title": "ms a step", "overlaying": "y", "side": "right", "showgrid": False, "tickmode": "auto"}
    figure.update_layout(yaxis2=right_axis | {"rangemode": "tozero"}, xaxis_type="category")
    note = f"{label} over {slice_.replace('/', ', ')}; dotted: milliseconds of a training step. All else is the same."
    return _drawn(figure, f"{records[0].data}: {label} by {axis}", axis, label, note)


def _mean(records: Sequence[Record], metric: str, k: int, slice_: str) -> float | None:
    wanted = (metric, k, slice_, None)
    values = [
        m["value"] for r in records for m in r.measures if (m["metric"], m["k"], m["slice"], m["floor"]) == wanted
    ]
    return statistics.fmean(values) if values else None


def _offline_curves(records: Sequence[Record]) -> list[str]:
    loss, recall, names = go.Figure(), go.Figure(), _names(records)
    key = f"recall@{shown_k(records)}"
    for record, name in zip(records, names, strict=True):
        _add_line(loss, record.curve, "epoch", "loss", name)
        _add_line(recall, record.curve, "epoch", key, name)
    data, epochs = records[0].data, max((p["epoch"] for r in records for p in r.curve), default=1)
    for figure in (loss, recall):
        figure.update_xaxes(range=[0.5, epochs + 0.5], dtick=-(-epochs // 20))
    label = key.capitalize()
    return [
        _drawn(recall, f"{data}: {label} by epoch", "epoch", label, "Over all items, training items left out."),
        _drawn(loss, f"{data}: training loss by epoch", "epoch", "loss", "Losses of different methods differ in kind."),
    ]


def _add_line(figure: go.Figure, points: Sequence[Point], x: str, y: str, name: str, dash: str = "solid") -> None:
    there = [p for p in points if p.get(y) is not None]
    if there:
        mode = "lines" if len(there) > MOST_MARKED else "lines+markers"
        figure.add_scatter(x=[p[x] for p in there], y=[p[y] for p in there], name=name, mode=mode, line={"dash": dash})


def _stream_curves(records: Sequence[Record]) -> list[str]:
    """Hit rates since the start over the time of the stream, and over its last events by their number."""
    figures, names, floors = [], _names(records), _floors(records)
    timed = all(r.about.get("has_time") for r in records)
    for slice_, what in (("all", "all events"), ("new", "events new to their user")):
        for kind, how in (("overall", "since the start"), ("recent", "over the last events")):
            figure, x = go.Figure(), "time" if timed and kind == "overall" else "events"
            for record, name in zip(records, names, strict=True):
                _add_line(figure, _dated(record.curve), x, f"{MODEL}/{slice_}/{kind}", name)
            for floor, name, curve in floors:
                _add_line(figure, curve, x, f"{floor}/{slice_}/{kind}", f"floor: {name}", dash="dot")
            title = f"{records[0].data}: HR@10 of {what}, {how}"
            axis = "time of the stream" if x == "time" else "events"
            figures.append(_drawn(figure, title, axis, "HR@10", "Each event is ranked before it is trained."))
    return figures


def _dated(points: Sequence[Point]) -> list[Point]:
    """The points with their times as dates."""
    return [p | {"time": datetime.fromtimestamp(p["time"], UTC).isoformat()} for p in points]


def _floors(records: Sequence[Record]) -> list[tuple[str, str, list[Point]]]:
    """Each floor, what legends call it, and its curve: once, or for each feedback delay, which costs it hits."""
    common = common_settings(records)
    by_delay: dict[str, Record] = {}
    for record in records:
        late = {name: v for name, v in record.settings.items() if name in DELAYS and name not in common}
        by_delay.setdefault(told(late), record)
    found = []
    for text, record in by_delay.items():
        curve = _dated(record.curve)
        for floor in dict.fromkeys(m["floor"] for m in record.measures if m["floor"]):
            found.append((floor, f"{floor} ({text})" if text else floor, curve))
    return found


def _ranks(records: Sequence[Record]) -> list[str]:
    """The paper's Figure 2."""
    drawn = [
        (r, name) for r, name in zip(records, _names(records), strict=True) if any(p["occurrence"] for p in r.ranks)
    ]
    if not drawn:
        return []
    figure = go.Figure()
    for record, name in drawn:
        x, y = [p["rank"] for p in record.ranks], [p["occurrence"] for p in record.ranks]
        figure.add_scatter(x=x, y=y, name=f"{name}: occurrence", mode="lines")
    ranks = drawn[0][0].ranks
    x, y = [p["rank"] for p in ranks], [p["popularity"] for p in ranks]
    figure.add_scatter(x=x, y=y, name="popularity", mode="lines", line={"dash": "dot"})
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick=1, exponentformat="power")
    title = f"{records[0].data}: occurrence against popularity rank"
    note = "An item's share of everything resampled, and of all events, by its popularity rank."
    return [_drawn(figure, title, "popularity rank", "share of an item", note)]


def _compositions(records: Sequence[Record]) -> list[str]:
    figures = []
    for record, name in zip(records, _names(records), strict=True):
        points = [p for p in record.composition if p.get("shares") or any(p.get(b) for b in ("head", "torso", "tail"))]
        if points:
            figures.append(_composition(f"{record.data}, {name}", points))
    return figures


def _composition(what: str, points: list[Point]) -> str:
    figure = go.Figure()
    if "shares" in points[0]:
        axis, groups = "epoch", len(points[0]["shares"])
        bands = {f"decile {k + 1}": [p["shares"][k] for p in points] for k in range(groups)}
    else:
        axis = "events"
        bands = {band: [p[band] for p in points] for band in ("head", "torso", "tail")}
    for (name, shares), colour in zip(bands.items(), sample_colorscale("Viridis", max(len(bands), 2)), strict=False):
        figure.add_scatter(
            x=[p[axis] for p in points], y=shares, name=name, stackgroup="one", line={"color": colour, "width": 1}
        )
    figure.update_yaxes(range=[0, 1])
    if axis == "epoch":
        figure.update_xaxes(dtick=-(-len(points) // 20))
    title = f"{what}: what the cache is made of"
    return _drawn(figure, title, axis, "share of the cache", "By popularity of the items, the most popular first.")


def _names(records: Sequence[Record]) -> list[str]:
    """What legends call each: the method, with the settings that not all have."""
    common = common_settings(records)
    rest = [told({name: v for name, v in r.settings.items() if name not in common}) for r in records]
    return [record.method + (f" ({text})" if text else "") for record, text in zip(records, rest, strict=True)]


def _drawn(figure: go.Figure, title: str, x: str, y: str, note: str) -> str:
    figure.update_layout(
        title=html.escape(title),
        xaxis_title=x,
        yaxis_title=y,
        height=HEIGHT,
        template="plotly_white",
        hovermode="x unified",
        legend={"orientation": "h", "y": -0.2},
        margin={"t": 48, "r": 16},
        showlegend=True,
    )
    drawn = figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True})
    return f'<figure aria-label="{html.escape(title)}">{drawn}<figcaption>{html.escape(note)}</figcaption></figure>'


def _html(markdown: str) -> str:
    """Headings, paragraphs and tables."""
    found: list[str] = []
    for block in markdown.strip().split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("#"):
            level = len(lines[0]) - len(lines[0].lstrip("#"))
            found.append(f"<h{level}>{html.escape(lines[0].lstrip('# '))}</h{level}>")
            lines = lines[1:]
        if lines and lines[0].startswith("|"):
            found.append(_html_table(lines))
        elif lines:
            found.append(f"<p>{html.escape(' '.join(lines))}</p>")
    return "\n".join(found)


def _html_table(lines: list[str]) -> str:
    def cells(line: str, tag: str) -> str:
        parts = [html.escape(cell.strip().replace("`", "")) for cell in line.strip("|").split("|")]
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in parts) + "</tr>"

    rows = "".join(cells(line, "td") for line in lines[2:])
    return f"<table><thead>{cells(lines[0], 'th')}</thead><tbody>{rows}</tbody></table>"
