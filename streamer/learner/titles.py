"""Titles of items, for people who look at recommendations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from streamer.model.batch import Rows
from streamer.model.rows.by_rows import Arrays, ByRows


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
        self._bytes = 0
        self._utf8: dict[int, bytes] = {}

    def set(self, titles: Mapping[int, str]) -> None:
        """Rows have these titles from now on; an empty one is none."""
        utf8 = [title.encode("utf-8", "surrogatepass") for title in titles.values()]
        self._set(np.fromiter(titles, np.int64, len(titles)), utf8)

    def _set(self, rows: Rows, utf8: Sequence[bytes]) -> None:
        for row, text in zip(rows.tolist(), utf8, strict=True):
            self._bytes += len(text) - len(self._utf8.pop(row, b""))
            if text:
                self._utf8[row] = text
        self.size = max(self.size, int(rows.max(initial=-1)) + 1)

    def __len__(self) -> int:
        return len(self._utf8)

    def of(self, row: int) -> str | None:
        """The title of a row, None if it has none."""
        found = self._utf8.get(row)
        return None if found is None else found.decode("utf-8", "surrogatepass")

    def forget(self, rows: Rows) -> None:
        """Retire rows."""
        if self._utf8:
            self._set(rows, [b""] * len(rows))

    @property
    def nbytes(self) -> int:
        return self._bytes + 150 * len(self._utf8)  # what Python takes for each

    def take(self, rows: Rows) -> Arrays:
        """The bytes of the titles of some rows, one after the other, and the length of
        each.
        """
        utf8 = [self._utf8.get(row, b"") for row in rows.tolist()] if self._utf8 else []
        length = (
            np.fromiter(map(len, utf8), np.int32, len(utf8))
            if utf8
            else np.zeros(len(rows), np.int32)
        )
        return {"utf8": np.frombuffer(b"".join(utf8), np.uint8), "length": length}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        utf8 = arrays["utf8"].tobytes()
        ends = np.cumsum(arrays["length"]).tolist()
        if utf8 or self._utf8:
            self._set(
                rows,
                [utf8[start:end] for start, end in zip([0, *ends], ends, strict=False)],
            )
