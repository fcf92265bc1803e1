"""`streamer demo`: what `streamer up` does, with a made-up stream and nothing else
needed.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.model.setting import setting
from streamer.replay.cli.parts import (
    Figures,
    PartsPlan,
    PartsSettings,
    answer_lines,
    run_parts,
)
from streamer.settings import RunSettings

TOPIC = "interactions"
ENDS = {
    "events": "All events are learned.",
    "time": "Time was up.",
    "you": "You stopped it.",
}


@dataclass(frozen=True, kw_only=True)
class DemoSettings(PartsSettings):
    """All settings of `streamer demo`."""

    events: int = setting(
        150_000, "Number of events to write and to learn from.", at_least=512
    )
    rate: float = setting(4000.0, "Events written per second.", at_least=1)
    seconds: float = setting(
        75.0, "Stop learning after this time, starting included.", at_least=1, unit="seconds"
    )  # fmt: skip
    data_dir: Path | None = setting(
        None,
        "Directory of log and checkpoints, kept afterwards.",
        if_none="a new temporary one",
    )
    serve: bool | None = setting(
        None,
        "Then serve recommendations until Ctrl-C, with a page to click on items.",
        if_none="at a terminal",
    )


@click.command(cls=GroupedCommand)
@settings_options(DemoSettings, environment=())
@option(
    "Options",
    "--json",
    "as_json",
    is_flag=True,
    help="At the end, print one JSON object.",
)
def demo(settings: DemoSettings, as_json: bool) -> None:
    """Watch a model learn from a made-up stream for about a minute, and ask it.

    Of two more processes, one writes events of made-up users to an embedded log, where
    what is popular changes all the time, and the other serves recommendations. The
    trainer ranks events before it learns from them, and compares its hit rate with that
    of the best trivial recommender. The demo needs no broker, no Redis, no GPU and no
    download. Ctrl-C ends it early, with the summary.
    """
    directory = settings.data_dir or Path(tempfile.mkdtemp(prefix="streamer-demo-"))
    figures = run_parts(demo_plan(settings, directory.absolute()), settings)
    click.echo(json.dumps(figures) if as_json else "\n".join(summary(figures)))


def demo_plan(settings: DemoSettings, directory: Path) -> PartsPlan:
    """The defaults of `streamer run`, whatever the environment says."""
    published = directory / "published"
    stream = ["--data-dir", str(directory), "--topic", TOPIC]
    amount = ["--events", str(settings.events), "--rate", str(settings.rate)]
    serves_on = sys.stderr.isatty() if settings.serve is None else settings.serve
    return PartsPlan(
        source=f"a made-up stream in {directory}",
        trainer=RunSettings(
            data_dir=directory,
            topics=(TOPIC,),
            publish_dir=published,
            checkpoint_every_s=10.0,
        ),
        writer=["replay", "synthetic", "--json", *amount, *stream],
        server=["serve", "--clicks", "--from", str(published), *stream],
        ends=not serves_on,
        seconds=settings.seconds,
    )


# the end ------------------------------------------------------------------------------


def summary(figures: Figures) -> Iterator[str]:
    """Lines that a person reads at the end, as at the end of `streamer run`, and what
    to try next.
    """
    from streamer.display.reporting import summary_rows

    yield ENDS[figures["ended_by"]]
    for label, text in summary_rows(figures):
        yield f"  {label:<12}{text}"
    if figures["lag"]:
        yield f"  {'lag':<12}{figures['lag']:,} events were written but not learned yet"
    answer = figures["answer"]
    if answer is not None:
        yield ""
        yield f"The server at {figures['server']} answered"
        for line in answer_lines(figures["server"], answer):
            yield f"  {line}"
    yield ""
    yield "Where to look next"
    for command in next_commands(figures):
        yield f"  {command}"
    yield ""
    yield "The same for events of yours, in CSV, JSON lines, Parquet or a topic of Kafka"
    yield f"  {streamer_command()} up FILE"


def streamer_command() -> str:
    """How `streamer` is called from here."""
    if shutil.which("streamer"):
        return "streamer"
    return f"{shlex.quote(sys.executable)} -m streamer"


def next_commands(figures: Figures) -> Iterator[str]:
    """What to try next, ready to be pasted."""
    program = streamer_command()
    checkpoints = f"--checkpoint-dir {shlex.quote(figures['checkpoint_dir'])}"
    data = f"--data-dir {shlex.quote(figures['data_dir'])}"
    yield f"{program} inspect {checkpoints}"
    if figures["answer"] is not None:
        user = shlex.quote(figures["answer"]["user"])
        yield f"{program} recommend {checkpoints} --user {user} -k 10"
    yield f"{program} export {checkpoints} --out vectors.npz"
    yield f"{program} replay synthetic {data} --events 50000 --seed 1"
    yield f"{program} run {data} --until-end"
