"""Options of commands: those of settings are generated from their dataclasses.

A value comes from the command line, else from an environment variable
(STREAMER_BATCH_SIZE), else from the file given by `--config`, else from the default of
the setting. Settings for experts have no option: `--set NAME=VALUE` gives them.
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from streamer.errors import SettingsError
from streamer.model.setting import (
    Setting,
    Settings,
    nearest,
    parse_pairs,
    parse_settings,
)
from streamer.serve.settings import ServeSettings
from streamer.settings import RunSettings

F = TypeVar("F", bound=Callable[..., Any])

FILE: dict[str, Any] = {
    "type": click.Path(dir_okay=False, path_type=Path),
    "required": True,
    "metavar": "FILE",
}
"""What an option that names a file has in common with others."""
COMMON = "Options that most runs need"
CONFIGURATION = "Configuration"
VARIABLE = "STREAMER_"
"""Every environment variable of ours begins with this."""
COMMAND_VARIABLES = ("CONFIG", "SET", "JSON")
"""Variables of options that are no settings."""
OTHER_VARIABLES = ("KAFKA_", "TEST_")
"""Variables that begin like this are read elsewhere."""
_FROM_FILE = "streamer.settings_of_file"


class GroupedCommand(click.Command):
    """A command that shows its options by heading."""

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        groups: dict[str, list[tuple[str, str]]] = {COMMON: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                heading = getattr(parameter, "heading", "Options")
                groups.setdefault(heading, []).append(record)

        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class GroupedOption(click.Option):
    """An option with a heading."""

    def __init__(self, *args: Any, heading: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


def option(heading: str, *names: str, **attributes: Any) -> Callable[[F], F]:
    """A click option under a heading, its default shown.

    It has no environment variable unless one is given.
    """
    is_flag = attributes.get("is_flag", False)
    default = attributes.get("default")
    attributes.setdefault("show_default", not is_flag and default is not None)
    return click.option(*names, cls=GroupedOption, heading=heading, **attributes)


json_option = option(
    "Report", "--json", "as_json", is_flag=True, help="Print one JSON object."
)
set_option = option(
    CONFIGURATION,
    "--set",
    "set_",
    envvar=f"{VARIABLE}SET",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any setting, also those for experts (docs/settings.md); repeat it for several.",
)


def variable(setting: Setting) -> str:
    """The environment variable of a setting."""
    return VARIABLE + setting.option.replace("-", "_").upper()


def setting_option(
    setting: Setting, heading: str | None, has_variable: bool
) -> Callable[[F], F]:
    """The option of one setting: text, or None where it is not given."""
    about = setting.about
    names = [f"--{setting.option}"]
    if setting.base is bool:
        names = [f"--{setting.option}/--no-{setting.option}"]
    if about.also:
        names.append(f"--{about.also}")
    kinds = {int: "INTEGER", float: "NUMBER", Path: "PATH", bool: None}
    metavar = about.metavar or kinds.get(setting.base, "TEXT")
    if setting.choices:
        metavar = f"[{'|'.join(setting.choices)}]"
    return option(
        heading or (COMMON if about.common else setting.heading),
        *names,
        setting.name,
        default=None,
        type=bool if setting.base is bool else str,
        multiple=setting.is_repeated,
        metavar=metavar,
        envvar=variable(setting) if has_variable else None,
        help=_help(setting),
    )


def _help(setting: Setting) -> str:
    """What an option is for, with its default, its unit and its range."""
    about = setting.about
    default = setting.default_text()
    if default and about.unit and setting.default:
        default += f" {about.unit}"
    shown = [f"default: {default}" if default else about.unit]

    starts_at_zero_or_one = about.at_least in (None, 0, 1)
    if not starts_at_zero_or_one or about.above is not None or about.at_most:
        shown.append(setting.range().removeprefix("of "))

    limits = "; ".join(part for part in shown if part)
    return f"{about.help}  [{limits}]" if limits else about.help


def settings_options(
    kind: type[Settings],
    *,
    only: Iterable[str] | None = None,
    heading: str | None = None,
    environment: Collection[str] | None = None,
) -> Callable[[F], F]:
    """Settings of a class as options; the command's function gets them as one object.

    Args:
        kind: which settings.
        only: names of those that are offered; all others have their defaults. None:
            all, and `--set` for those that have no option.
        heading: of all options, instead of those of the settings.
        environment: names of those that environment variables may set, without
            `--config`; None: all, and `--config`.
    """
    offered = {name: kind.all()[name] for name in only or kind.all()}
    experts = []
    if only is None:
        experts = [setting for setting in offered.values() if setting.about.expert]
    shown = [setting for setting in offered.values() if setting not in experts]

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_settings(**given: Any) -> Any:
            texts: dict[str, Any] = {}
            if environment is None:
                check_environment(os.environ, kind)
                texts |= click.get_current_context().meta.get(_FROM_FILE, {})
                for setting in experts:
                    if variable(setting) in os.environ:
                        texts[setting.name] = os.environ[variable(setting)]
            for setting in shown:
                value = given.pop(setting.name)
                if value not in (None, ()):
                    texts[setting.name] = value
            settings = _parsed(kind, texts, given.pop("set_", ()))
            if problems := settings.problems():
                raise SettingsError([_as_option(kind, problem) for problem in problems])
            return function(settings, **given)

        decorated: Any = with_settings
        if experts:
            decorated = set_option(decorated)
        for setting in reversed(shown):
            has_variable = environment is None or setting.name in environment
            decorated = setting_option(setting, heading, has_variable)(decorated)
        if environment is None:
            decorated = config_option(offered, kind)(decorated)
        found: F = decorated
        return found

    return decorate


def _parsed(
    kind: type[Settings], texts: dict[str, Any], pairs: Collection[str]
) -> Settings:
    """Settings from their texts, and from those of `--set`, which win.

    Raises:
        click.UsageError: with every problem at once.
    """
    try:
        return parse_settings(kind, texts | parse_pairs(pairs))
    except ValueError as error:
        (problems,) = error.args
        if isinstance(problems, str):
            problems = [problems]
        lines = [_as_option(kind, problem) for problem in problems]
        raise click.UsageError("\n".join(lines)) from error


def _as_option(kind: type[Settings], problem: str) -> str:
    """A problem of a setting, which it begins with, as one of its option."""
    setting = kind.named(problem.split()[0].rstrip(":"))
    has_option = setting is not None and not setting.about.expert
    return f"--{problem}" if has_option else problem


def check_environment(
    environment: Mapping[str, str], kind: type[Settings] = RunSettings
) -> None:
    """See that every variable of ours is one that some command reads.

    Raises:
        click.UsageError: with every one that is not.
    """
    known = {VARIABLE + name for name in COMMAND_VARIABLES}
    for each in (kind, RunSettings, ServeSettings):
        known |= {variable(setting) for setting in each.all().values()}
    elsewhere = tuple(VARIABLE + name for name in OTHER_VARIABLES)
    problems = []
    for name in sorted(environment):
        is_ours = name.startswith(VARIABLE) and not name.startswith(elsewhere)
        if is_ours and name not in known:
            problems.append(f"there is no variable {name}{nearest(name, known)}")
    if problems:
        raise click.UsageError("\n".join(problems))


# the file -----------------------------------------------------------------------------


def config_option(
    offered: Mapping[str, Setting], kind: type[Settings]
) -> Callable[[F], F]:
    """The option `--config` of a command that offers these settings of a class."""

    def read(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
        if path is not None:
            _read_config(path, ctx, offered, kind)

    return option(
        CONFIGURATION,
        "--config",
        envvar=f"{VARIABLE}CONFIG",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=read,
        is_eager=True,
        expose_value=False,
        help="TOML file with defaults for any setting by its long name.",
    )


def _read_config(
    path: Path,
    ctx: click.Context,
    offered: Mapping[str, Setting],
    kind: type[Settings],
) -> None:
    """Take defaults of settings from a TOML file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.BadParameter(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise click.BadParameter(f"{path} is not TOML: {error}") from error

    known = [setting.option for setting in offered.values()]
    settings: dict[str, Any] = {}
    problems = []
    for name, value in _flattened(values, kind).items():
        setting = kind.named(name)
        if setting is not None and setting.name in offered:
            settings[setting.name] = value
        else:
            problems.append(f"{path} has {name}{nearest(name, known)}")
    if problems:
        raise click.BadParameter("\n".join(problems))
    ctx.meta[_FROM_FILE] = settings


def _flattened(values: Mapping[str, Any], kind: type[Settings]) -> dict[str, Any]:
    """The values of all tables: a table is only a heading, unless a setting that takes
    NAME=VALUE has its name.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        setting = kind.named(name)
        takes_pairs = setting is not None and setting.is_mapping
        if isinstance(value, dict) and not takes_pairs:
            found |= _flattened(value, kind)
        else:
            found[name] = value
    return found
