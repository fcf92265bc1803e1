"""What commands print for a person: values, tables, and whole reports."""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
from rich import filesize


def say(report: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Print a report: for a person, or as one JSON object."""
    click.echo(json.dumps(report) if as_json else text)


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
    lines = [header, *rows] if header else rows
    columns = []
    for place, column in enumerate(zip(*lines, strict=True)):
        width = max(map(len, column))
        values = column[1:] if header else column
        is_number = place > 0 and all(re.match(r"-?\d|-?$", cell) for cell in values)
        align = str.rjust if is_number else str.ljust
        columns.append([align(cell, width) for cell in column])
    for cells in zip(*columns, strict=True):
        yield f"{indent}{'  '.join(cells)}".rstrip()


# reports ------------------------------------------------------------------------------

Format = Callable[[float], str]
FORMATS: dict[str, Format] = {
    r"bytes$": format_bytes,
    r"(^|_)share$|share_of|^bands$": "{:.2%}".format,
    r"ago_s$": format_age,
    r"_at$": format_time,
}
"""How numbers are written whose name, or the name of the mapping that they are in,
matches.
"""


def render(report: Mapping[str, Any]) -> str:
    """A report of JSON values as text.

    Plain values come first, a line each; a mapping is a section. The elements of a list
    are the rows of a table.
    """
    return "\n".join(_lines(report, "", None)).strip("\n")


def _lines(
    values: Mapping[str, Any], indent: str, format_: Format | None
) -> Iterator[str]:
    plain = []
    sections = {}
    for name, value in values.items():
        if _is_section(value):
            sections[name] = value
        elif value != "":
            plain.append((_label(name), _text(name, value, format_)))
    yield from table(plain, indent=indent)

    for name, value in sections.items():
        if indent:
            yield f"{indent}{_label(name)}"
        else:
            yield ""
            yield click.style(_label(name), bold=True)
        inner = _format_of(name) or format_
        if isinstance(value, dict):
            yield from _lines(value, f"{indent}  ", inner)
            continue
        names = list(dict.fromkeys(name for row in value for name in row))
        rows = []
        for row in value:
            rows.append([_text(name, row.get(name, ""), inner) for name in names])
        yield from table(rows, [_label(name) for name in names], f"{indent}  ")


def _is_section(value: Any) -> bool:
    """True for a mapping and for a list of mappings, unless it is empty."""
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict)
    return isinstance(value, dict) and bool(value)


def _label(name: str) -> str:
    """The name of a value for a person: `claimed_ago_s` is "claimed ago", `step_ms` is
    "step, ms".
    """
    without_unit = re.sub(r"ago_s$", "ago", name)
    return re.sub(r"_(s|ms|us)$", r", \1", without_unit).replace("_", " ")


def _format_of(name: str) -> Format | None:
    for pattern, format_ in FORMATS.items():
        if re.search(pattern, name):
            return format_
    return None


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
    is_large = isinstance(value, int) or abs(value) >= 1000
    return f"{value:,.0f}" if is_large else f"{value:.4g}"
