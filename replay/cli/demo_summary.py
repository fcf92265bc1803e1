"""What a person reads at the end of `streamer demo`."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from streamer.display.reporting import accounting_described, shares_described

if TYPE_CHECKING:
    from rich.text import Text

Figures = dict[str, Any]

ENDS = {"events": "", "time": "Time was up. ", "you": "You stopped it. "}
BAR = 20
SPARKS = 30


def print_summary(figures: Figures, stream: TextIO) -> None:
    """Print the summary: in colours at a terminal, plain elsewhere."""
    from rich.console import Console
    from rich.text import Text

    events, seconds, rate = (
        figures[name] for name in ("events_this_run", "seconds", "events_per_second")
    )
    headline = f"{events:,} events learned in {seconds:,.0f} s, {rate:,.0f} a second, each once."
    lines = [
        "",
        Text(ENDS[figures["ended_by"]] + headline, "bold"),
        "",
        *_results(figures),
        "",
    ]
    if figures["recommendations"]:
        lines.append(Text("What three of them may like next", "bold"))
        for one in figures["recommendations"]:
            lines.append(_row(one["user"], f"had       {', '.join(one['recent'])}"))
            lines.append(_row("", f"may like  {', '.join(one['recommended'])}", "bold"))
        lines.append("")
    lines += [
        Text("Where to look next", "bold"),
        *(f"  {command}" for command in _commands(figures)),
    ]
    console = Console(file=stream, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)


def _results(figures: Figures) -> Iterator[Text]:
    from streamer.display.charts import share_bar
    from streamer.display.panel import BANDS, FLOOR, MODEL

    yield _row("consumed", accounting_described(figures))
    if figures["lag"]:
        yield _row("lag", f"{figures['lag']:,} events were written but not learned yet")
    model = figures["recent_hit_rate_at_10"]
    baseline = figures["recent_best_baseline"]
    if model is not None and baseline is not None:
        models, baselines = _sparks(figures["hit_rates"])
        name = f"baseline {baseline['name']}"
        yield _row("HR@10", f"{'model':<{len(name)}} {model:.3f}  ").append(
            models, MODEL
        )
        yield _row("", f"{name} {baseline['hit_rate']:.3f}  ").append(baselines, FLOOR)
        yield _row(
            "", "of the last events that were ranked, each before it was learned", "dim"
        )
    if figures["first_cache"] is not None:
        for label, when, shares in (
            ("cache", "at first", figures["first_cache"]),
            ("", "at last ", figures["cache"]),
        ):
            row = _row(label, f"{when}  ").append_text(
                share_bar(list(shares.values()), list(BANDS.values()), BAR)
            )
            yield row.append(f"  {shares_described(shares)}")
    yield _row("known", f"{figures['users']:,} users, {figures['items']:,} items")
    yield _row("checkpoint", str(figures["checkpoint"]))


def _row(label: str, text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text.assemble((f"  {label:<12}", "dim"), (text, style))


def _sparks(hit_rates: Sequence[tuple[int, float, float]]) -> list[str]:
    """The hit rates of the model and of the best baseline, on one scale."""
    from streamer.display.charts import History, sparkline

    history = History()
    for _, model, baseline in hit_rates:
        history.add((model, baseline))
    points = history.resampled(SPARKS)
    top = max((max(point) for point in points), default=0.0)
    return [
        sparkline([*(point[k] for point in points), top], SPARKS + 1, lowest=0.0)[:-1]
        for k in (0, 1)
    ]


def _commands(figures: Figures) -> Iterator[str]:
    """What to try next, ready to be pasted: the other commands, called as this one was."""
    program = "streamer"
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        program = f"{shlex.quote(Path(sys.executable).name)} -m streamer"
    elif not shutil.which("streamer"):
        program = shlex.quote(sys.argv[0])
    checkpoints = shlex.quote(figures["checkpoint_dir"])
    data = shlex.quote(figures["data_dir"])
    yield f"{program} demo --serve   # recommendations over HTTP, and a page to click on them"
    yield f"{program} inspect --checkpoint-dir {checkpoints}"
    if figures["recommendations"]:
        user = shlex.quote(figures["recommendations"][0]["user"])
        yield f"{program} recommend --checkpoint-dir {checkpoints} --user {user} -k 10"
    yield f"{program} export --checkpoint-dir {checkpoints} --out vectors.npz"
    yield f"{program} replay synthetic --data-dir {data} --events 50000 --seed 1"
    yield f"{program} run --data-dir {data} --until-end"
