"""Raw ids and table rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.checkpoint.strings import pack_strings, unpack_strings


class Vocabulary:
    """Gives every raw id a row, in order of first appearance: the same stream gives the same rows.

    Args:
        first: the first row to give; rows below it are reserved.

    Examples:
        >>> items = Vocabulary()
        >>> items.rows(["tea", "milk", "tea"])
        array([0, 1, 0])
        >>> items.id_of(1)
        'milk'
    """

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self._rows: dict[str, int] = {}
        self._ids: list[str] = []

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def size(self) -> int:
        """One more than the largest row."""
        return self.first + len(self._ids)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of each id; a new id gets the next row."""
        known = self._rows
        found = [known.get(i, -1) for i in ids]
        if -1 in found:
            found = [row if row >= 0 else self._row(i) for i, row in zip(ids, found, strict=True)]
        return np.array(found, np.int64)

    def _row(self, raw: str) -> int:
        row = self._rows.setdefault(raw, self.first + len(self._ids))
        if row == self.first + len(self._ids):
            self._ids.append(raw)
        return row

    def row_of(self, raw: str) -> int | None:
        """The row of an id, None if it is not known."""
        return self._rows.get(raw)

    def id_of(self, row: int) -> str:
        """The id of a row."""
        return self._ids[row - self.first]

    @property
    def ids(self) -> list[str]:
        """All ids by row."""
        return self._ids

    def take(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The ids of rows; reserved rows have none."""
        return pack_strings([self._ids[row - self.first] if row >= self.first else "" for row in rows.tolist()], "ids")

    def put(self, rows: NDArray[np.int64], arrays: dict[str, NDArray[Any]]) -> None:
        """Give rows the ids that `take` returned of them; rows below them that were not given have none yet."""
        self._ids.extend([""] * (int(rows.max(initial=-1)) + 1 - self.size))
        for row, raw in zip(rows.tolist(), unpack_strings(arrays, "ids"), strict=True):
            if row >= self.first:
                self._ids[row - self.first] = raw
                self._rows[raw] = row

    def dense(self) -> dict[str, NDArray[Any]]:
        """What belongs to no row."""
        return {}

    def load_dense(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take over what `dense` returned, when all rows are there."""
