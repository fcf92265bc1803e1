"""`streamer bench`: measure on this machine."""

from __future__ import annotations

import json

import click

from streamer.bench.base import Bench
from streamer.bench.catalogue import BENCHES
from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.cli.output import render


@click.group()
def bench() -> None:
    """Measure Streamer on this machine, always against a named alternative in the same
    run.
    """


def _command(kind: type[Bench]) -> click.Command:
    @click.command(kind.name, cls=GroupedCommand, help=kind.__doc__)
    @settings_options(
        kind, environment=()
    )  # variables of a run would change the figures
    @option("Report", "--json", "as_json", is_flag=True, help="Print one JSON object.")
    def measure(settings: Bench, as_json: bool) -> None:
        result = settings.run()
        click.echo(json.dumps(result) if as_json else render(result))

    return measure


for kind in BENCHES:
    bench.add_command(_command(kind))
