"""What the first lines of a file show: its encoding, its delimiter, whether it has a
header.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

DELIMITERS = (",", "\t", ";", "|", "::")
EXAMINED = 20
"""Lines that show the delimiter and the format."""


@dataclass(frozen=True, slots=True)
class FirstLines:
    """The first lines of a file, without a byte order mark."""

    lines: tuple[str, ...] = ()
    encoding: str = "utf-8"
    """utf-8 if they are that, else latin-1."""

    @property
    def first(self) -> str:
        """The first line that is not empty; an empty text if there is none."""
        return next((line for line in self.lines if line.strip()), "")

    @property
    def empty_before_first(self) -> int:
        """The number of empty lines before it."""
        return next(
            (number for number, line in enumerate(self.lines) if line.strip()), 0
        )

    @property
    def quoted_first(self) -> str:
        """The beginning of the first line, for messages."""
        return repr(self.first[:60])

    @property
    def is_json(self) -> bool:
        """Whether the first line looks like a JSON object."""
        return self.first.lstrip().startswith("{")

    @property
    def delimiter(self) -> str:
        """The delimiter that divides most of the lines into the same number of cells."""

        def evenness(delimiter: str) -> tuple[int, int]:
            counts = Counter(map(len, self.rows(delimiter, EXAMINED)))
            cells, agreeing = max(counts.items(), key=lambda item: (item[1], item[0]))
            return (agreeing if cells > 1 else 0, cells)

        return max(DELIMITERS, key=evenness)

    def cells(self, delimiter: str) -> list[str]:
        """The cells of the first line."""
        return split_line(self.first, delimiter)

    def rows(self, delimiter: str, most: int | None = None) -> list[list[str]]:
        """The cells of all lines that are not empty, or of the first `most` of them."""
        return [
            split_line(line, delimiter)
            for line in [line for line in self.lines if line.strip()][:most]
        ]

    def has_header(self, delimiter: str, *names: str) -> bool:
        """Whether the first line is a header with these columns, in any order and case."""
        return {name.lower() for name in names} <= {
            cell.lower() for cell in self.cells(delimiter)
        }

    def most_rows_match(
        self, delimiter: str, matches: Callable[[Sequence[str]], bool]
    ) -> bool:
        """Whether the cells of half of the lines, or more, match: a header or a damaged
        line may be among them.
        """
        rows = self.rows(delimiter, EXAMINED)
        return 2 * sum(map(matches, rows)) >= max(1, len(rows))


def split_line(line: str, delimiter: str) -> list[str]:
    """The cells of a line, without spaces and quotes around them."""
    cells = line.split(delimiter)
    if len(delimiter) == 1:
        with suppress(csv.Error):  # of a cell longer than the module takes
            cells = next(csv.reader([line], delimiter=delimiter), [])
    return [cell.strip().strip('"') for cell in cells]
