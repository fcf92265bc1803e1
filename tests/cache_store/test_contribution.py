"""Contributions that are cut, merged and added up, against the slow and obvious way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamer.cache_store.contribution import (
    NOTHING,
    Contribution,
    Increments,
    OffsetSpan,
    merged,
    merged_spans,
    summed,
)

NAMES = ("p", "q", "r")
Event = tuple[str, int, int]
"""Partition, offset, item."""
events = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 12), st.integers(0, 3)), min_size=1, max_size=12, unique=True
)
rows = st.integers(0, 5) | st.integers(10**6, 10**12)
following = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 14))


def contribution(of: list[Event], drawn: int = 0, before: int = 0) -> Contribution:
    """Of these events; spans begin so many records before the first event."""
    names = list(dict.fromkeys(name for name, _, _ in of))
    offsets = {name: [offset for n, offset, _ in of if n == name] for name in names}
    spans = tuple(OffsetSpan(name, max(0, min(at) - before), max(at) + 1) for name, at in offsets.items())
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
    rows, counts = found.item_counts
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
def test_since_keeps_exactly_the_events_that_are_new(of: list[Event], known: dict[str, int], before: int) -> None:
    whole = contribution(of, drawn=5, before=before)
    found = whole.since(known)
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
    assert found.since(known) is found


@given(st.lists(events, min_size=1, max_size=5))
def test_merged_contributions_add_the_same(parts: list[list[Event]]) -> None:
    whole = merged([contribution(of, drawn=k + 1) for k, of in enumerate(parts)])
    assert items_of(whole) == Counter(item for of in parts for _, _, item in of)
    assert whole.drawn.counts.sum() == sum(range(len(parts) + 1))
    assert whole.spans == merged_spans([span for of in parts for span in contribution(of).spans])
    again = merged([whole, contribution(parts[0])])
    assert items_of(again) == items_of(whole) + items_of(contribution(parts[0]))


@given(st.lists(events, min_size=1, max_size=4), st.sampled_from(NAMES))
def test_one_partition_can_be_left_out_of_what_was_merged(parts: list[list[Event]], name: str) -> None:
    whole = merged([contribution(of) for of in parts])
    left = whole.without(name)
    assert items_of(left) == Counter(item for of in parts for n, _, item in of if n != name)
    if left is not None:
        assert name not in {span.partition for span in left.spans}


def test_a_merged_span_is_new_as_a_whole_or_not_at_all() -> None:
    whole = merged([contribution([("p", 0, 1), ("q", 0, 1)]), contribution([("p", 1, 2)])])
    assert items_of(whole.since({"p": 0})) == Counter({1: 2, 2: 1})
    assert items_of(whole.since({"p": 1})) == Counter({1: 1})
    assert whole.since({"p": 1, "q": 1}) is None


def test_the_newest_cache_of_those_merged_is_kept() -> None:
    old, new = np.array([1]), np.array([2])
    parts = [replace(contribution([("p", k, 0)]), cache=cache) for k, cache in enumerate((old, new, None))]
    assert merged(parts).cache is new


@given(events, st.integers(0, 3))
def test_a_contribution_comes_back_from_its_arrays(of: list[Event], drawn: int) -> None:
    for whole in (contribution(of, drawn), merged([contribution(of, drawn), contribution(of)])):
        found = Contribution.from_arrays([list(span) for span in whole.spans], whole.arrays())
        assert found.spans == whole.spans
        assert found.arrays().keys() == whole.arrays().keys()
        assert all(np.array_equal(array, whole.arrays()[name]) for name, array in found.arrays().items())


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5) | st.integers(10**6, 10**12), st.integers(0, 2**40)), max_size=6),
        max_size=4,
    )
)
def test_sums_have_distinct_ascending_rows_and_no_zeros(parts: list[list[tuple[int, int]]]) -> None:
    slow: Counter[int] = Counter()
    for row, count in (pair for part in parts for pair in part):
        slow[row] += count
    columns = [np.array(part, np.int64).reshape(-1, 2) for part in parts]
    found = summed([Increments(c[:, 0], c[:, 1]) for c in columns])
    assert dict(zip(found.rows.tolist(), found.counts.tolist(), strict=True)) == +slow
    assert found.rows.tolist() == sorted(found.rows.tolist())
