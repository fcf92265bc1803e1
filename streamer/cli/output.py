"""What commands print for a person: values, tables, and whole reports."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
from rich import filesize

MAX_WIDTH = 120
"""A wider table is turned, a line for each name instead of a column, if that makes it
narrower.
"""


def printable(text: str) -> str:
    """Text as it can be printed: what comes from a stream may hold line breaks or codes
    that move a cursor.
    """
    return text if text and text.isprintable() else ascii(text)


def format_bytes(size_bytes: float) -> str:
    """A number of bytes.

    Examples:
        >>> format_bytes(27_342_669)
        '27.3 MB'
    """
    return filesize.decimal(round(size_bytes))


def format_age(seconds: float) -> str:
    """A duration in its largest unit.

    Examples:
        >>> format_age(150.0)
        '2 min'
    """
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def format_time(timestamp_s: float) -> str:
    """A time since the epoch in UTC, and how long ago it was."""
    moment = datetime.datetime.fromtimestamp(timestamp_s, datetime.UTC)
    return (
        f"{moment:%Y-%m-%d %H:%M:%S} UTC ({format_age(time.time() - timestamp_s)} ago)"
    )


def table(
    rows: Sequence[Sequence[str]], header: Sequence[str] = (), indent: str = "  "
) -> Iterator[str]:
    """Lines of a table; columns of numbers are aligned on the right, except the first.

    Examples:
        >>> list(table([("tea", "9"), ("milk", "10")]))
        ['  tea    9', '  milk  10']
    """
    columns = list(zip(*rows, strict=True)) or [()] * len(header)
    right = [
        False,
        *(
            all(re.match(r"-?\d|-?$", cell) for cell in column)
            for column in columns[1:]
        ),
    ]
    lines = [header, *rows] if header else rows
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            f"{cell:{'>' if r else '<'}{width}}"
            for cell, r, width in zip(line, right, widths, strict=True)
        )
        yield f"{indent}{'  '.join(cells)}".rstrip()


# reports --------------------------------------------------------------------------------------------------------------

Format = Callable[[float], str]
FORMATS: dict[str, Format] = {
    r"bytes$": format_bytes,
    r"(^|_)share$|share_(of|lately)|^bands$": "{:.2%}".format,
    r"ago_s$": format_age,
    r"_at$": format_time,
}
"""How numbers are written whose name, or the name of the mapping that they are in,
matches.
"""


def render(report: Mapping[str, Any]) -> str:
    """A report of JSON values as text.

    Plain values come first, a line each; a mapping is a section. The elements of a list
    are the rows of a table, and so are neighbouring mappings with the same names.
    """
    return "\n".join(_lines(report, "", None)).strip("\n")


def _lines(
    values: Mapping[str, Any], indent: str, inherited: Format | None
) -> Iterator[str]:
    nested = {name: value for name, value in values.items() if _is_nested(value)}
    plain = [
        (name, value)
        for name, value in values.items()
        if name not in nested and value != ""
    ]
    yield from table(
        [(_label(name), _text(name, value, inherited)) for name, value in plain],
        indent=indent,
    )
    groups: list[dict[str, Any]] = []
    for name, value in nested.items():
        if groups and _have_same_names(next(iter(groups[-1].values())), value):
            groups[-1][name] = value
        else:
            groups.append({name: value})
    for group in groups:
        yield from [] if indent else [""]
        if len(group) > 1:
            yield from _rows(
                [{"": _label(name), **row} for name, row in group.items()],
                indent,
                inherited,
            )
            continue
        ((name, value),) = group.items()
        yield (
            f"{indent}{_label(name)}"
            if indent
            else click.style(_label(name), bold=True)
        )
        write = _lines if isinstance(value, dict) else _rows
        yield from write(value, f"{indent}  ", _format_of(name) or inherited)


def _rows(
    rows: Sequence[Mapping[str, Any]], indent: str, inherited: Format | None
) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    header = [_label(name) for name in names]
    cells = [
        [_text(name, row.get(name, ""), inherited) for name in names] for row in rows
    ]
    lines = list(table(cells, header, indent))
    turned = list(table(list(zip(header, *cells, strict=True)), indent=indent))
    width, turned_width = (max(map(len, some)) for some in (lines, turned))
    yield from turned if width > max(MAX_WIDTH, turned_width) else lines


def _is_nested(value: Any) -> bool:
    """True for a mapping and for a list of mappings, unless it is empty."""
    return bool(value) and (
        isinstance(value, dict) or (isinstance(value, list) and _is_nested(value[0]))
    )


def _have_same_names(first: Any, other: Any) -> bool:
    """Whether a mapping has no names that the first one lacks, and both have plain
    values only.
    """
    both = (
        isinstance(first, dict)
        and isinstance(other, dict)
        and first.keys() >= other.keys()
    )
    return both and not any(map(_is_nested, (*first.values(), *other.values())))


def _label(name: str) -> str:
    """The name of a value for a person: `claimed_ago_s` is "claimed ago", `step_ms` is
    "step, ms".
    """
    return re.sub(r"_(s|ms|us)$", r", \1", re.sub(r"ago_s$", "ago", name)).replace(
        "_", " "
    )


def _format_of(name: str) -> Format | None:
    return next(
        (format_ for pattern, format_ in FORMATS.items() if re.search(pattern, name)),
        None,
    )


def _text(name: str, value: Any, inherited: Format | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value and printable(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | dict):
        return ", ".join(_text(name, element, inherited) for element in value) or "none"
    if format_ := _format_of(name) or inherited:
        return format_(value)
    return (
        f"{value:,.0f}"
        if isinstance(value, int) or abs(value) >= 1000
        else f"{value:.4g}"
    )
