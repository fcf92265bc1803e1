"""A comparison for a terminal: a table of at most 100 columns, and a sentence that says
who wins, and whether that is more than chance.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from streamer.replay.evaluation.results import STRETCHES, Run
from streamer.replay.evaluation.tables import (
    BELOW,
    Figure,
    Figures,
    ResultTable,
    about,
    main_figures,
    main_table,
)

COLUMNS = 100
MAX_NAME = 44
"""Characters of a method or baseline with its settings; longer ones lose their middle."""
GAP = "  "
T_95 = {
    1: 12.7,
    2: 4.30,
    3: 3.18,
    4: 2.78,
    5: 2.57,
    6: 2.45,
    7: 2.36,
    8: 2.31,
    9: 2.26,
    STRETCHES - 1: 2.01,
}
"""By degrees of freedom: how many standard errors hold 95% of Student's t."""
NORMAL_95 = 1.96


class Lead(NamedTuple):
    """By how much the first is ahead of the second, and how much of that may be
    chance: half of the interval that holds the true difference in 95 of 100 cases.
    """

    difference: float
    noise: float | None
    over: str
    """What the noise was taken from."""


def lead(figures: Figures, first: str, second: str, figure: Figure) -> Lead:
    """Compare two of them: seed by seed if both have several seeds, else stretch by
    stretch of what both were asked, or by the standard errors over it.
    """
    ours = figures.values(first, figure)
    theirs = figures.values(second, figure)
    difference = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) > 1:
        differences = [ours[seed] - theirs[seed] for seed in seeds]
        return Lead(
            statistics.fmean(differences),
            _noise(differences),
            f"differences of {len(seeds)} seeds",
        )
    parts = [figures.stretches(name, figure) for name in (first, second)]
    if all(parts):
        differences = [a - b for a, b in zip(*parts, strict=True)]
        over = f"one seed, differences over {len(differences)} stretches of the log"
        return Lead(difference, _noise(differences), over)
    errors = [figures.error(name, figure) for name in (first, second)]
    known = [error for error in errors if error is not None]
    if len(known) < 2:
        return Lead(difference, None, "")
    return Lead(difference, NORMAL_95 * math.hypot(*known), "one seed, over events")


def _noise(differences: Sequence[float]) -> float:
    """Half of the interval that holds the true mean in 95 of 100 cases."""
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return T_95.get(len(differences) - 1, 2.2) * error


def verdict(runs: Sequence[Run]) -> str:
    """Who wins by the first figure of the table, by how much, and whether that is
    beyond the noise.
    """
    figures = Figures(runs)
    for figure, title in main_figures(runs).items():
        means: dict[str, float] = {}
        for name in (*figures.methods, *figures.baselines):
            found = figures.of(name, *figure)
            if found is not None:
                means[name] = found.mean
        if means:
            return _sentence(figures, means, figure, title)
    return "Nothing was measured."


def _sentence(
    figures: Figures, means: Mapping[str, float], figure: Figure, title: str
) -> str:
    order = sorted(means, key=lambda name: means[name], reverse=True)
    best = order[0]
    if len(order) == 1:
        return f"There is nothing to compare {best} with: {title} {means[best]:.4f}."
    second = order[1]
    ahead, noise, over = lead(figures, best, second, figure)
    by = f"{ahead:.4f}"
    if means[second]:
        by += f" ({ahead / means[second]:.1%})"
    led = f"{best} has the highest {title}, {means[best]:.4f}, {by} above {second}"
    if noise is None:
        return f"{led}. Whether that is noise is not known: compare with --seeds 3."
    chance = f"95% of chance: ±{noise:.4f}, {over}"
    if ahead > noise:
        return f"{best} wins: {title} {means[best]:.4f}, {by} above {second}, which is beyond the noise ({chance})."
    return f"Nobody wins: {led}, which is within the noise ({chance})."


def printed(runs: Sequence[Run]) -> str:
    """What a comparison prints at a terminal."""
    table = main_table(runs)
    lines, left_out = _fitted(table)
    first = runs[0]
    parts = [f"{first.data}, {first.protocol}: {about(runs)}", "\n".join(lines)]
    if any(BELOW in line for line in lines):
        parts.append(f"{BELOW}: below a baseline.")
    if left_out:
        parts.append(
            f"{left_out} more columns do not fit: --out DIR writes all of them to "
            "DIR/results.md, --json prints them."
        )
    parts.append(verdict(runs))
    return "\n\n".join(_wrapped(part) for part in parts)


def _fitted(table: ResultTable) -> tuple[list[str], int]:
    """The lines of a table with as many columns as fit, and how many do not."""
    rows = [table.head, *table.rows]
    columns = list(zip(*rows, strict=True))
    names = [_short(name.replace("`", "")) for name in columns[0]]
    shown = [_aligned(names, left=True)]
    width = len(shown[0][0])
    for cells in columns[1:]:
        column = _aligned(cells, left=False)
        width += len(GAP) + len(column[0])
        if width > COLUMNS:
            break
        shown.append(column)
    lines = [GAP.join(cells).rstrip() for cells in zip(*shown, strict=True)]
    lines.insert(1, "-" * max(map(len, lines)))
    return lines, len(columns) - len(shown)


def _aligned(cells: Sequence[str], *, left: bool) -> list[str]:
    width = max(map(len, cells))
    return [cell.ljust(width) if left else cell.rjust(width) for cell in cells]


def _short(name: str) -> str:
    if len(name) <= MAX_NAME:
        return name
    half = (MAX_NAME - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def _wrapped(text: str) -> str:
    """A paragraph with lines that fit; a table has lines of its own."""
    if "\n" in text:
        return text
    return textwrap.fill(text, COLUMNS, break_on_hyphens=False)
