"""Files and standard input: the contract, numbering of lines, pipes that do not answer."""

from __future__ import annotations

import gzip
import io
import logging
import os
import threading

import pytest
from contracts.source_contract import RecordingListener, SourceContract, read, read_chunks, rows_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamer.errors import SourceError, UnknownTopic
from streamer.sources import files
from streamer.sources.base import Partition
from streamer.sources.files import FileSource


class FileHarness:
    def __init__(self, directory):
        self.directory = directory

    def make_topic(self, partitions):
        assert partitions == 1
        name = f"events-{len(list(self.directory.iterdir()))}.jsonl"
        (self.directory / name).touch()
        return name

    def append(self, topic, partition, values):
        with (self.directory / topic).open("ab") as file:
            file.write(b"".join(value + b"\n" for value in values))

    def open_source(self, topic, positions):
        source, listener = FileSource(self.directory / topic, follow=True), RecordingListener(positions)
        source.open(listener)
        return source, listener


class TestFileSource(SourceContract):
    max_partitions = 1

    @pytest.fixture
    def harness(self, tmp_path):
        return FileHarness(tmp_path)


@pytest.fixture
def open_file(tmp_path):
    """Opens a source over a file with this content, and closes it after the test."""
    sources = []

    def open_source(content=b"", name="events.jsonl", start=0, **kwargs):
        path = tmp_path / name
        path.write_bytes(content)
        source = FileSource(path, **kwargs)
        sources.append(source)
        source.open(RecordingListener({Partition(name, 0): start} if start else {}))
        return source

    yield open_source
    for source in sources:
        source.close()


@pytest.fixture
def pipe():
    """A source over a pipe, and the pipe's writing end."""
    reading, writing = os.pipe()
    source = FileSource("-", stdin=io.FileIO(reading), clock=lambda: 1_700_000_000.5)
    source.open(RecordingListener({}))
    with io.FileIO(writing, "wb") as file:
        yield source, file
    source.close()


def numbered(source, max_records=1000):
    """Number and content of all lines until the end."""
    rows = []
    while not source.at_end:
        rows += rows_of(source.poll(max_records, 1))
    return [(offset, value) for _, offset, value in rows]


def reference(content, start=0):
    """The slow obvious way: number and content of the lines that are not blank."""
    return [(n, line) for n, line in enumerate(content.split(b"\n")) if line.strip() and n >= start]


def test_blank_lines_are_left_out_but_counted(open_file):
    source = open_file(b'{"a":1}\n\n  \t\r\n{"b":2}\n\n')
    assert numbered(source) == [(0, b'{"a":1}'), (3, b'{"b":2}')]
    assert source.end_offsets() == {Partition("events.jsonl", 0): 4}


def test_a_last_line_without_a_newline_is_a_record(open_file):
    source = open_file(b"a\nb")
    assert source.end_offsets() == {Partition("events.jsonl", 0): 2}
    assert numbered(source) == [(0, b"a"), (1, b"b")]


def test_an_empty_file_ends_at_once(open_file):
    source = open_file(b"")
    assert source.poll(10, 0) == []
    assert source.at_end
    assert source.end_offsets() == {Partition("events.jsonl", 0): 0}


def test_the_end_is_reached_only_after_the_last_record_was_returned(open_file):
    source = open_file(b"a\nb\nc\n")
    assert not source.at_end
    assert len(rows_of(source.poll(2, 1))) == 2
    assert not source.at_end
    assert numbered(source) == [(2, b"c")]


content = st.lists(st.sampled_from([b"a", b"bb", b'{"x": 1}', b" ", b"\t", b"\r", b"\n", b"\n\n"]), max_size=30)


@settings(max_examples=200)
@given(content.map(b"".join), st.integers(1, 9), st.integers(1, 4), st.booleans(), st.integers(0, 6))
@example(b"abc \n \nd", 2, 1, False, 1)
def test_lines_and_end_equal_the_slow_obvious_way(tmp_path_factory, text, block, max_records, packed, start):
    path = tmp_path_factory.mktemp("lines") / ("x.gz" if packed else "x")
    path.write_bytes(gzip.compress(text) if packed else text)
    start = min(start, len(text.split(b"\n")) - (not text.split(b"\n")[-1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK_BYTES", block)
        source = FileSource(path)
        source.open(RecordingListener({Partition(path.name, 0): start}))
        everything = reference(text)
        end = everything[-1][0] + 1 if everything else 0
        assert source.end_offsets() == {Partition(path.name, 0): max(end, start)}
        assert numbered(source, max_records) == reference(text, start)
        source.close()


def test_a_position_beyond_the_end_is_refused(open_file):
    source = open_file(b"a\nb\n", start=3)
    with pytest.raises(SourceError, match=r"events\.jsonl has 2 lines, but reading should resume at line 3"):
        source.poll(10, 1)


def test_a_followed_file_that_is_too_short_for_the_position_is_refused(open_file):
    source = open_file(b"a\nb\n", start=3, follow=True)
    with pytest.raises(SourceError, match="has 2 lines"):
        source.poll(10, 1)


def test_a_position_at_the_end_finds_the_end(open_file):
    source = open_file(b"a\nb", start=2)
    assert numbered(source) == []


def test_records_have_the_files_time_of_change(open_file, tmp_path):
    (tmp_path / "events.jsonl").touch()
    source = open_file(b"a\n")
    os.utime(tmp_path / "events.jsonl", (1_600_000_000.25, 1_600_000_000.25))
    [chunk] = source.poll(10, 1)
    assert chunk.timestamps_ms == [1_600_000_000_250]
    assert chunk.keys == [None]


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(UnknownTopic, match=r"there is no file .*absent\.jsonl"):
        FileSource(tmp_path / "absent.jsonl").open(RecordingListener({}))


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(SourceError, match="cannot read"):
        FileSource(tmp_path).open(RecordingListener({}))


def test_a_gzip_file_that_is_cut_short_is_reported(open_file):
    whole = gzip.compress(os.urandom(5000).hex().encode())
    source = open_file(whole[: len(whole) // 2], name="events.jsonl.gz")
    with pytest.raises(SourceError, match="cannot unpack"):
        numbered(source)


def test_a_gzip_file_cannot_be_followed(open_file):
    with pytest.raises(SourceError, match="cannot follow"):
        open_file(gzip.compress(b"a\n"), name="events.jsonl.gz", follow=True)


def test_a_followed_file_holds_back_a_line_until_its_newline_came(open_file, tmp_path):
    source = open_file(b"a\n{half", follow=True)
    assert [value for _, _, value in read(source, 1)] == [b"a"]
    assert source.end_offsets() == {Partition("events.jsonl", 0): 1}
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b" whole}\nb")
    assert read(source, 1) == [(Partition("events.jsonl", 0), 1, b"{half whole}")]
    assert source.end_offsets() == {Partition("events.jsonl", 0): 2}
    assert not source.at_end


def test_a_followed_file_that_becomes_shorter_is_reported(open_file, tmp_path):
    source = open_file(b"a\nb\n", follow=True)
    read(source, 2)
    (tmp_path / "events.jsonl").write_bytes(b"c\n")
    with pytest.raises(SourceError, match="became shorter"):
        source.poll(10, 1)


@pytest.mark.parametrize("block", [3, 1000])
def test_the_rest_of_an_endless_line_is_dropped_with_a_warning(open_file, monkeypatch, caplog, block):
    monkeypatch.setattr(files, "BLOCK_BYTES", block)
    with caplog.at_level(logging.WARNING):
        source = open_file(b"a\n" + b"x" * 5000 + b"\nb\n", max_line_bytes=10)
        rows = numbered(source)
    assert [(number, value[:10]) for number, value in rows] == [(0, b"a"), (1, b"x" * 10), (2, b"b")]
    assert len(rows[1][1]) <= 10 + block
    assert "line 1 is longer than 10 bytes" in caplog.text


def test_a_pipe_without_data_does_not_hold_up_a_poll(pipe):
    source, file = pipe
    assert source.poll(10, 0.02) == []
    file.write(b"half a li")
    assert source.poll(10, 0.02) == []
    assert not source.at_end
    file.write(b"ne\nnext\n")
    [chunk] = read_chunks(source, 2)
    assert (chunk.partition, chunk.offsets) == (Partition("stdin", 0), [0, 1])
    assert chunk.values == [b"half a line", b"next"]
    assert chunk.timestamps_ms == [1_700_000_000_500] * 2
    assert source.end_offsets() == {}, "there may be more"


def test_a_pipe_ends_when_its_writer_closes_it(pipe):
    source, file = pipe
    file.write(b"a\nb")
    file.close()
    assert numbered(source) == [(0, b"a"), (1, b"b")]
    assert source.end_offsets() == {Partition("stdin", 0): 2}


def test_standard_input_stays_open_when_the_source_is_closed():
    reading, writing = os.pipe()
    stdin = io.FileIO(reading)
    source = FileSource("-", stdin=stdin)
    source.open(RecordingListener({}))
    source.close()
    os.write(writing, b"still there")
    assert stdin.read(20) == b"still there"
    os.close(writing)
    stdin.close()


def test_a_named_pipe_is_read_like_standard_input(tmp_path):
    path = tmp_path / "events"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"a\n\nb\n",))
    writer.start()
    source = FileSource(path)
    source.open(RecordingListener({}))
    assert numbered(source) == [(0, b"a"), (2, b"b")]
    assert source.end_offsets() == {Partition("events", 0): 3}
    writer.join()
    source.close()
