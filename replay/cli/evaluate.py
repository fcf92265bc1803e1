"""`streamer evaluate`, `compare` and `sweep`: methods on a log, before they go live."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamer.cli.options import F, GroupedCommand, option
from streamer.replay.cli.replay import as_log_options, check_left, log_options

if TYPE_CHECKING:
    from streamer.replay.evaluation.record import Record, Records
    from streamer.replay.evaluation.running import Progress
    from streamer.replay.evaluation.spec import Spec

Options = dict[str, Any]

_DATA, _RUNS, _OUTPUT = "Data", "Runs", "Output"

RESULTS = ("results.json", "results.md", "report.html")
METHODS = "ssl,ssl-pop,mns,g-tower,bir,xir"
ABLATIONS = (
    "lambda=0,0.1,0.2,0.4,0.6,0.8,1",
    "batch-size=512,1024,2048,4096",
    "draws=128,512,1024,2048",
    "cache-size=1024,2048,4096,8192",
    "learning-rate=0.003,0.01,0.03",
)
"""The paper's ablations, and the rate."""


def evaluation_options(function: F) -> F:
    """What is run, on what, and where figures go."""
    for decorate in reversed(
        [
            option(_DATA, "--data", required=True, multiple=True, metavar="PATH", help="Log; repeat it for several."),
            option(_DATA, "--format", "kind", help="Its format, as `streamer replay --help` lists. [default: guessed]"),
            option(
                _DATA,
                "--name",
                "names",
                multiple=True,
                help="What figures call it; one for each --data. [default: the name of the file]",
            ),
            option(
                _RUNS,
                "--protocol",
                type=click.Choice(["offline", "prequential"]),
                default="prequential",
                help="Prequential: the production line, each event ranked before it is trained. Offline: the paper's.",
            ),
            option(_RUNS, "--seeds", type=click.IntRange(1), default=1, help="How many, from 0."),
            option(
                _RUNS,
                "--set",
                "changes",
                multiple=True,
                metavar="NAME=VALUE",
                help="A setting: prequential has the options of `streamer run` for the model, its method and learning, "
                "and batch_size, ks, delay_events, delay_seconds, ...; offline has epochs, learning_rate, l2, dim, "
                "batch_size, cache_weight, draws, cache_size, ... Repeat it for several.",
            ),
            option(_RUNS, "--threads", type=click.IntRange(1), help="Of torch. [default: one for each core]"),
        ]
    ):
        function = decorate(function)
    return log_options(function)


_out = option(
    _OUTPUT,
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory for results.json, results.md and report.html. What it holds already is not run again.",
)


@click.command(cls=GroupedCommand)
@option(_RUNS, "--method", default="xir", help="One method.")
@evaluation_options
@option(_OUTPUT, "--json", "as_json", is_flag=True, help="Print rows as JSON instead of a table.")
@option(_OUTPUT, "--out", type=click.Path(file_okay=False, path_type=Path), help="Directory for the same and a report.")
def evaluate(method: str, out: Path | None, as_json: bool, **options: Any) -> None:
    """Evaluate one method on a log, against trivial recommenders."""
    from tempfile import TemporaryDirectory

    from streamer.replay.evaluation.tables import markdown

    with TemporaryDirectory() as scratch:
        records = _run([method], [{}], out or Path(scratch), options)
        if out is not None:
            _finish(out, records, f"{method} on {_files(options)}", markdown(records))
    _show(records, markdown(records), as_json)


@click.command(cls=GroupedCommand)
@option(_RUNS, "--methods", default=METHODS, show_default=True, help="Separated by commas.")
@evaluation_options
@_out
@option(_OUTPUT, "--json", "as_json", is_flag=True, help="Print rows as JSON instead of tables.")
def compare(methods: str, out: Path, as_json: bool, **options: Any) -> None:
    """Compare methods on a log: the same events in the same order for all.

    A comparison that was stopped goes on where it was when the same command is given again.
    """
    from streamer.replay.evaluation.tables import markdown

    records = _run(_listed(methods), [{}], out, options)
    tables = markdown(records)
    _finish(out, records, f"Methods on {_files(options)}", tables)
    _show(records, tables, as_json)


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
@evaluation_options
@_out
@option(_OUTPUT, "--json", "as_json", is_flag=True, help="Print rows as JSON instead of tables.")
def sweep(method: str, over: tuple[str, ...], out: Path, as_json: bool, **options: Any) -> None:
    """Change one setting at a time, as in the paper's ablations."""
    from streamer.replay.evaluation.tables import sweep_markdown

    axes, fixed = _axes(over or ABLATIONS), _fixed(options)
    changes = [{name: value} for name, values in axes.items() for value in values]
    records = _run(_listed(method), changes, out, options)
    tables = sweep_markdown(records, list(axes), fixed)
    _finish(out, records, f"{method} on {_files(options)}, one setting at a time", tables, list(axes), fixed)
    _show(records, tables, as_json)


def _axes(texts: Sequence[str]) -> dict[str, list[str]]:
    """Settings and their values.

    Raises:
        SettingsError: one has none.
    """
    from streamer.errors import SettingsError
    from streamer.replay.evaluation.spec import parsed

    axes: dict[str, list[str]] = {}
    for text in texts:
        for name, values in parsed((text,), "over").items():
            axes[name] = list(dict.fromkeys([*axes.get(name, []), *_listed(values)]))
    if empty := [name for name, values in axes.items() if not values]:
        raise SettingsError([f"--over {name} has no value: write NAME=V1,V2,..." for name in empty])
    return axes


# what the commands share ----------------------------------------------------------------------------------------------


def _run(methods: Sequence[str], changes: Sequence[Options], out: Path, options: Options) -> list[Record]:
    """Run every method with every change and seed, on every log; what is there already is kept.

    Raises:
        StreamerError: settings are wrong, or a log cannot be read.
    """
    if options["threads"]:
        import torch

        torch.set_num_threads(options["threads"])
    from dataclasses import replace

    from streamer.replay.evaluation.checks import check_methods, check_settings
    from streamer.replay.evaluation.record import Records, check_written
    from streamer.replay.evaluation.spec import Spec

    # 1. what can be wrong, before the first run takes its time
    check_methods(methods)
    fixed, used, paths = _fixed(options), _told(options), _paths(options)
    all_specs = [
        Spec("", options["protocol"], method, seed, fixed | change, used)
        for change in changes
        for seed in range(options["seeds"])
        for method in methods
    ]
    specs = list({spec.key: spec for spec in all_specs}.values())
    check_settings(specs)
    kept = Records(out)
    kept.check([replace(spec, data=name) for name in paths for spec in specs])
    check_written([out / name for name in RESULTS])
    # 2. the runs, log by log
    return [record for name, path in paths.items() for record in _run_log(name, path, specs, kept, options)]


def _run_log(name: str, path: str, specs: Sequence[Spec], kept: Records, options: Options) -> list[Record]:
    """Run the specs on one log."""
    from dataclasses import replace

    from streamer.replay.cli.writing import report
    from streamer.replay.datasets import open_log
    from streamer.replay.evaluation.checks import check_features
    from streamer.replay.evaluation.running import Data, run_all
    from streamer.replay.streams import log_name

    chosen = as_log_options(options)
    with open_log(path, options["kind"], chosen) as log:
        report(log.malformed, path)
        check_left(log)
        check_features(specs, log)
        content = log_name(log.name, log.files, chosen, 1)
        ours = [replace(spec, data=name, content=content) for spec in specs]
        with _watching(len(ours)) as watcher:
            return run_all(ours, Data(name, log), kept, watcher)


def _paths(options: Options) -> dict[str, str]:
    """The logs by their names.

    Raises:
        SettingsError: two are called alike.
        SourceError: one is not there.
    """
    from streamer.errors import SettingsError
    from streamer.replay.datasets.files import Location

    paths, names = options["data"], options["names"] or [_name(path) for path in options["data"]]
    if len(names) != len(paths):
        raise SettingsError([f"--name is given {len(names)} times: give one for each of the {len(paths)} --data"])
    alike = dict.fromkeys(name for name in names if names.count(name) > 1)
    if alike:
        raise SettingsError([f"several --data are called {n!r}: give each its own by --name" for n in alike])
    for path in paths:
        Location(path, Path()).close()
    return dict(zip(names, paths, strict=True))


def _fixed(options: Options) -> Options:
    """Settings of every run. Features of the log that are asked for are learned from, unless --set names others.

    Raises:
        SettingsError: one is no setting, or features are asked for where nothing learns from them.
    """
    from streamer.errors import SettingsError
    from streamer.replay.evaluation.spec import parsed

    features: Options = {}
    for side in ("item", "user"):
        asked = options[f"{side}_features"]
        if asked and options["protocol"] == "offline":
            raise SettingsError([f"--{side}-feature: the offline protocol learns from ids alone; leave it out"])
        names = [name for name in asked if not name.endswith(":float")]
        numbers = [name.removesuffix(":float") for name in asked if name.endswith(":float")]
        features |= {f"{side}_features": names, f"{side}_numeric_features": numbers}
    return {name: value for name, value in features.items() if value} | parsed(options["changes"], "set")


def _told(options: Options) -> Options:
    """What of the log is used, where it is not all of it; part of a run's name."""
    filters = ["event_types", "min_rating", "since", "until", "sample_users", "k_core", "limit", "seed"]
    names = ["columns", *filters, "min_user_events", "min_item_events", "item_features", "user_features"]
    return {name: options[name] for name in names if options[name]}


def _name(path: str) -> str:
    """`logs/gowalla.inter.gz` is gowalla."""
    return Path(path).name.split(".")[0]


def _files(options: Options) -> str:
    """The logs, for a title."""
    return ", ".join(Path(path).name for path in options["data"])


def _listed(text: str) -> list[str]:
    """Each part once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _finish(
    out: Path,
    records: Sequence[Record],
    title: str,
    tables: str,
    axes: Sequence[str] = (),
    fixed: Options | None = None,
) -> None:
    """Write results.json, results.md and report.html."""
    from streamer.replay.evaluation.record import result_rows, written
    from streamer.replay.evaluation.report import page

    rows, report = json.dumps(result_rows(records), indent=1), page(title, tables, records, axes, fixed)
    paths = [out / name for name in RESULTS]
    for path, text in zip(paths, (rows, tables, report), strict=True):
        written(path, text.encode())
    click.echo("{}, {} and {} are written".format(*paths), err=True)


def _show(records: Sequence[Record], tables: str, as_json: bool) -> None:
    from streamer.replay.evaluation.record import result_rows

    click.echo(json.dumps(result_rows(records)) if as_json else tables)


class _Lines:
    """Tells of runs in lines, where there is no terminal."""

    def begin(self, spec: Spec) -> Progress:
        click.echo(f"{_title(spec)} begins", err=True)
        tenths = 0

        def told(share: float, text: str) -> None:
            nonlocal tenths
            if int(10 * share) > tenths:
                tenths = int(10 * share)
                click.echo(f"{_title(spec)}: {share:.0%}, {text}", err=True)

        return told

    def end(self, spec: Spec, record: Record, kept: bool) -> None:
        click.echo(f"{_title(spec)}: {'kept' if kept else _seconds(record)}", err=True)


class _Bars:
    """Tells of runs by progress bars."""

    def __init__(self, bars: Any, runs: int) -> None:
        self._bars = bars
        self._all = bars.add_task("all runs", total=runs, text="")
        self._one = bars.add_task("", total=1.0, text="", visible=False)

    def begin(self, spec: Spec) -> Progress:
        self._bars.reset(self._one, description=_title(spec), total=1.0, visible=True)
        return lambda share, text: self._bars.update(self._one, completed=share, text=text)

    def end(self, spec: Spec, record: Record, kept: bool) -> None:
        self._bars.advance(self._all)


@contextmanager
def _watching(runs: int) -> Iterator[Any]:
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[text]}"),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bars:
        yield _Bars(bars, runs)


def _title(spec: Spec) -> str:
    from streamer.replay.evaluation.tables import told

    changes = f" ({told(dict(spec.settings))})" if spec.settings else ""
    return f"{spec.data}, {spec.protocol}, {spec.method}{changes}, seed {spec.seed}"


def _seconds(record: Record) -> str:
    return f"{record.about['seconds']:.0f} s"
