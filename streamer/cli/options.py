"""Options of commands: those of settings are generated from their dataclasses, a
command adds its own.

A value comes from the command line, else from an environment variable
(STREAMER_BATCH_SIZE), else from the file given by `--config`, else from the default of
the setting.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from streamer.errors import SettingsError
from streamer.model.setting import Setting, Settings

F = TypeVar("F", bound=Callable[..., Any])

FILE: dict[str, Any] = {
    "type": click.Path(dir_okay=False, path_type=Path),
    "required": True,
    "metavar": "FILE",
}
"""What an option that names a file has in common with others."""
_PROBLEMS = "streamer.problems"


class GroupedCommand(click.Command):
    """A command whose help shows its options under headings, and that reports all wrong
    values at once.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        problems: list[click.BadParameter] = ctx.meta.pop(_PROBLEMS, [])
        if problems:
            raise click.UsageError(
                "\n".join(problem.format_message() for problem in problems), ctx
            )
        return rest

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(parameter, "heading", "Options"), []).append(
                    record
                )
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
        """Put a wrong value aside: the command reports it together with all others."""
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.BadParameter as problem:
            ctx.meta.setdefault(_PROBLEMS, []).append(problem)
            return None, args


def option(heading: str, *names: str, **attributes: Any) -> Callable[[F], F]:
    """A click option under a heading, its default shown; it has no environment variable
    unless one is given.
    """
    is_flag = attributes.get("is_flag", False)
    default = attributes.get("default")
    attributes.setdefault("show_default", not is_flag and default is not None)
    return click.option(*names, cls=GroupedOption, heading=heading, **attributes)


class _SettingType(click.ParamType[Any]):
    """A value of a setting; of one element, if the setting has several and each is an
    option of its own.
    """

    name = "value"

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if self.setting.is_mapping and isinstance(value, tuple):
            return value
        try:
            if param is not None and param.multiple:
                found = self.setting.parse([value])
                return (
                    next(iter(found.items())) if self.setting.is_mapping else found[0]
                )
            return self.setting.parse(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)

    def get_metavar(
        self, param: click.Parameter, ctx: click.Context | None = None
    ) -> str:
        if self.setting.choices:
            return f"[{'|'.join(self.setting.choices)}]"
        names = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
        return names.get(self.setting.base, "TEXT")


def setting_option(
    kind: type[Settings], name: str, heading: str | None = None, **changes: Any
) -> Callable[[F], F]:
    """The option of one setting, for a command that needs a few of them; `changes` are
    attributes that differ.
    """
    setting = kind.all()[name]
    attributes: dict[str, Any] = {
        "default": setting.default,
        "help": _help(setting),
        "type": bool if setting.base is bool else _SettingType(setting),
        "multiple": setting.is_mapping
        or (setting.is_list and setting.base.__args__[0] is str),
        "metavar": setting.about.metavar or None,
        "envvar": f"STREAMER_{setting.option.replace('-', '_').upper()}",
        "show_default": False,  # it is part of the help, with the range
    }
    if setting.is_mapping:
        attributes["default"] = tuple(setting.default.items())
    names = [
        f"--{setting.option}"
        + (f"/--no-{setting.option}" if setting.base is bool else "")
    ]
    names += [f"--{setting.about.also}"] if setting.about.also else []
    return option(heading or setting.heading, *names, name, **(attributes | changes))


def _help(setting: Setting) -> str:
    about = setting.about
    default = setting.default_text()
    unit = setting.about.unit
    obvious = (
        about.at_least in (None, 0, 1) and about.above is None and about.at_most is None
    )
    parts = [
        f"default: {default}{f' {unit}' if unit and setting.default else ''}"
        if default
        else unit
    ]
    shown = "; ".join(
        part
        for part in [*parts, "" if obvious else setting.range().removeprefix("of ")]
        if part
    )
    return f"{about.help}{f'  [{shown}]' if shown else ''}"


def settings_options(
    kind: type[Settings],
    *,
    only: Iterable[str] | None = None,
    heading: str | None = None,
    environment: Collection[str] | None = None,
) -> Callable[[F], F]:
    """Every setting of a class as an option, and `--config`; the command's function
    gets them as one object first.

    Args:
        only: names of those that are offered; all others have their defaults.
        environment: names of those that environment variables may set, without
            `--config`; None: all, and `--config`.
    """
    names = list(kind.all()) if only is None else list(only)

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_settings(**given: Any) -> Any:
            values: dict[str, Any] = {}
            for name in names:
                setting = kind.all()[name]
                value = given.pop(name)
                values[name] = dict(value) if setting.is_mapping else value
                if value == () and setting.default is None:
                    values[name] = None
            settings = kind(**values)
            if problems := settings.problems():
                raise SettingsError([f"--{problem}" for problem in problems])
            return function(settings, **given)

        decorated: Any = with_settings
        for name in reversed(names):
            no_variable = (
                {} if environment is None or name in environment else {"envvar": None}
            )
            decorated = setting_option(kind, name, heading, **no_variable)(decorated)
        found: F = config_option(decorated) if environment is None else decorated
        return found

    return decorate


def read_config(
    ctx: click.Context, _: click.Parameter, path: Path | None
) -> Path | None:
    """Take defaults from a TOML file; every option may stand in it by its long name,
    under any heading.
    """
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.BadParameter(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise click.BadParameter(f"{path} is not TOML: {error}") from error
    options = {
        p.opts[0].removeprefix("--"): p
        for p in ctx.command.params
        if isinstance(p, click.Option)
    }
    flat = {
        name.replace("_", "-"): value
        for name, value in _flattened(values, options).items()
    }
    if unknown := sorted(set(flat) - options.keys()):
        raise click.BadParameter(
            f"{path} has {', '.join(unknown)}; see `streamer {ctx.info_name} --help` for the names"
        )
    defaults = {
        options[name].name: _as_default(options[name], value)
        for name, value in flat.items()
    }
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return path


def _as_default(parameter: click.Option, value: Any) -> Any:
    """A value of the file as click takes it: a table as NAME=VALUE, one of several as a
    list, the rest as it is.
    """
    if isinstance(value, dict):
        return [f"{name}={item}" for name, item in value.items()]
    if parameter.multiple:
        return value if isinstance(value, list) else [value]
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _flattened(
    values: Mapping[str, Any], options: Mapping[str, click.Option]
) -> dict[str, Any]:
    """Options of all tables; a table is only a heading, unless an option that takes
    NAME=VALUE has its name.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        type_ = options[name].type if name in options else None
        is_heading = isinstance(value, dict) and not (
            isinstance(type_, _SettingType) and type_.setting.is_mapping
        )
        found |= _flattened(value, options) if is_heading else {name: value}
    return found


config_option = option(
    "Configuration",
    "--config",
    envvar="STREAMER_CONFIG",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=read_config,
    is_eager=True,
    expose_value=False,
    help="TOML file with defaults for any option by its long name.",
)
