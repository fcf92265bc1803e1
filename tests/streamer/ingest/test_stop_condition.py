"""Where reading stops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.event import EventDecoder, encode
from streamer.ingest.reader import StopCondition
from streamer.sources.base import Chunk, Partition, Positions

A, B = Partition("t", 0), Partition("t", 1)


class FakeSource:
    """Says where it reads and where it ends."""

    def __init__(self, read: Positions, ends: Positions) -> None:
        self.read, self.ends = dict(read), dict(ends)
        self.at_end = False

    def positions(self) -> Positions:
        return self.read

    def end_offsets(self) -> Positions:
        return self.ends


def chunk_of(offsets: list[int], values: list[bytes] | None = None) -> Chunk:
    return Chunk(A, offsets, [0] * len(offsets), [None] * len(offsets), values or [b""] * len(offsets))


class TestUntilEnd:
    def test_all_of_our_partitions_must_have_come_to_their_ends(self):
        condition, source = StopCondition(until_end=True), FakeSource({A: 0, B: 5}, {A: 3, B: 5})
        assert not condition.reached(source, {A, B})
        source.read[A] = 3
        assert condition.reached(source, {A, B})

    def test_an_end_stays_where_it_was_when_the_partition_came(self):
        condition, source = StopCondition(until_end=True), FakeSource({A: 0}, {A: 3})
        condition.reached(source, {A})
        source.ends[A], source.read[A] = 100, 4
        assert condition.reached(source, {A})
        assert condition.before_end(chunk_of([1, 2, 3, 7])).offsets == [1, 2]
        assert condition.before_end(chunk_of([3, 4])).offsets == []

    def test_a_partition_that_is_ours_but_not_read_yet_is_not_at_its_end(self):
        condition = StopCondition(until_end=True)
        assert not condition.reached(FakeSource({A: 3}, {A: 3}), {A, B})

    def test_without_it_only_the_source_knows_an_end(self):
        condition, source = StopCondition(), FakeSource({A: 3}, {A: 3})
        assert not condition.reached(source, {A})
        source.at_end = True
        assert condition.reached(source, {A})
        assert condition.before_end(chunk_of([5])).offsets == [5]


class TestMaxEvents:
    @given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(1, 30))
    def test_records_are_taken_up_to_the_one_with_which_it_is_enough(self, sizes, most):
        values = [b"[" + b",".join([encode("u", "i", 1.0)] * size) + b"]" for size in sizes]
        chunk = chunk_of(list(range(len(sizes))), values)
        condition = StopCondition(max_events=most)
        found = condition.before_max(chunk, EventDecoder().decode(chunk))
        needed = next((k + 1 for k in range(len(sizes)) if sum(sizes[: k + 1]) >= most), len(sizes))
        assert len(found) == needed
        condition.count(sum(sizes[:needed]))
        assert condition.reached(FakeSource({}, {}), {A}) == (sum(sizes) >= most)

    def test_no_more_records_are_asked_for_than_events_are_wanted(self):
        condition = StopCondition(max_events=5)
        assert condition.at_most(100) == 5
        condition.count(3)
        assert condition.at_most(100) == 2
        condition.count(-1)
        assert condition.at_most(100) == 3
        assert StopCondition().at_most(100) == 100

    @pytest.mark.parametrize("events", [5, 9])
    def test_enough_is_enough(self, events):
        condition = StopCondition(max_events=5)
        condition.count(events)
        assert condition.reached(FakeSource({A: 0}, {A: 9}), {A})
