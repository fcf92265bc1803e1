"""Where reading stops."""

from __future__ import annotations

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
