from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice

import pytest

from streamer.replay import synthetic
from streamer.replay.events import Events
from streamer.replay.synthetic import SyntheticStream

EVENTS = 60_000


def taken(count: int, seed: int = 0) -> Events:
    """The first events of a stream, as one."""
    whole = Events([], [], [])
    for part in SyntheticStream(seed):
        whole.users += part.users
        whole.items += part.items
        whole.timestamps_s += part.timestamps_s
        if len(whole) >= count:
            break
    return Events(whole.users[:count], whole.items[:count], whole.timestamps_s[:count])


@pytest.fixture(scope="module")
def events() -> Events:
    return taken(EVENTS)


def theme(item: str) -> str:
    return item.partition("-")[0]


def test_the_seed_determines_the_stream():
    assert taken(5000) == taken(5000)
    assert taken(5000, seed=1) != taken(5000)


def test_times_ascend_and_are_those_of_the_record(events: Events):
    assert events.timestamps_s == sorted(events.timestamps_s)
    key, _, time_ms = events.records()[0]
    assert key.decode() == events.users[0]
    assert time_ms == round(events.timestamps_s[0] * 1000)


def test_popularity_has_a_long_tail(events: Events):
    counts = [count for _, count in Counter(events.items).most_common()]
    assert sum(counts[:100]) > 0.15 * EVENTS
    assert sum(counts[1000:]) > 0.25 * EVENTS
    assert counts[len(counts) // 2] < 0.05 * counts[0]


def test_new_users_and_items_keep_appearing(events: Events):
    last = slice(EVENTS - 5000, EVENTS)
    for column in (events.users, events.items):
        assert len(set(column[last]) - set(column[: EVENTS - 5000])) > 20


def test_what_is_popular_changes():
    events = taken(200_000)
    parts = events.items[:40_000], events.items[160_000:]
    first, last = ({item for item, _ in Counter(part).most_common(20)} for part in parts)
    assert len(first & last) < 15


def test_people_have_tastes(events: Events):
    themes: dict[str, Counter[str]] = defaultdict(Counter)
    for user, item in zip(events.users, events.items, strict=True):
        themes[user][theme(item)] += 1
    busy = [counts for counts in themes.values() if counts.total() >= 40]
    assert len(busy) > 50
    in_three = sum(n for counts in busy for _, n in counts.most_common(3)) / sum(counts.total() for counts in busy)
    assert in_three > 0.8


def test_people_return_to_what_they_had(events: Events):
    had: dict[str, set[str]] = defaultdict(set)
    returned = 0
    for user, item in zip(events.users, events.items, strict=True):
        returned += item in had[user]
        had[user].add(item)
    assert 0.1 < returned / EVENTS < 0.6


def test_without_returns_sessions_walk_along_related_items(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("RELATED", 1.0), ("RETURNING", 0.0), ("NEW_ITEMS", 0.0), ("RISING_ITEMS", 0.0)):
        monkeypatch.setattr(synthetic, name, value)
    monkeypatch.setattr(synthetic, "FIRST_USERS", 100_000)
    events = taken(5000)
    last: dict[str, str] = {}
    same_theme = steps = 0
    for user, item in zip(events.users, events.items, strict=True):
        if user in last:
            steps += 1
            same_theme += theme(last[user]) == theme(item)
        last[user] = item
    assert same_theme > 0.95 * steps > 0


def test_the_stream_is_made_on_the_way():
    assert all(len(part) < 5000 for part in islice(SyntheticStream(), 3))
