from __future__ import annotations

import pytest
from clock import Clock

from streamer.metrics.health import RECENT_S, STUCK_AFTER_S, Health


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(clock)


def test_it_is_alive_but_not_ready_while_it_starts_however_long_that_takes(health, clock):
    assert health.alive() == (True, "starting")
    assert health.ready() == (False, "starting")
    clock.now += 10 * STUCK_AFTER_S
    assert health.alive() == (True, "starting")


def test_without_partitions_it_is_not_ready(health):
    health.beat()
    assert health.alive().ok
    assert not health.ready().ok
    assert "partition" in health.ready().reason


def test_before_it_knows_where_to_read_its_partitions_it_is_not_ready(health):
    health.partitions, health.unread = 2, 1
    health.beat()
    assert health.ready() == (False, "it is not known yet where to begin in 1 of its partitions")
    health.unread = 0
    assert health.ready().ok


def test_with_partitions_and_nothing_to_do_it_is_ready_however_long_ago_the_last_step_was(health, clock):
    health.partitions = 2
    health.beat()
    health.stepped()
    clock.now += 10 * RECENT_S
    health.beat()
    assert health.ready() == (True, "caught up")


def test_with_a_problem_it_is_not_ready_and_says_which_whatever_else_is_well(health):
    health.partitions, health.problems = 1, ["Kafka does not respond", "cannot write a checkpoint"]
    health.beat()
    assert health.alive().ok
    assert health.ready() == (False, "Kafka does not respond; cannot write a checkpoint")
    health.problems = []
    assert health.ready().ok


def test_before_the_first_step_it_is_not_ready_if_records_wait(health):
    health.partitions, health.lag = 1, 1500
    health.beat()
    assert not health.ready().ok
    assert "1,500 records wait" in health.ready().reason


def test_a_recent_step_makes_it_ready_until_it_is_no_longer_recent(health, clock):
    health.partitions, health.lag = 1, 10
    health.beat()
    health.stepped()
    clock.now += RECENT_S
    health.beat()
    assert health.ready().ok
    clock.now += 1
    health.beat()
    assert not health.ready().ok
    assert "no step for 61 s while 10 records wait" in health.ready().reason


def test_a_line_that_hangs_is_not_alive_and_not_ready(health, clock):
    health.partitions = 1
    health.beat()
    clock.now += STUCK_AFTER_S
    assert health.alive().ok
    clock.now += 1
    assert not health.alive().ok
    assert not health.ready().ok
    health.beat()
    assert health.alive().ok


def test_after_the_end_it_is_neither(health):
    health.partitions = 1
    health.beat()
    health.ended()
    assert health.alive() == health.ready() == (False, "the run has ended")
