"""The embedded log: the contract, order, writers that die, waiting for a topic."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter

import msgspec
import pytest
from contracts.source_contract import RecordingListener, SourceContract, json_lines, read, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from line_harness import NOON_MS, committed_positions
from log_harness import LogHarness, records
from memory_source import MemoryLog, MemorySource

from streamer.errors import SourceError, UnknownTopic
from streamer.sources.base import Partition
from streamer.sources.embedded import log as embedded_log
from streamer.sources.embedded import source as embedded_source
from streamer.sources.embedded.groups import ConsumerGroup
from streamer.sources.embedded.log import EmbeddedLog
from streamer.sources.embedded.source import EmbeddedSource, StartPolicy


class TestEmbeddedSource(SourceContract):
    @pytest.fixture
    def harness(self, tmp_path):
        with EmbeddedLog(tmp_path) as log:
            yield LogHarness(log, lambda topic: EmbeddedSource(tmp_path, topic))


class TestMemorySource(SourceContract):
    """The twin that other tests use."""

    @pytest.fixture
    def harness(self):
        log = MemoryLog()
        return LogHarness(log, lambda topic: MemorySource(log, topic))


@pytest.fixture
def log(tmp_path):
    with EmbeddedLog(tmp_path) as log:
        log.create_topic("t", 2)
        yield log


@pytest.fixture
def open_embedded(tmp_path):
    """Opens sources over the log in `tmp_path`, and closes them after the test."""
    sources = []

    def open_source(*args, positions=None, **kwargs):
        source, listener = EmbeddedSource(tmp_path, *args, **kwargs), RecordingListener(positions or {})
        sources.append(source)
        source.open(listener)
        return source, listener

    yield open_source
    for source in sources:
        source.close()


def values_of(source, count):
    return [value for _, _, value in read(source, count)]


# --- order ---------------------------------------------------------------------------------------------------

keyed = st.tuples(st.one_of(st.none(), st.binary(min_size=1, max_size=2)), st.binary(max_size=5))
appends = st.lists(st.lists(keyed, max_size=12), max_size=8)


def fill(log, partitions, batches):
    log.create_topic("t", partitions)
    for number, batch in enumerate(batches):
        log.append("t", [(key, value, NOON_MS + number) for key, value in batch])


def read_all(source, poll_sizes=(1_000_000,)):
    """Everything that is there, with each record's columns, polling in the given sizes over and over."""
    rows, turn = [], 0
    while chunks := source.poll(poll_sizes[turn % len(poll_sizes)], 0):
        turn += 1
        for chunk in chunks:
            columns = zip(chunk.offsets, chunk.timestamps_ms, chunk.keys, chunk.values, strict=True)
            rows += [(chunk.partition, *record) for record in columns]
    return rows


def opened(source, positions=None):
    source.open(RecordingListener(positions or {}))
    return source


@settings(max_examples=60)
@given(appends, st.integers(1, 4), st.integers(1, 9), st.lists(st.integers(1, 7), min_size=1, max_size=4), st.data())
def test_records_are_those_of_the_twin_in_memory_whatever_the_poll_sizes_and_wherever_reading_resumes(
    batches, partitions, group_records, poll_sizes, data
):
    twin = MemoryLog()
    fill(twin, partitions, batches)
    expected = read_all(opened(MemorySource(twin, "t")))
    with tempfile.TemporaryDirectory() as data_dir, pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded_log, "GROUP_RECORDS", group_records)
        with EmbeddedLog(data_dir) as log:
            fill(log, partitions, batches)
        whole = opened(EmbeddedSource(data_dir, "t"))
        rows = read_all(whole)
        cut = data.draw(st.integers(0, len(rows)))
        rest = opened(EmbeddedSource(data_dir, "t"), {row[0]: row[1] + 1 for row in rows[:cut]})
        assert read_all(rest, poll_sizes) == rows[cut:]
        whole.close()
        rest.close()
    if group_records == 1 or partitions == 1:
        assert rows == expected
    assert sorted(rows, key=lambda row: row[:2]) == sorted(expected, key=lambda row: row[:2])


def test_neighbouring_records_of_one_partition_become_one_chunk(log, open_embedded):
    for number in range(5):
        log.append("t", records([b"%d" % number]), partition=0)
    log.append("t", records([b"5"]), partition=1)
    source, _ = open_embedded("t")
    assert [len(chunk) for chunk in source.poll(100, 0)] == [5, 1]


def test_a_reader_of_some_partitions_sees_only_those(log, open_embedded):
    log.append("t", records([b"a"]), partition=0)
    log.append("t", records([b"b"]), partition=1)
    source, listener = open_embedded("t", partitions=[1])
    assert values_of(source, 1) == [b"b"]
    assert listener.assigned == [Partition("t", 1)]
    assert source.end_offsets() == {Partition("t", 1): 1}


def test_a_quiet_topic_is_read_past_the_records_of_others(log, open_embedded):
    log.create_topic("quiet", 1)
    source, _ = open_embedded("quiet")
    for number in range(3):
        log.append("t", records(json_lines(0, 50)))
        assert source.poll(10, 0) == []
        assert source.poll(10, 0) == []
        log.append("quiet", records([b"%d" % number]))
        assert values_of(source, 1) == [b"%d" % number]


# --- writing -------------------------------------------------------------------------------------------------


def test_the_partition_of_a_key_never_changes(log):
    log.create_topic("many", 1000)
    ends = log.append("many", records([b"x"], key=b"user-1"))
    assert ends[Partition("many", 524)] == 1


def test_a_topic_is_created_once_and_keeps_its_partitions(log):
    log.create_topic("t", 2)
    assert log.topics() == {"t": 2}
    with pytest.raises(SourceError, match="2 partitions, not 4"):
        log.create_topic("t", 4)
    with pytest.raises(SourceError, match="at least one"):
        log.create_topic("none", 0)


def test_an_append_to_a_missing_topic_or_partition_is_refused(log):
    with pytest.raises(UnknownTopic, match=r"'absent'.*'t'"):
        log.append("absent", records([b"x"]))
    with pytest.raises(SourceError, match="0 to 1, not 7"):
        log.append("t", records([b"x"]), partition=7)


@pytest.mark.parametrize("bad", [(b"k", "text", 0), ("key", b"v", 0), (b"k", b"v", 1.5), (b"k", None, 0)])
def test_an_append_with_a_bad_record_leaves_nothing(log, bad):
    with pytest.raises((TypeError, msgspec.ValidationError)):
        log.append("t", [(b"k", b"v", 0), bad])
    assert set(log.end_offsets("t").values()) == {0}
    log.append("t", [(b"k", b"v", 0)])


def test_large_values_are_cut_into_smaller_runs(log, open_embedded, monkeypatch):
    monkeypatch.setattr(embedded_log, "MAX_GROUP_BYTES", 100)
    values = [bytes([n]) * 60 for n in range(9)]
    log.append("t", records(values), partition=0)
    source, _ = open_embedded("t")
    assert values_of(source, 9) == values


def test_readers_are_not_blocked_by_a_writer_in_the_middle_of_an_append(tmp_path, log, open_embedded, monkeypatch):
    monkeypatch.setattr(embedded_source, "BUSY_TIMEOUT_S", 0.05)
    log.append("t", records([b"a"]), partition=0)
    other = sqlite3.connect(tmp_path / "log.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE partitions SET next_offset = 99")
    source, _ = open_embedded("t")
    assert values_of(source, 1) == [b"a"]
    assert source.end_offsets()[Partition("t", 0)] == 1
    other.close()


WRITER = """
import sys
from streamer.sources.embedded.log import EmbeddedLog

data_dir, name, batches = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3])
log = EmbeddedLog(data_dir)
log.create_topic("t", 3)
print("ready", flush=True)
for batch in range(batches):
    log.append("t", [(b"key-%d" % n, b"%s %d %d" % (name, batch, n), 1) for n in range(7)])
"""


def start_writer(data_dir, name, batches):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(data_dir), name, str(batches)], stdout=subprocess.PIPE)


def batches_of(rows):
    """How many records of each append were read."""
    return Counter(value.rsplit(b" ", 1)[0] for _, _, value in rows)


def assert_dense(rows):
    offsets: dict[Partition, int] = {}
    for partition, offset, _ in rows:
        assert offset == offsets.get(partition, 0)
        offsets[partition] = offset + 1


def test_writers_that_start_together_are_serialised_without_loss(tmp_path, open_embedded):
    writers = [start_writer(tmp_path, name, 40) for name in ("one", "two", "three")]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    for writer in writers:
        writer.stdout.close()
    source, _ = open_embedded("t")
    rows = read(source, 3 * 40 * 7)
    assert_dense(rows)
    assert set(batches_of(rows).values()) == {7}


def test_a_killed_writer_leaves_whole_appends_and_the_log_goes_on(tmp_path, open_embedded):
    randomness = random.Random(5)
    rows = []
    source, _ = open_embedded("t", wait_for_topic=True)
    for round_ in range(6):
        writer = start_writer(tmp_path, f"round-{round_}", 1_000_000)
        assert writer.stdout.readline() == b"ready\n"
        kill_at = time.monotonic() + randomness.uniform(0.0, 0.15)
        while time.monotonic() < kill_at:
            seen = rows_of(source.poll(1_000_000_000, 0.001))
            assert len(seen) % 7 == 0, "half an append was seen"
            rows += seen
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    with EmbeddedLog(tmp_path) as log:
        log.append("t", [(b"key-%d" % n, b"last 0 %d" % n, 1) for n in range(7)])
    while seen := rows_of(source.poll(1_000_000, 0.05)):
        rows += seen
    assert_dense(rows)
    counts = batches_of(rows)
    assert set(counts.values()) == {7}
    assert b"last 0" in counts


# --- where reading starts ------------------------------------------------------------------------------------


def test_an_unknown_topic_is_refused_with_the_ones_that_exist(log, open_embedded):
    with pytest.raises(UnknownTopic, match=r"'absent'.*there: 't'"):
        open_embedded(["t", "absent"])


def test_reading_creates_nothing(tmp_path):
    with pytest.raises(UnknownTopic):
        EmbeddedSource(tmp_path / "none", "t").open(RecordingListener({}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_topic_that_appears_later_is_read_from_its_beginning(tmp_path, open_embedded, start):
    source, listener = open_embedded("t", start=StartPolicy(start), wait_for_topic=True)
    assert source.poll(10, 0.02) == []
    assert source.end_offsets() == {}
    with EmbeddedLog(tmp_path) as log:
        log.create_topic("other", 1)
        assert source.poll(10, 0.02) == []
        assert listener.assigned == []
        log.create_topic("t", 2)
        log.append("t", records(json_lines(0, 2)))
        assert values_of(source, 2) == json_lines(0, 2)
    assert listener.assigned == [Partition("t", 0), Partition("t", 1)]


def test_a_topic_that_appears_in_the_middle_of_a_poll_is_joined_in_order(log, open_embedded, monkeypatch):
    source, _ = open_embedded(["t", "u"], wait_for_topic=True)
    take_over = source._take_over_topics

    def appears_right_after(*arguments):
        take_over(*arguments)
        if "u" not in log.topics():
            log.create_topic("u", 1)
            log.append("u", records([b"0"]))
            log.append("t", records([b"1"]))

    monkeypatch.setattr(source, "_take_over_topics", appears_right_after)
    assert values_of(source, 2) == [b"0", b"1"]


def test_latest_starts_after_what_is_there(log, open_embedded):
    log.append("t", records(json_lines(0, 4)))
    source, _ = open_embedded("t", start=StartPolicy("latest"))
    assert source.poll(10, 0) == []
    log.append("t", records(json_lines(4, 1)))
    assert values_of(source, 1) == json_lines(4, 1)


@pytest.mark.parametrize(
    ("start_ms", "expected"), [(0, 0), (10, 0), (11, 1), (25, 2), (30, 2), (31, 3), (50, 5), (51, 6)]
)
def test_reading_can_start_at_a_time(log, open_embedded, start_ms, expected):
    stamps = [10, 20, 30, 40, 35, 50]
    log.append("t", [(None, b"%d" % stamp, stamp) for stamp in stamps[:2]], partition=0)
    log.append("t", [(None, b"%d" % stamp, stamp) for stamp in stamps[2:]], partition=0)
    source, _ = open_embedded("t", start=StartPolicy(timestamp_ms=start_ms))
    assert values_of(source, 6 - expected) == [b"%d" % stamp for stamp in stamps[expected:]]


def test_a_position_beyond_the_end_is_refused(log, open_embedded):
    log.append("t", records(json_lines(0, 4)), partition=0)
    with pytest.raises(SourceError, match=r"t\[0\] ends at offset 4, but reading should resume at 5"):
        open_embedded("t", positions={Partition("t", 0): 5})


# --- commits and trouble -------------------------------------------------------------------------------------


def test_committed_positions_are_stored_at_the_next_poll_and_at_close_for_each_group(log, tmp_path, open_embedded):
    zero, one = Partition("t", 0), Partition("t", 1)
    assert committed_positions(tmp_path, "g") == {}
    source, _ = open_embedded("t", group=ConsumerGroup("g"))
    assert committed_positions(tmp_path, "g") == {zero: 0, one: 0}, "where reading begins is committed"
    source.commit({zero: 3, one: 1})
    source.commit({zero: 4})
    source.poll(0, 0)
    assert committed_positions(tmp_path, "g") == {zero: 4, one: 1}
    source.commit({zero: 5})
    source.close()
    assert committed_positions(tmp_path, "g") == {zero: 5, one: 1}
    assert committed_positions(tmp_path, "other") == {}


def test_a_commit_that_cannot_be_stored_now_is_stored_later(log, tmp_path, open_embedded):
    source, _ = open_embedded("t")
    source.commit({Partition("t", 0): 1})
    source.poll(0, 0)
    other = sqlite3.connect(tmp_path / "log.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    source.commit({Partition("t", 0): 2, Partition("t", 1): 2})
    source.poll(0, 0)
    source.commit({Partition("t", 0): 3})
    other.close()
    source.poll(0, 0)
    assert committed_positions(tmp_path) == {Partition("t", 0): 3, Partition("t", 1): 2}


def test_a_log_that_is_removed_while_it_is_read_is_reported(log, tmp_path, open_embedded):
    source, _ = open_embedded("t")
    log.close()
    (tmp_path / "log.sqlite3").unlink()
    with pytest.raises(SourceError, match="removed or replaced"):
        source.poll(10, 0.05)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: sqlite3.connect(path).execute("PRAGMA user_version = 99").connection.close(), "format 99"),
        (lambda path: path.write_bytes(b"this is not a database, whatever its name says" * 100), "cannot use"),
    ],
)
def test_a_file_that_is_no_log_of_this_format_is_refused(tmp_path, open_embedded, damage, said):
    EmbeddedLog(tmp_path).close()
    damage(tmp_path / "log.sqlite3")
    for use in (lambda: open_embedded("t"), lambda: EmbeddedLog(tmp_path)):
        with pytest.raises(SourceError, match=said):
            use()


def test_damaged_records_are_reported_with_partition_and_offset(log, tmp_path, open_embedded):
    log.append("t", records([b"a"]), partition=1)
    with sqlite3.connect(tmp_path / "log.sqlite3") as db:
        db.execute("UPDATE batches SET records = x'00'")
    db.close()
    source, _ = open_embedded("t")
    with pytest.raises(SourceError, match=r"t\[1\] from offset 0"):
        source.poll(10, 0)
