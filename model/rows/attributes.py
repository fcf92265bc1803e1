"""What the catalogue says of items, by row, for whoever chooses among them: the model
does not learn from it.

An attribute is a label, by its number, or a number. Rules are numbers, too: whether an
item is hidden or pinned, and from when until when it is available.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Doubles, Rows
from streamer.model.rows.by_rows import Arrays, Columns
from streamer.model.settings import RULES

UNKNOWN = -(2.0**1000)
"""What stands for NaN where it is copied: what is saved must be finite."""


class Attributes(Columns):
    """The latest known attributes of every item, and the rules for it; no memory before
    the first.

    Args:
        names: of the attributes.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)
        columns: Arrays = {"described": np.zeros(0, np.bool_)}
        fill = {}
        for name in self.names:
            columns[f"label.{name}"] = np.zeros(0, np.int32)
        for name in (*self.names, *RULES):
            columns[f"number.{name}"] = np.zeros(0)
            fill[f"number.{name}"] = np.nan  # where it is unknown
        super().__init__(fill, **columns)

    @property
    def described(self) -> NDArray[np.bool_]:
        """Of each row, whether it has any attribute."""
        return self.columns["described"]

    def labels(self, name: str) -> Rows:
        """Of each row, the number of its label, 0 where it has none."""
        return self.columns[f"label.{name}"]

    def numbers(self, name: str) -> Doubles:
        """Of each row, the number that an attribute or rule is, NaN where it is none."""
        return self.columns[f"number.{name}"]

    def set(self, name: str, rows: Rows, labels: Rows, numbers: Doubles) -> None:
        """Rows, each given once, have these values from now on.

        Args:
            name: of an attribute or a rule.
            rows: [n].
            labels: [n] number of each label, 0 where the value is none.
            numbers: [n] NaN where the value is none.
        """
        if not len(rows):
            return
        self.grow(int(rows.max()) + 1)
        self.numbers(name)[rows] = numbers
        if name in self.names:
            self.labels(name)[rows] = labels
            self.described[rows] = True

    def with_labels(self, labels: Rows) -> Rows:
        """Rows that have one of these labels (looks at all rows)."""
        found = np.zeros(len(self.described), np.bool_)
        for name in self.names:
            found |= np.isin(self.labels(name), labels)
        return np.flatnonzero(found)

    def forget_labels(self, rows: Rows, labels: Rows) -> None:
        """Rows have none of these labels any more."""
        for name in self.names:
            of_rows = self.labels(name)[rows]
            self.labels(name)[rows[np.isin(of_rows, labels)]] = 0

    def take(self, rows: Rows) -> Arrays:
        found = super().take(rows) if self.size else {}
        for name, array in found.items():
            found[name] = np.nan_to_num(array, nan=UNKNOWN)
        return found

    def put(self, rows: Rows, arrays: Arrays) -> None:
        """Make rows hold what `take` returned of them; attributes that were not kept
        then are unknown.
        """
        if not arrays and not self.size:
            return
        given = {}
        for name in self.columns:
            unknown = np.full(len(rows), self._fill.get(name, 0.0))
            values = arrays.get(name, unknown)
            given[name] = np.where(values == UNKNOWN, np.nan, values)
        super().put(rows, given)
