"""What a setting is: a field of a dataclass that carries its default, range, unit and
help.

Options of the command line, files, environment variables, `compare --set` and the
Python API all read them there, so that a default exists once:

    class ModelSettings(Settings):
        dim: int = setting(64, "Size of the embeddings.", at_least=1)

Nothing here imports torch: `--help` must be quick.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import msgspec

T = TypeVar("T", bound="Settings")


class _About(NamedTuple):
    help: str
    at_least: float | None
    above: float | None
    at_most: float | None
    unit: str
    if_none: str
    option: str
    also: str
    metavar: str
    fixed: bool
    common: bool
    expert: bool


def setting(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    unit: str = "",
    if_none: str = "",
    option: str = "",
    also: str = "",
    metavar: str = "",
    fixed: bool = False,
    common: bool = False,
    expert: bool = False,
) -> Any:
    """A dataclass field that is a setting.

    Args:
        default: its default; choices are given by the field's type, `Literal[...]`.
        help: one sentence.
        at_least: smallest value, of each element if there are several.
        above: every value is larger than this.
        at_most: largest value.
        unit: what the number counts, for help and documentation.
        if_none: what None stands for.
        option: its name outside of Python, if that is not the field's without `_s`
            (seconds) or a plural's `s`.
        also: a second name on the command line.
        metavar: what help shows in place of a value.
        fixed: whether a checkpoint cannot be continued with another value.
        common: whether help shows it first.
        expert: whether it has no option of its own, only `--set NAME=VALUE`.
    """
    about = _About(
        help=help,
        at_least=at_least,
        above=above,
        at_most=at_most,
        unit=unit,
        if_none=if_none,
        option=option,
        also=also,
        metavar=metavar,
        fixed=fixed,
        common=common,
        expert=expert,
    )
    return _field(default, about)


def _field(default: Any, about: _About) -> Any:
    if isinstance(default, dict):
        return dataclasses.field(
            default_factory=lambda: dict(default), metadata={"about": about}
        )
    return dataclasses.field(default=default, metadata={"about": about})


def changed(settings: type[Settings], name: str, default: Any, help: str = "") -> Any:
    """The field of another class with another default, and another help if it is given."""
    about = settings.all()[name].about
    return _field(default, about._replace(help=help or about.help))


class Setting:
    """One setting as whoever offers it sees it.

    Args:
        field: of the dataclass.
        type_: its type.
        heading: under which heading help shows it.
    """

    def __init__(self, field: dataclasses.Field[Any], type_: Any, heading: str) -> None:
        about: _About = field.metadata["about"]
        self.name = field.name
        self.type = type_
        self.heading = heading
        self.about = about
        self.default: Any = field.default
        if callable(field.default_factory):
            self.default = field.default_factory()

        self.base = _without_none(type_)
        origin = get_origin(self.base)
        self.is_list = origin is tuple
        self.is_mapping = origin is Mapping
        self.choices: tuple[str, ...] = ()
        if origin is Literal:
            self.choices = get_args(self.base)

        is_repeated = self.is_list and self._element() is str
        self.option = about.option or _option_name(field.name, plural=is_repeated)

    def _element(self) -> Any:
        return get_args(self.base)[0] if self.is_list else self.base

    def parse(self, value: Any) -> Any:
        """A value of the setting's type from text, a file or Python; text may hold
        several, separated by commas.

        Raises:
            ValueError: it is not such a value; the message says what is wanted.
        """
        may_be_none = self.type is not self.base
        if may_be_none and isinstance(value, str) and value.lower() == "none":
            return None
        if self.is_mapping and not isinstance(value, Mapping):
            value = parse_pairs([value] if isinstance(value, str) else value)
        if self.is_list and isinstance(value, str):
            parts = value.split(",") if value.strip() else []
            value = [part.strip() for part in parts]
        try:
            found = msgspec.convert(value, self.type, strict=False, dec_hook=_converted)
        except (msgspec.ValidationError, TypeError) as error:
            raise ValueError(self.wanted()) from error
        if problem := self.problem(found):
            raise ValueError(problem)
        return found

    def problem(self, value: Any) -> str:
        """What is wrong with a value; empty if nothing is."""
        if value is None and self.type is not self.base:
            return ""
        if self.choices:
            return "" if value in self.choices else self.wanted()
        if self.is_list and not isinstance(value, tuple | list):
            return self.wanted()
        values = value if self.is_list else (value,)
        return "" if all(self._fits(v) for v in values) else self.wanted()

    def _fits(self, value: Any) -> bool:
        kind = self._element()
        about = self.about
        if kind not in (int, float):
            return not (kind is str and not isinstance(value, str))
        wanted = int if kind is int else int | float
        if isinstance(value, bool) or not isinstance(value, wanted):
            return False
        if not math.isfinite(value):
            return False
        if about.at_least is not None and value < about.at_least:
            return False
        if about.above is not None and value <= about.above:
            return False
        return about.at_most is None or value <= about.at_most

    def wanted(self) -> str:
        """What a value must be, as the end of a message: `it must be a whole number of
        at least 1`.
        """
        if self.choices:
            return f"choose {', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if self.is_mapping:
            return "write NAME=VALUE"
        kinds = {
            int: "a whole number",
            float: "a number",
            bool: "true or false",
            str: "text",
            Path: "a path",
        }
        several = "each must be" if self.is_list else "it must be"
        return " ".join(
            part
            for part in (
                several,
                kinds.get(self._element(), "another value"),
                self.range(),
            )
            if part
        )

    def range(self) -> str:
        """Its range in words; empty if there is none."""
        about = self.about
        bounds = {
            "of at least": about.at_least,
            "above": about.above,
            "at most": about.at_most,
        }
        return ", ".join(
            f"{word} {bound:,}" for word, bound in bounds.items() if bound is not None
        )

    def default_text(self) -> str:
        """Its default as a person writes it; empty if it is nothing."""
        if self.default is None:
            return self.about.if_none
        if isinstance(self.default, bool):
            return "yes" if self.default else ""
        if self.is_list or self.is_mapping:
            return ", ".join(map(str, self.default))
        return str(self.default)


class Settings:
    """Base of all settings: a frozen dataclass whose fields are made by `setting`, all
    given by name.
    """

    heading: ClassVar[str] = "Options"

    @classmethod
    @functools.cache
    def all(cls) -> dict[str, Setting]:
        """Every setting by its name in Python, in the order of the classes and their
        fields.
        """
        hints = typing.get_type_hints(cls)
        headings: dict[str, str] = {}
        for owner in reversed(
            cls.__mro__
        ):  # the first class that has a field gives its heading
            headings |= {
                n: getattr(owner, "heading", "")
                for n in inspect.get_annotations(owner)
                if n not in headings
            }
        return {
            f.name: Setting(f, hints[f.name], headings[f.name])
            for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        }

    @classmethod
    def named(cls, name: str) -> Setting | None:
        """The setting of a name in Python or outside of it; None if there is none."""
        names = (name, name.replace("_", "-"))
        return next(
            (s for s in cls.all().values() if s.name in names or s.option in names),
            None,
        )

    def problems(self) -> list[str]:
        """What is wrong with these settings, a sentence each; empty if nothing is."""
        values = [(s, getattr(self, s.name)) for s in self.all().values()]
        return [
            f"{s.option} is {value!r}: {problem}"
            for s, value in values
            if (problem := s.problem(value))
        ]

    def only(self, kind: type[T]) -> T:
        """Those of these settings that a base class has."""
        return kind(**{name: getattr(self, name) for name in kind.all()})

    def fixed(self) -> dict[str, Any]:
        """What may not change between a checkpoint and the run that continues it."""
        found = {
            name: getattr(self, name) for name, s in self.all().items() if s.about.fixed
        }
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in found.items()
        }


def parse_settings(kind: type[T], given: Mapping[str, Any], **fixed: Any) -> T:
    """Settings from text or other plain values, by their names in Python or outside.

    Args:
        kind: which settings.
        given: values by name.
        fixed: further values, by field.

    Raises:
        ValueError: with a list of every problem as its argument.
    """
    return kind(**(fixed | parse_values(kind, given)))


def parse_values(kind: type[Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of some settings, by field; otherwise as `parse_settings`."""
    values = {}
    problems = []
    for name, value in given.items():
        setting_ = kind.named(name)
        if setting_ is None:
            problems.append(f"there is no setting {name!r}{nearest(name, kind.all())}")
            continue
        try:
            values[setting_.name] = setting_.parse(value)
        except ValueError as error:
            problems.append(f"{name} is {value!r}: {error}")
    if problems:
        raise ValueError(problems)
    return values


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known: which one may be meant."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {found[0]}?" if found else ". docs/settings.md lists all"


def _converted(kind: Any, given: Any) -> Any:
    """A value of a type that msgspec does not know."""
    return kind(given)


def _without_none(kind: Any) -> Any:
    """The type without `| None`."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    return next(inner for inner in get_args(kind) if inner is not types.NoneType)


def _option_name(field: str, plural: bool) -> str:
    """`max_age_s` is max-age, `topics` is topic: it is repeated for several."""
    name = field.removesuffix("_s")
    return (name.removesuffix("s") if plural else name).replace("_", "-")


def parse_pairs(pairs: Any) -> dict[str, str]:
    """NAME=VALUE texts as a dictionary.

    Raises:
        ValueError: one of them has no `=`.
    """
    found = {}
    for text in pairs:
        name, separator, value = str(text).partition("=")
        if not separator or not name.strip():
            raise ValueError(f"{text!r} is not NAME=VALUE")
        found[name.strip()] = value.strip()
    return found
