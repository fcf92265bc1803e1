"""The command line: one lazily imported module for each command, so that `--help` never
loads torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib import metadata

import click

from streamer import DISTRIBUTION
from streamer.errors import SettingsError, StreamerError

COMMANDS = {
    "up": "streamer.replay.cli.up:up",
    "run": "streamer.cli.run:run",
    "serve": "streamer.cli.serve:serve",
    "recommend": "streamer.cli.recommend:recommend",
    "inspect": "streamer.cli.inspect:inspect",
    "export": "streamer.cli.export:export",
    "checkpoint": "streamer.cli.checkpoint:checkpoint",
    "reset": "streamer.cli.reset:reset",
    "store": "streamer.cli.store:store",
    "doctor": "streamer.cli.doctor:doctor",
    "replay": "streamer.replay.cli.replay:replay",
    "compare": "streamer.replay.cli.compare:compare",
    "demo": "streamer.replay.cli.demo:demo",
}
"""Command name -> where it is implemented."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(metadata.version(DISTRIBUTION), prog_name="streamer")
def cli() -> None:
    """Online learning of recommender retrievers from event streams."""


def main() -> None:
    """Run the command line; errors that Streamer raises on purpose become one clear
    line.
    """
    # Idle OpenMP threads should sleep, not spin: the trainer shares its cores with
    # servers and other trainers.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        cli(prog_name="streamer")
    except SettingsError as error:
        for problem in error.problems:
            click.echo(f"streamer: {problem}", err=True)
        sys.exit(2)
    except StreamerError as error:
        click.echo(f"streamer: {error}", err=True)
        sys.exit(1)
