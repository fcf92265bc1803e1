"""Candidates and every feature, as of each event, against lists and dictionaries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_candidates import Event, SlowCandidateFeatures

from streamer.model.ranking import candidates, windows
from streamer.model.ranking.candidates import CandidateFeatures, Candidates
from streamer.model.ranking.features import BUCKETS, FEATURES, Feature
from streamer.model.ranking.uncounted import UserEvents
from streamer.model.ranking.windows import LONG_WINDOW, SHORT_WINDOW
from streamer.model.rows.by_rows import ByRows
from streamer.model.rows.recent_items import RecentItems, UserHistory

NEIGHBOURS, HISTORY = 3, 12
GAPS_S = [0, 0, 1, 60, 4_000, 90_000, -500]
WEIGHTS = [1.0, 1.0, 3.0, 0.25, 0.0]
events = st.tuples(st.integers(0, 2), st.integers(0, 15), st.sampled_from(GAPS_S), st.sampled_from(WEIGHTS))


@st.composite
def streams(draw: st.DrawFn, longest: int = 50) -> list[Event]:
    found, now_s = [], 1_700_000_000
    for user, item, gap_s, weight in draw(st.lists(events, min_size=1, max_size=longest)):
        now_s += gap_s
        found.append(Event(user, item, now_s, weight))
    return found


def columns_of(stream: list[Event]) -> np.ndarray:
    return np.array(stream, np.float64).reshape(-1, 4).T


class Both:
    """The compiled features with the users' recent items, and the slow one."""

    def __init__(self, neighbours: int = NEIGHBOURS, history: int = HISTORY) -> None:
        self.features, self.recent = CandidateFeatures(neighbours), RecentItems(history)
        self.slow = SlowCandidateFeatures(neighbours, history)

    def check(self, stream: list[Event], wanted: list[int], extra: np.ndarray | None = None) -> None:
        """A batch: all that is described of the wanted events is what the slow version says before each."""
        popular = self.slow.popular()  # as of the beginning of the batch
        found = self.observe(stream, np.array(wanted, np.int64), extra)
        for event, (user, item, time_s, _) in enumerate(stream):
            if event in wanted:
                k = wanted.index(event)
                more = extra[k].tolist() if extra is not None else []
                self.compare(found, k, user, item, time_s, popular, more)
            self.slow.observe(stream[event])

    def observe(
        self,
        stream: list[Event],
        wanted: np.ndarray,
        extra: np.ndarray | None = None,
        learned: np.ndarray | None = None,
    ) -> Candidates:
        users, items, times_s = (column.astype(np.int64) for column in columns_of(stream)[:3])
        weights = columns_of(stream)[3].astype(np.float32)
        history = self.recent.observe(users, items, times_s)
        return self.features.observe(items, times_s, history, wanted, extra, learned, weights)

    def retire(self, items: set[int]) -> None:
        rows = np.array(sorted(items), np.int64)
        for retired in (self.features.co_occurrence.retired, self.recent.retired):
            retired.forget(rows)
        self.features.windows.forget(rows)
        self.features.co_occurrence.forget(rows)

    def parts(self) -> tuple[ByRows, ...]:
        return self.features.windows, self.features.co_occurrence, self.recent

    def copy(self, other: Both) -> None:
        for part, theirs in zip(self.parts(), other.parts(), strict=True):
            part.load_state(theirs.state())

    def compare(
        self, found: Candidates, k: int, user: int, item: int, time_s: int, popular: list[int], extra: list[int]
    ) -> None:
        here = slice(found.first[k], found.first[k + 1])
        rows = found.items[here].tolist()
        recent = [r.item for r in self.slow.history(user)]
        expected = self.slow.candidates(user, popular, extra)
        assert len(rows) == len(set(rows))
        assert set(rows) == expected
        assert rows[: len(recent)] == recent
        assert found.target[k] == (found.first[k] + rows.index(item) if item in rows else -1)
        assert BUCKETS[found.bucket[k]] == max(b for b in BUCKETS if b <= len(recent))
        assert found.seen[here].tolist() == [row in recent for row in rows]
        slow = self.slow.features(user, time_s, expected)
        for row, x in zip(rows, found.features[here].tolist(), strict=True):
            assert dict(zip(FEATURES, x, strict=True)) == pytest.approx(slow[row], rel=1e-5, abs=5e-5)


@settings(max_examples=150)
@given(
    stream=streams(), cuts=st.sets(st.integers(1, 49), max_size=4), every=st.integers(1, 3), popular=st.integers(0, 3)
)
def test_events_are_described_by_what_came_before_them(stream, cuts, every, popular):
    both, rng = Both(), np.random.default_rng(len(stream))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "POPULAR_IN_LONG_WINDOW", popular)
        patch.setattr(windows, "POPULAR_IN_SHORT_WINDOW", 1)
        for start, end in itertools.pairwise([0, *sorted(c for c in cuts if c < len(stream)), len(stream)]):
            wanted = list(range(0, end - start, every))
            both.check(stream[start:end], wanted, rng.integers(-1, 18, (len(wanted), 2)))


def test_windows_of_popularity_forget_what_is_older():
    """Items change over time, so that each window has lost some of them; checked at both ends of each window."""
    rng, both = np.random.default_rng(0), Both(neighbours=2, history=2)
    events = LONG_WINDOW + 2 * SHORT_WINDOW
    items = np.minimum(rng.geometric(0.2, events), 30) + np.arange(events) // 700
    stream = [Event(int(rng.integers(50)), int(item), 60 * n) for n, item in enumerate(items)]
    ends = [window + more for window in (SHORT_WINDOW, LONG_WINDOW) for more in (-1, 0, 1)] + [events - 2]
    for start, end in itertools.pairwise([0, *ends]):
        both.observe(stream[start:end], np.empty(0, np.int64))
        for event in stream[start:end]:
            both.slow.observe(event)
        ahead = Both(neighbours=2, history=2)
        ahead.copy(both)
        ahead.slow = both.slow
        assert ahead.features.windows.popular().tolist() == both.slow.popular()
        event = stream[end]
        found = ahead.observe([event], np.array([0]))
        ahead.compare(found, 0, *event[:3], popular=both.slow.popular(), extra=[])
        latest, rows = items[:end].tolist()[-LONG_WINDOW:], np.arange(60)
        shares = both.features.windows.share_in_long_window(rows)
        np.testing.assert_allclose(shares, [latest.count(r) / len(latest) for r in rows])


@given(stream=streams(), times=st.sampled_from([None, 1_800_000_000]))
def test_users_are_described_as_of_now_and_nothing_is_counted(stream, times):
    both = Both()
    both.observe(stream, np.empty(0, np.int64))
    for event in stream:
        both.slow.observe(event)
    before = {name: array.copy() for name, array in both.features.windows.state().items()}
    users, some, last = np.arange(4), stream[0].item, stream[-1].item
    now_s = times or max(event.time_s for event in stream)
    when_s = np.full(4, times) if times else None
    found = both.features.candidates(both.recent.of(users), np.full((4, 1), some), np.full(4, last), when_s)
    for user in users.tolist():
        both.compare(found, user, user, last, now_s, both.slow.popular(), [some])
    for name, array in both.features.windows.state().items():
        np.testing.assert_array_equal(array, before[name])


@given(stream=streams(), further=streams(longest=20), gone=st.sets(st.integers(0, 15), max_size=3), room=st.booleans())
def test_uncounted_events_are_described_as_if_they_had_been_counted_and_nothing_of_it_stays(
    stream, further, gone, room
):
    """The events of three queries at once; by turns with a window that some events leave."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "POPULAR_IN_LONG_WINDOW", 0)  # these are as of what was observed
        patch.setattr(windows, "POPULAR_IN_SHORT_WINDOW", 0)
        both = Both()
        if room:
            both.observe([Event(3, n % 5, n) for n in range(LONG_WINDOW - 10)], np.empty(0, np.int64))
        both.observe(stream, np.empty(0, np.int64))
        both.retire(gone)
        both.features.candidates(both.recent.of(np.array([0])), np.arange(16)[None])  # all items have rows
        of_users = [[event for event in further if event.user == user] for user in range(3)]
        of_users = [[event for event in events if event.item not in gone] for events in of_users]
        now_s = max(event.time_s for event in stream + further)
        before = [part.state() for part in both.parts()]

        expected, queries = [], []
        for user, events in enumerate(of_users):
            counted = Both()
            counted.copy(both)
            counted.retire(gone)
            _, items, times_s = (column.astype(np.int64) for column in columns_of(events)[:3])
            history = counted.recent.observe(np.full(len(items), user), items, times_s)
            counted.features.observe(items, times_s, history, np.empty(0, np.int64))
            after = counted.recent.of(np.array([user]))
            expected += described(counted.features.candidates(after, times_s=np.array([now_s])))
            queries.append((after, UserEvents(items, times_s.astype(np.int32), history)))

        histories = UserHistory(*map(np.concatenate, zip(*(after for after, _ in queries), strict=True)))
        uncounted = [events for _, events in queries]
        found = both.features.candidates(histories, times_s=np.full(3, now_s), uncounted=uncounted)
        assert described(found) == expected
        for part, old in zip(both.parts(), before, strict=True):
            for name, array in part.state().items():
                np.testing.assert_array_equal(array, old[name], err_msg=name)


@given(stream=streams(), gone=st.sets(st.integers(0, 15), min_size=1), further=streams())
def test_retired_items_are_candidates_of_nobody(stream, gone, further):
    both = Both()
    both.observe(stream, np.empty(0, np.int64))
    both.retire(gone)
    rows = np.array(sorted(gone))
    left = {event.item for event in stream} - gone
    found = both.features.candidates(both.recent.of(np.arange(3)))
    assert set(found.items.tolist()) == left
    assert both.features.windows.share_in_long_window(rows).sum() == 0
    kept = [event for event in further if event.item not in gone]
    described = both.observe(kept, np.arange(len(kept)))
    assert set(described.items.tolist()) <= left | {event.item for event in kept}
    assert np.isfinite(described.features).all()


def described(found: Candidates) -> list[tuple[int, dict[int, tuple[float, ...]]]]:
    """Target and features by candidate, of each event."""
    parts = itertools.pairwise(found.first.tolist())
    lists = [
        dict(zip(found.items[a:b].tolist(), map(tuple, found.features[a:b].tolist()), strict=True)) for a, b in parts
    ]
    return [(int(found.items[t]) if t >= 0 else -1, of_event) for t, of_event in zip(found.target, lists, strict=True)]


@given(stream=streams(), most=st.integers(1, 6), cut=st.integers(0, 50))
def test_the_ranker_learns_from_drawn_candidates_with_the_target_which_are_the_same_in_any_batch(stream, most, cut):
    every, cut = np.arange(len(stream)), min(cut, len(stream))
    learned = np.ones(len(stream), np.bool_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "LEARNED_CANDIDATES", most)
        drawn = described(Both().observe(stream, every, learned=learned))
        for (target, of_all), (same, of_some) in zip(described(Both().observe(stream, every)), drawn, strict=True):
            assert same == target
            assert of_some == {item: of_all[item] for item in of_some}
            assert (target in of_some) if target >= 0 else not of_some
            assert len(of_some) == len(of_all) or len(of_all) > most or target < 0
        patch.setattr(windows, "POPULAR_IN_LONG_WINDOW", 0)  # which are popular depends on the batch
        patch.setattr(windows, "POPULAR_IN_SHORT_WINDOW", 0)
        whole, both = described(Both().observe(stream, every, learned=learned)), Both()
        first = described(both.observe(stream[:cut], every[:cut], learned=learned[:cut]))
        then = described(both.observe(stream[cut:], every[: len(stream) - cut], learned=learned[cut:]))
        assert first + then == whole


def test_candidates_are_drawn_evenly(monkeypatch):
    monkeypatch.setattr(candidates, "LEARNED_CANDIDATES", 10)
    both, rng = Both(), np.random.default_rng(0)
    stream = [Event(int(u), int(i), 60 * n) for n, (u, i) in enumerate(rng.integers(0, 40, (2000, 2)))]
    both.observe(stream, np.empty(0, np.int64))
    target, events = 40, 4000
    further = [Event(int(n % 40), target, 200_000 + n) for n in range(events)]
    nearest = np.tile(np.arange(41), (events, 1))  # everything is a candidate
    found = both.observe(further, np.arange(events), nearest, np.ones(events, np.bool_))
    counts, expected = np.bincount(found.items), events * 10 / 41
    assert counts[target] == events
    np.testing.assert_allclose(counts[:40], expected, atol=5 * expected**0.5)


def test_candidates_of_some_events_are_theirs():
    both, rng = Both(), np.random.default_rng(0)
    stream = [Event(int(u), int(i), 60 * n) for n, (u, i) in enumerate(rng.integers(0, 9, (60, 2)))]
    found = both.observe(stream, np.arange(60))
    found.mark_seen(rng.random(len(found.items)) < 0.3)
    some = np.array([3, 4, 40, 59])
    part = found.only(some)
    assert len(part) == 4
    for k, event in enumerate(some):
        ours, theirs = slice(part.first[k], part.first[k + 1]), slice(found.first[event], found.first[event + 1])
        for name in ("items", "features", "seen"):
            np.testing.assert_array_equal(getattr(part, name)[ours], getattr(found, name)[theirs])
        assert part.bucket[k] == found.bucket[event]
        own = found.target[event]
        assert part.target[k] == (own - found.first[event] + part.first[k] if own >= 0 else -1)


def test_candidates_that_the_user_seen_before_are_marked():
    both = Both(history=1)
    both.observe([Event(0, item, item) for item in range(6)], np.empty(0, np.int64))
    found = both.features.candidates(both.recent.of(np.array([0, 1])))
    assert {item for item, seen in zip(found.items, found.seen, strict=True) if seen} == {5}
    found.mark_seen((found.items == 2) & (np.arange(len(found.items)) < found.first[1]))
    seen_before = found.features[:, Feature.SEEN_BEFORE]
    for k, (seen, not_recent) in enumerate([({2, 5}, {2}), (set(), set())]):
        here = slice(found.first[k], found.first[k + 1])
        assert set(found.items[here][found.seen[here]].tolist()) == seen
        assert set(found.items[here][seen_before[here] == 1].tolist()) == not_recent
    assert set(seen_before.tolist()) == {0.0, 1.0}
