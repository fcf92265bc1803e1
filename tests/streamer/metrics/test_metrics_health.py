from __future__ import annotations

from dataclasses import replace

import pytest
from clock import Clock

from streamer.cache_store.store import StoreStatus
from streamer.metrics.health import RECENT_S, STUCK_AFTER_S, Health
from streamer.metrics.status import Status
from streamer.snapshot.checkpointer import SaveStats
from streamer.sources.base import Partition


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


READS = Status(partitions={Partition("t", 0): 5})
BEHIND = replace(READS, lag={Partition("t", 0): 1500})


def test_without_partitions_it_is_not_ready_nor_before_it_knows_where_to_read_them(health):
    health.beat()
    assert health.alive().ok
    for status in (None, Status()):
        health.status = status
        assert health.ready() == (False, "no partition is assigned to this process yet")
    health.status = Status(partitions={Partition("t", 0): 5, Partition("t", 1): None})
    assert health.ready() == (False, "it is not known yet where to begin in 1 of its partitions")


def test_with_partitions_and_nothing_to_do_it_is_ready_however_long_ago_the_last_step_was(health, clock):
    health.status = READS
    health.beat()
    health.stepped()
    clock.now += 10 * RECENT_S
    health.beat()
    assert health.ready() == (True, "caught up")


def test_with_a_problem_it_is_not_ready_and_says_which_whatever_else_is_well(health):
    saves = SaveStats(problem="cannot write a checkpoint")
    health.status = replace(READS, source_problem="Kafka does not respond", saves=saves)
    health.beat()
    assert health.alive().ok
    assert health.ready() == (False, "Kafka does not respond; cannot write a checkpoint")
    health.status = replace(READS, backpressure_reason="0 of 7 records are events")
    assert health.ready() == (False, "paused: 0 of 7 records are events")
    health.status = replace(READS, store=StoreStatus(live=False))
    assert health.ready() == (False, "the store does not respond")


def test_a_recent_step_makes_it_ready_until_it_is_no_longer_recent(health, clock):
    health.status = BEHIND
    health.beat()
    assert not health.ready().ok
    assert "1,500 records wait" in health.ready().reason
    health.stepped()
    clock.now += RECENT_S
    health.beat()
    assert health.ready().ok
    clock.now += 1
    health.beat()
    assert health.ready() == (False, "no step for 61 s while 1,500 records wait")


def test_a_line_that_hangs_is_not_alive_and_not_ready(health, clock):
    health.status = READS
    health.beat()
    clock.now += STUCK_AFTER_S
    assert health.alive().ok
    clock.now += 1
    assert not health.alive().ok
    assert not health.ready().ok
    health.beat()
    assert health.alive().ok


def test_after_the_end_it_is_neither(health):
    health.status = READS
    health.beat()
    health.ended()
    assert health.alive() == health.ready() == (False, "the run has ended")
