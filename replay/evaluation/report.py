"""A self-contained HTML page of a comparison: tables, curves, occurrence by popularity, the cache over time."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from replay.evaluation.record import Record
from replay.evaluation.tables import told

HEIGHT = 440
MODEL = "model"

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.875rem; }
th, td { border-bottom: 1px solid #8884; padding: 0.25rem 0.6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.5rem 0; background: #fff; border-radius: 0.5rem; }
figcaption { color: #444; padding: 0 1rem 0.75rem; font-size: 0.875rem; }
"""


def page(title: str, tables: str, records: Sequence[Record]) -> str:
    """The whole page.

    Args:
        title: of the page.
        tables: in Markdown; only headings, paragraphs and tables.
        records: what was measured.
    """
    figures = [figure for group in _by_log(records) for figure in _figures(group)]
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
{_html(tables)}
{"".join(figures)}
</body>
</html>
"""


def _by_log(records: Sequence[Record]) -> list[list[Record]]:
    keys = dict.fromkeys((r.data, r.protocol) for r in records)
    return [[r for r in records if (r.data, r.protocol) == key] for key in keys]


def _figures(records: Sequence[Record]) -> list[str]:
    """The plots of one log and protocol; curves are of the first seed."""
    first = min(r.seed for r in records)
    shown = [r for r in records if r.seed == first]
    make = _offline_curves if records[0].protocol == "offline" else _stream_curves
    return [*make(shown), *_ranks(shown), *_compositions(shown)]


def _offline_curves(records: Sequence[Record]) -> list[str]:
    loss, recall = go.Figure(), go.Figure()
    for record in records:
        epochs = [p["epoch"] for p in record.curve]
        loss.add_scatter(x=epochs, y=[p["loss"] for p in record.curve], name=_name(record))
        points = [p for p in record.curve if "recall@10" in p]
        recall.add_scatter(x=[p["epoch"] for p in points], y=[p["recall@10"] for p in points], name=_name(record))
    data = records[0].data
    return [
        _drawn(recall, f"{data}: Recall@10 by epoch", "epoch", "Recall@10", "Over all items, training items left out."),
        _drawn(loss, f"{data}: training loss by epoch", "epoch", "loss", "Losses of different methods differ in kind."),
    ]


def _stream_curves(records: Sequence[Record]) -> list[str]:
    figures = []
    for slice_, what in (("all", "all events"), ("new", "events new to their user")):
        for kind, how in (("overall", "since the start"), ("recent", "over the last events")):
            figure = go.Figure()
            for record in records:
                _add_curve(figure, record, f"{MODEL}/{slice_}/{kind}", _name(record))
            for floor in _floors(records[0]):
                _add_curve(figure, records[0], f"{floor}/{slice_}/{kind}", f"floor: {floor}", dash="dot")
            title = f"{records[0].data}: HR@10 of {what}, {how}"
            figures.append(_drawn(figure, title, "events", "HR@10", "Each event is ranked before it is trained."))
    return figures


def _add_curve(figure: go.Figure, record: Record, key: str, name: str, dash: str = "solid") -> None:
    points = [p for p in record.curve if p.get(key) is not None]
    if points:
        x, y = [p["events"] for p in points], [p[key] for p in points]
        figure.add_scatter(x=x, y=y, name=name, mode="lines", line={"dash": dash})


def _floors(record: Record) -> list[str]:
    return list(dict.fromkeys(m["floor"] for m in record.measures if m["floor"]))


def _ranks(records: Sequence[Record]) -> list[str]:
    """The paper's Figure 2."""
    resampled = [r for r in records if any(p["occurrence"] for p in r.ranks)]
    if not resampled:
        return []
    figure = go.Figure()
    for record in resampled:
        x, y = [p["rank"] for p in record.ranks], [p["occurrence"] for p in record.ranks]
        figure.add_scatter(x=x, y=y, name=f"{_name(record)}: occurrence", mode="lines")
    ranks = resampled[0].ranks
    x, y = [p["rank"] for p in ranks], [p["popularity"] for p in ranks]
    figure.add_scatter(x=x, y=y, name="popularity", mode="lines", line={"dash": "dot"})
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    title = f"{records[0].data}: occurrence against popularity rank"
    note = "An item's share of everything resampled, and of all events, by its popularity rank."
    return [_drawn(figure, title, "popularity rank", "share of an item", note)]


def _compositions(records: Sequence[Record]) -> list[str]:
    figures = []
    for record in records:
        points = [p for p in record.composition if p.get("shares") or any(p.get(b) for b in ("head", "torso", "tail"))]
        if points:
            figures.append(_composition(record, points))
    return figures


def _composition(record: Record, points: list[dict[str, Any]]) -> str:
    figure = go.Figure()
    if "shares" in points[0]:
        axis = "epoch"
        for k in range(len(points[0]["shares"])):
            y = [p["shares"][k] for p in points]
            figure.add_scatter(x=[p[axis] for p in points], y=y, name=f"decile {k + 1}", stackgroup="one")
    else:
        axis = "events"
        for band in ("head", "torso", "tail"):
            figure.add_scatter(x=[p[axis] for p in points], y=[p[band] for p in points], name=band, stackgroup="one")
    title = f"{record.data}, {_name(record)}: what the cache is made of"
    return _drawn(figure, title, axis, "share of the cache", "By popularity of the items, the most popular first.")


def _name(record: Record) -> str:
    return record.method + (f" ({told(record.settings)})" if record.settings else "")


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
    )
    drawn = figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True})
    return f'<figure aria-label="{html.escape(title)}">{drawn}<figcaption>{html.escape(note)}</figcaption></figure>'


def _html(markdown: str) -> str:
    """Headings, paragraphs and tables."""
    found: list[str] = []
    for block in markdown.strip().split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("#"):
            found.append(f"<h2>{html.escape(lines[0].lstrip('# '))}</h2>")
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
