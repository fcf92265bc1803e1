"""Retention of the embedded log: what every group has committed is removed, and nothing else ever is."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import time
from pathlib import Path

import pytest
from contracts.source_contract import RecordingListener, read, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from line_harness import NOON_MS

from streamer.sources.base import Partition
from streamer.sources.embedded import groups
from streamer.sources.embedded.database import LOG_FILE
from streamer.sources.embedded.groups import FORGOTTEN_AFTER_S, SEEN_EVERY_S, ConsumerGroup, GroupCommits
from streamer.sources.embedded.log import EmbeddedLog
from streamer.sources.embedded.source import EmbeddedSource

ZERO, ONE = Partition("t", 0), Partition("t", 1)
ALL_PASSED = {ZERO: 1 << 40, ONE: 1 << 40}


def commit(data_dir, positions, keep_bytes=0, name="streamer", now=time.time):
    """Commit for a group, and remove what all groups have passed."""
    group = GroupCommits(data_dir / LOG_FILE, ConsumerGroup(name, keep_bytes), now)
    group.add(positions)
    group.flush()
    group.trim()


@pytest.fixture
def log(tmp_path):
    with EmbeddedLog(tmp_path) as log:
        log.create_topic("t", 2)
        yield log


@pytest.fixture
def open_embedded(tmp_path, monkeypatch):
    """Opens sources that trim at every poll, and closes them after the test."""
    monkeypatch.setattr(groups, "TRIM_EVERY_S", 0.0)
    sources = []

    def open_source(group="streamer", keep_bytes=None, positions=None):
        source = EmbeddedSource(tmp_path, "t", group=ConsumerGroup(group, keep_bytes))
        sources.append(source)
        source.open(RecordingListener(positions or {}))
        return source

    yield open_source
    for source in sources:
        source.close()


def append_singly(log, count, partition=0):
    for number in range(count):
        log.append("t", [(None, b"%d" % number, NOON_MS + number)], partition=partition)


def values_of(source, count):
    return [value for _, _, value in read(source, count)]


def is_left(data_dir: Path) -> list[tuple[int, int]]:
    """Partition and offset of every record in the log."""
    db = sqlite3.connect(data_dir / LOG_FILE)
    query = "SELECT number, first_offset, count FROM batches JOIN partitions ON partitions.id = batches.partition"
    found = [(number, first + k) for number, first, count in db.execute(query) for k in range(count)]
    db.close()
    return sorted(found)


def test_a_log_stays_bounded_while_twenty_times_as_much_flows_through(log, tmp_path, open_embedded):
    keep_bytes, run = 1 << 20, [(b"%d" % k, b"x" * 400, NOON_MS) for k in range(256)]
    source = open_embedded(keep_bytes=keep_bytes)
    written = read_back = 0
    largest = 0
    while written < 20 * keep_bytes:
        log.append("t", run)
        written += sum(len(value) for _, value, _ in run)
        read_back += len(rows_of(source.poll(1_000, 0)))
        source.commit(source.positions())
        source.poll(0, 0)
        largest = max(largest, (tmp_path / LOG_FILE).stat().st_size)
    assert read_back == log.end_offsets("t")[ZERO] + log.end_offsets("t")[ONE]
    assert keep_bytes < largest < 1.5 * keep_bytes


def test_what_a_group_has_not_committed_stays_however_large_the_log(log, tmp_path, open_embedded):
    append_singly(log, 10)
    eager, slow = open_embedded("eager", keep_bytes=0), open_embedded("slow")
    eager.commit({ZERO: 10})
    slow.commit({ZERO: 4})
    slow.poll(0, 0)
    eager.poll(0, 0)
    assert is_left(tmp_path) == [(0, offset) for offset in range(4, 10)]
    reader = EmbeddedSource(tmp_path, "t", group=None)
    reader.open(RecordingListener({}))
    assert values_of(reader, 6) == [b"%d" % k for k in range(4, 10)], "a later beginning, at the same offsets"
    reader.close()


@pytest.mark.parametrize(("idle_s", "left"), [(FORGOTTEN_AFTER_S - 1, 10), (FORGOTTEN_AFTER_S + 1, 0)])
@pytest.mark.parametrize("reads", [0.0, SEEN_EVERY_S])
def test_a_group_that_was_not_seen_for_long_is_forgotten(log, tmp_path, idle_s, left, reads):
    append_singly(log, 10)
    now = 1e9
    gone = GroupCommits(tmp_path / LOG_FILE, ConsumerGroup("gone"), lambda: now)
    gone.add({ZERO: 0})
    gone.flush()
    now += reads
    gone.flush()
    now += idle_s
    commit(tmp_path, {ZERO: 10}, name="ours", now=lambda: now)
    assert len(is_left(tmp_path)) == left


def test_a_run_goes_only_as_a_whole_and_the_oldest_first(log, tmp_path):
    log.append("t", [(None, b"x" * 2_000, NOON_MS)] * 10, partition=0)
    append_singly(log, 3, partition=1)
    commit(tmp_path, {ZERO: 9, ONE: 2})
    assert is_left(tmp_path) == [*((0, offset) for offset in range(10)), (1, 2)]
    commit(tmp_path, ALL_PASSED, 1 << 30)
    assert len(is_left(tmp_path)) == 11, "it is not larger than is to be kept"
    db = sqlite3.connect(tmp_path / LOG_FILE)
    pages, free, size = (db.execute(f"PRAGMA {n}").fetchone()[0] for n in ("page_count", "freelist_count", "page_size"))
    db.close()
    commit(tmp_path, ALL_PASSED, (pages - free) * size - 1)
    assert is_left(tmp_path) == [(1, 2)]


def test_offsets_are_never_used_again_after_everything_was_removed(log, tmp_path, open_embedded):
    append_singly(log, 5)
    source = open_embedded()
    assert len(values_of(source, 5)) == 5
    commit(tmp_path, ALL_PASSED)
    late = open_embedded("late")
    assert late.positions()[ZERO] == 5
    log.append("t", [(None, b"new", NOON_MS)], partition=0)
    assert read(source, 1) == read(late, 1) == [(ZERO, 5, b"new")]


@pytest.mark.parametrize("read_before", [0, 2])
def test_a_reader_behind_the_beginning_resumes_there_and_counts_what_it_missed(
    log, tmp_path, open_embedded, caplog, read_before
):
    append_singly(log, 10)
    source = open_embedded(positions={ZERO: 2 - read_before}) if read_before else None
    if source is not None:
        assert len(rows_of(source.poll(read_before, 0))) == read_before
    commit(tmp_path, {ZERO: 7})
    with caplog.at_level(logging.WARNING):
        source = source or open_embedded(positions={ZERO: 2})
        (chunk,) = source.poll(10, 0)
    assert chunk.values == [b"7", b"8", b"9"]
    assert chunk.lost == 5
    assert caplog.messages == ["t[0]: offsets 2 to 6 were removed by retention before they were read; resuming at 7"]


def test_a_reader_of_which_everything_was_removed_is_at_the_end(log, tmp_path, open_embedded):
    append_singly(log, 10)
    commit(tmp_path, ALL_PASSED)
    source = open_embedded(positions={ZERO: 2})
    assert source.positions()[ZERO] == source.end_offsets()[ZERO] == 10
    log.append("t", [(None, b"new", NOON_MS)], partition=0)
    assert source.poll(10, 0)[0].lost == 8


actions = st.lists(st.tuples(st.sampled_from(["append", "a", "b"]), st.integers(0, 1), st.integers(1, 6)), max_size=30)


@settings(max_examples=60, deadline=None)
@given(actions)
def test_nothing_that_a_group_has_not_committed_is_ever_removed(history):
    with tempfile.TemporaryDirectory() as name:
        data_dir = Path(name)
        committed = {"a": {ZERO: 0, ONE: 0}, "b": {ZERO: 0, ONE: 0}}
        ends = {ZERO: 0, ONE: 0}
        with EmbeddedLog(data_dir) as log:
            log.create_topic("t", 2)
            for group in committed:
                commit(data_dir, committed[group], name=group)
            for action, number, count in history:
                partition = Partition("t", number)
                if action == "append":
                    log.append("t", [(None, b"x", NOON_MS)] * count, partition=number)
                    ends[partition] += count
                else:
                    committed[action][partition] = min(ends[partition], committed[action][partition] + count)
                    commit(data_dir, committed[action], name=action)
                commit(data_dir, {}, name="a")
                left = set(is_left(data_dir))
                for each, end in ends.items():
                    first = min(committed["a"][each], committed["b"][each])
                    assert {(each.number, offset) for offset in range(first, end)} <= left
