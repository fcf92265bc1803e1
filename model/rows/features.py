"""Features of users or items, by row: small integers for categories, numbers for the
rest. On the host.

A tower gets numbers in standard deviations from their mean, at most `LIMIT` of them.
Both are those of the latest `SAMPLE` numbers of the feature without the outermost ones,
so that a few absurd numbers change neither, and a feature that drifts is followed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamer.model.batch import Bools, Doubles, Floats, Ints, Rows
from streamer.model.rows.by_rows import Arrays, Columns, take_or_fill

SAMPLE = 2048
"""The latest numbers of a feature, by which it is standardised."""
OUTERMOST = 0.01
"""Share of them at either end that counts as the number next to it."""
LIMIT = 5.0
"""Standard deviations from the mean at which a number is cut off."""


class FeatureStore(Columns):
    """The latest known features of every row.

    Args:
        categorical: names of the categorical features.
        numeric: names of the numeric features.
    """

    def __init__(
        self,
        categorical: Sequence[str] = (),
        numeric: Sequence[str] = (),
    ) -> None:
        self.categorical = tuple(categorical)
        self.numeric = tuple(numeric)
        super().__init__(
            {"numbers": np.nan},  # where it is unknown
            codes=np.zeros((0, len(self.categorical)), np.int32),
            numbers=np.zeros((0, len(self.numeric)), np.float32),
        )
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
        """Remember features of some rows.

        Args:
            rows: [n] each once.
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
        if codes is not None:
            self._codes[rows] = codes
        if numbers is not None:
            known = self._numbers[rows]
            self._numbers[rows] = np.where(np.isnan(numbers), known, numbers)
            if sample is None:
                self._standardise_by(numbers[np.argsort(rows)])

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

    @property
    def _codes(self) -> Ints:
        return self.columns["codes"]

    @property
    def _numbers(self) -> Floats:
        return self.columns["numbers"]

    def codes(self, rows: Rows) -> Rows:
        """[n, categorical] the categories of each row, 0 where they are unknown."""
        return take_or_fill(self._codes, rows).astype(np.int64)

    def numbers(self, rows: Rows) -> Floats:
        """[n, numeric] the numbers of each row in standard deviations from the mean, 0
        where they are unknown.
        """
        given = take_or_fill(self._numbers, rows, np.nan)
        found = (given - self._mean) / self._deviation
        within_limits: Doubles = np.nan_to_num(found.clip(-LIMIT, LIMIT))
        return within_limits.astype(np.float32)

    def are_known(self, rows: Rows) -> Bools:
        """[n] whether anything is known of each row."""
        given = self.take(rows)
        known = np.concatenate([given["codes"] > 0, given["known"]], axis=1)
        found: Bools = np.logical_or.reduce(known, axis=1)
        return found

    def with_codes(self, feature: int, codes: Rows) -> Rows:
        """Rows that have one of these categories (looks at all rows)."""
        of_feature = self._codes[: self.size, feature]
        return np.flatnonzero(np.isin(of_feature, codes))

    def forget_codes(self, feature: int, rows: Rows) -> None:
        """The category of these rows is unknown again."""
        self._codes[rows, feature] = 0

    def take(self, rows: Rows) -> Arrays:
        """The features as they were given."""
        given = super().take(rows)
        known = ~np.isnan(given["numbers"])
        given["numbers"] = np.nan_to_num(given["numbers"])
        given["known"] = known
        return given

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
        numbers = np.where(arrays["known"], arrays["numbers"], np.nan)
        super().put(rows, arrays | {"numbers": numbers})

    def dense(self) -> Arrays:
        """What numbers are standardised by."""
        return super().dense() | {
            "sample": self._sample.copy(),
            "sampled": self._sampled.copy(),
        }

    def load_dense(self, arrays: Arrays) -> None:
        super().load_dense(arrays)
        self._sample = arrays["sample"].copy()
        self._sampled = arrays["sampled"].copy()
        self._mean = np.zeros(len(self.numeric))
        self._deviation = np.ones(len(self.numeric))
        for feature in range(len(self.numeric)):
            self._standardise(feature)
