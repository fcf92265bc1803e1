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
    parse_values,
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
COMMAND_VARIABLES = (
    "CONFIG",
    "SET",
    "JSON",
    "LOG_FORMAT",
    "METRICS_HOST",
    "METRICS_PORT",
    "METRICS_SHOW_VALUES",
)
"""Variables of options that are no settings."""
OTHER_VARIABLES = ("KAFKA_", "TEST_")
"""Variables that begin like this are read elsewhere."""
_PROBLEMS = "streamer.problems"
_FROM_FILE = "streamer.expert_settings"


class GroupedCommand(click.Command):
    """A command that shows its options by heading, and all wrong values at once."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        problems: list[click.BadParameter] = ctx.meta.pop(_PROBLEMS, [])
        if problems:
            messages = [problem.format_message() for problem in problems]
            raise click.UsageError("\n".join(messages), ctx)
        return rest

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

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Put a wrong value aside: the command reports it together with all others."""
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.BadParameter as problem:
            ctx.meta.setdefault(_PROBLEMS, []).append(problem)
            return None, args


def option(heading: str, *names: str, **attributes: Any) -> Callable[[F], F]:
    """A click option under a heading, its default shown.

    It has no environment variable unless one is given.
    """
    is_flag = attributes.get("is_flag", False)
    default = attributes.get("default")
    attributes.setdefault("show_default", not is_flag and default is not None)
    return click.option(*names, cls=GroupedOption, heading=heading, **attributes)


class _SettingType(click.ParamType[Any]):
    """A value of a setting; one element of it, if the option can be repeated."""

    name = "value"

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        is_repeated = param is not None and param.multiple
        if self.setting.is_mapping and isinstance(value, tuple):
            return value
        try:
            if not is_repeated:
                return self.setting.parse(value)
            found = self.setting.parse([value])
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        return next(iter(found.items())) if self.setting.is_mapping else found[0]

    def get_metavar(
        self, param: click.Parameter, ctx: click.Context | None = None
    ) -> str:
        if self.setting.choices:
            return f"[{'|'.join(self.setting.choices)}]"
        names = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
        return names.get(self.setting.base, "TEXT")


def variable(setting: Setting) -> str:
    """The environment variable of a setting."""
    return VARIABLE + setting.option.replace("-", "_").upper()


def setting_option(
    kind: type[Settings], name: str, heading: str | None = None, **changes: Any
) -> Callable[[F], F]:
    """The option of one setting; `changes` are attributes of it that differ."""
    setting = kind.all()[name]
    about = setting.about
    is_list_of_texts = setting.is_list and setting.base.__args__[0] is str
    attributes: dict[str, Any] = {
        "default": setting.default,
        "help": _help(setting),
        "type": bool if setting.base is bool else _SettingType(setting),
        "multiple": setting.is_mapping or is_list_of_texts,
        "metavar": about.metavar or None,
        "envvar": variable(setting),
        "show_default": False,  # it is part of the help, with the range
    }
    if setting.is_mapping:
        attributes["default"] = tuple(setting.default.items())

    names = [f"--{setting.option}"]
    if setting.base is bool:
        names = [f"--{setting.option}/--no-{setting.option}"]
    if about.also:
        names.append(f"--{about.also}")
    shown_under = heading or (COMMON if about.common else setting.heading)
    return option(shown_under, *names, name, **(attributes | changes))


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
    offered = list(kind.all()) if only is None else list(only)
    experts = []
    if only is None:
        experts = [name for name in offered if kind.all()[name].about.expert]
    names = [name for name in offered if name not in experts]

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_settings(**given: Any) -> Any:
            if environment is None:
                check_environment(os.environ, kind)
            values = {name: _value(kind, name, given.pop(name)) for name in names}
            if experts:
                values |= _expert_values(kind, experts, given.pop("set_"), environment)
            settings = kind(**values)
            if problems := settings.problems():
                raise SettingsError([_as_option(kind, problem) for problem in problems])
            return function(settings, **given)

        decorated: Any = with_settings
        if experts:
            decorated = set_option(decorated)
        for name in reversed(names):
            changes: dict[str, Any] = {}
            if environment is not None and name not in environment:
                changes["envvar"] = None
            decorated = setting_option(kind, name, heading, **changes)(decorated)
        if environment is None:
            decorated = config_option(kind)(decorated)
        found: F = decorated
        return found

    return decorate


def _value(kind: type[Settings], name: str, given: Any) -> Any:
    """A value as click gives it, as the setting holds it."""
    setting = kind.all()[name]
    if setting.is_mapping:
        return dict(given)
    if given == () and setting.default is None:
        return None
    return given


def _as_option(kind: type[Settings], problem: str) -> str:
    """A problem of a setting, which it begins with, as one of its option."""
    setting = kind.named(problem.split()[0].rstrip(":"))
    has_option = setting is not None and not setting.about.expert
    return f"--{problem}" if has_option else problem


# settings without an option -----------------------------------------------------------

set_option = option(
    CONFIGURATION,
    "--set",
    "set_",
    envvar=f"{VARIABLE}SET",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any setting, also those for experts (docs/settings.md); repeat it for several.",
)


def _expert_values(
    kind: type[Settings],
    experts: Collection[str],
    given: Collection[str],
    environment: Collection[str] | None,
) -> dict[str, Any]:
    """Values from the file, from variables and from `--set`, the last one wins.

    Raises:
        click.UsageError: with every problem at once.
    """
    texts: dict[str, Any] = {}
    if environment is None:
        texts |= click.get_current_context().meta.get(_FROM_FILE, {})
        for name in experts:
            found = os.environ.get(variable(kind.all()[name]))
            if found is not None:
                texts[name] = found

    try:
        return parse_values(kind, texts | parse_pairs(given))
    except ValueError as error:
        (problems,) = error.args
        raise click.UsageError(
            problems if isinstance(problems, str) else "\n".join(problems)
        ) from error


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


def config_option(kind: type[Settings]) -> Callable[[F], F]:
    """The option `--config` of a command that has settings of this class."""
    return option(
        CONFIGURATION,
        "--config",
        envvar=f"{VARIABLE}CONFIG",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=functools.partial(_read_config, kind),
        is_eager=True,
        expose_value=False,
        help="TOML file with defaults for any setting by its long name.",
    )


def _read_config(
    kind: type[Settings], ctx: click.Context, _: click.Parameter, path: Path | None
) -> Path | None:
    """Take defaults from a TOML file; a setting may stand under any heading."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.BadParameter(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise click.BadParameter(f"{path} is not TOML: {error}") from error

    options = {}
    for parameter in ctx.command.params:
        if isinstance(parameter, click.Option):
            options[parameter.opts[0].removeprefix("--")] = parameter
    has_experts = "set" in options
    defaults: dict[str, Any] = {}
    experts: dict[str, Any] = {}
    problems = []
    for written, value in _flattened(values, options).items():
        name = written.replace("_", "-")
        setting = kind.named(name)
        if name in options:
            parameter = options[name]
            defaults[str(parameter.name)] = _as_default(parameter, value)
        elif has_experts and setting is not None:
            experts[setting.name] = value
        else:
            known = [*options, *(s.option for s in kind.all().values() if has_experts)]
            problems.append(f"{path} has {written}{nearest(name, known)}")
    if problems:
        raise click.BadParameter("\n".join(problems))

    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    ctx.meta[_FROM_FILE] = experts
    return path


def _as_default(parameter: click.Option, value: Any) -> Any:
    """A value of the file as click takes it.

    A table becomes NAME=VALUE, what can be repeated a list, the rest stays as it is.
    """
    if isinstance(value, dict):
        return [f"{name}={item}" for name, item in value.items()]
    if parameter.multiple:
        return value if isinstance(value, list) else [value]
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _flattened(
    values: Mapping[str, Any], options: Mapping[str, click.Option]
) -> dict[str, Any]:
    """Settings of all tables.

    A table is only a heading, unless an option that takes NAME=VALUE has its name.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        type_ = options[name].type if name in options else None
        takes_pairs = isinstance(type_, _SettingType) and type_.setting.is_mapping
        if isinstance(value, dict) and not takes_pairs:
            found |= _flattened(value, options)
        else:
            found[name] = value
    return found
