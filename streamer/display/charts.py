"""Small charts for a terminal: a sparkline, a line over an area, shares over time.
Values in, text out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter

from rich.text import Text

Points = Sequence[tuple[float, ...]]
"""A tuple for each column of a chart: the values of all its series."""
Cell = tuple[str, str]
"""A character and its style."""

BLOCKS = " ▁▂▃▄▅▆▇█"
SHADES = "█▒░"
LEVELS = "▁─▔"
"""A line at the bottom, the middle and the top of a cell."""


class History:
    """All of a series in bounded memory: at `capacity` points (an even number),
    neighbours are merged.

    Examples:
        >>> history = History(capacity=4)
        >>> for value in range(6):
        ...     history.add((float(value),))
        >>> history.resampled(8)
        [(0.5,), (2.5,), (4.5,)]
    """

    def __init__(self, capacity: int = 512) -> None:
        self._capacity = capacity
        self._stride = 1
        self._points: list[tuple[float, ...]] = []
        self._open: list[tuple[float, ...]] = []  # of the point that is not complete

    def add(self, values: tuple[float, ...]) -> None:
        """The next values of all series."""
        if len(self._points) == self._capacity:
            self._points = self.resampled(self._capacity // 2)
            self._stride = 2 * self._stride
        self._open.append(values)
        if len(self._open) >= self._stride:
            self._points.append(_mean(self._open))
            self._open = []

    def resampled(self, most: int) -> list[tuple[float, ...]]:
        """At most `most` points, of about equal duration."""
        have = len(self._points)
        wanted = max(most, 1)
        if have <= wanted:
            return list(self._points)
        edges = [k * have // wanted for k in range(wanted + 1)]
        return [_mean(self._points[start:end]) for start, end in pairwise(edges)]


def _mean(points: Points) -> tuple[float, ...]:
    return tuple(sum(column) / len(points) for column in zip(*points, strict=True))


def sparkline(values: Sequence[float], width: int, lowest: float | None = None) -> str:
    """The last values as a row of blocks, from `lowest` (None: the least of them) to
    the greatest.
    """
    shown = list(values)[-width:] if width > 0 else []
    if not shown:
        return ""
    low = min(shown) if lowest is None else lowest
    span = max(max(shown) - low, 1e-12)
    return "".join(
        BLOCKS[1 + min(7, max(0, int(8 * (value - low) / span)))] for value in shown
    )


def share_bar(shares: Sequence[float], styles: Sequence[str], width: int) -> Text:
    """Shares of one as a bar; shaded too, for those who see no colours."""
    ends = [round(width * sum(shares[: k + 1])) for k in range(len(shares))]
    bar = Text()
    for start, end, shade, style in zip([0, *ends], ends, SHADES, styles, strict=False):
        bar.append(shade * (end - start), style)
    return bar


def line_over_area(
    points: Points, height: int, top: float, styles: tuple[str, str]
) -> list[Text]:
    """Rows, the highest first, of a chart of two series, an area and a line; `top` is
    the value at the upper edge.
    """
    (area, line), scale = styles, height / top

    def cell(row: int, high: float, low: float) -> Cell:
        eighths = min(8, max(0, round(8 * (high * scale - row))))
        if row <= low * scale < row + 1:
            level = LEVELS[min(2, int(3 * (low * scale - row)))]
            return level, f"{line} on {area}" if eighths == 8 else line
        return BLOCKS[eighths], area

    return [
        _text(cell(row, high, low) for high, low in points)
        for row in reversed(range(height))
    ]


def shares_over_time(
    points: Points, height: int, styles: Sequence[str], colours: bool
) -> list[Text]:
    """Rows, the highest first, of a chart of shares that sum to one, stacked; the first
    share is at the bottom.

    Where the terminal has no colours, shares are shaded, and less exact.
    """
    size = 1 / height

    def cell(shares: Sequence[float], bottom: float) -> Cell:
        """In the colour at its lower edge, up to where the next one begins."""
        if not colours:
            return SHADES[_at(shares, bottom + size / 2)], ""
        lower = _at(shares, bottom + size / 16)
        upper = _at(shares, bottom + size * 15 / 16)
        if lower == upper:
            return "█", styles[lower]
        eighths = round(8 * (sum(shares[: lower + 1]) - bottom) / size)
        return BLOCKS[min(7, max(1, eighths))], f"{styles[lower]} on {styles[upper]}"

    return [
        _text(cell(shares, row / height) for shares in points)
        for row in reversed(range(height))
    ]


def _at(shares: Sequence[float], height: float) -> int:
    """Which share is found at a height."""
    upto = 0.0
    for k, share in enumerate(shares):
        upto += share
        if height < upto:
            return k
    return len(shares) - 1


def _text(cells: Iterable[Cell]) -> Text:
    """The cells in a row; neighbours of one style are one span, which is drawn much
    faster.
    """
    text = Text(no_wrap=True)
    for style, run in groupby(cells, key=itemgetter(1)):
        text.append("".join(character for character, _ in run), style)
    return text
