"""Contributions that are cut, added up, kept and called back, against the slow and obvious way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.cache_store.base import NOTHING, Contribution, Increments, Span
from streamer.cache_store.outbox import Outbox, added_up, counted, joined, size, without

NAMES = ("p", "q", "r")
Event = tuple[str, int, int]
"""Partition, offset, item."""
events = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 12), st.integers(0, 3)), min_size=1, max_size=12, unique=True
)
following = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 14))


def contribution(of: list[Event], drawn: int = 0, before: int = 0) -> Contribution:
    """Of these events; spans begin so many records before the first event."""
    names = list(dict.fromkeys(name for name, _, _ in of))
    offsets = {name: [offset for n, offset, _ in of if n == name] for name in names}
    spans = tuple(Span(name, max(0, min(at) - before), max(at) + 1) for name, at in offsets.items())
    return Contribution(
        spans=spans,
        sources=np.array([names.index(name) for name, _, _ in of], np.int32),
        offsets=np.array([offset for _, offset, _ in of], np.int64),
        items=np.array([item for _, _, item in of], np.int64),
        drawn=Increments(np.array([9]), np.array([drawn])) if drawn else NOTHING,
    )


def items_of(found: Contribution | None) -> Counter[int]:
    if found is None:
        return Counter()
    rows, counts = counted(found)
    total: Counter[int] = Counter()
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        total[row] += count
    return total


def events_of(found: Contribution | None) -> list[Event]:
    if found is None:
        return []
    names = [found.spans[k].partition for k in found.sources.tolist()]
    return list(zip(names, found.offsets.tolist(), found.items.tolist(), strict=True))


@given(events, following, st.integers(0, 3))
def test_after_keeps_exactly_the_events_that_are_new(of: list[Event], known: dict[str, int], before: int) -> None:
    whole = contribution(of, drawn=5, before=before)
    found = whole.after(known)
    new = [event for event in of if event[1] >= known.get(event[0], 0)]
    assert events_of(found) == new
    assert (found is None) == (not new)
    if found is None:
        return
    assert all(span.start >= known.get(span.partition, 0) for span in found.spans), "it would overlap again"
    assert {span.partition for span in found.spans} == {name for name, _, _ in new}
    assert {span.partition: span.stop for span in found.spans}.items() <= {
        span.partition: span.stop for span in whole.spans
    }.items()
    assert (found.drawn.counts.sum() == 5) == (len(new) == len(of)), "draws count as a whole or not at all"
    assert found.after(known) is found


@given(st.lists(events, min_size=1, max_size=5))
def test_contributions_that_are_added_up_add_the_same(parts: list[list[Event]]) -> None:
    whole = added_up([contribution(of, drawn=k + 1) for k, of in enumerate(parts)])
    assert items_of(whole) == Counter(item for of in parts for _, _, item in of)
    assert whole.drawn.counts.sum() == sum(range(len(parts) + 1))
    assert whole.spans == joined([span for of in parts for span in contribution(of).spans])
    assert whole.items.tolist() == []
    again = added_up([whole, contribution(parts[0])])
    assert items_of(again) == items_of(whole) + items_of(contribution(parts[0]))


@given(st.lists(events, min_size=1, max_size=4), st.sampled_from(NAMES))
def test_one_partition_can_be_left_out_of_what_was_added_up(parts: list[list[Event]], name: str) -> None:
    whole = added_up([contribution(of) for of in parts])
    left = without(whole, name)
    assert items_of(left) == Counter(item for of in parts for n, _, item in of if n != name)
    if left is not None:
        assert name not in {span.partition for span in left.spans}


def test_a_span_that_was_added_up_is_new_as_a_whole_or_not_at_all() -> None:
    whole = added_up([contribution([("p", 0, 1), ("q", 0, 1)]), contribution([("p", 1, 2)])])
    assert items_of(whole.after({"p": 0})) == Counter({1: 2, 2: 1})
    assert items_of(whole.after({"p": 1})) == Counter({1: 1})
    assert whole.after({"p": 1, "q": 1}) is None


def test_the_newest_cache_of_those_added_up_is_kept() -> None:
    old, new = np.array([1]), np.array([2])
    parts = [replace(contribution([("p", k, 0)]), cache=cache) for k, cache in enumerate((old, new, None))]
    assert added_up(parts).cache is new


def filled(count: int, most: int = 4, **more: float) -> Outbox:
    outbox = Outbox(most, **more)  # type: ignore[arg-type]
    for k in range(count):
        outbox.add(contribution([("p", k, k % 3)], drawn=1))
    return outbox


def test_only_what_was_not_sent_is_added_up() -> None:
    outbox = filled(3)
    outbox.waiting[0].times = outbox.waiting[1].times = 1
    for k in range(3, 30):
        outbox.add(contribution([("p", k, 0)]))
        assert len(outbox.waiting) <= 2 + 4
    first, second, *rest = outbox.waiting
    assert (first.number, second.number) == (1, 2)
    assert first.contribution.counted is second.contribution.counted is None
    assert [w.number for w in rest] == sorted(w.number for w in rest)
    assert outbox.events == 30


def test_what_has_come_is_kept_for_a_while() -> None:
    outbox = filled(4, most=10, keep_s=10.0)
    outbox.included(2, now_s=0.0)
    outbox.included(3, now_s=8.0)
    assert outbox.recall({}) == 4
    outbox.included(2, now_s=0.0)
    outbox.included(3, now_s=8.0)
    outbox.included(3, now_s=11.0)
    assert outbox.recall({}) == 2, "the first two came 11 seconds ago"


def test_what_is_kept_is_bounded() -> None:
    one = size(contribution([("p", 0, 0)], drawn=1))
    outbox = filled(10, most=100, keep_s=1e9, keep_bytes=3 * one)
    outbox.included(10, now_s=0.0)
    assert outbox.recall({}) == 3


def test_what_a_server_lost_waits_again_in_order_and_the_rest_stays_kept() -> None:
    outbox = filled(6, most=10, keep_s=1e9)
    outbox.waiting[4].times, outbox.waiting[4].known = 1, True
    outbox.included(4, now_s=0.0)
    assert outbox.recall({"p": 2}) == 4
    assert [w.number for w in outbox.waiting] == [3, 4, 5, 6]
    assert not any(w.sent or w.known for w in outbox.waiting)
    assert outbox.recall({}) == 6, "it lost more than we thought"


def test_how_far_a_partition_waits() -> None:
    outbox = filled(3)
    outbox.add(contribution([("q", 7, 0)]))
    assert (outbox.reach("p"), outbox.reach("q"), outbox.reach("r")) == (3, 8, 0)


def test_a_former_life_of_a_partition_is_forgotten_waiting_or_kept() -> None:
    outbox = Outbox(100, keep_s=1e9)
    for k in range(6):
        outbox.add(contribution([("p", k, 1), ("q", k, 2)]))
    outbox.included(3, now_s=0.0)
    outbox.forget_beyond("p", 1)
    outbox.recall({})
    assert outbox.reach("p") == 1
    assert sum((items_of(w.contribution) for w in outbox.waiting), Counter()) == Counter({1: 1, 2: 6})


@pytest.mark.parametrize("numbers", [[], [2], [1, 3]])
def test_some_can_be_replaced_or_taken_away(numbers: list[int]) -> None:
    outbox = filled(3)
    for waiting in outbox.waiting:
        waiting.times = 1
    outbox.change(numbers, lambda c: None if c.offsets[0] == 0 else c)
    assert [w.number for w in outbox.waiting] == [n for n in (1, 2, 3) if n != 1 or 1 not in numbers]
    assert [w.number for w in outbox.waiting if not w.sent] == [n for n in numbers if n != 1]
