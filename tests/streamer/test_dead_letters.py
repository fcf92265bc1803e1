"""Dead letters in a file: what is written, and what survives."""

from __future__ import annotations

import base64
import errno
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.dead_letters.base import DeadLetter, FileDeadLetters, Reason
from streamer.errors import StreamerError


def letter(offset: int, value: bytes | None = b"{", key: bytes | None = None, index: int | None = None) -> DeadLetter:
    return DeadLetter(Reason.NOT_JSON, "why", "topic", 2, offset, 1_600_000_000_000, key, value, index)


def lines(path: Path) -> list[dict]:
    """The letters of a file; every line must be whole."""
    content = path.read_bytes()
    assert content == b"" or content.endswith(b"\n")
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def offsets(path: Path) -> list[int]:
    return [line["offset"] for line in lines(path)]


def content(line: dict, name: str) -> bytes | None:
    """What a line says the key or the value was."""
    if f"{name}_base64" in line:
        return base64.b64decode(line[f"{name}_base64"])
    return None if line[name] is None else line[name].encode()


def test_close_flushes_and_may_be_called_twice_and_a_letter_that_comes_twice_is_written_twice(tmp_path: Path):
    letters = FileDeadLetters(tmp_path / "dead.jsonl")
    letters.write([letter(1), letter(1)])
    letters.write([])
    letters.write([letter(2)])
    letters.close()
    letters.close()
    assert offsets(tmp_path / "dead.jsonl") == [1, 1, 2]


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "make room"), (errno.EACCES, "let this user write there"), (errno.EROFS, "mount it writable"),
     (errno.EIO, "check the path and its disk")],
)  # fmt: skip
def test_the_advice_fits_the_error(tmp_path: Path, monkeypatch, number: int, advice: str):
    letters = FileDeadLetters(tmp_path / "dead.jsonl")

    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    letters.write([letter(1)])
    with pytest.raises(StreamerError, match=advice) as raised:
        letters.flush()
    assert ("make room" in str(raised.value)) == (number == errno.ENOSPC)
    assert "--dead-letters" in str(raised.value)


def test_a_directory_in_the_place_of_the_file_is_not_a_lack_of_room(tmp_path: Path):
    with pytest.raises(StreamerError, match="in its way: choose another file") as raised:
        FileDeadLetters(tmp_path)
    assert "make room" not in str(raised.value)


def test_line_says_which_event_why_and_when(tmp_path: Path):
    letters = FileDeadLetters(tmp_path / "dead.jsonl", clock=lambda: 1_700_000_000.25)
    letters.write([letter(7, b'{"a":\n1', b"k", index=4)])
    letters.close()
    assert lines(tmp_path / "dead.jsonl") == [
        {
            "time": "2023-11-14T22:13:20.250+00:00",
            "topic": "topic",
            "partition": 2,
            "offset": 7,
            "index": 4,
            "reason": "not_json",
            "detail": "why",
            "timestamp_ms": 1_600_000_000_000,
            "key": "k",
            "value": '{"a":\n1',
        }
    ]


values = st.none() | st.binary(max_size=20) | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)


@given(st.lists(st.tuples(values, values), max_size=5))
def test_any_key_and_value_can_be_read_back(tmp_path_factory: pytest.TempPathFactory, pairs: list):
    path = tmp_path_factory.mktemp("dead") / "letters.jsonl"
    letters = FileDeadLetters(path)
    letters.write([letter(n, value, key) for n, (key, value) in enumerate(pairs)])
    letters.close()
    assert [(content(line, "key"), content(line, "value")) for line in lines(path)] == pairs


@pytest.mark.parametrize("whole", [0, 1, 2])
@pytest.mark.parametrize("tail", [1, 20, 200_000])
def test_torn_line_is_cut_off_on_opening(tmp_path: Path, whole: int, tail: int):
    """Also if it is larger than the block that is read backwards."""
    path = tmp_path / "dead.jsonl"
    letters = FileDeadLetters(path)
    letters.write([letter(n) for n in range(whole)])
    letters.write([letter(99, b"x" * 200_000)])
    letters.close()
    before = path.read_bytes()
    start = before.rindex(b"\n", 0, -1) + 1 if whole else 0
    path.write_bytes(before[: start + tail])
    letters = FileDeadLetters(path)
    letters.write([letter(100)])
    letters.close()
    assert offsets(path) == [*range(whole), 100]


def test_file_is_written_by_one_at_a_time(tmp_path: Path):
    first = FileDeadLetters(tmp_path / "dead.jsonl")
    with pytest.raises(StreamerError, match="another process"):
        FileDeadLetters(tmp_path / "dead.jsonl")
    first.close()
    FileDeadLetters(tmp_path / "dead.jsonl").close()


@pytest.mark.parametrize("size", [10, 10_000])
def test_after_a_full_disk_nothing_succeeds_any_more(tmp_path: Path, size: int):
    letters = FileDeadLetters(tmp_path / "dead.jsonl")
    usual, full = os.dup(letters._file.fileno()), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, letters._file.fileno())
    with pytest.raises(StreamerError, match="No space left"):  # in `write`, or if it all fits the buffer, `flush`
        write_and_flush(letters, size)
    os.dup2(usual, letters._file.fileno())
    for call in (letters.flush, letters.close, lambda: letters.write([letter(1)])):
        with pytest.raises(StreamerError, match="No space left"):
            call()
    letters.close()
    assert letters._file.closed
    os.close(usual)
    os.close(full)


def write_and_flush(letters: FileDeadLetters, size: int) -> None:
    letters.write([letter(n, b"x" * size) for n in range(10)])
    letters.flush()


def test_flush_syncs_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    letters = FileDeadLetters(tmp_path / "dead.jsonl")
    synced: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((fd, os.fstat(fd).st_size)))
    letters.write([letter(1)])
    letters.flush()
    monkeypatch.undo()
    assert synced == [(letters._file.fileno(), (tmp_path / "dead.jsonl").stat().st_size)]
    assert synced[0][1] > 0
    letters.close()


def _write_until_killed(path: Path, flushed) -> None:
    letters = FileDeadLetters(path)
    offset = 0
    while True:
        letters.write([letter(offset + n, b"x" * 777) for n in range(50)])
        offset += 50
        if offset % 500 == 0:
            letters.flush()
            flushed.value = offset


def test_killed_writer_loses_nothing_that_was_flushed(tmp_path: Path):
    path = tmp_path / "dead.jsonl"
    context = multiprocessing.get_context("fork")
    flushed = context.Value("q", 0)
    child = context.Process(target=_write_until_killed, args=(path, flushed))
    child.start()
    while flushed.value < 1000:
        assert child.is_alive()
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    FileDeadLetters(path).close()
    found = offsets(path)
    assert found == list(range(len(found)))
    assert len(found) >= flushed.value
