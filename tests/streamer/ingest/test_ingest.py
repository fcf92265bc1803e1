"""Reading ahead: the queue is bounded, and no rebalance loses or doubles an event."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from line_harness import TOPIC, append, events, memory_log, until, values_of
from memory_source import MemoryLog, MemorySource

from streamer.errors import SourceError, SourceUnavailable, UnknownTopic
from streamer.event import EventDecoder, EventSettings, encode
from streamer.ingest import handover
from streamer.ingest.batcher import Batcher, MicroBatch
from streamer.ingest.ingest import Ingest, Owner
from streamer.ingest.offsets import OffsetLedger
from streamer.ingest.reader import Reader, StopCondition
from streamer.sources.base import Chunk, Partition, RebalanceListener

P0, P1, P2 = (Partition(TOPIC, number) for number in range(3))


class Watched(MemorySource):
    """A source that counts what it is asked."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.polls: Counter[int] = Counter()
        self.closed = False

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        self.polls[max_records] += 1
        return super().poll(max_records, timeout_s)

    def close(self) -> None:
        self.closed = True
        super().close()


class Line:
    """A reader, and the trainer's side in the hands of the test."""

    def __init__(
        self,
        source: Any,
        batch_size: int = 8,
        settings: EventSettings | None = None,
        *,
        batcher: Batcher | None = None,
        decoder: Any = None,
        offsets: OffsetLedger | None = None,
        owner: Owner | None = None,
        until_end: bool = False,
        max_events: int | None = None,
        **options: Any,
    ) -> None:
        self.source = source
        self.trained: list[tuple[Partition, int]] = []  # partition and offset of every event
        self.accounted = 0
        self.ingest = Ingest(batcher or Batcher(batch_size, None), offsets, owner)
        make_source = source if callable(source) else lambda: source
        condition, decoder = StopCondition(until_end, max_events), decoder or EventDecoder(settings)
        self.reader = Reader(make_source, decoder, self.ingest, condition, **options)

    def step(self, timeout_s: float = 0.05) -> MicroBatch | None:
        """Train one batch, and hand over what leaves."""
        with self.ingest.batch(timeout_s) as batch:
            if batch is not None:
                self.train(batch)
        self.hand_over()
        return batch

    def hand_over(self) -> None:
        """Commit what leaves, if anything does."""
        if self.ingest.handover_wanted:
            offsets = self.ingest.take_snapshot()
            self.ingest.commit(offsets.positions | offsets.releasing)
            self.ingest.handed_over(offsets.releasing)

    def lose(self, *partitions: Partition) -> None:
        """Have partitions revoked, without training meanwhile."""
        self.source.revoke(partitions)
        until(lambda: not set(partitions) & set(self.positions))
        self.hand_over()

    def train(self, batch: MicroBatch) -> None:
        for partition, start, stop in batch.origins:
            self.trained += [(partition, offset) for offset in batch.offsets[start:stop]]
        self.accounted += batch.consumed

    def run(self) -> None:
        until(lambda: self.ingest.finished, self.step)

    @property
    def queued(self) -> int:
        return self.ingest.queued_events

    @property
    def positions(self) -> dict[Partition, int]:
        """The next offset to train of each of our partitions, where it is known."""
        return {p: at for p, at in self.ingest.assigned().items() if at is not None}


def line_of(count: int, partitions: int = 1, **options: Any) -> Line:
    """A line on a log with this many events."""
    log = memory_log(values_of(events(count)), partitions)
    line = Line(Watched(log, TOPIC), **options)
    line.log = log
    return line


class SlowOwner(Owner):
    """Lets partitions go only when the test says so."""

    def __init__(self) -> None:
        self.has_flushed = threading.Event()

    def flush(self) -> None:
        self.has_flushed.wait()


@contextmanager
def started(line: Line) -> Iterator[Line]:
    line.reader.start()
    try:
        yield line
    finally:
        line.reader.stop()


def all_of(log: MemoryLog) -> list[tuple[Partition, int]]:
    return sorted((p, offset) for p, end in log.end_offsets(TOPIC).items() for offset in range(end))


# the queue ------------------------------------------------------------------------------------------------------------


class TestQueue:
    def test_never_more_than_the_limit_and_one_poll_wait(self):
        line = line_of(2000, max_queued_events=100, until_end=True)
        largest = 0
        with started(line):
            until(lambda: line.queued >= 100)
            while not line.ingest.finished:
                largest = max(largest, line.queued)
                line.step()
        assert 100 <= largest < 100 + 25
        assert max(line.source.polls) == 25, "a quarter of the queue at a time"
        assert len(line.trained) == 2000

    def test_a_full_queue_is_no_reason_not_to_poll(self):
        """Polls for nothing keep the membership of a group, and serve its rebalances."""
        line = line_of(400, max_queued_events=40)
        with started(line):
            until(lambda: line.queued >= 40)
            for _ in range(3):
                before = line.source.polls[0]
                until(lambda before=before: line.source.polls[0] > before)
            assert line.queued < 40 + 10

    def test_what_is_not_trained_does_not_fill_memory_either(self, monkeypatch):
        """Dead letters are events' equals in memory: reading pauses when a batch is full of them."""
        log = memory_log([b"no event " * 1000] * 400)
        source = Watched(log, TOPIC)
        monkeypatch.setattr("streamer.ingest.batcher.MAX_UNTRAINED_BYTES", 100_000)
        with started(Line(source, max_queued_events=16)):
            until(lambda: source.polls[0] > 2)
            assert source.positions()[P0] <= 16


# where it stops -------------------------------------------------------------------------------------------------------


class TestUntilEnd:
    def test_it_stops_at_the_end_as_it_was_at_the_start_although_the_log_grows(self):
        line = line_of(300, partitions=3, max_queued_events=40, until_end=True)
        with started(line):
            until(lambda: line.queued >= 40)
            for _ in range(50):
                append(line.log, values_of(events(6)))
                line.step()
            line.run()
        assert sorted(line.trained) == [(p, offset) for p in (P0, P1, P2) for offset in range(100)]
        assert line.positions == {P0: 100, P1: 100, P2: 100}

    def test_a_partition_that_was_empty_is_left_for_the_next_run(self):
        log = memory_log([], partitions=2)
        log.append(TOPIC, [(None, value, 0) for value in values_of(events(50))], partition=0)
        line = Line(Watched(log, TOPIC), max_queued_events=20, until_end=True)
        with started(line):
            until(lambda: line.queued >= 20)
            log.append(TOPIC, [(None, value, 0) for value in values_of(events(50))], partition=1)
            line.run()
        assert line.positions == {P0: 50, P1: 0}

    @pytest.mark.parametrize("bad", [b"no event", encode("u", "i", 1.0, event_type="view")])
    def test_records_without_events_at_the_end_are_accounted_for(self, bad):
        values = [encode("u", f"i{k}", 1.0, event_type="buy") for k in range(10)] + [bad] * 3
        settings = EventSettings(event_types=("buy",))
        line = Line(Watched(memory_log(values), TOPIC), 10, settings, until_end=True)
        with started(line):
            line.run()
        assert len(line.trained) == 10
        assert line.accounted == 13
        assert line.positions == {P0: 13}

    def test_it_does_not_stop_while_partitions_are_away_for_a_rebalance(self):
        line = line_of(200, partitions=2, max_queued_events=20, until_end=True)
        with started(line):
            until(lambda: len(line.trained) > 40, line.step)
            line.lose(P0, P1)
            for _ in range(20):
                line.step()
                assert not line.ingest.finished
            line.source.assign([P0, P1])
            line.run()
        assert sorted(line.trained) == all_of(line.log)

    def test_it_does_not_stop_when_what_waits_is_dropped_during_the_last_step_before_a_rebalance(self):
        """Everything is read and waits; then it is dropped while a batch is trained, and the next is asked for."""
        log = memory_log(values_of(events(200)))
        source = Watched(log, TOPIC)
        owner = SlowOwner()
        line = Line(source, until_end=True, owner=owner)
        with started(line):
            until(lambda: source.polls[0] > 0)  # nothing more is wanted
            with line.ingest.batch(1) as batch:
                assert batch is not None
                line.train(batch)
                source.revoke([P0])
                until(lambda: line.queued == 0)
            assert line.step() is None
            assert not line.ingest.finished
            owner.has_flushed.set()
            until(lambda: not line.positions, line.step)
            source.assign([P0])
            line.run()
        assert sorted(line.trained) == all_of(log)


class TestMaxEvents:
    @given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(1, 30))
    def test_records_are_taken_up_to_the_one_with_which_it_is_enough(self, sizes, most):
        values = [b"[" + b",".join([encode("u", "i", 1.0)] * size) + b"]" for size in sizes]
        count = len(sizes)
        chunk = Chunk(P0, list(range(count)), [0] * count, [None] * count, values)
        condition = StopCondition(max_events=most)
        found = condition.before_max(chunk, EventDecoder().decode(chunk))
        needed = next((k + 1 for k in range(count) if sum(sizes[: k + 1]) >= most), count)
        assert len(found) == needed
        condition.count(sum(sizes[:needed]))
        assert (condition.at_most(1) == 0) == (sum(sizes) >= most)

    @pytest.mark.parametrize(
        ("values", "most", "trained", "accounted", "position"),
        [
            (values_of(events(500)), 123, 123, 123, 123),
            ([b"[" + b",".join(values_of(events(10))) + b"]"] * 20, 25, 30, 30, 3),  # no record is split
            ([*values_of(events(10)), *[b"no event"] * 20], 22, 10, 22, 22),
            ([encode("u", "i", 1.0, event_type=kind) for kind in ("buy", "view")] * 10, 15, 8, 15, 15),
        ],
    )
    def test_it_stops_after_so_many_events_whatever_becomes_of_them(self, values, most, trained, accounted, position):
        settings = EventSettings(event_types=("buy",) if b"view" in values[1] else ())
        line = Line(Watched(memory_log(values), TOPIC), 8, settings, max_events=most)
        with started(line):
            line.run()
        assert (len(line.trained), line.accounted, line.positions) == (trained, accounted, {P0: position})

    def test_events_that_a_rebalance_drops_do_not_count(self):
        line = line_of(500, partitions=2, batch_size=10, max_events=100)
        with started(line):
            until(lambda: line.queued == 100)
            line.lose(P0)
            line.run()
        assert line.trained == [(P1, k) for k in range(100)]


# where it goes on -----------------------------------------------------------------------------------------------------


class TestPositions:
    def test_it_goes_on_at_the_checkpoint_and_elsewhere_by_the_sources_policy(self):
        line = line_of(60, partitions=2, offsets=OffsetLedger({P0: 17}), until_end=True)
        with started(line):
            line.run()
        assert sorted(line.trained) == [(P0, k) for k in range(17, 30)] + [(P1, k) for k in range(30)]

    def test_what_the_checkpoint_says_is_committed_at_once(self):
        """A crash between a checkpoint and its commit would else look like lag until something new comes."""
        log = memory_log(values_of(events(60)), partitions=2)
        log.committed["streamer"] = {P0: 3}
        with started(Line(Watched(log, TOPIC), offsets=OffsetLedger({P0: 17}))):
            until(lambda: log.committed["streamer"] == {P0: 17})

    def test_a_partition_from_which_nothing_came_yet_has_a_position_too(self):
        """Without one, a restart would begin it at the latest record again, and lose what came in between."""
        with started(line := Line(Watched(memory_log([], partitions=2), TOPIC))):
            until(lambda: line.positions == {P0: 0, P1: 0})

    def test_positions_are_those_of_the_batches_that_ended_well(self):
        line = line_of(60, batch_size=10)
        with started(line):
            until(lambda: line.step() is not None)
            assert line.positions == {P0: 10}
            with pytest.raises(ZeroDivisionError), line.ingest.batch(1):
                _ = 1 / 0
            assert line.positions == {P0: 10}


# rebalances -----------------------------------------------------------------------------------------------------------


class TestRevocation:
    def test_it_does_not_wait_for_a_batch_of_other_partitions(self):
        log = memory_log([], partitions=2)
        log.append(TOPIC, [(None, value, 0) for value in values_of(events(10))], partition=1)
        source = Watched(log, TOPIC)
        line = Line(source, batch_size=10)
        with started(line):
            until(lambda: line.queued == 10)
            with line.ingest.batch(1):
                source.revoke([P0])
                until(lambda: line.ingest.handover_wanted)

    def test_it_does_not_wait_for_ever(self, monkeypatch, caplog):
        monkeypatch.setattr(handover, "HANDOVER_S", 0.05)
        line = line_of(100, batch_size=10)
        with started(line):
            until(lambda: line.step() is not None)
            line.source.revoke([P0])
            until(lambda: "the last commit: interactions[0] (trained up to offset 10)" in caplog.text)
            polls = line.source.polls.total()
            until(lambda: line.source.polls.total() > polls)
            assert line.ingest.take_snapshot() == ({P0: 10}, {})
            line.ingest.commit({P0: 10})
        assert line.log.committed == {}, "what is saved too late is not ours to commit"


# sources that fail ----------------------------------------------------------------------------------------------------


class Failing(Watched):
    """A source that fails so many times, in `open` or in `poll`, before it works."""

    def __init__(self, log: MemoryLog, fail_open: int = 0, fail_poll: int = 0, error: Exception | None = None) -> None:
        super().__init__(log, TOPIC)
        self.error = error or SourceUnavailable("nobody answers")
        self.fail_open, self.fail_poll = fail_open, fail_poll
        self.failed_at: list[float] = []

    def open(self, listener: RebalanceListener) -> None:
        self._maybe_fail("fail_open")
        super().open(listener)

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        self._maybe_fail("fail_poll")
        return super().poll(max_records, timeout_s)

    def _maybe_fail(self, which: str) -> None:
        if getattr(self, which):
            setattr(self, which, getattr(self, which) - 1)
            self.failed_at.append(time.monotonic())
            raise self.error


class TestFailures:
    @pytest.mark.parametrize("where", ["fail_open", "fail_poll"])
    def test_a_source_that_is_away_is_tried_again_with_growing_pauses_and_says_so(self, where, caplog):
        source = Failing(memory_log(values_of(events(50))), **{where: 4})
        line = Line(source, until_end=True, first_backoff_s=0.01)
        with caplog.at_level(logging.WARNING), started(line):
            line.run()
        assert len(line.trained) == 50
        assert [record.getMessage() for record in caplog.records] == [
            f"nobody answers; trying again in {pause:.1f} s" for pause in (0.01, 0.02, 0.04, 0.08)
        ]
        pauses = [b - a for a, b in zip(source.failed_at, source.failed_at[1:], strict=False)]
        assert all(pause >= wanted for pause, wanted in zip(pauses, (0.01, 0.02, 0.04), strict=True))

    def test_a_source_that_could_not_be_opened_is_closed_and_another_is_made(self):
        log = memory_log(values_of(events(10)))
        made = [Failing(log, fail_open=1), Failing(log, fail_open=1), Failing(log)]
        left = iter(made)
        line = Line(lambda: next(left), until_end=True, first_backoff_s=0.01)
        with started(line):
            until(lambda: line.queued == 10)
            assert [source.closed for source in made] == [True, True, False]

    @pytest.mark.parametrize("error", [SourceError("no such thing"), UnknownTopic("no topic"), ValueError("a bug")])
    @pytest.mark.parametrize("where", ["fail_open", "fail_poll"])
    def test_any_other_error_of_the_source_reaches_the_trainer(self, where, error):
        source = Failing(memory_log(values_of(events(50))), error=error, **{where: 1})
        line = Line(source)
        with started(line), pytest.raises(type(error), match=str(error)):
            until(lambda: False, line.step)
        assert source.closed

    def test_an_error_of_the_decoder_reaches_the_trainer(self):
        class Broken:
            def decode(self, chunk: Chunk) -> Any:
                raise RuntimeError("a bug in the decoder")

        line = line_of(5, decoder=Broken())
        with started(line), pytest.raises(RuntimeError, match="a bug in the decoder"), line.ingest.batch(30):
            pass

    def test_a_stop_ends_the_pause(self):
        line = Line(Failing(memory_log([]), fail_open=100), first_backoff_s=3600.0)
        with started(line):
            until(lambda: line.source.failed_at)

    def test_a_source_that_never_returns_is_left_after_a_while(self, caplog):
        released = threading.Event()

        class Stuck(Watched):
            def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
                released.wait()
                return []

        line = Line(Stuck(memory_log([]), TOPIC))
        line.reader.start()
        line.reader.stop(timeout_s=0.05)
        assert "did not close" in caplog.text
        released.set()
