"""Recent items: the compiled lists against Python lists, event by event."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.model.batch import Recent
from streamer.model.rows.recent_items import RecentItems, UserHistory

Event = tuple[int, int]
streams = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7)), max_size=60)
lengths = st.integers(1, 5)


class SlowRecentItems:
    """A list a user, most recent first."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.lists: dict[int, list[int]] = {}

    def observe(self, stream: list[Event]) -> list[list[int]]:
        return [self.observe_one(user, item) for user, item in stream]

    def observe_one(self, user: int, item: int) -> list[int]:
        before = self.of(user)
        self.lists[user] = [item, *(other for other in before if other != item)][: self.length]
        return before

    def of(self, user: int) -> list[int]:
        return self.lists.get(user, [])


def history(recent: RecentItems, stream: list[Event], times_s: list[int] | None = None) -> UserHistory:
    users, items = np.array(stream, np.int64).reshape(-1, 2).T
    return recent.observe(users, items, np.array(times_s or range(len(stream)), np.int64))


def observe(recent: RecentItems, stream: list[Event]) -> Recent:
    return history(recent, stream).items


def after(stream: list[Event], length: int = 3) -> RecentItems:
    recent = RecentItems(length)
    observe(recent, stream)
    return recent


def listed(lines: Recent) -> list[list[int]]:
    """Without the filling; checks that it stands at the end only."""
    found = [[item for item in line if item >= 0] for line in lines.tolist()]
    assert [line + [-1] * (lines.shape[1] - len(line)) for line in found] == lines.tolist()
    return found


def of(recent: RecentItems, *users: int) -> list[list[int]]:
    return listed(recent.of(np.array(users, np.int64)).items)


def columns(recent: RecentItems, user: int) -> list[list[int]]:
    """Item, time and count of each place of a user's list."""
    found = np.stack([column[0].astype(np.int64) for column in recent.of(np.array([user]))], axis=1)
    return found[found[:, 0] >= 0].tolist()


class TestObserve:
    @given(stream=streams, length=lengths, cuts=st.sets(st.integers(0, 60)))
    def test_every_event_sees_its_users_last_distinct_items_wherever_the_stream_is_cut(self, stream, length, cuts):
        recent, slow, seen = RecentItems(length), SlowRecentItems(length), []
        for start, stop in itertools.pairwise([0, *sorted(cuts), len(stream)]):
            seen += listed(observe(recent, stream[start:stop]))
        assert seen == slow.observe(stream)
        assert of(recent, *range(6), 10**9) == [*(slow.of(user) for user in range(6)), []]

    def test_an_item_has_the_time_of_its_last_event_and_the_number_of_its_events(self):
        found = history(RecentItems(3), [(0, 5), (0, 6), (0, 5), (1, 5), (0, 6)], [10, 20, 30, 40, 50])
        assert found.items[4].tolist() == [5, 6, -1]
        assert found.times_s[4, :2].tolist() == [30, 20]
        assert found.counts[4, :2].tolist() == [2, 1]

    def test_events_of_an_item_are_counted_up_to_255_and_anew_after_it_fell_out(self):
        recent = after([(0, 5)] * 300 + [(0, 6)], length=2)
        assert recent.of(np.array([0])).counts.tolist() == [[1, 255]]
        observe(recent, [(0, 7), (0, 5)])
        assert recent.of(np.array([0])).counts.tolist() == [[1, 1]]

    def test_length_zero_keeps_nothing(self):
        recent = RecentItems(0)
        assert observe(recent, [(0, 1), (0, 2)]).shape == (2, 0)
        assert recent.of(np.array([0, 9])).items.shape == (2, 0)


class TestForget:
    def test_retired_user_has_none_and_others_keep_theirs(self):
        recent = after([(0, 5), (1, 6), (2, 7)])
        recent.forget(np.array([0, 2]))
        assert of(recent, 0, 1, 2) == [[], [6], []]

    def test_what_retired_users_leave_is_used_again(self):
        recent, sizes = RecentItems(30), []
        for _ in range(50):
            observe(recent, [(user, item) for user in range(40) for item in range(20)])
            sizes.append(recent.nbytes)
            recent.forget(np.arange(40))
        assert len(set(sizes)) == 1

    @given(stream=streams, length=lengths, gone=st.sets(st.integers(0, 12)), swept=st.booleans())
    def test_retired_items_vanish_and_the_others_keep_their_order(self, stream, length, gone, swept):
        recent, slow = after(stream, length), SlowRecentItems(length)
        slow.observe(stream)
        before = {(user, i): rest for user in range(5) for i, *rest in columns(recent, user)}
        recent.retired.forget(np.array(sorted(gone), np.int64))
        held = [user for user in range(5) if gone & set(slow.of(user))]
        assert recent.with_retired(np.arange(7)).tolist() == held
        if swept:
            recent.sweep(np.arange(7))
            recent.retired.clear()
        assert of(recent, *range(5)) == [[i for i in slow.of(user) if i not in gone] for user in range(5)]
        assert all(before[user, i] == rest for user in range(5) for i, *rest in columns(recent, user))

    def test_list_fills_up_again_after_an_item_vanished(self):
        recent = after([(0, 1), (0, 2), (0, 3)])
        recent.retired.forget(np.array([2]))
        observe(recent, [(0, 9), (0, 8)])
        assert of(recent, 0) == [[8, 9, 3]]


class TestState:
    @pytest.mark.parametrize(("length", "expected"), [(2, [9, 8]), (3, [9, 8, 7]), (5, [9, 8, 7])])
    def test_lists_of_another_length_are_cut_or_filled_up(self, length, expected):
        other = RecentItems(length)
        other.load_state(after([(1, 7), (1, 8), (1, 9)], length=3).state())
        assert of(other, 0, 1) == [[], expected]
