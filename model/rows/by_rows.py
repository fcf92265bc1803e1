"""State that is kept by rows, so that any rows of it can be copied, put into another
learner, and forgotten.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows
from streamer.model.rows.growing import grown

Arrays = dict[str, NDArray[Any]]


class ByRows:
    """A part of a learner whose state belongs to rows, but for a little that is
    `dense`.

    To copy a part: `put` all rows that `take` returned, in any order and in slices if
    wanted, then `load_dense`.
    """

    size: int
    """One more than the largest row that was ever used."""

    def take(self, rows: Rows) -> Arrays:
        """A copy of what these rows hold."""
        raise NotImplementedError

    def put(self, rows: Rows, arrays: Arrays) -> None:
        """Make rows, each given once, hold what `take` returned of them."""
        raise NotImplementedError

    def dense(self) -> Arrays:
        """A copy of what belongs to no row."""
        return {"size": np.array(self.size)}

    def load_dense(self, arrays: Arrays) -> None:
        """Take over what `dense` returned, when all rows are there."""
        self.size = int(arrays["size"])

    def rows(self) -> Rows:
        """Rows that may hold anything, ascending."""
        return np.arange(self.size)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        raise NotImplementedError

    def forget(self, rows: Rows) -> None:
        """Retire rows, as if they had never been used; those beyond the end have
        nothing to forget.
        """
        raise NotImplementedError

    def clear(self) -> None:
        """As if new."""
        raise NotImplementedError

    def state(self) -> Arrays:
        """A copy of everything."""
        rows = self.rows()
        return {
            "rows": rows,
            **self.dense(),
            **self.take(rows),
        }

    def load_state(self, state: Arrays) -> None:
        """Take over what `state` returned."""
        self.clear()
        self.put(state["rows"], state)
        self.load_dense(state)


class Columns(ByRows):
    """Arrays with a line for each row.

    Args:
        fill: what new and forgotten rows hold, by name; 0 where it does not say.
        columns: the arrays by name, without rows.
    """

    def __init__(self, fill: dict[str, float], **columns: NDArray[Any]) -> None:
        self._fill = fill
        self.columns = columns
        self.size = 0

    def grow(self, size: int) -> None:
        """Make room for rows 0 .. size - 1."""
        for name, column in self.columns.items():
            self.columns[name] = grown(column, size, self._fill.get(name, 0))
        self.size = max(self.size, size)

    def take(self, rows: Rows) -> Arrays:
        found = {}
        for name, column in self.columns.items():
            found[name] = take_or_fill(column, rows, self._fill.get(name, 0))
        return found

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self.grow(int(rows.max(initial=-1)) + 1)
        for name, column in self.columns.items():
            column[rows] = arrays[name]

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self.grow(self.size)

    def forget(self, rows: Rows) -> None:
        known = rows[rows < self.size]
        for name, column in self.columns.items():
            column[known] = self._fill.get(name, 0)

    @property
    def nbytes(self) -> int:
        row = sum(column[:1].nbytes for column in self.columns.values())
        return self.size * row

    def clear(self) -> None:
        self.size = 0
        self.columns = {name: column[:0] for name, column in self.columns.items()}


def take_or_fill(array: NDArray[Any], rows: Rows, fill: float = 0) -> NDArray[Any]:
    """The rows of an array; those beyond its end hold `fill`, those below 0 anything."""
    if not len(rows) or (len(array) and rows.max() < len(array)):
        return array[rows]
    found = np.full((len(rows), *array.shape[1:]), fill, array.dtype)
    known = (rows >= 0) & (rows < len(array))
    found[known] = array[rows[known]]
    return found
