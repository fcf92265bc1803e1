"""Events that are not learned yet: what is kept of them, and how long."""

from __future__ import annotations

import pytest

from streamer.serve import overlay as module
from streamer.serve.overlay import Event, Overlay
from streamer.sources.base import Partition

OURS, OTHER = Partition("clicks", 0), Partition("clicks", 1)


def event(partition: Partition, offset: int, user: str = "ann") -> Event:
    return Event(partition, offset, user, f"{partition.number}:{offset}", float(offset), float(offset))


def items(overlay: Overlay, user: str = "ann") -> list[str]:
    return [item for item, _ in overlay.of(user)]


@pytest.fixture
def overlay(monkeypatch) -> Overlay:
    """Of a trainer that reads one of two partitions."""
    monkeypatch.setattr(module, "MAX_EVENTS", 8)
    monkeypatch.setattr(module, "MAX_OTHER_EVENTS", 6)
    monkeypatch.setattr(module, "LAST_EVENTS", 3)
    found = Overlay()
    assert list(found.prune({OURS: 5})) == []
    return found


def test_what_is_learned_goes_and_the_rest_stays_in_its_order(overlay):
    assert not overlay.add(event(OURS, 4))
    for offset in (5, 6, 7):
        assert overlay.add(event(OURS, offset))
    assert [learned.offset for learned in overlay.prune({OURS: 7})] == [5, 6]
    assert items(overlay) == ["0:7"]
    assert overlay.waiting == 1


def test_of_partitions_that_nobody_publishes_only_the_last_of_each_user_are_kept(overlay):
    for offset in range(1000):
        assert overlay.add(event(OTHER, offset))
    assert items(overlay) == ["1:997", "1:998", "1:999"]
    for offset, user in enumerate(["bob", "bob", "cem", "dan"]):
        overlay.add(event(OTHER, 1000 + offset, user))
    assert items(overlay) == [], "of the users who did nothing for longest, nothing is kept"
    assert [items(overlay, user) for user in ("bob", "cem", "dan")] == [["1:1000", "1:1001"], ["1:1002"], ["1:1003"]]
    assert (overlay.waiting, overlay.of_others) == (0, 4)


def test_while_the_trainer_is_away_the_oldest_give_way(overlay):
    for offset in range(5, 20):
        overlay.add(event(OURS, offset))
    assert items(overlay) == [f"0:{offset}" for offset in range(12, 20)]
    assert overlay.waiting == 8


def test_events_are_kept_when_a_partition_gets_a_publisher_or_loses_it(overlay):
    overlay.add(event(OURS, 5))
    overlay.add(event(OTHER, 1))
    overlay.add(event(OTHER, 7))
    assert items(overlay) == ["1:1", "0:5", "1:7"]
    assert [learned.item for learned in overlay.prune({OURS: 5, OTHER: 3})] == ["1:1"]
    assert items(overlay) == ["0:5", "1:7"]
    assert (overlay.waiting, overlay.of_others) == (2, 0)
    assert [learned.item for learned in overlay.prune({OTHER: 8})] == ["1:7"]
    assert (items(overlay), overlay.of_others) == (["0:5"], 1)
