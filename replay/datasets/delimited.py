"""Delimited text: what its first line tells."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import or_

from streamer.errors import SourceError
from streamer.replay.datasets.base import Opened
from streamer.replay.datasets.files import Peek
from streamer.replay.datasets.layout import Known, same_name
from streamer.replay.datasets.options import FIELDS
from streamer.replay.datasets.tables import DelimitedTable

DELIMITERS = (",", "\t", ";", "|", "::")
SEEN_LINES = 20
"""Of the first ones, to see what they are."""


def delimited(
    log: Opened, known: Known, delimiter: str | None, layout: Sequence[str] = (), quotes: bool = False
) -> DelimitedTable:
    """The table in a log of delimited text.

    Args:
        log: the files.
        known: what the format calls its columns; the first line is a header if it has a user and an item by these.
        delimiter: what stands between columns, unless the options say otherwise; None: as the first line shows.
        layout: names of the columns if there is no header; without, they are called 1, 2, 3.
        quotes: whether values may be quoted, with delimiters inside.

    Raises:
        SourceError: it has another number of columns.
    """
    options, first = log.options, log.peek.first
    mark = options.delimiter or delimiter or guess_delimiter(log.peek)
    cells = split(first, mark)
    header = options.header if options.header is not None else _names_columns(cells, known, options.columns, layout)
    names = tuple(cells) if header else _names_by_number(log, mark, layout)
    if len(names) < 2:
        raise SourceError(
            f"{log.where}: its lines have no two columns with {mark!r} between: {first[:60]!r}; "
            "choose another delimiter or format"
        )
    if header:
        _check_distinct(log, names, known)
    same_columns(log, mark, len(names), cells if header else None)
    return DelimitedTable(_told_apart(names), mark, header, quotes, log.peek.encoding, log.peek.empty_before_first)


def same_columns(log: Opened, delimiter: str, columns: int, header: Sequence[str] | None = None) -> None:
    """See that all files of a log have the columns of the first.

    Raises:
        SourceError: one has others.
    """
    for file in log.files[1:]:
        first = file.peek(log.connection).first
        cells = split(first, delimiter)
        if first and (len(cells) != columns or (header is not None and cells != header)):
            raise SourceError(
                f"{log.where}: the files have different columns: {file.name} begins with {first[:60]!r}, "
                f"{log.files[0].name} with {log.peek.first[:60]!r}"
            )


def split(line: str, delimiter: str) -> list[str]:
    """The values of a line."""
    if len(delimiter) > 1:
        return [cell.strip().strip('"') for cell in line.split(delimiter)]
    return [cell.strip().strip('"') for cell in next(csv.reader([line], delimiter=delimiter), [])]


def guess_delimiter(peek: Peek) -> str:
    """The one that divides the first lines most evenly."""
    lines = [line for line in peek.lines if line.strip()][:SEEN_LINES]

    def evenness(delimiter: str) -> tuple[int, int]:
        counts = Counter(len(split(line, delimiter)) for line in lines)
        columns, agreeing = max(counts.items(), key=lambda item: (item[1], item[0]))
        return (agreeing if columns > 1 else 0, columns)

    return max(DELIMITERS, key=evenness)


def has_header(peek: Peek, delimiter: str, *names: str) -> bool:
    """Whether the first line has all of these columns."""
    cells = split(peek.first, delimiter)
    return all(same_name(name, cells) is not None for name in names)


def names_parts(peek: Peek, known: Known) -> bool:
    """Whether the first line is a header that has a user and an item."""
    cells = split(peek.first, guess_delimiter(peek))
    return _has(cells, known.user_id) and _has(cells, known.item_id)


def most_lines(peek: Peek, delimiter: str, are_so: Callable[[Sequence[str]], bool]) -> bool:
    """Whether the values of half of the first lines, or more, are so: a header or a damaged line may be among them."""
    lines = [line for line in peek.lines if line.strip()][:SEEN_LINES]
    return 2 * sum(are_so(split(line, delimiter)) for line in lines) >= max(1, len(lines))


def is_number(text: str, most: float = math.inf) -> bool:
    """Whether a value is a number, and not a larger one."""
    try:
        return 0 <= float(text) <= most
    except ValueError:
        return False


def _names_columns(cells: Sequence[str], known: Known, given: Mapping[str, str], layout: Sequence[str]) -> bool:
    """Whether the first line is a header: it is, if it has a user and an item by a name that we look for.

    A number counts columns, also in a header; it is no name, whatever stands in the first line.
    """
    asked = [given.get(part, "") for part in ("user_id", "item_id")]
    by_number = [name.isdecimal() for name in asked]
    wanted = zip(asked, by_number, (known.user_id, known.item_id), strict=True)
    by_name = [not number and _has(cells, (name,) if name else usual) for name, number, usual in wanted]
    if any(by_name) and all(map(or_, by_name, by_number)):
        return True
    return not layout and not (given and all(name.isdecimal() for name in given.values()))


def _has(cells: Sequence[str], names: Sequence[str]) -> bool:
    return any(same_name(name, cells) is not None for name in names)


def _check_distinct(log: Opened, names: Sequence[str], known: Known) -> None:
    """See that no two columns of a header have the name of a part of an event.

    Raises:
        SourceError: two have.
    """
    for part in FIELDS:
        asked = log.options.columns.get(part)
        wanted = getattr(known, part) if asked is None else (asked,)
        found = next((n for n in (same_name(name, names) for name in wanted) if n), None)
        if found is not None and names.count(found) > 1:
            raise SourceError(
                f"{log.where}: two columns are called {found!r}: say which one by its number, "
                f"e.g. {part}={1 + names.index(found)}"
            )


def _names_by_number(log: Opened, delimiter: str, layout: Sequence[str]) -> tuple[str, ...]:
    """Names of the columns of a file without a header: as many as most of its first lines have."""
    counts = Counter(len(split(line, delimiter)) for line in log.peek.lines if line.strip())
    columns = counts.most_common(1)[0][0]
    if layout and columns < len(layout):
        expected = delimiter.join(layout)
        raise SourceError(
            f"{log.where}: its lines have {columns} columns, e.g. {log.peek.first[:60]!r}; expected {expected!r}"
        )
    return (*layout, *(str(number) for number in range(len(layout) + 1, columns + 1)))


def _told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Names of which no two are equal, and none is empty."""
    seen: set[str] = set()
    result = []
    for number, name in enumerate(names, 1):
        unique = name if name and name not in seen else f"{name or 'column'}_{number}"
        seen.add(unique)
        result.append(unique)
    return tuple(result)
