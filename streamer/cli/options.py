"""Options that commands share, in groups; from the command line, the environment or a file, in this order."""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, TypeVar

import click

from streamer.errors import SettingsError

F = TypeVar("F", bound=Callable[..., Any])


_PROBLEMS = "streamer.problems"


class GroupedCommand(click.Command):
    """A command whose help shows its options under headings, and that tells of all wrong values at once."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        problems: list[click.BadParameter] = ctx.meta.pop(_PROBLEMS, [])
        if problems:
            raise click.UsageError("\n".join(problem.format_message() for problem in problems), ctx)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(parameter, "heading", "Options"), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class GroupedOption(click.Option):
    """An option with a heading."""

    def __init__(self, *args: Any, heading: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Put a wrong value aside, for the command to tell of it together with all others."""
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.BadParameter as problem:
            ctx.meta.setdefault(_PROBLEMS, []).append(problem)
            return None, args


def option(heading: str, *names: str, **attributes: Any) -> Callable[[F], F]:
    """A click option under a heading, its default shown, its environment variable STREAMER_<NAME>."""
    attributes.setdefault(
        "show_default", not attributes.get("is_flag", False) and attributes.get("default") is not None
    )
    attributes.setdefault("show_envvar", False)
    if any(name.startswith("--") for name in names):
        attributes.setdefault("envvar", f"STREAMER_{_long_name(*names).upper()}")
    return click.option(*names, cls=GroupedOption, heading=heading, **attributes)


def _long_name(*names: str) -> str:
    """How an option is called in a file: `--topic` is topic, `--user-ids/--no-user-ids` is user_ids."""
    long = next(name for name in names if name.startswith("--"))
    return long.split("/")[0].removeprefix("--").replace("-", "_")


def read_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Take defaults from a TOML file; every option may stand in it by its long name."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.BadParameter(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise click.BadParameter(f"{path} is not TOML: {error}") from error
    known = {_long_name(*p.opts): p for p in ctx.command.params}
    flat = {key.replace("-", "_"): value for key, value in _flattened(values).items()}
    unknown = sorted(set(flat) - known.keys())
    if unknown:
        raise click.BadParameter(
            f"{path} has {', '.join(unknown)}; see `streamer {ctx.info_name} --help` for the names"
        )
    defaults = {known[key].name: _listed(value) if known[key].multiple else value for key, value in flat.items()}
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return path


def _listed(value: Any) -> Any:
    """A single value of an option that may be repeated as a list of one."""
    return value if isinstance(value, list) else [value]


def _flattened(values: dict[str, Any]) -> dict[str, Any]:
    """Options of all tables; tables are only headings, but for those that are options themselves."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and key.replace("-", "_") not in MAPPINGS:
            found |= _flattened(value)
        elif isinstance(value, dict):
            found[key] = [f"{name}={item}" for name, item in value.items()]
        else:
            found[key] = value
    return found


MAPPINGS = ("kafka", "field")
"""Options that are given as NAME=VALUE, several times; in a file they are tables."""

config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=read_config,
    is_eager=True,
    expose_value=False,
    cls=GroupedOption,
    heading="Configuration",
    help="TOML file with defaults for any option by its long name.",
)


@contextlib.contextmanager
def without_settings(environ: MutableMapping[str, str]) -> Iterator[None]:
    """An environment without settings of Streamer, for a moment: what is asked of a command then has its defaults."""
    taken = {name: environ.pop(name) for name in list(environ) if name.startswith("STREAMER_")}
    try:
        yield
    finally:
        environ.update(taken)


def defaults_of(command: click.Command, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a command is given when it is called with nothing but these options, whatever the environment says.

    Args:
        command: whose options.
        changes: values by name, as in a configuration file; text is fine for numbers, and several are a list.

    Raises:
        SettingsError: it has no such option, or a value does not fit.
    """
    known = {_long_name(*p.opts): p for p in command.params if isinstance(p, click.Option)}
    unknown = [name for name in changes if name not in known]
    if unknown:
        where = f"`streamer {command.name} --help` lists them"
        raise SettingsError([f"there is no setting {name!r}; {where}" for name in unknown])
    given = {known[n].name: _listed(v) if known[n].multiple else v for n, v in changes.items() if v is not None}
    try:
        with without_settings(os.environ), command.make_context(command.name, [], default_map=given) as ctx:
            return dict(ctx.params)
    except click.UsageError as error:
        raise SettingsError(error.format_message().splitlines()) from error


def pairs(values: tuple[str, ...], option_name: str) -> dict[str, str]:
    """NAME=VALUE options as a dictionary.

    Raises:
        click.BadParameter: one of them has no `=`.
    """
    found = {}
    for text in values:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=f"--{option_name}")
        found[name.strip()] = value.strip()
    return found


_STREAM = "Stream"
_EVENTS = "Events"
_SHARING = "Sharing"
_MODEL = "Model"
_METHOD = "Method"
_LEARNING = "Learning"


def stream_options(function: F) -> F:
    """Where events come from."""
    for decorate in reversed(
        [
            option(
                _STREAM,
                "--topic",
                "topics",
                multiple=True,
                default=("interactions",),
                help="Topic to read; repeat it for several.",
            ),
            option(
                _STREAM,
                "--bootstrap-servers",
                help="Kafka brokers, host:port[,host:port]; without it the embedded log is read.",
            ),
            option(_STREAM, "--group-id", default="streamer", help="Kafka consumer group."),
            option(
                _STREAM,
                "--kafka",
                multiple=True,
                metavar="NAME=VALUE",
                help="Any setting of the Kafka client, e.g. sasl_mechanism=PLAIN; also as STREAMER_KAFKA_<NAME>.",
            ),
            option(
                _STREAM,
                "--kafka-config",
                type=click.Path(dir_okay=False, path_type=Path),
                help="File with settings of the Kafka client (.properties or .toml).",
            ),
            option(
                _STREAM,
                "--start",
                type=click.Choice(["earliest", "latest", "error"]),
                default="earliest",
                help="Where a partition without a position begins.",
            ),
            option(
                _STREAM,
                "--start-timestamp",
                metavar="TIME",
                help="Begin at this time instead: seconds or milliseconds since the epoch, or ISO 8601.",
            ),
            option(
                _STREAM, "--source", metavar="FILE", help="Read JSON lines from a file instead; - for standard input."
            ),
            option(
                _STREAM,
                "--data-dir",
                type=click.Path(file_okay=False, path_type=Path),
                default=Path("streamer-data"),
                help="Directory of the embedded log.",
            ),
        ]
    ):
        function = decorate(function)
    return function


def event_options(function: F) -> F:
    """How records become events."""
    for decorate in reversed(
        [
            option(
                _EVENTS,
                "--field",
                multiple=True,
                metavar="OURS=THEIRS",
                help="Name of a field in your records, e.g. user_id=uid; repeat it for several.",
            ),
            option(
                _EVENTS,
                "--event-type",
                "event_types",
                multiple=True,
                help="Train only on events of this type; repeat it for several.",
            ),
            option(_EVENTS, "--min-rating", type=float, help="Train only on events with at least this rating."),
            option(_EVENTS, "--max-id-length", type=click.IntRange(1), default=256, help="Longest id, in characters."),
            option(
                _EVENTS,
                "--max-features",
                type=click.IntRange(0),
                default=64,
                help="Most features of a user or an item.",
            ),
            option(_EVENTS, "--max-record-bytes", type=click.IntRange(1), default=1 << 20, help="Largest record."),
            option(
                _EVENTS,
                "--dead-letters",
                metavar="NAME",
                help="Topic (Kafka) or file for records that are no events. [default: <topic>.dead-letters]",
            ),
        ]
    ):
        function = decorate(function)
    return function


def store_options(function: F) -> F:
    """Where trainers of a model share what they count, resample and cache."""
    for decorate in reversed(
        [
            option(
                _SHARING,
                "--redis-url",
                help="Redis that trainers share: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://.",
            ),
            option(_SHARING, "--model", default="default", help="Name of the model; several may share a Redis."),
            option(_SHARING, "--redis-namespace", default="streamer", help="What keys in Redis begin with; no colons."),
        ]
    ):
        function = decorate(function)
    return function


def learner_options(function: F) -> F:
    """What is learned, and how."""
    for decorate in reversed(
        [
            option(
                _METHOD,
                "--method",
                type=click.Choice(["ssl", "ssl-pop", "mns", "g-tower", "bir", "xir"]),
                default="xir",
                help="How negatives are chosen and weighted.",
            ),
            option(_METHOD, "--cache-size", type=click.IntRange(0), default=2048, help="Items in the cache (xir)."),
            option(
                _METHOD,
                "--cache-weight",
                type=click.FloatRange(0, 1),
                default=0.05,
                help="Lambda: the cache's share of the loss (xir).",
            ),
            option(
                _METHOD,
                "--cache-correction",
                type=click.Choice(["occurrence", "popularity"]),
                default="occurrence",
                help="Correct cached items by the weight they were drawn with, or by popularity as in the paper (xir).",
            ),
            option(
                _METHOD,
                "--cache-scope",
                type=click.Choice(["all", "touched"]),
                default="all",
                help="Draw the cache among all items, or those touched in the step.",
            ),
            option(
                _METHOD,
                "--draws",
                type=click.IntRange(1),
                help="|R_u|: negatives a query draws. [default: the batch size]",
            ),
            option(
                _METHOD,
                "--resampler",
                type=click.Choice(["systematic", "multinomial"]),
                default="systematic",
                help="How they are drawn.",
            ),
            option(_METHOD, "--mask-own", is_flag=True, help="Remove a query's own positive from its candidates."),
            option(
                _METHOD,
                "--occurrence-half-life",
                type=click.FloatRange(0, min_open=True),
                help="Steps after which what was resampled counts half. [default: never]",
            ),
            option(
                _METHOD,
                "--popularity",
                type=click.Choice(["auto", "exact", "hash"]),
                default="auto",
                help="Estimate that corrects the sampling bias.",
            ),
            option(
                _METHOD,
                "--popularity-half-life",
                type=click.FloatRange(0, min_open=True),
                help="Events after which an event counts half. [default: never]",
            ),
            option(
                _METHOD,
                "--hash-slots",
                type=click.IntRange(1),
                default=1 << 18,
                help="Size of each of G-Tower's five hash arrays.",
            ),
            option(
                _METHOD,
                "--hash-alpha",
                type=click.FloatRange(0, 1, min_open=True),
                default=0.02,
                help="Weight of the newest gap in G-Tower's estimate.",
            ),
            option(
                _METHOD,
                "--hash-clock",
                type=click.Choice(["event", "batch"]),
                default="event",
                help="What G-Tower counts gaps in.",
            ),
            option(_MODEL, "--dim", type=click.IntRange(1), default=64, help="Size of the embeddings."),
            option(
                _MODEL,
                "--recent-items",
                type=click.IntRange(0),
                default=10,
                help="How many of a user's last items make up the user's vector.",
            ),
            option(
                _MODEL,
                "--user-ids/--no-user-ids",
                default=False,
                help="Whether users have an embedding of their own besides.",
            ),
            option(
                _MODEL,
                "--repeat-ranks",
                type=click.IntRange(0),
                default=30,
                help="How many of a user's last items have a repeat bias.",
            ),
            option(
                _MODEL,
                "--companions",
                type=click.IntRange(0),
                default=32,
                help="How many items that users had near each item are kept for the score; needs recent items.",
            ),
            option(
                _MODEL,
                "--init-std",
                type=click.FloatRange(0, min_open=True),
                default=0.03,
                help="Standard deviation of new embeddings.",
            ),
            option(
                _MODEL,
                "--prior",
                type=click.Choice(["off", "fixed", "learned"]),
                default="learned",
                help="Popularity as a part of the score.",
            ),
            option(
                _MODEL,
                "--prior-half-life",
                type=click.FloatRange(0),
                default=5000.0,
                help="Events after which an event counts half in the prior; 0 for never.",
            ),
            option(
                _MODEL,
                "--item-feature",
                "item_features",
                multiple=True,
                help="Categorical item feature to use; repeat it for several.",
            ),
            option(
                _MODEL,
                "--user-feature",
                "user_features",
                multiple=True,
                help="Categorical user feature to use; repeat it for several.",
            ),
            option(
                _MODEL,
                "--item-number",
                "item_numbers",
                multiple=True,
                help="Numeric item feature to use; repeat it for several.",
            ),
            option(
                _MODEL,
                "--user-number",
                "user_numbers",
                multiple=True,
                help="Numeric user feature to use; repeat it for several.",
            ),
            option(
                _MODEL, "--item-layers", metavar="UNITS", help="Fully connected layers of the item tower, e.g. 32,16."
            ),
            option(_MODEL, "--user-layers", metavar="UNITS", help="Fully connected layers of the user tower."),
            option(
                _LEARNING,
                "--optimizer",
                type=click.Choice(["adam", "adagrad", "sgd", "dense-adam"]),
                default="adagrad",
                help="Optimizer of the embedding tables.",
            ),
            option(
                _LEARNING,
                "--rate",
                type=click.FloatRange(0, min_open=True),
                default=0.1,
                help="Learning rate of the embedding tables.",
            ),
            option(
                _LEARNING,
                "--dense-rate",
                type=click.FloatRange(0, min_open=True),
                default=0.02,
                help="Learning rate of everything else.",
            ),
            option(_LEARNING, "--seed", type=int, default=0, help="Determines all initial weights and draws."),
            option(_LEARNING, "--device", default="auto", help="auto, cpu, cuda or cuda:N."),
            option(
                _LEARNING,
                "--threads",
                type=click.IntRange(1),
                help="CPU threads of the training step. [default: all cores]",
            ),
        ]
    ):
        function = decorate(function)
    return function
