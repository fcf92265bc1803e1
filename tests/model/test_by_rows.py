"""What every part of a learner whose state is kept by rows must do: its state can be copied, whole or in slices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from streamer.model.occurrence import Occurrence
from streamer.model.popularity import ExactPopularity, HashPopularity
from streamer.model.ranking.co_occurrence import CoOccurrence, pair_up
from streamer.model.rows.by_rows import ByRows, take_or_fill
from streamer.model.rows.features import FeatureStore
from streamer.model.rows.recency import Recency
from streamer.model.rows.recent_items import RecentItems
from streamer.model.rows.retired import RetiredItems
from streamer.model.rows.seen_items import UserItems
from streamer.model.rows.tables import EmbeddingTable
from streamer.model.rows.user_partition import UserPartitions

ROWS = 60


def pair(part: CoOccurrence, items: np.ndarray, others: np.ndarray) -> None:
    part.reserve(ROWS)
    for item, other in zip(items, others, strict=True):
        part.extend()
        pair_up(part.neighbours, item, 5, np.array([other], np.int32), np.array([3], np.int32))


def learn(part: EmbeddingTable, rows: np.ndarray) -> None:
    part.grow(int(rows.max()) + 1)
    part.lines[torch.from_numpy(rows)] += 1.5


def describe(part: FeatureStore, rows: np.ndarray, step: int) -> None:
    part.set(rows, rows[:, None], step * rows[:, None].astype(np.float32))


PARTS = {
    "recent items": (lambda: RecentItems(4), lambda part, a, b, step: part.observe(a, b, a + step)),
    "seen items": (UserItems, lambda part, a, b, step: part.observe(a, b)),
    "co-occurrence": (lambda: CoOccurrence(5), lambda part, a, b, step: pair(part, a, b)),
    "recency": (Recency, lambda part, a, b, step: part.mark_seen(a, step)),
    "retired": (RetiredItems, lambda part, a, b, step: part.forget(np.setdiff1d(a, part.rows()))),
    "partitions": (UserPartitions, lambda part, a, b, step: part.observe(a, step)),
    "features": (
        lambda: FeatureStore(("genre",), ("price",)),
        lambda part, a, b, step: describe(part, np.unique(a), step),
    ),
    "counts": (ExactPopularity, lambda part, a, b, step: part.observe(a)),
    "decayed counts": (lambda: ExactPopularity(0.05), lambda part, a, b, step: part.observe(a)),
    "hash arrays": (lambda: HashPopularity(slots=64), lambda part, a, b, step: part.observe(a)),
    "occurrence": (Occurrence, lambda part, a, b, step: part.add(a, b)),
    "table": (
        lambda: EmbeddingTable(3, 1, 0.1, 5, torch.device("cpu")),
        lambda part, a, b, step: learn(part, np.unique(a)),
    ),
}


def fill(name: str, part: ByRows, step: int) -> None:
    rng = np.random.default_rng(step)
    PARTS[name][1](part, rng.integers(0, ROWS, 40), rng.integers(0, ROWS, 40), step)


def assert_equal(part: ByRows, other: ByRows) -> None:
    state, expected = part.state(), other.state()
    assert state.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(state[key], array, err_msg=key)


@pytest.mark.parametrize("name", PARTS)
class TestByRows:
    def test_a_loaded_state_replaces_what_was_there_and_goes_on_alike(self, name):
        part, other = PARTS[name][0](), PARTS[name][0]()
        fill(name, part, 1)
        fill(name, other, 2)
        saved = part.state()
        other.load_state(saved)
        for one in (part, other):
            fill(name, one, 3)
        assert_equal(other, part)
        other.load_state(saved)  # a copy: what came later did not change it
        fill(name, other, 3)
        assert_equal(other, part)

    def test_rows_can_be_put_in_slices_and_in_any_order(self, name):
        part, other = PARTS[name][0](), PARTS[name][0]()
        fill(name, part, 1)
        for rows in np.array_split(np.random.default_rng(0).permutation(part.rows()), 4):
            other.put(rows, part.take(rows))
        other.load_dense(part.dense())
        assert_equal(other, part)


def test_rows_that_an_array_does_not_have_are_filled():
    rows = np.array([1, 5, -1])
    assert take_or_fill(np.array([3, 4]), rows, 9)[:2].tolist() == [4, 9]
    assert take_or_fill(np.array([3, 4]), np.array([0, 1])).tolist() == [3, 4]
    assert take_or_fill(np.empty(0), np.array([-1, 0]), 9).tolist() == [9, 9]
