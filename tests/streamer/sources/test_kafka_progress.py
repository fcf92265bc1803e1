"""The tables behind `commit` and `end_offsets` of a Kafka source."""

from __future__ import annotations

import pytest
from clock import Clock

from streamer.sources.base import Partition
from streamer.sources.kafka.progress import RETRY_COMMIT_S, Progress

A, B, C = Partition("t", 0), Partition("t", 1), Partition("t", 2)


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def progress(clock: Clock) -> Progress:
    progress = Progress(clock)
    progress.begin({A: 5, B: 0}, {A: 10, B: 0})
    return progress


def test_ends_are_those_looked_up(progress: Progress) -> None:
    assert progress.ends() == {A: 10, B: 0}
    _, changes = progress.known()
    progress.set_ends({A: 12, B: 3}, changes)
    assert progress.ends() == {A: 12, B: 3}


def test_ends_are_never_before_what_was_returned(progress: Progress) -> None:
    _, changes = progress.known()
    progress.returned({A: 15})
    assert progress.ends() == {A: 15, B: 0}
    progress.set_ends({A: 14, B: 1}, changes)
    assert progress.ends() == {A: 15, B: 1}


def test_ends_looked_up_for_other_partitions_are_dropped(progress: Progress) -> None:
    _, changes = progress.known()
    progress.forget([A])
    progress.begin({C: 0}, {C: 7})
    progress.set_ends({A: 12, B: 3}, changes)
    assert progress.ends() == {B: 0, C: 7}


def test_end_is_after_the_last_record_once_what_holds_none_was_passed(progress: Progress) -> None:
    progress.returned({A: 9})
    assert progress.behind() == [A]
    progress.pass_by(A, 9)
    assert progress.ends()[A] == 10, "the client may still find a record at 9"
    progress.pass_by(A, 10)
    assert progress.ends()[A] == 9
    progress.set_ends({A: 11, B: 0}, progress.known()[1])
    assert progress.ends()[A] == 11, "something was appended"


def test_positions_are_after_what_was_returned_or_passed(progress: Progress) -> None:
    assert progress.positions() == {A: 5, B: 0}
    progress.returned({A: 7})
    progress.pass_by(A, 10)
    assert progress.positions() == {A: 10, B: 0}
    progress.moved(A, 2)
    assert progress.positions() == {A: 2, B: 0}


def test_what_was_passed_counts_no_more_after_a_move(progress: Progress) -> None:
    progress.pass_by(A, 10)
    progress.moved(A, 2)
    assert progress.ends()[A] == 10


def test_the_newest_positions_are_committed_and_only_ours(progress: Progress) -> None:
    progress.want_commit({A: 6, C: 1})
    progress.want_commit({A: 7})
    assert progress.take_commit() == {A: 7}


def test_one_commit_is_sent_at_a_time(progress: Progress) -> None:
    progress.want_commit({A: 6})
    progress.take_commit()
    progress.want_commit({A: 7, B: 1})
    assert progress.take_commit() == {}
    progress.committed()
    assert progress.take_commit() == {A: 7, B: 1}


def test_failed_commit_is_tried_again_after_a_while_with_what_is_newer(progress: Progress, clock: Clock) -> None:
    progress.want_commit({A: 6, B: 1})
    sent = progress.take_commit()
    progress.want_commit({B: 2})
    progress.not_committed(sent)
    assert progress.take_commit() == {}
    clock.now += RETRY_COMMIT_S
    assert progress.take_commit() == {A: 6, B: 2}


def test_last_commit_holds_what_was_sent_but_not_answered(progress: Progress) -> None:
    progress.want_commit({A: 6})
    progress.take_commit()
    progress.want_commit({B: 1})
    assert progress.take_last_commit() == {A: 6, B: 1}


def test_nothing_is_committed_of_partitions_that_are_gone(progress: Progress, clock: Clock) -> None:
    progress.want_commit({A: 6})
    sent = progress.take_commit()
    progress.want_commit({A: 7})
    progress.forget([A])
    progress.not_committed(sent)
    clock.now += RETRY_COMMIT_S
    assert progress.take_commit() == {}
    progress.begin({A: 0}, {A: 10})
    assert progress.take_commit() == {}
