"""What events and the catalogue say of users and items."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from streamer.event import TITLE, Features
from streamer.ingest.batcher import MicroBatch
from streamer.learner.bounded import BoundedState
from streamer.model.batch import Rows
from streamer.model.rows.by_rows import Arrays
from streamer.recommender import LAST_S

LARGEST_NUMBER = float(np.finfo(np.float32).max)
_TRUTH = {"true": 1.0, "false": 0.0}


class DescribedState(BoundedState):
    """What a learner knows, with the features of users and items, and items that the
    catalogue describes.
    """

    def learn_catalogue(self, batch: MicroBatch) -> None:
        """Take in catalogue events of distinct items: retire those that are deleted,
        create and describe the others.

        What an event does not say leaves what is known. An item of which nothing is
        said waits for its first event. Until then, the vector of one that is described
        is that of its features: its id adds nothing.
        """
        self.evict()
        features = batch.item_features or [None] * len(batch)
        self.retire_items(
            [
                item
                for item, said in zip(batch.items, features, strict=True)
                if said is None
            ]
        )
        said = [k for k, of_item in enumerate(features) if of_item]
        if not said:
            return
        self.clock.tick(self._times(batch))
        rows = self.rows_of("items", [batch.items[k] for k in said])
        self.see("items", rows)
        given = [features[k] or {} for k in said]
        self._set_features("item", rows, given)
        titles = {
            row: str(f[TITLE])
            for row, f in zip(rows.tolist(), given, strict=True)
            if TITLE in f
        }
        self.titles.set(titles)
        model = self.trainer.model
        self.find_cold_items(rows)
        if model.item.settings.ids:
            model.tables["item.id"].begin_at_zero(rows[self.are_cold(rows)])

    def user_features(self, features: Features) -> Arrays:
        """Features of a user who has no row, as those of a row: what the model does not
        know is left out.
        """
        wanted = self.settings.user_tower
        numbers = [_number(features.get(name, math.nan)) for name in wanted.numeric]
        codes = [
            self.categories["user"][name].row_of(str(features.get(name, ""))) or 0
            for name in wanted.categorical
        ]
        given = np.array([numbers], np.float32).reshape(1, -1)
        return {
            "codes": np.array([codes], np.int64).reshape(1, -1),
            "numbers": np.nan_to_num(given),
            "known": ~np.isnan(given),
        }

    def _set_features(
        self, side: str, rows: Rows, features: Sequence[Features | None] | None
    ) -> None:
        """Remember the features that the model uses; what an event does not say leaves
        what is known.

        In a group `rows` of users are those of `_user_features`: categories and the
        scale of numbers are shared.
        """
        tower = getattr(self.trainer.model, side)
        group = self.group
        wanted = tower.settings
        if features is None or not (wanted.categorical or wanted.numeric):
            return
        told = _merged(rows, features)
        at = np.fromiter(told, np.int64, len(told))
        own = np.ones(len(at), np.bool_)
        sample = None
        codes = np.zeros((len(at), len(wanted.categorical)), np.int64)
        numbers = np.full((len(at), len(wanted.numeric)), np.nan, np.float32)
        for c, name in enumerate(wanted.categorical):
            given = [
                (k, str(f[name]))
                for k, f in enumerate(told.values())
                if f.get(name, "") != ""
            ]
            codes[[k for k, _ in given], c] = self._categories(
                f"{side}.{name}", [value for _, value in given]
            )
        for c, name in enumerate(wanted.numeric):
            numbers[:, c] = [_number(f.get(name, math.nan)) for f in told.values()]
        if side == "user" and group.parts > 1:
            own = at % group.size == group.rank
            at = at // group.size
            sample = numbers
        known = tower.codes(at[own])
        tower.features.set(
            at[own], np.where(codes[own] > 0, codes[own], known), numbers[own], sample
        )

    def _see_categories(self, side: str, codes: Rows) -> None:
        """Events have these categories [B, C]."""
        for name, of_feature in zip(self.categories[side], codes.T, strict=True):
            self.see(f"{side}.{name}", of_feature[of_feature > 0])

    def _categories(self, kind: str, values: list[str]) -> Rows:
        return self._vocabulary(kind).rows(
            values, lambda free: self.changes.mark(kind, free)
        )

    def _times(self, batch: MicroBatch) -> Rows:
        """Seconds since the epoch; events without a time come a second after the one
        before.
        """
        if batch.timestamps_s:
            return np.clip(batch.timestamps_s, 0, LAST_S).astype(np.int64)
        return self.candidate_features.windows.now_s + 1 + np.arange(len(batch))


def _merged(rows: Rows, features: Sequence[Features | None]) -> dict[int, Features]:
    """What the events of a batch say of each row; the later event wins."""
    told: dict[int, Features] = {}
    for row, given in zip(rows.tolist(), features, strict=True):
        if given:
            told.setdefault(row, {}).update(given)
    return told


def _number(value: str | float) -> float:
    """A feature as a number that a float32 holds; NaN if it is not one. Integers are
    text: they may be categories.
    """
    try:
        number = float(_TRUTH.get(value, value))  # type: ignore[arg-type]
    except ValueError:
        return math.nan
    return number if abs(number) <= LARGEST_NUMBER else math.nan
