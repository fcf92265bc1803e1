"""State that is kept by rows, so that any rows of it can be copied, put into another
learner, and forgotten.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows

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
        return {"rows": rows, **self.dense(), **self.take(rows)}

    def load_state(self, state: Arrays) -> None:
        """Take over what `state` returned."""
        self.clear()
        self.put(state["rows"], state)
        self.load_dense(state)


def take_or_fill(array: NDArray[Any], rows: Rows, fill: float = 0) -> NDArray[Any]:
    """The rows of an array; those beyond its end hold `fill`."""
    if not len(rows) or rows.max() < len(array):
        return array[rows]
    found = np.full((len(rows), *array.shape[1:]), fill, array.dtype)
    known = rows < len(array)
    found[known] = array[rows[known]]
    return found
