"""Titles of items, for people who look at recommendations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streamer.model.batch import Rows
from streamer.model.rows.by_rows import Arrays, ByRows
from streamer.model.rows.id_table import packed

BYTES_PER_TITLE = 200
"""Of memory, about."""


class Titles(ByRows):
    """What people call some of the items, by row.

    Examples:
        >>> titles = Titles()
        >>> titles.set({3: "Kind of Blue"})
        >>> titles.of(3), titles.of(4)
        ('Kind of Blue', None)
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.size = 0
        self._titles: dict[int, str] = {}

    def set(self, titles: Mapping[int, str]) -> None:
        """Rows have these titles from now on; an empty one is none."""
        for row, title in titles.items():
            self._titles.pop(row, None)
            if title:
                self._titles[row] = title
            self.size = max(self.size, row + 1)

    def __len__(self) -> int:
        return len(self._titles)

    def of(self, row: int) -> str | None:
        """The title of a row, None if it has none."""
        return self._titles.get(row)

    def forget(self, rows: Rows) -> None:
        """Retire rows."""
        if self._titles:
            self.set(dict.fromkeys(rows.tolist(), ""))

    @property
    def nbytes(self) -> int:
        return BYTES_PER_TITLE * len(self._titles)

    def take(self, rows: Rows) -> Arrays:
        """The bytes of the titles of some rows, one after the other, and the length of
        each.
        """
        titles = [self._titles.get(row, "") for row in rows.tolist()]
        utf8, offsets = packed(titles)
        return {"utf8": utf8, "length": np.diff(offsets).astype(np.int32)}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        utf8 = arrays["utf8"].tobytes()
        titles = {}
        start = 0
        ends = np.cumsum(arrays["length"]).tolist() if utf8 or self._titles else []
        for row, end in zip(rows.tolist(), ends, strict=False):
            titles[row] = utf8[start:end].decode("utf-8", "surrogatepass")
            start = end
        self.set(titles)
