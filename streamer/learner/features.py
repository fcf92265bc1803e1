"""Features of users and items, as events and the catalogue give them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.event import NO_USER, TITLE
from streamer.event import Features as EventFeatures
from streamer.ingest.batcher import MicroBatch
from streamer.learner.eviction import Eviction
from streamer.learner.state import LABELS, State
from streamer.model.batch import Floats, Rows
from streamer.model.rows.by_rows import Arrays
from streamer.model.settings import RULES

LARGEST_NUMBER = float(np.finfo(np.float32).max)
LARGEST_EXACT = 2.0**53
"""Whole numbers beyond are text: two of them could be the same float."""
_TRUTH = {"true": 1.0, "false": 0.0}

FeatureColumn = Sequence[EventFeatures | None]
"""Of each event, what it says of its user or its item."""


class RowFeatures(NamedTuple):
    """Features as the towers keep them, one line a row; each row occurs once."""

    rows: Rows
    codes: Rows
    """[n, C] categories, 0 where none is given."""
    numbers: Floats
    """[n, N], NaN where none is given."""

    def only(self, chosen: NDArray[np.bool_]) -> RowFeatures:
        """Those of some rows."""
        return RowFeatures(self.rows[chosen], self.codes[chosen], self.numbers[chosen])


class Features:
    """Keeps the features that the model uses; what an event does not say stays as it
    was.

    Args:
        state: what is learned.
        eviction: retires items that the catalogue deletes.
    """

    def __init__(self, state: State, eviction: Eviction) -> None:
        self._state = state
        self._eviction = eviction
        self._occurred: set[str] = set()  # features that an event has had

    def learn_catalogue(self, batch: MicroBatch) -> None:
        """Take in catalogue events of distinct items: retire those that are deleted,
        create and describe the others.

        An item without any feature waits for its first interaction. Until then, the
        vector of a described item is that of its features: its id adds nothing.
        """
        state = self._state
        self._eviction.evict()
        features = batch.item_features or [None] * len(batch)
        deleted = []
        described = []
        given = []
        for item, of_item in zip(batch.items, features, strict=True):
            if of_item is None:
                deleted.append(item)
            elif of_item:
                described.append(item)
                given.append(of_item)
        self._eviction.retire_items(deleted)

        if not described:
            return
        times_s = state.event_times(batch.timestamps_s, len(batch))
        state.clock.tick(times_s)
        rows = state.rows_of("items", described)
        state.mark_seen("items", rows)
        self.set("item", rows, given)
        self._set_attributes(rows, given, RULES)
        titles = {}
        for row, of_item in zip(rows.tolist(), given, strict=True):
            if TITLE in of_item:
                titles[row] = str(of_item[TITLE])
        state.titles.set(titles)

        state.find_cold_items(rows)
        model = state.trainer.model
        if model.item.settings.ids:
            cold = rows[state.are_cold(rows)]
            model.tables["item.id"].begin_at_zero(cold)

    def learn_between(
        self,
        batch: MicroBatch,
        events: Sequence[int],
    ) -> Iterator[MicroBatch]:
        """Stretches of a batch without its catalogue events: learn each before the
        next.

        Catalogue events take effect when the events before them are learned, and before
        an event of their item that comes after.

        Args:
            batch: with events of the catalogue.
            events: those that are learned, ascending.
        """
        stretch: list[int] = []
        catalogue: dict[str, int] = {}  # the event of each item
        for k in events:
            if batch.items[k] in catalogue:
                if stretch:
                    yield batch.only(stretch)
                self.learn_catalogue(batch.only(list(catalogue.values())))
                stretch = []
                catalogue = {}
            if batch.users[k] == NO_USER:
                catalogue[batch.items[k]] = k
            else:
                stretch.append(k)
        if stretch:
            yield batch.only(stretch)
        if catalogue:
            self.learn_catalogue(batch.only(list(catalogue.values())))

    def set(self, side: str, rows: Rows, features: FeatureColumn | None) -> None:
        """Remember what events say of the rows of a side, "user" or "item"."""
        if features is None:
            return
        if _names(self._tower(side).settings):
            self.put(side, self.of_rows(side, rows, features))
        if side == "item":
            names = self._state.attributes.names
            self._set_attributes(rows, features, names)

    def are_used(self, side: str) -> bool:
        """Whether anything is remembered of what events say of a side."""
        if side == "item":
            return bool(self._state.settings.filterable)
        return bool(_names(self._tower(side).settings))

    def _set_attributes(
        self, rows: Rows, features: FeatureColumn, names: Sequence[str]
    ) -> None:
        state = self._state
        by_row = _merged(rows, features) if names else {}
        for name in names:
            own = []
            values = []
            for row, of_row in by_row.items():
                value = of_row.get(name, "")
                if value != "":
                    own.append(row)
                    values.append(value)
            numbers = np.array([exact_number(value) for value in values])
            is_text = np.isnan(numbers) & (name not in RULES)
            places = np.flatnonzero(is_text)
            texts = [f"{name}:{values[place]}" for place in places.tolist()]
            labels = np.zeros(len(own), np.int64)
            labels[places] = state.rows_of(LABELS, texts)
            state.mark_seen(LABELS, labels[places])
            state.attributes.set(name, np.array(own, np.int64), labels, numbers)

    def _tower(self, side: str) -> Any:
        return getattr(self._state.trainer.model, side)

    def of_rows(self, side: str, rows: Rows, features: FeatureColumn) -> RowFeatures:
        """Features that events give to rows; of two events, the later one counts. New
        categories get a code.
        """
        wanted = self._tower(side).settings
        by_row = _merged(rows, features)
        given = list(by_row.values())
        codes = np.zeros((len(given), len(wanted.categorical)), np.int64)
        numbers = np.full((len(given), len(wanted.numeric)), np.nan, np.float32)
        for c, name in enumerate(wanted.categorical):
            at = []
            values = []
            for k, of_row in enumerate(given):
                value = of_row.get(name, "")
                if value != "":
                    at.append(k)
                    values.append(str(value))
            codes[at, c] = self._state.rows_of(f"{side}.{name}", values)
        for c, name in enumerate(wanted.numeric):
            numbers[:, c] = [_number(of_row.get(name, math.nan)) for of_row in given]
        given_codes = (codes > 0).any(axis=0)
        given_numbers = (~np.isnan(numbers)).any(axis=0)
        has_value = np.concatenate([given_codes, given_numbers])
        for name, occurs in zip(_names(wanted), has_value, strict=True):
            if occurs:
                self._occurred.add(f"{side}-feature {name}")
        own_rows = np.fromiter(by_row, np.int64, len(by_row))
        return RowFeatures(own_rows, codes, numbers)

    def never_occurred(self) -> list[str]:
        """Features of the settings that no event has had since the start, e.g.
        `item-feature colour`.
        """
        found = []
        for side in ("item", "user"):
            for name in _names(self._tower(side).settings):
                found.append(f"{side}-feature {name}")
        return [feature for feature in found if feature not in self._occurred]

    def put(self, side: str, given: RowFeatures, sample: Floats | None = None) -> None:
        """Remember the features of rows.

        Args:
            side: "user" or "item".
            given: by `of_rows`.
            sample: numbers that the scale of each feature learns from, if they are not
                those of the rows.
        """
        tower = self._tower(side)
        known = tower.features.codes(given.rows)
        codes = np.where(given.codes > 0, given.codes, known)
        tower.features.set(given.rows, codes, given.numbers, sample)

    def mark_categories_seen(self, side: str, codes: Rows) -> None:
        """Note that events have these categories [B, C]."""
        names = self._tower(side).settings.categorical
        for name, of_feature in zip(names, codes.T, strict=True):
            self._state.mark_seen(f"{side}.{name}", of_feature[of_feature > 0])

    def of_session(self, features: EventFeatures) -> Arrays:
        """Features of a user who has no row, as those of a row; unknown categories are
        left out.
        """
        wanted = self._state.settings.user_tower
        numbers = [_number(features.get(name, math.nan)) for name in wanted.numeric]
        codes = []
        for name in wanted.categorical:
            vocabulary = self._state.vocabulary(f"user.{name}")
            category = str(features.get(name, ""))
            codes.append(vocabulary.row_of(category) or 0)
        given = np.array([numbers], np.float32).reshape(1, -1)
        return {
            "codes": np.array([codes], np.int64).reshape(1, -1),
            "numbers": np.nan_to_num(given),
            "known": ~np.isnan(given),
        }


def _names(tower: Any) -> tuple[str, ...]:
    """The features of a tower's settings."""
    return (*tower.categorical, *tower.numeric)


def _merged(rows: Rows, features: FeatureColumn) -> dict[int, EventFeatures]:
    """What the events of a batch say of each row; the later event wins."""
    by_row: dict[int, EventFeatures] = {}
    for row, given in zip(rows.tolist(), features, strict=True):
        if given:
            by_row.setdefault(row, {}).update(given)
    return by_row


def _number(value: str | float) -> float:
    """A feature as a number that a float32 holds; NaN if it is not one. Integers are
    text: they may be categories.
    """
    number = _to_float(value)
    return number if abs(number) <= LARGEST_NUMBER else math.nan


def exact_number(value: str | float) -> float:
    """An attribute as a number; NaN if it is text."""
    number = _to_float(value)
    return number if abs(number) < LARGEST_EXACT else math.nan


def _to_float(value: str | float) -> float:
    try:
        return float(_TRUTH.get(value, value))  # type: ignore[arg-type]
    except ValueError:
        return math.nan
