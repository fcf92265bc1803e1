from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from embedded_topic import records_in

from streamer.errors import SettingsError, SourceError
from streamer.replay.cli.replay import replay
from streamer.replay.streams import synthetic_stream


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(replay, [str(argument) for argument in arguments])


def in_topic(data_dir: Path, topic: str = "interactions") -> list[tuple[Any, Any]]:
    """Key and value of each record, values parsed."""
    return [(key, json.loads(value)) for rows in records_in(data_dir, topic).values() for key, value, _ in rows]


def record_times_ms(data_dir: Path) -> list[int]:
    return [time_ms for rows in records_in(data_dir, "interactions").values() for _, _, time_ms in rows]


def test_a_missing_file_is_named_and_nothing_is_created(tmp_path: Path):
    (tmp_path / "nine.jsonl").touch()
    result = invoked("jsonl", "--path", tmp_path / "none.jsonl", "--data-dir", tmp_path / "data")
    assert isinstance(result.exception, SourceError)
    assert "none.jsonl" in str(result.exception)
    assert not (tmp_path / "data").exists()


def test_a_synthetic_stream_happens_when_it_is_written(tmp_path: Path):
    before_ms = time.time() * 1000
    invoked("synthetic", "--events", 300, "--data-dir", tmp_path, "--rate", 2000)
    assert all("timestamp" not in event for _, event in in_topic(tmp_path))
    times_ms = record_times_ms(tmp_path)
    assert before_ms - 1 <= min(times_ms)
    assert max(times_ms) <= time.time() * 1000 + 1
    assert max(times_ms) - min(times_ms) >= 50, "each write has a time of its own"


def test_the_environment_says_where_to_write_but_not_how_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STREAMER_DATA_DIR", str(tmp_path / "there"))
    monkeypatch.setenv("STREAMER_RATE", "0.001")
    assert invoked("synthetic", "--events", 100).exit_code == 0
    assert len(in_topic(tmp_path / "there")) == 100


# data sets -----------------------------------------------------------------------------------------------------------


CSV = """uid,iid,at,stars
ann,a,30,5
bob,b,10,1
ann,c,20,4
cid,a,40,5
ann,d,50,x
bob,a,60,4
"""
NAMED = ["--column", "user_id=uid", "--column", "item_id=iid", "--column", "timestamp=at", "--column", "rating=stars"]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(CSV)
    return path


def pairs_in(data_dir: Path) -> list[tuple[str, str]]:
    """User and item of each event in a topic of one partition."""
    return [(event["user_id"], event["item_id"]) for _, event in in_topic(data_dir)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [("bob", "b"), ("ann", "c"), ("ann", "a"), ("cid", "a"), ("ann", "d"), ("bob", "a")]),
        (["--min-rating", 5], [("ann", "a"), ("cid", "a")]),
        (["--limit", 2], [("bob", "b"), ("ann", "c")]),
        (["--since", "20", "--until", "1970-01-01T00:00:40"], [("ann", "c"), ("ann", "a")]),
    ],
)
def test_events_come_in_the_order_of_their_times_and_filters_leave_some_out(
    tmp_path: Path, csv: Path, options: list[Any], expected: list[tuple[str, str]]
):
    result = invoked("csv", "--path", csv, *NAMED, *options, "--data-dir", tmp_path, "--partitions", 1)
    assert result.exit_code == 0, repr(result.exception)
    assert pairs_in(tmp_path) == expected


def test_a_log_without_times_happens_when_it_is_written_and_has_no_speed(tmp_path: Path):
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id\n" + "a,x\n" * 300)
    before_ms = time.time() * 1000
    assert invoked("csv", "--path", path, "--data-dir", tmp_path, "--rate", 2000).exit_code == 0
    times_ms = record_times_ms(tmp_path)
    assert before_ms - 1 <= min(times_ms) <= max(times_ms) - 50
    result = invoked("csv", "--path", path, "--data-dir", tmp_path, "--speed", 10)
    assert isinstance(result.exception, SettingsError)
    assert "--speed follows the times of events" in str(result.exception)


def test_malformed_rows_are_counted_and_named_and_the_rest_goes_on(tmp_path: Path):
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id,timestamp\na,b,1\n,b,2\na,c,never\na,d,4\n")
    result = invoked("csv", "--path", path, "--data-dir", tmp_path, "--json")
    assert result.exit_code == 0, repr(result.exception)
    found = json.loads(result.stdout)
    assert (found["written"], found["malformed"]) == (2, 2)
    assert f"{path}, row 2: " in result.stderr
    assert f"{path}, row 3: " in result.stderr


def test_all_wrong_options_are_reported_at_once_and_nothing_is_created(tmp_path: Path, csv: Path):
    options = ["--since", "tomorrow", "--sample-users", "1.5", "--column", "colour=red", "--rate", 5, "--speed", 2]
    result = invoked("csv", "--path", csv, *options, "--data-dir", tmp_path / "data")
    assert isinstance(result.exception, SettingsError)
    assert len(result.exception.problems) == 4
    assert not (tmp_path / "data").exists()


def test_every_data_set_has_a_command_with_help():
    from streamer.replay.datasets import DATASETS

    listed = invoked("--help").stdout
    for name in (*DATASETS, "synthetic"):
        assert f"\n  {name} " in listed
        assert "--restart" in invoked(name, "--help").stdout


def test_no_command_of_replay_loads_torch():
    import subprocess
    import sys

    code = """
import sys
from streamer.replay.cli.replay import replay
replay.main(["csv", "--help"], standalone_mode=False)
import streamer.replay.kafka.sink, streamer.replay.producer, streamer.replay.streams
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


# going on -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path, csv: Path) -> list[Any]:
    return ["csv", "--path", csv, *NAMED, "--data-dir", tmp_path]


def written(command: list[Any], *options: object) -> int:
    """How many events a command writes."""
    return int(json.loads(invoked(*command, *options, "--json").stdout)["written"])


def test_the_same_command_again_writes_nothing_and_says_so(tmp_path: Path, command: list[Any]):
    assert "6 events written" in invoked(*command).stdout
    assert "nothing left to write: 6 events are in interactions" in invoked(*command).stdout
    for same in ((), ("--memory-limit", "300MB"), ("--rate", "100000")):
        assert written(command, *same) == 0
    assert len(in_topic(tmp_path)) == 6


def test_other_events_are_another_replay(command: list[Any], csv: Path):
    for other, count in (((), 6), (("--seed", 1), 6), (("--min-rating", 4), 4), (("--topic", "t"), 6)):
        assert written(command, *other) == count
    csv.write_text(CSV + "dan,a,70,2\n")
    assert written(command) == 7


def test_all_events_are_written_again_by_a_restart_and_where_nothing_is_remembered(tmp_path: Path, command: list[Any]):
    for how in ("--no-resume", "--no-resume", "--restart", "--restart"):
        assert written(command, how) == 6
    assert written(command) == 0
    assert len(in_topic(tmp_path)) == 24


def test_more_synthetic_events_go_on_after_those_that_are_there(tmp_path: Path):
    invoked("synthetic", "--events", 500, "--data-dir", tmp_path)
    result = invoked("synthetic", "--events", 800, "--data-dir", tmp_path, "--json")
    assert "resuming at event 500 of 800; --restart writes all again" in result.stderr
    found = json.loads(result.stdout)
    assert (found["written"], found["already"], found["total"]) == (300, 500, 800)
    whole = [value for chunk in synthetic_stream(800).chunks(0) for _, value, _ in chunk]
    assert sorted(json.dumps(event) for _, event in in_topic(tmp_path)) == sorted(
        json.dumps(json.loads(v)) for v in whole
    )


# Kafka ----------------------------------------------------------------------------------------------------------------


@pytest.mark.servers
def test_events_go_to_kafka_when_servers_are_given(kafka_server: Any):
    from kafka import KafkaConsumer

    topic = kafka_server.create_topic(partitions=2)
    result = invoked("synthetic", "--events", 500, "--topic", topic, "--bootstrap-servers", kafka_server.bootstrap)
    assert result.exit_code == 0, result.output
    consumer = KafkaConsumer(
        topic, bootstrap_servers=kafka_server.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=5000
    )
    assert sum(1 for _ in zip(range(500), consumer, strict=False)) == 500
    consumer.close()


def write_recbole(directory: Path) -> Path:
    (directory / "x.inter").write_text("user_id:token\titem_id:token\ttimestamp:float\na\t1\t100\nb\t2\t200\n")
    (directory / "x.item").write_text(
        "item_id:token\tmovie_title:token_seq\tclass:token_seq\n1\tToy Story\tComedy\n2\tHeat\tCrime\n3\tUp\tComedy\n"
    )
    return directory / "x.inter"


@pytest.mark.parametrize("topic", ["items", "interactions"])
def test_a_catalogue_is_written_before_the_events_from_the_file_beside_the_log(tmp_path: Path, topic: str):
    arguments = ("recbole", "--path", write_recbole(tmp_path), "--data-dir", tmp_path, "--catalogue-topic", topic)
    result = invoked(*arguments)
    assert result.exit_code == 0, result.output
    written = in_topic(tmp_path, topic)
    described = {key: event for key, event in written if "user_id" not in event}
    features = described[b"3"].pop("item_features")
    assert features["class"] == "Comedy"
    assert described[b"3"] == {"item_id": "3", "timestamp": 100.0, "title": "Up", "event_type": "catalogue"}
    assert sorted(described) == [b"1", b"2", b"3"]
    assert len(in_topic(tmp_path)) == (2 if topic == "items" else 5)
    again = invoked(*arguments)
    assert "nothing left to write: 3 events" in again.stdout
    assert len(in_topic(tmp_path, topic)) == len(written)


def test_a_log_without_a_file_about_its_items_has_no_catalogue(tmp_path: Path):
    write_recbole(tmp_path)
    (tmp_path / "x.item").unlink()
    result = invoked("recbole", "--path", tmp_path / "x.inter", "--data-dir", tmp_path, "--catalogue-topic", "items")
    assert "no file beside it describes its items" in str(result.exception)
