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


def test_a_position_beyond_the_end_is_refused(log):
    with pytest.raises(SourceError, match="ends at offset 0"):
        open_memory(log, "t", positions={Partition("t", 0): 1})


def test_records_of_one_key_go_to_one_partition_and_keep_their_order(log):
    for number in range(20):
        log.append("t", records([b"%d" % number], key=b"user-%d" % (number % 3)))
    source, _ = open_memory(log, "t")
    partitions = {}
    for chunk in source.poll(100, 0):
        for key in chunk.keys:
            partitions.setdefault(key, set()).add(chunk.partition)
    assert [len(numbers) for numbers in partitions.values()] == [1, 1, 1]


def test_several_readers_each_see_everything(log):
    log.append("t", records(json_lines(0, 4)))
    readers = [open_memory(log, "t")[0] for _ in range(3)]
    seen = [read(reader, 4) for reader in readers]
    assert seen[0] == seen[1] == seen[2]


def test_latest_starts_after_what_is_there(log):
    log.append("t", records(json_lines(0, 4)))
    source, _ = open_memory(log, "t", start="latest")
    log.append("t", records(json_lines(4, 1)))
    assert [value for _, _, value in read(source, 1)] == json_lines(4, 1)


def test_a_rebalance_is_served_inside_the_next_poll_not_before(log):
    source, listener = open_memory(log, "t", partitions=[0])
    source.assign([Partition("t", 1)])
    source.revoke([Partition("t", 0)])
    assert (listener.assigned, listener.revoked) == ([Partition("t", 0)], [])
    source.poll(0, 0)
    assert listener.assigned == [Partition("t", 0), Partition("t", 1)]
    assert listener.revoked == [Partition("t", 0)]


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


def test_other_partitions_go_on_undisturbed_over_a_rebalance(log):
    log.append("t", records(json_lines(0, 4)), partition=0)
    log.append("t", records(json_lines(4, 2)), partition=1)
    source, _ = open_memory(log, "t", partitions=[0])
    assert len(rows_of(source.poll(3, 0))) == 3
    source.assign([Partition("t", 1)])
    assert read(source, 3) == [
        (Partition("t", 0), 3, json_lines(3, 1)[0]),
        (Partition("t", 1), 0, json_lines(4, 1)[0]),
        (Partition("t", 1), 1, json_lines(5, 1)[0]),
    ]


def test_commit_is_kept_for_the_group(log):
    source, _ = open_memory(log, "t", group="g")
    source.commit({Partition("t", 0): 3})
    assert log.committed == {"g": {Partition("t", 0): 3}}
