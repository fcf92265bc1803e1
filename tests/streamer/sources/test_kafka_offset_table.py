"""The table of offsets behind `positions`, `commit` and `end_offsets` of a Kafka source."""

from __future__ import annotations

import pytest
from clock import Clock

from streamer.sources.base import Partition, Position
from streamer.sources.kafka.offsets import RETRY_COMMIT_S, Commit, OffsetTable, Start

A, B, C = Partition("t", 0), Partition("t", 1), Partition("t", 2)


def start(position: int, end: int, lost: int = 0) -> Start:
    return Start(Position(position), Commit(position), False, lost, end)


def settle(table: OffsetTable, starts: dict[Partition, Start]) -> None:
    table.assign(dict.fromkeys(starts))
    table.begin(starts)


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def table(clock: Clock) -> OffsetTable:
    table = OffsetTable(clock)
    settle(table, {A: start(5, 10), B: start(0, 0)})
    return table


def offsets(commits: dict[Partition, Commit]) -> dict[Partition, int]:
    return {partition: commit.offset for partition, commit in commits.items()}


def test_ends_are_those_looked_up_but_never_before_what_was_returned(table: OffsetTable) -> None:
    rows = table.reading()
    table.set_ends(rows, {A: 12, B: 3})
    assert table.ends() == {A: 12, B: 3}
    table.returned(A, 15)
    assert table.ends() == {A: 15, B: 3}
    table.set_ends(rows, {A: 14, B: 4})
    assert table.ends() == {A: 15, B: 4}


def test_end_is_after_the_last_record_once_what_holds_none_was_passed(table: OffsetTable) -> None:
    table.returned(A, 9)
    assert table.behind() == [A]
    table.pass_by(A, 9)
    assert table.ends()[A] == 10, "the client may still find a record at 9"
    table.pass_by(A, 10)
    assert table.ends()[A] == 9
    table.set_ends(table.reading(), {A: 11, B: 0})
    assert table.ends()[A] == 11, "something was appended"


def test_nothing_is_committed_from_before_the_commit_that_reading_began_with(table: OffsetTable) -> None:
    settle(table, {C: Start(Position(5), Commit(9), False, 0, 20)})
    table.want_commit({C: 8})
    assert C not in table.take_last_commit()
    table.want_commit({C: 10})
    assert offsets(table.take_last_commit())[C] == 10


def test_positions_are_after_what_was_returned_or_passed_or_removed(table: OffsetTable) -> None:
    assert table.positions() == {A: 5, B: 0}
    table.returned(A, 7)
    table.pass_by(A, 10)
    assert table.positions() == {A: 10, B: 0}
    table.skip_removed(A, 10, 12)
    assert table.positions() == {A: 12, B: 0}
    assert table.returned(A, 13) == 2
    assert table.returned(A, 14) == 0, "what was removed is reported once"


def test_one_commit_is_sent_at_a_time_and_the_last_one_holds_all_of_it(table: OffsetTable) -> None:
    table.want_commit({A: 6})
    table.take_commit()
    table.want_commit({B: 1})
    assert table.take_commit() == {}
    assert offsets(table.take_last_commit()) == {A: 6, B: 1}
    table.sent(is_committed=True)
    table.want_commit({A: 7})
    assert offsets(table.take_commit()) == {A: 7}


def test_failed_commit_is_tried_again_after_a_while_with_what_is_newer(table: OffsetTable, clock: Clock) -> None:
    table.want_commit({A: 6, B: 1})
    table.take_commit()
    table.want_commit({B: 2})
    table.sent(is_committed=False)
    assert table.take_commit() == {}
    clock.now += RETRY_COMMIT_S
    assert offsets(table.take_commit()) == {A: 6, B: 2}


def test_nothing_is_committed_of_partitions_that_are_gone(table: OffsetTable, clock: Clock) -> None:
    table.want_commit({A: 6})
    table.take_commit()
    table.want_commit({A: 7})
    table.forget([A])
    settle(table, {A: start(0, 10)})
    table.sent(is_committed=False)
    clock.now += RETRY_COMMIT_S
    assert table.take_commit() == {}


@pytest.mark.parametrize("commit", [Commit(7), Commit(7, "a", "id", 3, 4), Commit(7, "a", "", 3, 4, 9)])
def test_a_commit_is_read_back_from_its_metadata(commit: Commit) -> None:
    assert Commit.of(commit.for_kafka()) == commit


def test_a_commit_says_up_to_where_no_record_follows_its_offset(table: OffsetTable) -> None:
    table.returned(A, 9)
    table.pass_by(A, 12)
    table.want_commit({A: 8})
    assert not table.take_last_commit()[A].reaches(10)
    table.want_commit({A: 9})
    assert table.take_last_commit()[A].reaches(12)
