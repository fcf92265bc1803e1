"""What a shop wants to know: what is in the lists, and in which part of the catalogue they hit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from streamer.evaluation.shop import ShopWatch
from streamer.evaluation.tally import MISS, Ranks
from streamer.model.popularity import ExactPopularity
from streamer.vocabulary import Vocabulary


class Lists(SimpleNamespace):
    """Candidates of as many events as there are lists, best first."""

    def __init__(self, *lists: list[int]) -> None:
        ends = np.cumsum([0, *map(len, lists)])
        super().__init__(first=ends, items=np.concatenate(lists).astype(np.int32))

    def __len__(self) -> int:
        return len(self.first) - 1


@pytest.fixture
def watch() -> ShopWatch:
    """Items with 50, 30, 12, 5 and 3 events: the first begins in the first half, the next in the next 30%."""
    counts = ExactPopularity()
    counts.add(np.arange(5), np.array([50.0, 30.0, 12.0, 5.0, 3.0]))
    items = Vocabulary()
    items.rows(["a", "b", "c", "d", "e", "never had"])
    ranker = SimpleNamespace(scores=lambda lists: -np.arange(len(lists.items), dtype=np.float64))
    state = SimpleNamespace(item_counts=counts, items=items, ranker=ranker)
    return ShopWatch(SimpleNamespace(state=state), k=2)


def ranks(*among_all: int) -> Ranks:
    return Ranks(np.array(among_all), np.array(among_all))


def test_hits_are_counted_by_the_part_of_the_catalogue_with_their_error(watch):
    watch.observe(np.array([0, 0, 1, 1, 2, 5]), ranks(1, 2, 1, 3, 2, MISS), None)
    watch.observe(np.array([0, 0, 4]), ranks(MISS, 1, 9), None)
    found = {figure.band: figure[1:] for figure in watch.report().bands}
    assert found["head"] == pytest.approx((4, 0.75, (0.75 * 0.25 / 4) ** 0.5))
    assert found["torso"] == pytest.approx((2, 0.5, (0.25 / 2) ** 0.5))
    assert found["tail"] == pytest.approx((3, 1 / 3, (2 / 9 / 3) ** 0.5))


def test_what_is_in_the_first_k_of_the_lists_is_counted(watch):
    watch.observe(np.array([0, 1, 2, 3]), ranks(1, 1, 1, 1), Lists([0, 1, 2], [0, 3], [0, 1], [5, 0, 1]))
    report = watch.report()
    assert report.lists == 4
    assert report.coverage == pytest.approx(4 / 6)
    assert report.new_share == pytest.approx(2 / 8)  # d has had 5 events, one item none
    assert [(one.item, one.share, one.events) for one in report.top] == [
        ("a", 1.0, 50),
        ("b", 0.5, 30),
        ("d", 0.25, 5),
        ("never had", 0.25, 0),
    ]


def test_before_anything_is_ranked_nothing_is_claimed(watch):
    report = watch.report()
    assert (report.lists, report.coverage, report.new_share, report.top, report.bands) == (0, None, None, [], [])
