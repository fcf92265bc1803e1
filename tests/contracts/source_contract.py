"""What every source of events must do. A test class of an implementation inherits `SourceContract`.

class TestMySource(SourceContract):
    @pytest.fixture
    def harness(self, tmp_path):
        return MyHarness(tmp_path)          # make_topic, append, open_source: see SourceHarness
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import pytest

from streamer.sources.base import Chunk, Partition, Positions, RebalanceListener, Source

Row = tuple[Partition, int, bytes]
"""Partition, offset and value of a record."""

PATIENCE_S = 60.0
"""When to give up on records that should come; no test waits this long unless it fails."""


class RecordingListener(RebalanceListener):
    """Returns the given positions, and remembers what it was told."""

    def __init__(self, positions: Positions) -> None:
        self.positions = dict(positions)
        self.assigned: list[Partition] = []
        self.revoked: list[Partition] = []
        self.lost: list[Partition] = []

    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        partitions = list(partitions)
        self.assigned += partitions
        return {p: self.positions[p] for p in partitions if p in self.positions}

    def on_revoked(self, partitions: Iterable[Partition]) -> None:
        self.revoked += partitions

    def on_lost(self, partitions: Iterable[Partition]) -> None:
        self.lost += partitions


class SourceHarness(Protocol):
    """The little that the contract needs to know of an implementation."""

    def make_topic(self, partitions: int) -> str:
        """Create an empty topic and return its name."""
        ...

    def append(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        """Append records; a reader that polls from now on can see them."""
        ...

    def open_source(self, topic: str, positions: Positions) -> tuple[Source, RecordingListener]:
        """A new source over the whole topic, opened with a `RecordingListener(positions)`.

        Partitions without a position start at the beginning. Nobody else reads in its group.
        """
        ...


def rows_of(chunks: Iterable[Chunk]) -> list[Row]:
    """The records of chunks, one by one."""
    return [
        (chunk.partition, offset, value)
        for chunk in chunks
        for offset, value in zip(chunk.offsets, chunk.values, strict=True)
    ]


def read_chunks(source: Source, count: int, max_records: int = 1000) -> list[Chunk]:
    """Poll until `count` records came; no poll returns more than `max_records`."""
    chunks: list[Chunk] = []
    deadline = time.monotonic() + PATIENCE_S
    while (have := sum(map(len, chunks))) < count:
        assert time.monotonic() < deadline, f"only {have} of {count} records came"
        polled = source.poll(max_records, 0.2)
        assert sum(map(len, polled)) <= max_records
        chunks += polled
    return chunks


def read(source: Source, count: int, max_records: int = 1000) -> list[Row]:
    """Poll until `count` records came, and see that no more come."""
    chunks = read_chunks(source, count, max_records)
    chunks += source.poll(1000, 0.05)
    return rows_of(chunks)


def json_lines(first: int, count: int) -> list[bytes]:
    """Values that are all different and that every source can hold, files too."""
    return [b'{"n": %d}' % number for number in range(first, first + count)]


class SourceContract:
    """The tests. `max_partitions` is 1 where an implementation has no more."""

    max_partitions = 3

    @pytest.fixture
    def harness(self) -> SourceHarness:
        raise NotImplementedError("a subclass provides its harness")

    @pytest.fixture
    def opened(self, harness: SourceHarness) -> Iterator[OpenSource]:
        """`harness.open_source`, with every source closed after the test."""
        sources: list[Source] = []

        def open_source(topic: str, positions: Positions | None = None) -> tuple[Source, RecordingListener]:
            source, listener = harness.open_source(topic, positions or {})
            sources.append(source)
            return source, listener

        yield open_source
        for source in sources:
            source.close()

    def test_reads_all_records_in_order_with_their_offsets(self, harness, opened):
        topic = harness.make_topic(1)
        harness.append(topic, 0, json_lines(0, 5))
        harness.append(topic, 0, json_lines(5, 2))
        source, _ = opened(topic)
        rows = read(source, 7)
        assert [value for _, _, value in rows] == json_lines(0, 7)
        assert [offset for _, offset, _ in rows] == list(range(rows[0][1], rows[0][1] + 7))

    def test_starts_at_the_next_offset_to_read_as_the_listener_has_it(self, harness, opened):
        topic = harness.make_topic(1)
        harness.append(topic, 0, json_lines(0, 6))
        rows = read(opened(topic)[0], 6)
        partition, offset, _ = rows[4]
        assert read(opened(topic, {partition: offset})[0], 2) == rows[4:]
        at_end, _ = opened(topic, {partition: rows[-1][1] + 1})
        harness.append(topic, 0, json_lines(6, 1))
        assert [value for _, _, value in read(at_end, 1)] == json_lines(6, 1)

    def test_each_partition_starts_at_its_own_position(self, harness, opened):
        topic = harness.make_topic(self.max_partitions)
        for number in range(self.max_partitions):
            harness.append(topic, number, json_lines(10 * number, 4))
        rows = sorted(read(opened(topic)[0], 4 * self.max_partitions))
        rest = [row for k, row in enumerate(rows) if k % 4 > k // 4]  # without one, two, three of them
        positions = {partition: offset for partition, offset, _ in reversed(rest)}
        source, listener = opened(topic, positions)
        assert sorted(read(source, len(rest))) == rest
        assert sorted(p.number for p in listener.assigned) == list(range(self.max_partitions)), "each is asked for once"
        assert listener.revoked == []

    @pytest.mark.parametrize("max_records", [1, 2, 3, 7])
    def test_a_poll_returns_at_most_max_records_in_chunks_of_whole_columns_in_order(self, harness, opened, max_records):
        topic = harness.make_topic(self.max_partitions)
        for number in range(self.max_partitions):
            harness.append(topic, number, json_lines(10 * number, 5))
        count = 5 * self.max_partitions
        chunks = read_chunks(opened(topic)[0], count, max_records)
        assert sorted(rows_of(chunks)) == sorted(read(opened(topic)[0], count))
        last: dict[Partition, int] = {}
        for chunk in chunks:
            assert 0 < len(chunk) == len(chunk.timestamps_ms) == len(chunk.keys) == len(chunk.values)
            assert all(type(stamp) is int and stamp > 1_000_000_000_000 for stamp in chunk.timestamps_ms)
            for offset in chunk.offsets:
                assert offset > last.get(chunk.partition, -1)
                last[chunk.partition] = offset

    def test_a_poll_of_zero_records_reads_nothing_and_loses_nothing(self, harness, opened):
        topic = harness.make_topic(1)
        harness.append(topic, 0, json_lines(0, 3))
        source, _ = opened(topic)
        assert source.poll(0, 0.05) == []
        rows = rows_of(read_chunks(source, 2, max_records=2))
        assert source.poll(0, 0.05) == []
        rows += read(source, 1)
        assert [value for _, _, value in rows] == json_lines(0, 3)

    def test_a_poll_waits_for_records_and_returns_nothing_if_none_comes_in_time(self, harness, opened):
        topic = harness.make_topic(1)
        source, _ = opened(topic)
        assert source.poll(10, 0.05) == []
        assert source.poll(10, 0) == []
        writer = threading.Thread(target=harness.append, args=(topic, 0, json_lines(0, 2)))
        writer.start()
        rows = read(source, 2)
        writer.join()
        assert [value for _, _, value in rows] == json_lines(0, 2)

    def test_end_positions_come_after_the_last_record_and_follow_new_ones_for_any_thread(self, harness, opened):
        topic = harness.make_topic(1)
        source, _ = opened(topic)
        found: list[Positions] = []
        for first, count in ((0, 4), (4, 3)):
            harness.append(topic, 0, json_lines(first, count))
            rows = read(source, count)
            thread = threading.Thread(target=lambda: found.append(source.end_offsets()))
            thread.start()
            thread.join()
            assert found[-1] == source.end_offsets() == {rows[-1][0]: rows[-1][1] + 1}

    def test_reading_goes_on_after_a_close_with_exactly_the_rest(self, harness, opened):
        topic = harness.make_topic(self.max_partitions)
        for start in range(0, 12, 2):
            harness.append(topic, start // 2 % self.max_partitions, json_lines(start, 2))
        whole = read(opened(topic)[0], 12)
        for cut in (1, 5, 11):
            source, _ = opened(topic)
            seen = rows_of(read_chunks(source, cut, max_records=1))
            source.close()
            positions = {partition: offset + 1 for partition, offset, _ in seen}
            resumed, _ = opened(topic, positions)
            assert sorted(seen + read(resumed, 12 - cut)) == sorted(whole)

    def test_commit_does_not_raise_before_or_after_close_which_may_be_called_twice(self, harness, opened):
        topic = harness.make_topic(1)
        harness.append(topic, 0, json_lines(0, 2))
        source, _ = opened(topic)
        rows = read(source, 2)
        positions = {rows[-1][0]: rows[-1][1] + 1}
        source.commit(positions)
        source.commit({})
        thread = threading.Thread(target=source.commit, args=(positions,))
        thread.start()
        thread.join()
        source.poll(1, 0.05)
        source.close()
        source.close()
        source.commit(positions)

    def test_what_was_committed_is_not_behind_what_the_listener_has_trained(self, harness, opened):
        topic = harness.make_topic(1)
        harness.append(topic, 0, json_lines(0, 3))
        source, _ = opened(topic)
        rows = read(source, 3)
        source.commit({rows[0][0]: rows[0][1] + 1})
        source.close()
        again, _ = opened(topic, {rows[2][0]: rows[2][1]})
        assert read(again, 1) == rows[2:]


class OpenSource(Protocol):
    """The `opened` fixture: opens a source of a topic, at positions."""

    def __call__(self, topic: str, positions: Positions | None = None) -> tuple[Source, RecordingListener]: ...
