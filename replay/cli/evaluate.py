"""`streamer evaluate`, `compare` and `sweep`: methods on a log, before they go live."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.errors import SettingsError
from streamer.replay.cli.logs import opened_log
from streamer.replay.settings import EvaluationSettings, LogSettings

if TYPE_CHECKING:
    from streamer.replay.evaluation.record import Spec
    from streamer.replay.evaluation.runs import OnProgress

_RUNS = "Runs"
_OUTPUT = "Output"

METHODS = "ssl,ssl-pop,mns,g-tower,bir,xir"
ABLATIONS = (
    "lambda=0,0.1,0.2,0.4,0.6,0.8,1",
    "batch-size=512,1024,2048,4096",
    "draws=128,512,1024,2048",
    "cache-size=1024,2048,4096,8192",
    "learning-rate=0.003,0.01,0.03",
)
"""The paper's ablations, and the learning rate."""

_settings_options = settings_options(EvaluationSettings, environment=())
_directory = click.Path(file_okay=False, path_type=Path)
_out_help = "Directory for results.json, results.md and report.html. What it holds already is not run again."
_out_option = option(_OUTPUT, "--out", type=_directory, required=True, help=_out_help)
_json_option = option(
    _OUTPUT,
    "--json",
    "as_json",
    is_flag=True,
    help="Print rows as JSON instead of tables.",
)


@click.command(cls=GroupedCommand)
@option(_RUNS, "--method", default="xir", help="Method to evaluate.")
@_settings_options
@_json_option
@option(_OUTPUT, "--out", type=_directory, help="Directory for results and a report.")
def evaluate(
    settings: EvaluationSettings, method: str, out: Path | None, as_json: bool
) -> None:
    """Evaluate one method on a log, against trivial recommenders."""
    _compare(settings, [method], f"{method} on {_files(settings)}", out, as_json)


@click.command(cls=GroupedCommand)
@option(_RUNS, "--methods", default=METHODS, help="Methods, separated by commas.")
@_settings_options
@_out_option
@_json_option
def compare(
    settings: EvaluationSettings, methods: str, out: Path, as_json: bool
) -> None:
    """Compare methods on a log: the same events in the same order for all.

    A comparison that was stopped goes on where it was when the same command is given
    again.
    """
    _compare(settings, _listed(methods), f"Methods on {_files(settings)}", out, as_json)


@click.command(cls=GroupedCommand)
@option(_RUNS, "--method", default="xir", help="Methods, separated by commas.")
@option(
    _RUNS,
    "--over",
    multiple=True,
    metavar="NAME=V1,V2,...",
    help="A setting and its values, all others at their defaults; lambda is the cache's weight, draws is |R_u|. Repeat "
    f"it for several. [default: the paper's ablations: {'; '.join(ABLATIONS)}]",
)
@_settings_options
@_out_option
@_json_option
def sweep(
    settings: EvaluationSettings,
    method: str,
    over: tuple[str, ...],
    out: Path,
    as_json: bool,
) -> None:
    """Change one setting at a time, as in the paper's ablations."""
    title = f"{method} on {_files(settings)}, one setting at a time"
    _compare(settings, _listed(method), title, out, as_json, over or ABLATIONS)


def _files(settings: EvaluationSettings) -> str:
    return ", ".join(Path(path).name for path in settings.data)


def _listed(text: str) -> list[str]:
    """Each part once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _compare(
    settings: EvaluationSettings,
    methods: Sequence[str],
    title: str,
    out: Path | None,
    as_json: bool,
    over: Sequence[str] = (),
) -> None:
    """Run every method with every seed and every value of `over` on every log; write
    and print what they found.
    """
    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
    from msgspec.structs import replace

    from streamer.replay.datasets.files import Location
    from streamer.replay.evaluation.record import (
        Records,
        check_writable,
        result_rows,
        write_file,
    )
    from streamer.replay.evaluation.report import page
    from streamer.replay.evaluation.runs import (
        check_features,
        common_changes,
        plan_runs,
        run_all,
    )
    from streamer.replay.evaluation.tables import markdown
    from streamer.replay.streams import log_name

    # 1. what can be wrong, before the first run takes its time
    axes = _axes(over)
    changes = [{name: value} for name, values in axes.items() for value in values]
    specs = plan_runs(settings, methods, changes or [{}])
    for path in settings.data:
        Location(path, Path()).close()
    with ExitStack() as stack:
        directory = out or Path(stack.enter_context(TemporaryDirectory()))
        kept = Records(directory)
        results = [directory / f for f in ("results.json", "results.md", "report.html")]
        runs = [
            kept.path(replace(spec, data=name))
            for name in settings.log_names
            for spec in specs
        ]
        check_writable([*runs, *results])
        # 2. the runs, log by log
        records = []
        for path, name in zip(settings.data, settings.log_names, strict=True):
            with opened_log(path, settings.format, settings.only(LogSettings)) as log:
                check_features(specs, log)
                content = log_name(log, settings)
                ours = [replace(spec, data=name, content=content) for spec in specs]
                records += run_all(ours, log, kept, _progress())
    # 3. what they found
    shown = list(axes), common_changes(settings)
    tables = markdown(records, *shown)
    if out is not None:
        rows = json.dumps(result_rows(records), indent=1)
        for file, text in zip(
            results, (rows, tables, page(title, tables, records, *shown)), strict=True
        ):
            write_file(file, text.encode())
        click.echo("{}, {} and {} are written".format(*results), err=True)
    click.echo(json.dumps(result_rows(records)) if as_json else tables)


def _axes(texts: Sequence[str]) -> dict[str, list[str]]:
    """Settings and their values."""
    from streamer.replay.evaluation.runs import parse_changes

    axes: dict[str, list[str]] = {}
    for text in texts:
        for name, values in parse_changes([text], "over").items():
            axes[name] = list(dict.fromkeys([*axes.get(name, []), *_listed(values)]))
    if empty := [name for name, values in axes.items() if not values]:
        raise SettingsError(
            [f"--over {name} has no value: write NAME=V1,V2,..." for name in empty]
        )
    return axes


def _progress() -> OnProgress:
    """Returns what prints how far a run is: a line for each tenth."""
    from streamer.replay.evaluation.record import settings_text

    tenths: dict[str, int] = {}

    def print_line(spec: Spec, share: float, text: str) -> None:
        if tenths.get(spec.key) == int(10 * share):
            return
        tenths[spec.key] = int(10 * share)
        changes = f" ({settings_text(spec.settings)})" if spec.settings else ""
        run = f"{spec.data}, {spec.protocol}, {spec.method}{changes}, seed {spec.seed}"
        click.echo(f"{run}: {share:.0%}, {text}", err=True)

    return print_line
