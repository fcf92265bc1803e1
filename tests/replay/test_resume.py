"""A replay that is stopped at any moment goes on where it was."""

from __future__ import annotations

import contextlib
import json
import random
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import Command
from crash_harness import Zygote
from embedded_topic import records_in
from memory_sink import MemorySink

from streamer.errors import SourceError
from streamer.replay.datasets import LogSettings, open_log
from streamer.replay.events import Events, Record
from streamer.replay.producer import EmbeddedSink, EventSink, produce
from streamer.replay.streams import log_name, log_stream, replay_name, synthetic_stream
from streamer.sources.embedded.log import EmbeddedLog


def records(count: int) -> list[Record]:
    return Events([f"u{k % 7}" for k in range(count)], [f"i{k}" for k in range(count)]).records(lambda: 1.7e9)


def in_topic(data_dir: Path) -> dict[int, list[tuple[bytes | None, bytes]]]:
    """Key and value of all records, by partition."""
    return {number: [row[:2] for row in rows] for number, rows in records_in(data_dir, "t").items()}


def values(data_dir: Path) -> list[bytes]:
    return sorted(value for rows in in_topic(data_dir).values() for _, value in rows)


# names ----------------------------------------------------------------------------------------------------------------


def test_the_same_content_has_the_same_name_wherever_it_lies(tmp_path: Path):
    one, other = tmp_path / "a.csv", tmp_path / "sub" / "b.csv"
    other.parent.mkdir()
    one.write_bytes(b"u,i\n" * 100_000)
    other.write_bytes(b"u,i\n" * 100_000)
    assert replay_name("csv", {"seed": 1}, [one]) == replay_name("csv", {"seed": 1}, [other])


def test_another_kind_setting_or_content_has_another_name(tmp_path: Path):
    file = tmp_path / "a.csv"
    long = b"a" * 300_000
    contents = [b"a" * 10, b"b" * 10, b"a" * 11, long, long[:-1] + b"b", long[:150_000] + b"b" + long[150_001:]]
    names = [replay_name("csv", {"seed": 1}), replay_name("tsv", {"seed": 1}), replay_name("csv", {"seed": 2})]
    for content in contents:
        file.write_bytes(content)
        names.append(replay_name("csv", {"seed": 1}, [file]))
    assert len(set(names)) == len(names)


def name_of(path: Path, kind: str) -> str:
    with open_log(path, kind) as log:
        return log_name(log, LogSettings())


@pytest.mark.parametrize(
    ("kind", "file", "content", "beside"),
    [
        ("recbole", "x.inter", "user_id:token\titem_id:token\n1\t7\n", "x.item"),
        ("recbole", "x.inter", "user_id:token\titem_id:token\n1\t7\n", "x.user"),
        ("movielens", "u.data", "1\t7\t5\t881250949\n", "u.user"),
        ("movielens", "ratings.dat", "1::7::5::881250949\n", "movies.dat"),
    ],
)
def test_files_beside_a_log_are_part_of_its_name(tmp_path: Path, kind: str, file: str, content: str, beside: str):
    of_key = "item_id:token" if beside.endswith(".item") else "user_id:token"
    line = {"recbole": f"{of_key}\tage:token\n7\t%s\n", "movielens": "7|%s|F|x|1\n"}[kind]
    line = "7::title::%s\n" if beside == "movies.dat" else line
    (tmp_path / file).write_text(content)
    names = [name_of(tmp_path / file, kind)]
    for age in (31, 32):
        (tmp_path / beside).write_text(line % age)
        names.append(name_of(tmp_path / file, kind))
    (tmp_path / "unread").write_text("x")
    assert len(set(names)) == 3
    assert name_of(tmp_path / file, kind) == names[-1]


# sinks ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "embedded"])
def open_sink(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """What opens the same topic again and again."""
    if request.param == "embedded":
        return lambda: EmbeddedSink(tmp_path, "t")
    sink = MemorySink()
    return lambda: sink


def held(sink: EventSink, tmp_path: Path) -> list[bytes]:
    return sorted(value for _, value, _ in sink.records) if isinstance(sink, MemorySink) else values(tmp_path)


def test_a_sink_returns_how_many_events_of_a_replay_it_has(open_sink: Any, tmp_path: Path):
    stream = records(100)
    for until in (30, 31, 100):
        sink = open_sink()
        start = sink.resume("r")
        assert produce([stream[start:until]], sink) == until - start
        sink.close()
    sink = open_sink()
    assert sink.resume("r") == 100
    sink.close()
    assert held(sink, tmp_path) == sorted(value for _, value, _ in stream)


def test_replays_do_not_know_of_each_other(open_sink: Any):
    sink = open_sink()
    assert sink.resume("r") == 0
    sink.write(records(3))
    sink.close()
    sink = open_sink()
    assert sink.resume("other") == 0
    sink.close()


def test_a_restarted_replay_writes_all_again(open_sink: Any, tmp_path: Path):
    for expected in (0, 0):
        sink = open_sink()
        assert sink.resume("r", restart=True) == expected
        sink.write(records(5))
        sink.close()
    sink = open_sink()
    assert sink.resume("r") == 5
    sink.close()
    assert len(held(sink, tmp_path)) == 10


def test_two_writers_of_one_replay_do_not_double_events(tmp_path: Path):
    one, other, stream = EmbeddedSink(tmp_path, "t"), EmbeddedSink(tmp_path, "t"), records(20)
    assert one.resume("r") == other.resume("r") == 0
    one.write(stream[:5])
    with pytest.raises(SourceError, match="another process writes the same replay"):
        other.write(stream[:10])
    one.write(stream[5:])
    one.close()
    other.close()
    assert values(tmp_path) == sorted(value for _, value, _ in stream)


def test_events_that_cannot_be_appended_leave_the_position_where_it_was(tmp_path: Path):
    with EmbeddedSink(tmp_path, "t") as sink, EmbeddedLog(tmp_path) as log:
        sink.resume("r")
        with pytest.raises(msgspec.ValidationError):
            sink.write([(b"k", b"v", 1), (b"k", "no bytes", 1)])  # type: ignore[list-item]
        assert sink.resume("r") == 0
        log.append("t", [(b"k", b"of somebody else", 1)])
        assert sink.resume("r") == 0


# streams --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 1, 699, 1999, 2000, 5000])
def test_a_synthetic_stream_goes_on_where_it_was(start: int):
    stream = synthetic_stream(2000, seed=5)
    whole = [record for chunk in stream.chunks(0) for record in chunk]
    assert len(whole) == 2000
    assert [record for chunk in stream.chunks(start) for record in chunk] == whole[start:]


def test_more_events_of_a_synthetic_stream_are_the_same_replay():
    assert synthetic_stream(10, 3).name == synthetic_stream(20, 3).name != synthetic_stream(10, 4).name


@pytest.mark.parametrize("start", [0, 3, 9, 10])
def test_a_log_goes_on_where_it_was(tmp_path: Path, start: int):
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id,timestamp\n" + "".join(f"u{k},i{k},{k // 5}\n" for k in range(10)))
    with open_log(path) as log:
        stream = log_stream(log, "ten")
        whole = [record for chunk in stream.chunks(0) for record in chunk]
        assert len(whole) == stream.total == 10
        assert [record for chunk in stream.chunks(start) for record in chunk] == whole[start:]


# killed ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("pace", [["--rate", "60000"], []])
def test_killed_at_any_moment_and_started_again_every_event_is_there_once_and_in_order(
    tmp_path: Path, zygote: Zygote, pace: list[str]
):
    events = 30_000 if pace else 60_000
    command = ["replay", "synthetic", "--events", events, "--topic", "t", "--data-dir", tmp_path, "--json", *pace]
    summary, kills = zygote.summary_after_kills(command, random.Random(5), 0.6)
    assert kills >= 2
    assert summary["written"] + summary["already"] == events
    wanted = EmbeddedSink(tmp_path / "undisturbed", "t")
    produce(synthetic_stream(events).chunks(0), wanted)
    wanted.close()
    assert in_topic(tmp_path) == in_topic(tmp_path / "undisturbed")
    assert zygote.summary(command)["written"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_it_says_how_to_go_on_and_does(tmp_path: Path, number: int):
    arguments = ["replay", "synthetic", "--events", 20_000, "--topic", "t", "--data-dir", tmp_path]

    def begun() -> bool:
        if not (tmp_path / "log.sqlite3").exists():
            return False
        with contextlib.suppress(SourceError), EmbeddedLog(tmp_path) as log:
            return sum(log.end_offsets("t").values()) > 0
        return False

    with Command([*arguments, "--rate", 2_000], tmp_path / "said") as command:
        command.wait_until(begun)
        command.signal(number)
        code, out = command.ended()
        assert code == 0, command.said()
        assert out.startswith("stopped: ")
        assert "Give the same command again to resume." in command.said()
    written = len(values(tmp_path))
    assert 0 < written < 20_000
    with Command([*arguments, "--json"], tmp_path / "said") as command:
        code, out = command.ended()
        assert f"resuming at event {written:,} of 20,000" in command.said()
    assert json.loads(out)["written"] == 20_000 - written
    assert values(tmp_path) == sorted(value for chunk in synthetic_stream(20_000).chunks(0) for _, value, _ in chunk)
