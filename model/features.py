"""Features of users or items, by row: small integers for categories, numbers for the rest. On the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Floats, Rows
from streamer.model.growing import grown


class FeatureStore:
    """The latest known features of every row.

    Args:
        categorical: names of the categorical features.
        numeric: names of the numeric features.
    """

    def __init__(self, categorical: Sequence[str] = (), numeric: Sequence[str] = ()) -> None:
        self.categorical, self.numeric = tuple(categorical), tuple(numeric)
        self.size = 0
        self._codes = np.zeros((0, len(self.categorical)), np.int64)
        self._numbers = np.zeros((0, len(self.numeric)), np.float32)

    def set(self, rows: Rows, codes: NDArray[np.int64] | None, numbers: Floats | None = None) -> None:
        """Remember features of some rows; where a row occurs twice, its last one stays.

        Args:
            rows: [n] rows.
            codes: [n, categorical] number of each category, from 1; 0 means unknown.
            numbers: [n, numeric].
        """
        if not len(rows):
            return
        self.grow(int(rows.max()) + 1)
        distinct, from_end = np.unique(rows[::-1], return_index=True)
        last = len(rows) - 1 - from_end  # numpy promises no order where an index occurs twice
        if codes is not None:
            self._codes[distinct] = codes[last]
        if numbers is not None:
            self._numbers[distinct] = numbers[last]

    def grow(self, size: int) -> None:
        """Make room for rows 0 .. size - 1, all unknown."""
        self._codes, self._numbers = grown(self._codes, size), grown(self._numbers, size)
        self.size = max(self.size, size)

    def codes(self, rows: Rows, feature: int) -> Rows:
        """[n] the category of each row, 0 where it is unknown."""
        found = np.zeros(len(rows), np.int64)
        known = rows < self.size
        found[known] = self._codes[rows[known], feature]
        return found

    def numbers(self, rows: Rows) -> Floats:
        """[n, numeric] the numbers of each row, 0 where they are unknown."""
        found = np.zeros((len(rows), len(self.numeric)), np.float32)
        known = rows < self.size
        found[known] = self._numbers[rows[known]]
        return found

    def categories(self, feature: int) -> int:
        """How many codes the feature has used, the unknown one included."""
        return int(self._codes[: self.size, feature].max(initial=0)) + 1

    def forget(self, rows: Rows) -> None:
        """Retire rows: their features are unknown again."""
        rows = rows[rows < self.size]
        self._codes[rows] = 0
        self._numbers[rows] = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """The features of all rows; views."""
        return {"codes": self._codes[: self.size], "numbers": self._numbers[: self.size]}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over what `state` returned.

        Raises:
            ValueError: it is of other features.
        """
        found = state["codes"].shape[1], state["numbers"].shape[1]
        if found != (len(self.categorical), len(self.numeric)):
            raise ValueError(
                f"{found[0]} categorical and {found[1]} numeric features do not fit "
                f"{len(self.categorical)} and {len(self.numeric)}: the configured features differ"
            )
        self.size = 0
        self._codes, self._numbers = self._codes[:0], self._numbers[:0]
        self.grow(len(state["codes"]))
        self._codes[: self.size], self._numbers[: self.size] = state["codes"], state["numbers"]
