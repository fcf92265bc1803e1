"""What a person reads at the end of `streamer demo`."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from streamer.display.reporting import accounting_described, shares_described

if TYPE_CHECKING:
    from rich.text import Text

Figures = dict[str, Any]

ENDS = {"events": "", "time": "Time was up. ", "you": "You stopped it. "}
BAR = 20
SPARKS = 30


def printed(figures: Figures, stream: TextIO) -> None:
    """Print the summary: in colours at a terminal, plain elsewhere."""
    from rich.console import Console

    console = Console(file=stream, highlight=False)
    for line in lines(figures):
        console.print(line, soft_wrap=True)


def lines(figures: Figures) -> Iterator[Text | str]:
    """The summary, line by line."""
    from rich.text import Text

    yield ""
    yield Text(_headline(figures), "bold")
    yield ""
    yield from _results(figures)
    yield ""
    if figures["recommendations"]:
        yield Text("What three of them may like next", "bold")
        yield from _recommendations(figures)
        yield ""
    yield Text("Where to look next", "bold")
    for command in commands(figures):
        yield f"  {command}"


def _headline(figures: Figures) -> str:
    events, seconds = figures["events_this_run"], figures["seconds"]
    rate = figures["events_per_second"]
    return f"{ENDS[figures['ended_by']]}{events:,} events learned in {seconds:,.0f} s, {rate:,.0f} a second, each once."


def _results(figures: Figures) -> Iterator[Text]:
    from streamer.display.panel import MODEL, POPULAR

    yield _row("consumed", accounting_described(figures))
    if figures["lag"]:
        yield _row("lag", f"{figures['lag']:,} events were written but not learned yet")
    model, popular = figures["recent_hit_rate_at_10"], figures["recent_most_popular_hit_rate_at_10"]
    if model is not None:
        yield _row("HR@10", f"model        {model:.3f}  ").append(_sparks(figures, 1), MODEL)
        yield _row("", f"most popular {popular:.3f}  ").append(_sparks(figures, 2), POPULAR)
        yield _row("", "of the last events that were ranked, each before it was learned", "dim")
    if figures["first_cache"] is not None:
        yield _cache("cache", "at first", figures["first_cache"])
        yield _cache("", "at last ", figures["cache"])
    yield _row("known", f"{figures['users']:,} users, {figures['items']:,} items")
    yield _row("checkpoint", str(figures["checkpoint"]))


def _row(label: str, text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text.assemble((f"  {label:<12}", "dim"), (text, style))


def _sparks(figures: Figures, series: int) -> str:
    """A series of hit rates, on the scale of both."""
    from streamer.display.charts import History, sparkline

    history = History()
    for _, model, popular in figures["hit_rates"]:
        history.add((model, popular))
    points = history.resampled(SPARKS)
    top = max((max(point) for point in points), default=0.0)
    return sparkline([*(point[series - 1] for point in points), top], SPARKS + 1, lowest=0.0)[:-1]


def _cache(label: str, when: str, shares: dict[str, float]) -> Text:
    from streamer.display.charts import share_bar
    from streamer.display.panel import BANDS

    row = _row(label, f"{when}  ").append_text(share_bar(list(shares.values()), list(BANDS.values()), BAR))
    return row.append(f"  {shares_described(shares)}")


def _recommendations(figures: Figures) -> Iterator[Text]:
    for one in figures["recommendations"]:
        yield _row(one["user"], f"had       {', '.join(one['recent'])}")
        yield _row("", f"may like  {', '.join(one['recommended'])}", "bold")


def commands(figures: Figures) -> Iterator[str]:
    """What to try next, ready to be pasted."""
    program = program_name()
    checkpoints, data = shlex.quote(figures["checkpoint_dir"]), shlex.quote(figures["data_dir"])
    yield f"{program} inspect --checkpoint-dir {checkpoints}"
    if figures["recommendations"]:
        user = shlex.quote(figures["recommendations"][0]["user"])
        yield f"{program} recommend --checkpoint-dir {checkpoints} --user {user} -k 10"
    yield f"{program} export --checkpoint-dir {checkpoints} --out vectors.npz"
    yield f"{program} replay synthetic --data-dir {data} --events 50000 --seed 1"
    yield f"{program} run --data-dir {data} --until-end"


def program_name() -> str:
    """How this program was called, so that its other commands can be called like it."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(Path(sys.executable).name)} -m streamer"
    return "streamer" if shutil.which("streamer") else shlex.quote(sys.argv[0])
