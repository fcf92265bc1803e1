"""Features of users or items, by row: small integers for categories, numbers for the
rest. On the host.

A tower gets numbers in standard deviations from their mean, at most `LIMIT` of them.
Both are those of the latest `SAMPLE` numbers of the feature without the outermost ones,
so that a few absurd numbers change neither, and a feature that drifts is followed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamer.model.batch import Bools, Doubles, Floats, Rows
from streamer.model.rows.by_rows import Arrays, ByRows, take_or_fill
from streamer.model.rows.growing import grown

SAMPLE = 2048
"""The latest numbers of a feature, by which it is standardised."""
OUTERMOST = 0.01
"""Share of them at either end that counts as the number next to it."""
LIMIT = 5.0
"""Standard deviations from the mean at which a number is cut off."""


class FeatureStore(ByRows):
    """The latest known features of every row.

    Args:
        categorical: names of the categorical features.
        numeric: names of the numeric features.
    """

    def __init__(
        self, categorical: Sequence[str] = (), numeric: Sequence[str] = ()
    ) -> None:
        self.categorical = tuple(categorical)
        self.numeric = tuple(numeric)
        self.size = 0
        self._codes = np.zeros((0, len(self.categorical)), np.int32)
        # NaN where it is unknown
        self._numbers = np.zeros((0, len(self.numeric)), np.float32)
        self._sample = np.zeros((SAMPLE, len(self.numeric)), np.float32)
        # numbers that ever went into each column
        self._sampled = np.zeros(len(self.numeric), np.int64)
        self._mean = np.zeros(len(self.numeric))
        self._deviation = np.ones(len(self.numeric))

    def set(
        self,
        rows: Rows,
        codes: Rows | None,
        numbers: Floats | None = None,
        sample: Floats | None = None,
    ) -> None:
        """Remember features of some rows; where a row occurs twice, its last one stays.

        Args:
            rows: [n] rows.
            codes: [n, categorical] number of each category, from 1; 0 means unknown.
            numbers: [n, numeric]; NaN leaves what is known.
            sample: [m, numeric] what numbers are standardised by from now on, if that
                is more than those of the rows.
        """
        if sample is not None:
            self._standardise_by(sample)
        if not len(rows):
            return
        self.grow(int(rows.max()) + 1)
        # the last of each row: numpy promises no order where an index occurs twice
        distinct, from_end = np.unique(rows[::-1], return_index=True)
        last = len(rows) - 1 - from_end
        if codes is not None:
            self._codes[distinct] = codes[last]
        if numbers is not None:
            new = numbers[last]
            self._numbers[distinct] = np.where(
                np.isnan(new), self._numbers[distinct], new
            )
            if sample is None:
                self._standardise_by(new)

    def _standardise_by(self, numbers: Floats) -> None:
        for feature in range(len(self.numeric)):
            given = numbers[~np.isnan(numbers[:, feature]), feature][-SAMPLE:]
            places = (self._sampled[feature] + np.arange(len(given))) % SAMPLE
            self._sample[places, feature] = given
            self._sampled[feature] += len(given)
            self._standardise(feature)

    def _standardise(self, feature: int) -> None:
        """Mean and standard deviation of the sample; those of a feature that is nearly
        constant count every number.
        """
        sample = self._sample[: self._sampled[feature], feature]
        ordered = np.sort(sample).astype(np.float64)
        if not len(ordered):
            return
        outermost = int(OUTERMOST * len(ordered))
        inner = ordered.clip(ordered[outermost], ordered[-1 - outermost])
        self._mean[feature] = inner.mean()
        self._deviation[feature] = inner.std() or ordered.std() or 1.0

    def grow(self, size: int) -> None:
        """Make room for rows 0 .. size - 1, all unknown."""
        self._codes = grown(self._codes, size)
        self._numbers = grown(self._numbers, size, np.nan)
        self.size = max(self.size, size)

    def codes(self, rows: Rows, feature: int) -> Rows:
        """[n] the category of each row, 0 where it is unknown."""
        found = np.zeros(len(rows), np.int64)
        known = rows < self.size
        found[known] = self._codes[rows[known], feature]
        return found

    def numbers(self, rows: Rows) -> Floats:
        """[n, numeric] the numbers of each row in standard deviations from the mean, 0
        where they are unknown.
        """
        found = np.full((len(rows), len(self.numeric)), np.nan)
        known = rows < self.size
        found[known] = (self._numbers[rows[known]] - self._mean) / self._deviation
        within_limits: Doubles = np.nan_to_num(found.clip(-LIMIT, LIMIT))
        return within_limits.astype(np.float32)

    def are_known(self, rows: Rows) -> Bools:
        """[n] whether anything is known of each row."""
        has_category = (take_or_fill(self._codes, rows) > 0).any(-1)
        is_unknown = np.isnan(take_or_fill(self._numbers, rows, np.nan))
        found: Bools = has_category | ~is_unknown.all(-1)
        return found

    def categories(self, feature: int) -> int:
        """How many codes the feature has used, the unknown one included."""
        return int(self._codes[: self.size, feature].max(initial=0)) + 1

    def forget(self, rows: Rows) -> None:
        """Retire rows: their features are unknown again."""
        rows = rows[rows < self.size]
        self._codes[rows] = 0
        self._numbers[rows] = np.nan

    def with_codes(self, feature: int, codes: Rows) -> Rows:
        """Rows that have one of these categories (looks at all rows)."""
        of_rows = self._codes[: self.size, feature]
        largest = max(codes.max(initial=0), of_rows.max(initial=0))
        gone = np.zeros(int(largest) + 1, bool)
        gone[codes] = True
        return np.flatnonzero(gone[of_rows])

    def forget_codes(self, feature: int, rows: Rows) -> None:
        """The category of these rows is unknown again."""
        self._codes[rows, feature] = 0

    @property
    def nbytes(self) -> int:
        return 4 * (len(self.categorical) + len(self.numeric)) * self.size

    def take(self, rows: Rows) -> Arrays:
        """The features as they were given."""
        numbers = take_or_fill(self._numbers, rows, np.nan)
        return {
            "codes": take_or_fill(self._codes, rows),
            "numbers": np.nan_to_num(numbers),
            "known": ~np.isnan(numbers),
        }

    def put(self, rows: Rows, arrays: Arrays) -> None:
        """Make rows hold what `take` returned of them.

        Raises:
            ValueError: it is of other features.
        """
        found = arrays["codes"].shape[1], arrays["numbers"].shape[1]
        if found != (len(self.categorical), len(self.numeric)):
            raise ValueError(
                f"{found[0]} categorical and {found[1]} numeric features do not fit "
                f"{len(self.categorical)} and {len(self.numeric)}: the configured features differ"
            )
        self.grow(int(rows.max(initial=-1)) + 1)
        self._codes[rows] = arrays["codes"]
        self._numbers[rows] = np.where(arrays["known"], arrays["numbers"], np.nan)

    def dense(self) -> Arrays:
        """What numbers are standardised by."""
        return super().dense() | {
            "sample": self._sample.copy(),
            "sampled": self._sampled.copy(),
        }

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self.grow(self.size)
        self._sample = arrays["sample"].copy()
        self._sampled = arrays["sampled"].copy()
        self._mean = np.zeros(len(self.numeric))
        self._deviation = np.ones(len(self.numeric))
        for feature in range(len(self.numeric)):
            self._standardise(feature)

    def clear(self) -> None:
        self.size = 0
        self._codes = self._codes[:0]
        self._numbers = self._numbers[:0]
