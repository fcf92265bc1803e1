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
    Annotated,
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

KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
}


class About(NamedTuple):
    """What a setting is for and which values it takes."""

    help: str
    """One sentence."""
    at_least: float | None = None
    """Smallest value, of each element if there are several."""
    above: float | None = None
    """Every value is larger than this."""
    at_most: float | None = None
    """Largest value."""
    unit: str = ""
    """What the number counts, for help and documentation."""
    if_none: str = ""
    """What None stands for."""
    option: str = ""
    """Its name outside of Python, if that is not the field's without `_s` (seconds) or
    a plural's `s`.
    """
    also: str = ""
    """A second name on the command line."""
    metavar: str = ""
    """What help shows in place of a value."""
    fixed: bool = False
    """Whether a checkpoint cannot be continued with another value."""
    common: bool = False
    """Whether help shows it first."""
    expert: bool = False
    """Whether it has no option of its own, only `--set NAME=VALUE`."""


def setting(default: Any, help: str, **about: Any) -> Any:
    """A dataclass field that is a setting.

    Args:
        default: its default; choices are given by the field's type, `Literal[...]`.
        help: one sentence.
        about: further attributes, see `About`.
    """
    return _field(default, About(help, **about))


def expert_setting(default: Any, help: str, **about: Any) -> Any:
    """A setting without an option of its own: `--set NAME=VALUE` gives it."""
    return setting(default, help, expert=True, **about)


def changed(settings: type[Settings], name: str, default: Any, help: str = "") -> Any:
    """The field of another class with another default, and another help if it is given."""
    about = settings.all()[name].about
    return _field(default, about._replace(help=help or about.help))


def _field(default: Any, about: About) -> Any:
    metadata = {"about": about}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Setting:
    """One setting as whoever offers it sees it.

    Args:
        field: of the dataclass.
        type_: its type.
        heading: under which heading help shows it.
    """

    def __init__(self, field: dataclasses.Field[Any], type_: Any, heading: str) -> None:
        about: About = field.metadata["about"]
        self.name = field.name
        self.heading = heading
        self.about = about
        self.default: Any = field.default
        if callable(field.default_factory):
            self.default = field.default_factory()

        self.base = type_
        if get_origin(type_) in (Union, types.UnionType):  # with None
            self.base = get_args(type_)[0]
        origin = get_origin(self.base)
        self.is_list = origin is tuple
        self.is_mapping = origin is Mapping
        self.of_numbers = self.is_mapping and get_args(self.base)[1] is float
        self.choices: tuple[str, ...] = get_args(self.base) if origin is Literal else ()
        self.element = get_args(self.base)[0] if self.is_list else self.base
        """Type of the value, or of one of several."""
        self.is_repeated = self.is_mapping or (self.is_list and self.element is str)
        self._may_be_none = self.base is not type_
        self._checked_type = self._with_bounds()
        self.option = about.option or self._option_name()

    def _with_bounds(self) -> Any:
        about = self.about
        kind = self.base
        if self.element in (int, float):
            bounds: Any = {"ge": about.at_least, "gt": about.above, "le": about.at_most}
            annotated: Any = Annotated
            kind = annotated[self.element, msgspec.Meta(**bounds)]
            if self.is_list:
                kind = types.GenericAlias(tuple, (kind, ...))
        return Union[kind, None] if self._may_be_none else kind  # noqa: UP007

    def _option_name(self) -> str:
        """`max_age_s` is max-age, `topics` is topic: it is repeated for several."""
        name = self.name.removesuffix("_s")
        if self.is_list and self.is_repeated:
            name = name.removesuffix("s")
        return name.replace("_", "-")

    def parse(self, value: Any) -> Any:
        """A value of the setting's type from text, a file or Python; text may hold
        several, separated by commas.

        Raises:
            ValueError: it is not such a value; the message says what is wanted.
        """
        if isinstance(value, str):
            if self._may_be_none and value.lower() == "none":
                return None
            if self.is_mapping:
                value = value.replace(",", " ").split() if self.of_numbers else [value]
            if self.is_list:
                parts = value.split(",") if value.strip() else []
                value = [part.strip() for part in parts]
        if self.is_mapping:
            if isinstance(value, Mapping):
                value = [f"{name}={of_name}" for name, of_name in value.items()]
            value = parse_pairs(value)
        return self._checked(value, strict=False)

    def problem(self, value: Any) -> str:
        """What is wrong with a value; empty if nothing is."""
        try:
            self._checked(value, strict=True)
        except ValueError as error:
            return str(error)
        return ""

    def _checked(self, value: Any, strict: bool) -> Any:
        try:
            found = msgspec.convert(
                value,
                self._checked_type,
                strict=strict,
                dec_hook=lambda kind, given: kind(given),
            )
        except (msgspec.ValidationError, TypeError) as error:
            raise ValueError(self.wanted()) from error
        numbers = found if self.is_list else (found,)
        for number in numbers or ():
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(self.wanted())
        return found

    def wanted(self) -> str:
        """What a value must be, as the end of a message: `it must be a whole number of
        at least 1`.
        """
        if self.choices:
            return f"choose {', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if self.of_numbers:
            return "write NAME=NUMBER"
        if self.is_mapping:
            return "write NAME=VALUE"
        several = "each must be" if self.is_list else "it must be"
        return f"{several} {KINDS[self.element]} {self.range()}".rstrip()

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
        for owner in reversed(cls.__mro__):
            for name in inspect.get_annotations(owner):
                # the first class that has a field gives its heading
                headings.setdefault(name, getattr(owner, "heading", ""))
        found = {}
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            name = field.name
            found[name] = Setting(field, hints[name], headings[name])
        return found

    @classmethod
    def named(cls, name: str) -> Setting | None:
        """The setting of a name in Python or outside of it; None if there is none."""
        names = (name, name.replace("_", "-"))
        for setting_ in cls.all().values():
            if setting_.name in names or setting_.option in names:
                return setting_
        return None

    def problems(self) -> list[str]:
        """What is wrong with these settings, a sentence each; empty if nothing is."""
        found = []
        for name, setting_ in self.all().items():
            value = getattr(self, name)
            problem = setting_.problem(value)
            if problem:
                found.append(f"{setting_.option} is {value!r}: {problem}")
        return found

    def only(self, kind: type[T]) -> T:
        """Those of these settings that a base class has."""
        return kind(**{name: getattr(self, name) for name in kind.all()})

    def fixed(self) -> dict[str, Any]:
        """What may not change between a checkpoint and the run that continues it."""
        found = {}
        for name, setting_ in self.all().items():
            if setting_.about.fixed:
                value = getattr(self, name)
                found[name] = list(value) if isinstance(value, tuple) else value
        return found


def parse_settings(kind: type[T], given: Mapping[str, Any], **fixed: Any) -> T:
    """Settings from text or other plain values, by their names in Python or outside.

    Args:
        kind: which settings.
        given: values by name.
        fixed: further values, by field.

    Raises:
        ValueError: with a list of every problem as its argument.
    """
    values = fixed
    problems = []
    for name, value in given.items():
        setting_ = kind.named(name)
        if setting_ is None:
            problems.append(f"there is no setting {name!r}{nearest(name, kind.all())}")
            continue
        try:
            values[setting_.name] = setting_.parse(value)
        except ValueError as error:
            problems.append(f"{setting_.option} is {value!r}: {error}")
    if problems:
        raise ValueError(problems)
    return kind(**values)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known: which one may be meant."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {found[0]}?" if found else ". docs/settings.md lists all"


def parse_pairs(pairs: Iterable[Any]) -> dict[str, str]:
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
