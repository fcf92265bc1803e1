"""`streamer compare`: methods on a log, before they go live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.replay.cli.logs import opened_log
from streamer.replay.settings import EvaluationSettings, LogSettings

if TYPE_CHECKING:
    from streamer.replay.datasets import Log
    from streamer.replay.evaluation.results import Spec

METHODS = "ssl,ssl-pop,mns,g-tower,bir,xir"


@click.command(cls=GroupedCommand)
@option("Runs", "--methods", default=METHODS, help="Methods, separated by commas.")
@settings_options(EvaluationSettings, environment=())
@option(
    "Output",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for results.json and results.md. Runs that it holds already are not run again.",
)
@option(
    "Output",
    "--json",
    "as_json",
    is_flag=True,
    help="Print runs as JSON instead of tables.",
)
def compare(
    settings: EvaluationSettings, methods: str, out: Path | None, as_json: bool
) -> None:
    """Compare methods on a log: the same events in the same order for all, beside
    trivial recommenders.

    A comparison that was stopped goes on where it was when the same command is given
    again.
    """
    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
    from msgspec import json
    from msgspec.structs import replace

    from streamer.replay.evaluation.printed import printed, verdict
    from streamer.replay.evaluation.results import Results
    from streamer.replay.evaluation.runs import plan_runs, run_all
    from streamer.replay.evaluation.tables import markdown
    from streamer.replay.streams import log_name
    from streamer.snapshot.directory import whole_file

    # 1. what can be wrong, before the first run takes its time
    chosen = [name.strip() for name in methods.split(",") if name.strip()]
    specs = plan_runs(settings, chosen)
    with opened_logs(settings) as logs:
        content = "+".join(log_name(log, settings) for log in logs)
        specs = [replace(spec, content=content) for spec in specs]
        # 2. the runs
        runs = run_all(specs, logs, Results(out), print_progress)
    # 3. what they found
    if out is not None:
        page = f"{markdown(runs)}\n{verdict(runs)}\n"
        with whole_file(out / "results.md") as file:
            file.write(page.encode())
        click.echo(f"results.json and results.md are written to {out}", err=True)
    click.echo(json.encode(runs).decode() if as_json else printed(runs))


@contextmanager
def opened_logs(settings: EvaluationSettings) -> Iterator[Sequence[Log]]:
    """The log and the test beside it; or all periods."""
    from streamer.replay.datasets.files import periods

    paths = [settings.data]
    if settings.protocol == "periods":
        paths = periods(settings.data)
    if settings.test is not None:
        paths.append(settings.test)
    format = settings.format
    if format is None and settings.protocol in ("sessions", "periods"):
        format = "sessions"
    with ExitStack() as stack:
        opened = [opened_log(p, format, settings.only(LogSettings)) for p in paths]
        yield [stack.enter_context(log) for log in opened]


def print_progress(spec: Spec, share: float, text: str) -> None:
    """Print how far a run is."""
    from streamer.replay.evaluation.results import settings_text

    changes = f" ({settings_text(spec.settings)})" if spec.settings else ""
    run = f"{spec.data}, {spec.protocol}, {spec.method}{changes}, seed {spec.seed}"
    click.echo(f"{run}: {share:.0%}, {text}", err=True)
