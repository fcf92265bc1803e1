"""Files and standard input: numbering of lines, pipes that do not answer."""

from __future__ import annotations

import io
import os
import threading

import pytest
from contracts.source_contract import RecordingListener, read_chunks, rows_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamer.errors import SourceError, UnknownTopic
from streamer.sources import files
from streamer.sources.base import Partition
from streamer.sources.files import FileSource


@pytest.fixture
def open_file(tmp_path):
    """Opens a source over a file with this content, and closes it after the test."""
    sources = []

    def open_source(content=b"", name="events.jsonl", start=0):
        path = tmp_path / name
        path.write_bytes(content)
        source = FileSource(path)
        sources.append(source)
        source.open(RecordingListener({Partition(name, 0): start} if start else {}))
        return source

    yield open_source
    for source in sources:
        source.close()


@pytest.fixture
def pipe(monkeypatch):
    """A source over standard input, and what writes there."""
    reading, writing = os.pipe()
    monkeypatch.setattr("sys.stdin", io.FileIO(reading))
    source = FileSource("-")
    source.open(RecordingListener({}))
    with io.FileIO(writing, "wb") as file:
        yield source, file
    source.close()
    os.fstat(reading)  # it is not ours to close


def numbered(source, max_records=1000):
    """Number and content of all lines until the end."""
    rows = []
    while not source.at_end:
        rows += rows_of(source.poll(max_records, 1))
    return [(offset, value) for _, offset, value in rows]


def reference(content, start=0):
    """The slow obvious way: number and content of the lines that are not blank."""
    return [(n, line) for n, line in enumerate(content.split(b"\n")) if line.strip() and n >= start]


content = st.lists(st.sampled_from([b"a", b"bb", b'{"x": 1}', b" ", b"\t", b"\r", b"\n", b"\n\n"]), max_size=30)


@settings(max_examples=200)
@given(content.map(b"".join), st.integers(1, 9), st.integers(1, 4), st.integers(0, 6))
@example(b"abc \n \nd", 2, 1, 1)
def test_lines_and_end_equal_the_slow_obvious_way(tmp_path_factory, text, block, max_records, start):
    path = tmp_path_factory.mktemp("lines") / "x"
    path.write_bytes(text)
    start = min(start, len(text.split(b"\n")) - (not text.split(b"\n")[-1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK_BYTES", block)
        source = FileSource(path)
        source.open(RecordingListener({Partition(path.name, 0): start}))
        rows = numbered(source, max_records)
        assert rows == reference(text, start)
        end = rows[-1][0] + 1 if rows else start
        assert source.positions() == source.end_offsets() == {Partition(path.name, 0): end}
        source.close()


def test_a_line_without_an_end_takes_bounded_memory(open_file, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_BYTES", 3)
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 10)
    rows = numbered(open_file(b"a\n" + b"x" * 5000 + b"\nb\n"))
    assert [(number, value[:10]) for number, value in rows] == [(0, b"a"), (1, b"x" * 10), (2, b"b")]
    assert len(rows[1][1]) < 10 + 3


def test_a_position_beyond_the_end_is_refused(open_file):
    source = open_file(b"a\nb\n", start=3)
    with pytest.raises(SourceError, match=r"events\.jsonl has 2 lines, but reading should resume at line 3"):
        source.poll(10, 1)


def test_records_have_the_files_time_of_change(open_file, tmp_path):
    (tmp_path / "events.jsonl").touch()
    source = open_file(b"a\n")
    os.utime(tmp_path / "events.jsonl", (1_600_000_000.25, 1_600_000_000.25))
    [chunk] = source.poll(10, 1)
    assert chunk.timestamps_ms == [1_600_000_000_250]
    assert chunk.keys == [None]


@pytest.mark.parametrize(("name", "kind"), [("absent.jsonl", UnknownTopic), (".", SourceError)])
def test_what_cannot_be_read_is_reported(tmp_path, name, kind):
    with pytest.raises(kind, match=r"there is no file .*absent\.jsonl|cannot read"):
        FileSource(tmp_path / name).open(RecordingListener({}))


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
    assert source.end_offsets() == {}, "there may be more"


def test_a_pipe_ends_when_its_writer_closes_it(pipe):
    source, file = pipe
    file.write(b"a\nb")
    file.close()
    assert numbered(source) == [(0, b"a"), (1, b"b")]
    assert source.end_offsets() == {Partition("stdin", 0): 2}


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


def test_a_file_that_cannot_be_read_on_is_named():
    source = FileSource("/proc/self/mem")  # its first page is not mapped
    source.open(RecordingListener({}))
    with pytest.raises(SourceError, match=r"cannot read /proc/self/mem: Input/output error"):
        source.poll(1, 0.0)
    source.close()
