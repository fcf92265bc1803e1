"""The live panel: a run as a person at a terminal sees it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from streamer.display.charts import (
    History,
    line_over_area,
    share_bar,
    shares_over_time,
    sparkline,
)
from streamer.display.reporting import PREPARING

if TYPE_CHECKING:
    from streamer.metrics.status import Status

BANDS = {"head": "blue", "torso": "cyan", "tail": "magenta"}
MODEL = "green"
FLOOR = "yellow"
AREA = "color(28)"
LINE = "bright_yellow"
"""The same in the chart: a darker green, on which the line stands out."""
WIDE = 80
TALL = 22
"""Columns and lines that the charts need."""
CHART_ROWS = 7
SPARKS = 12
MAX_PARTITIONS = 6
ROUND_NUMBERS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
"""For the upper edge of the chart."""


class RunPanel:
    """Draws the state of a run, and remembers as much of it as its charts need."""

    def __init__(
        self, source: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.note = ""
        self._source = source
        self._clock = clock
        self._started = clock()
        self._status: Status | None = None
        self._rates: deque[float] = deque(maxlen=SPARKS)
        self._losses = History()
        self._hit_rates = History()
        self._shares = History()
        self._spinner = Spinner("dots")

    def update(self, status: Status) -> None:
        """Take in the latest state."""
        if status.steps:
            self._rates.append(status.events_per_second)
        if status.loss is not None:
            self._losses.add((status.loss,))
        if status.hit_rate is not None and status.best_baseline is not None:
            self._hit_rates.add((status.hit_rate, status.best_baseline.hit_rate))
        if any(status.cache):
            self._shares.add(tuple(status.cache))
        self._status = status

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        width = options.max_width
        colours = console.color_system is not None and not console.no_color
        parts = list(self._parts(min(width - 4, 116), console.height, colours))
        yield Panel(
            Group(*parts),
            box=box.ROUNDED,
            title=Text.assemble(("streamer", "bold"), (f" · {self._source}", "dim")),
            title_align="left",
            subtitle=Text(_elapsed(self._clock() - self._started), "dim"),
            subtitle_align="right",
            border_style="dim",
            width=min(width, 120),
        )

    def _parts(
        self, width: int, height: int, colours: bool
    ) -> Iterator[RenderableType]:
        status = self._status
        if status is None or not status.steps:
            self._spinner.update(
                text=Text(self.note or PREPARING, no_wrap=True, overflow="ellipsis")
            )
            yield self._spinner
            return
        yield self._figures(status, width)
        if width >= WIDE - 4 and height >= TALL:
            yield Text()
            yield self._charts(status, width, colours)
            yield Text()
        else:
            yield from self._chart_lines(status, width)
        yield from _accounting(status)
        yield lag_line(status)
        if status.members:
            yield members_line(status, self._clock() - self._started)
        if status.towers is not None and status.towers.adds_nothing:
            yield Text(str(status.towers), "yellow", no_wrap=True, overflow="ellipsis")
        if self.note:
            yield Text(self.note, "bold", no_wrap=True, overflow="ellipsis")

    def _figures(self, status: Status, width: int) -> RenderableType:
        """Labelled figures: two columns if there is room, else one."""
        rate = Text.assemble((f"{status.events_per_second:,.0f}", "bold"), " events/s ")
        rate.append(sparkline(self._rates, SPARKS, lowest=0.0), "green")
        left = [("speed", rate), ("known", Text(_known(status)))]
        right = []
        if status.loss is not None:
            loss = Text.assemble((f"{status.loss:.3f}", "bold"), " ")
            loss.append(
                sparkline(
                    [value for (value,) in self._losses.resampled(SPARKS)], SPARKS
                ),
                "red",
            )
            right.append(("loss", loss))
        age_s = status.checkpoint_age_s
        right.append(("checkpoint", Text("none yet" if age_s is None else _ago(age_s))))
        if width < WIDE - 4:
            return _labelled([*left, *right], width)
        each = (width - 4) // 2
        grid = _two_columns(each)
        grid.add_row(_labelled(left, each), _labelled(right, each))
        return grid

    def _charts(self, status: Status, width: int, colours: bool) -> RenderableType:
        each = (width - 4) // 2
        points = self._hit_rates.resampled(each - 5)
        highest = max((max(point) for point in points), default=0.0)
        top = next(
            (round_number for round_number in ROUND_NUMBERS if round_number >= highest),
            1.0,
        )
        rows = line_over_area(points, CHART_ROWS, top, (AREA, LINE))
        marks = {0: f"{top:4.2f}", CHART_ROWS - 1: "   0"}
        hit_rates = [
            Text.assemble((f"{marks.get(k, ''):>4} ", "dim"), row)
            for k, row in enumerate(rows)
        ]
        shares = shares_over_time(
            self._shares.resampled(each), CHART_ROWS, tuple(BANDS.values()), colours
        )
        grid = _two_columns(each)
        grid.add_row(
            Text("HR@10, ranked before it is learned", "dim"),
            Text("cache, by popularity of items", "dim"),
        )
        grid.add_row(hit_rate_line(status), cache_line(status))
        grid.add_row(Group(*hit_rates), Group(*shares))
        return grid

    def _chart_lines(self, status: Status, width: int) -> Iterator[RenderableType]:
        """What a small terminal has instead of charts."""
        line = Text("HR@10  ", "dim", no_wrap=True, overflow="ellipsis").append_text(
            hit_rate_line(status)
        )
        values = [
            model
            for model, _ in self._hit_rates.resampled(max(width - len(line) - 2, 1))
        ]
        if len(line) + 8 <= width:
            line.append("  ").append(
                sparkline(values, width - len(line) - 2, lowest=0.0), MODEL
            )
        yield line
        yield Text("cache  ", "dim", no_wrap=True, overflow="ellipsis").append_text(
            cache_line(status)
        )
        if any(status.cache):
            yield share_bar(status.cache, tuple(BANDS.values()), min(width, 60))


def _known(status: Status) -> str:
    forgotten = f", {status.evicted:,} forgotten" if status.evicted else ""
    return f"{status.users:,} users, {status.items:,} items{forgotten}"


def hit_rate_line(status: Status) -> Text:
    """`model 0.451  baseline counting 0.386 1.17x`: how many times as often it hits as the best baseline does."""
    line = Text(no_wrap=True, overflow="ellipsis")
    baseline = status.best_baseline
    if status.hit_rate is None or baseline is None:
        return line.append("nothing ranked yet")
    line.append("model ", MODEL).append(f"{status.hit_rate:.3f}", f"bold {MODEL}")
    line.append(f"  baseline {baseline.name} ", FLOOR).append(
        f"{baseline.hit_rate:.3f}", f"bold {FLOOR}"
    )
    if baseline.hit_rate:
        line.append(
            f" {status.hit_rate / baseline.hit_rate:.2f}x",
            "bold" if status.hit_rate >= baseline.hit_rate else "bold red",
        )
    return line


def cache_line(status: Status) -> Text:
    """`head 16%  torso 29%  tail 55%`."""
    line = Text(no_wrap=True, overflow="ellipsis")
    if not any(status.cache):
        return line.append("empty")
    for (name, style), share in zip(BANDS.items(), status.cache, strict=True):
        line.append(f"{name} ", style).append(f"{share:.0%}  ", f"bold {style}")
    return line


def lag_line(status: Status) -> Text:
    """How many events wait: in all, in the partitions that are furthest behind, and in
    memory.
    """
    lag = status.lag
    line = Text.assemble(
        ("lag         ", "dim"),
        f"{sum(lag.values()):,} events",
        no_wrap=True,
        overflow="ellipsis",
    )
    if len(lag) > 1:
        worst = sorted(sorted(lag, key=lambda p: -lag[p])[:MAX_PARTITIONS])
        one_topic = len({p.topic for p in lag}) == 1
        more = len(lag) - len(worst)
        parts = [
            f"{'' if one_topic else p.topic}[{p.number}] {lag[p]:,}" for p in worst
        ]
        line.append(
            "  " + " ".join(parts) + (f" and {more:,} more" if more else ""), "dim"
        )
    return line.append(f"; {status.queued_events:,} in the queue", "dim")


def members_line(status: Status, seconds: float) -> Text:
    """The processes that train together: how many partitions each reads, and how much
    of the time it waits for the others.
    """
    parts = []
    for number, member in enumerate(status.members):
        waiting = member.waiting_ms / 1000 / max(seconds, 1)
        partitions = len(member.partitions)
        parts.append(f"{number}: {partitions} partitions, waits {waiting:.0%}")
    return Text.assemble(
        ("trainers    ", "dim"), "; ".join(parts), no_wrap=True, overflow="ellipsis"
    )


def _two_columns(width: int) -> Table:
    grid = Table.grid(padding=(0, 4, 0, 0))
    grid.add_column(width=width, no_wrap=True)
    grid.add_column(width=width, no_wrap=True)
    return grid


def _labelled(rows: list[tuple[str, Text]], width: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(width=max(width - 12, 1), no_wrap=True, overflow="ellipsis")
    for label, value in rows:
        grid.add_row(f"{label:<10}", value)
    return grid


def _accounting(status: Status) -> Iterator[RenderableType]:
    counts = status.accounting
    yield Text.assemble(
        ("consumed    ", "dim"),
        (f"{counts.get('consumed', 0):,}", "bold"),
        f" = {counts.get('trained', 0):,} trained + {counts.get('filtered', 0):,} filtered"
        f" + {counts.get('dead_lettered', 0):,} dead-lettered",
        no_wrap=True,
        overflow="ellipsis",
    )
    reasons = counts.get("dead_letters")
    if reasons:
        listed = ", ".join(
            f"{reason} {count:,}"
            for reason, count in sorted(reasons.items(), key=lambda r: -r[1])
        )
        yield Text.assemble(
            ("dead        ", "dim"),
            (listed, "yellow"),
            no_wrap=True,
            overflow="ellipsis",
        )
    if status.backpressure_reason:
        yield Text.assemble(
            ("reading     ", "dim"), (f"stops: {status.backpressure_reason}", "red")
        )


def _elapsed(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return (
        f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
        if hours
        else f"{rest // 60}:{rest % 60:02d}"
    )


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"
