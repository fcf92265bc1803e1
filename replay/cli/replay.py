"""`streamer replay`: write the events of a data set to a topic, at a pace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.errors import SettingsError
from streamer.replay.cli.logs import opened_log
from streamer.replay.cli.writing import write
from streamer.replay.settings import LogSettings, ReplaySettings, WriteSettings

if TYPE_CHECKING:
    from streamer.replay.datasets import DatasetFormat


class DatasetGroup(click.Group):
    """A command for each data set, beside those that are defined here."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from streamer.replay.datasets import DATASETS

        return [*DATASETS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from streamer.replay.datasets import DATASETS

        if cmd_name in DATASETS:
            return dataset_command(DATASETS[cmd_name])
        return super().get_command(ctx, cmd_name)


@click.group(cls=DatasetGroup)
def replay() -> None:
    """Write the events of a data set to a topic, for `streamer run` to learn from.

    Events are written in the order of their times, those of equal time shuffled by a
    seed, with the user as key. Without --bootstrap-servers they go to the embedded log,
    which is created if it is not there.

    A replay that was stopped or killed resumes when the same command is given again: no
    event is lost or doubled. --restart writes all of them again.

    In Kafka, events are written by transactions. A reader that does not ask for
    committed records (isolation_level=read_committed) also sees the events of a
    transaction that was cut off, and again when the replay resumes.
    """


_json_option = option(
    "Output",
    "--json",
    "as_json",
    is_flag=True,
    help="At the end, print one JSON object.",
)


def dataset_command(dataset: DatasetFormat) -> click.Command:
    """The command of a data set."""

    @click.command(name=dataset.name, cls=GroupedCommand, help=dataset.help)
    @settings_options(ReplaySettings, environment=WriteSettings.ENVIRONMENT)
    @_json_option
    def command(settings: ReplaySettings, as_json: bool) -> None:
        write_log(dataset.name, settings, as_json)

    return command


@replay.command(cls=GroupedCommand)
@option(
    "Events",
    "--events",
    type=click.IntRange(1),
    default=100_000,
    help="Number of events.",
)
@option(
    "Events", "--seed", type=click.IntRange(0), default=0, help="Seed of the stream."
)
@settings_options(WriteSettings, environment=WriteSettings.ENVIRONMENT)
@_json_option
def synthetic(settings: WriteSettings, events: int, seed: int, as_json: bool) -> None:
    """Write a made-up stream: long-tailed, with tastes, sessions and drift.

    Events have no times of their own: they happen when they are written. With --speed 1
    a session of eight events begins every two seconds.
    """
    from streamer.replay.streams import synthetic_stream

    write(synthetic_stream(events, seed), settings, as_json)


def write_log(kind: str, settings: ReplaySettings, as_json: bool) -> None:
    """Write the events of a data set, and its catalogue before if that is wanted."""
    from streamer.replay.streams import catalogue_stream, log_name, log_stream

    with opened_log(settings.path, kind, settings.only(LogSettings)) as log:
        if settings.speed is not None and not log.has_time:
            raise SettingsError(
                [
                    f"--speed follows the times of events, and {log.path} has none: give --rate instead"
                ]
            )
        name = log_name(log, settings)
        if (topic := settings.catalogue_topic) is not None:
            catalogue = catalogue_stream(log.catalogue(), f"{name}-catalogue")
            at_once = replace(
                settings, topic=topic, rate=None, speed=None, max_gap_s=None
            )
            write(catalogue, at_once, as_json)
        write(log_stream(log, name), settings, as_json, log.malformed)
