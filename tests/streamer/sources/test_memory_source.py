"""The twin in memory: the contract, rebalances, several readers."""

from __future__ import annotations

import pytest
from contracts.source_contract import RecordingListener, SourceContract, json_lines, read, rows_of
from log_harness import LogHarness, records

from streamer.errors import SourceError, UnknownTopic
from streamer.sources.base import Partition
from streamer.sources.memory import MemoryLog, MemorySource


class TestMemorySource(SourceContract):
    @pytest.fixture
    def harness(self):
        log = MemoryLog()
        return LogHarness(log, lambda topic: MemorySource(log, topic))


@pytest.fixture
def log():
    log = MemoryLog()
    log.create_topic("t", 2)
    return log


def open_memory(log, *args, positions=None, **kwargs):
    source, listener = MemorySource(log, *args, **kwargs), RecordingListener(positions or {})
    source.open(listener)
    return source, listener


def test_an_unknown_topic_is_refused(log):
    with pytest.raises(UnknownTopic, match="absent"):
        MemorySource(log, ["t", "absent"]).open(RecordingListener({}))


def test_a_topic_cannot_change_its_number_of_partitions(log):
    log.create_topic("t", 2)
    with pytest.raises(SourceError, match="2 partitions, not 3"):
        log.create_topic("t", 3)


def test_a_rebalance_is_served_inside_the_next_poll_not_before(log):
    source, listener = open_memory(log, "t", partitions=[0])
    source.assign([Partition("t", 1)])
    source.revoke([Partition("t", 0)])
    source.lose([Partition("t", 1)])
    assert (listener.assigned, listener.revoked) == ([Partition("t", 0)], [])
    source.poll(0, 0)
    assert listener.assigned == [Partition("t", 0), Partition("t", 1)]
    assert (listener.revoked, listener.lost) == ([Partition("t", 0)], [Partition("t", 1)])


def test_a_revoked_partition_is_not_read_any_more_and_has_no_end(log):
    source, _ = open_memory(log, "t")
    source.revoke([Partition("t", 0)])
    source.poll(0, 0)
    log.append("t", records([b"gone"]), partition=0)
    log.append("t", records([b"ours"]), partition=1)
    assert rows_of(source.poll(10, 0)) == [(Partition("t", 1), 0, b"ours")]
    assert source.end_offsets() == {Partition("t", 1): 1}


def test_an_assigned_partition_starts_at_the_listeners_position(log):
    log.append("t", records(json_lines(0, 5)), partition=1)
    source, _ = open_memory(log, "t", partitions=[], positions={Partition("t", 1): 3})
    assert source.poll(10, 0) == []
    source.assign([Partition("t", 1)])
    assert [offset for _, offset, _ in read(source, 2)] == [3, 4]
