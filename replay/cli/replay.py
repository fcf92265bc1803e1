"""`streamer replay`: write the events of a data set to a topic, at a pace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamer.cli.options import F, GroupedCommand, option, setting_option
from streamer.model.setting import parse_pairs
from streamer.replay.cli.notices import showing_notices
from streamer.settings import StreamSettings

if TYPE_CHECKING:
    from streamer.replay.datasets import DatasetFormat, Log, LogOptions

Options = dict[str, Any]

_TOPIC, _PACE, _EVENTS, _FILTERS = "Topic", "Pace", "Events", "Filters, in this order"
_READING, _OUTPUT = "Reading", "Output"


class DatasetGroup(click.Group):
    """A command for each data set, beside those that are defined here."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from streamer.replay.datasets import DATASETS

        return [*DATASETS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        from streamer.replay.datasets import DATASETS

        return dataset_command(DATASETS[cmd_name]) if cmd_name in DATASETS else None


@click.group(cls=DatasetGroup)
def replay() -> None:
    """Write the events of a data set to a topic, at a pace, for `streamer run` to learn from.

    Events come in the order of their times, those of equal time shuffled by a seed, and keyed by their user. Without
    --bootstrap-servers they go to the embedded log, which is created if it is not there.

    A replay that was stopped, or killed, goes on where it was when the same command is given again: no event is lost,
    none is doubled. --restart writes all of them again.

    In Kafka, events are written by transactions. A reader that does not ask for committed records
    (isolation_level=read_committed) also sees the events of a write that a kill cut off, and sees them again when the
    replay goes on.
    """


def topic_options(function: F) -> F:
    """Where events are written, and how fast."""
    for decorate in reversed(
        [
            option(_TOPIC, "--topic", envvar="STREAMER_TOPIC", default="interactions", help="Topic to write to."),
            setting_option(StreamSettings, "data_dir", _TOPIC),
            option(
                _TOPIC,
                "--partitions",
                type=click.IntRange(1),
                help="Partitions of a new topic of the embedded log. [default: 4]",
            ),
            setting_option(
                StreamSettings, "bootstrap_servers", _TOPIC, help="Write to Kafka instead: host:port[,host:port]."
            ),
            setting_option(StreamSettings, "kafka", _TOPIC),
            setting_option(StreamSettings, "kafka_config", _TOPIC),
            option(
                _TOPIC,
                "--restart",
                is_flag=True,
                help="Write all events again, also those that the topic has from the same command.",
            ),
            option(
                _TOPIC,
                "--no-resume",
                is_flag=True,
                help="The same, and remember nothing: without transactions, and without rights to Kafka's group and "
                "transactional ids streamer-replay-<name>.",
            ),
            option(_PACE, "--rate", type=float, help="Events a second. [default: as fast as possible]"),
            option(_PACE, "--speed", type=float, help="Times real time: 60 writes an hour of events in a minute."),
            option(_PACE, "--max-gap", type=float, help="With --speed: longest pause between events, in seconds."),
            option(_OUTPUT, "--json", "as_json", is_flag=True, help="At the end, print one JSON object."),
        ]
    ):
        function = decorate(function)
    return function


def log_options(function: F) -> F:
    """What of a log becomes events; while the command runs, it shows what the reader says."""
    function = showing_notices(function)
    columns = ("--column", "--field", "columns")
    for decorate in reversed(
        [
            option(
                _EVENTS,
                *columns,
                multiple=True,
                metavar="OURS=THEIRS",
                help="Column of a field, e.g. user_id=uid, or by its number, user_id=1; ours are user_id, item_id, "
                "timestamp, rating, event_type. Repeat it for several.",
            ),
            option(
                _EVENTS,
                "--item-feature",
                "item_features",
                multiple=True,
                metavar="COLUMN",
                help="Column that says something of the item; price:float for a number. Repeat it for several. "
                "[default: those that the data set is known for]",
            ),
            option(
                _EVENTS,
                "--user-feature",
                "user_features",
                multiple=True,
                metavar="COLUMN",
                help="The same of the user.",
            ),
            option(
                _EVENTS,
                "--seed",
                type=click.IntRange(0),
                default=0,
                help="Orders events of equal time, and chooses users.",
            ),
            option(
                _FILTERS,
                "--event-type",
                "event_types",
                multiple=True,
                help="Only events of this type. Repeat it for several.",
            ),
            option(_FILTERS, "--min-rating", type=float, help="Only events with at least this rating."),
            option(
                _FILTERS, "--since", metavar="TIME", help="Only events at this time or later: ISO 8601, or seconds."
            ),
            option(_FILTERS, "--until", metavar="TIME", help="Only events before this time."),
            option(
                _FILTERS,
                "--sample-users",
                type=float,
                metavar="N",
                help="So many users, or a share of them (0.1), chosen by the seed.",
            ),
            option(
                _FILTERS,
                "--k-core",
                type=click.IntRange(0),
                metavar="K",
                help="Only users and items with K events each, once all others are gone.",
            ),
            option(
                _FILTERS, "--min-user-events", type=click.IntRange(0), help="The same for users alone. [default: K]"
            ),
            option(
                _FILTERS, "--min-item-events", type=click.IntRange(0), help="The same for items alone. [default: K]"
            ),
            option(_FILTERS, "--limit", type=click.IntRange(1), help="Only the first so many events."),
            option(_READING, "--delimiter", help="Between columns. [default: as the file shows]"),
            option(
                _READING,
                "--header/--no-header",
                default=None,
                help="Whether the first line names the columns. [default: as the file shows]",
            ),
            option(_READING, "--memory-limit", default="1GB", help="Of sorting; what is more goes to disk."),
            option(
                _READING,
                "--temp-dir",
                type=click.Path(file_okay=False, path_type=Path),
                help="Where. [default: that of the system]",
            ),
        ]
    ):
        function = decorate(function)
    return function


_passes_option = option(
    _EVENTS,
    "--passes",
    type=click.IntRange(1),
    default=1,
    help="Write the log so many times; each pass shuffles equal times anew, and its times follow on.",
)


def dataset_command(dataset: DatasetFormat) -> click.Command:
    """The command of a data set."""
    if dataset.name == "jsonl":
        return jsonl

    @click.command(name=dataset.name, cls=GroupedCommand, help=dataset.help)
    @_path_option("File, directory or pattern; plain or compressed.")
    @_passes_option
    @log_options
    @topic_options
    def command(path: str, **options: Any) -> None:
        write_log(dataset.name, path, options)

    return command


def _path_option(text: str) -> Callable[[F], F]:
    return option(_EVENTS, "--path", required=True, metavar="PATH", help=text)


@click.command(cls=GroupedCommand)
@_path_option("File of JSON lines, plain or compressed; - for standard input.")
@option(
    _EVENTS,
    "--in-order",
    is_flag=True,
    help="Keep the lines as they are and in their order; only --limit, and only plain files or .gz.",
)
@_passes_option
@log_options
@topic_options
def jsonl(path: str, in_order: bool, **options: Any) -> None:
    """Write the events of a file of JSON lines.

    A line is an event, {"user_id": "ann", "item_id": 42, "timestamp": 1700000000}. A line that is none is reported with
    its number, and the rest goes on. With --in-order, and from standard input, lines may also hold arrays of events;
    they are written at once, with all their fields, and in the order in which they stand.
    """
    if not in_order and path != "-":
        write_log("jsonl", path, options)
        return
    _check_in_order()
    from streamer.event import EventSettings
    from streamer.replay.cli.writing import finish, report, write
    from streamer.replay.json_lines import JsonLines, check_readable
    from streamer.replay.resume import replay_name
    from streamer.replay.streams import LinesStream

    fields = parse_pairs(options["columns"])
    reader = JsonLines(path, EventSettings(fields=fields))
    name = None
    if path != "-" and not _is_pipe(Path(path)):
        check_readable(Path(path))
        name = replay_name("lines", {"fields": fields, "limit": options["limit"]}, [Path(path)])
    stream = LinesStream(reader, name, options["limit"])
    finish(write(stream, options), options, stream.malformed)
    report(stream.malformed, path)


def _is_pipe(path: Path) -> bool:
    """Whether what is read from it is gone: a named pipe, the shell's <(...), a terminal."""
    return path.is_fifo() or path.is_char_device()


def _check_in_order() -> None:
    """Lines that are written as they come cannot be sorted, filtered, or written twice.

    Raises:
        SettingsError: with every option that needs the whole log first.
    """
    from click.core import ParameterSource

    from streamer.errors import SettingsError

    ctx, fitting = click.get_current_context(), {"path", "in_order", "columns", "limit"}
    of_logs = [p for p in ctx.command.params if getattr(p, "heading", "") in (_EVENTS, _FILTERS, _READING)]
    given = [p for p in of_logs if ctx.get_parameter_source(str(p.name)) is not ParameterSource.DEFAULT]
    problems = [p.opts[0] for p in given if p.name not in fitting]
    if problems:
        raise SettingsError([f"{name} needs all events at once: not with --in-order, or --path -" for name in problems])


@replay.command(cls=GroupedCommand)
@option(_EVENTS, "--events", type=click.IntRange(1), default=100_000, help="How many.")
@option(_EVENTS, "--seed", type=click.IntRange(0), default=0, help="Determines all of them.")
@topic_options
def synthetic(events: int, seed: int, **options: Any) -> None:
    """Write a made-up stream: long-tailed, with tastes, sessions and drift.

    Events happen when they are written: they have no times of their own. By --speed 1 a session of eight events begins
    every two seconds.
    """
    from streamer.replay.cli.writing import finish, write
    from streamer.replay.streams import SyntheticReplay

    finish(write(SyntheticReplay(events, seed), options), options)


def write_log(kind: str, path: str, options: Options) -> None:
    """Write the events of a data set.

    Raises:
        StreamerError: it cannot be read as asked, or not be written.
    """
    from streamer.errors import SettingsError
    from streamer.replay.cli.writing import finish, report, write
    from streamer.replay.datasets import open_log
    from streamer.replay.pacing import make_pace
    from streamer.replay.streams import LogStream, log_name

    make_pace(options["rate"], options["speed"], options["max_gap"])  # before much is read in vain
    chosen = as_log_options(options)
    with open_log(path, kind, chosen) as log:
        report(log.malformed, path)
        check_left(log)
        if options["speed"] is not None and not log.has_time:
            raise SettingsError([f"--speed follows the times of events, and {path} has none: give --rate instead"])
        name = log_name(kind, log.files, chosen, options["passes"])
        stream = LogStream(log, name, options["passes"], chosen.seed)
        finish(write(stream, options), options, log.malformed)


def check_left(log: Log) -> None:
    """See that a log has events.

    Raises:
        SourceError: the filters left none.
    """
    from streamer.errors import SourceError

    if not len(log):
        raise SourceError(f"{log.path}: the filters leave none of its events")


def as_log_options(options: Options) -> LogOptions:
    """Options of the command line as those of a log.

    Raises:
        SettingsError: with every problem at once.
    """
    from streamer.errors import SettingsError
    from streamer.replay.datasets import LogOptions

    core = options["k_core"] or 0
    sample = options["sample_users"]
    plain = ("event_types", "min_rating", "since", "until", "limit", "seed", "delimiter", "header")
    chosen = LogOptions(
        columns=parse_pairs(options["columns"]),
        item_features=options["item_features"] or None,
        user_features=options["user_features"] or None,
        sample_users=int(sample) if sample is not None and sample >= 1 and sample.is_integer() else sample,
        min_user_events=core if options["min_user_events"] is None else options["min_user_events"],
        min_item_events=core if options["min_item_events"] is None else options["min_item_events"],
        memory_limit=options["memory_limit"],
        temp_dir=options["temp_dir"],
        **{name: options[name] for name in plain},
    )
    if problems := chosen.problems():
        raise SettingsError(problems)
    return chosen
