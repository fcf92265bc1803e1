from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import threading
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from embedded_topic import chunks_in
from generated_logs import TIMED, write_log

from streamer.errors import SettingsError, SourceError
from streamer.event import EventSettings
from streamer.replay.cli.replay import replay
from streamer.replay.json_lines import JsonLines
from streamer.replay.streams import synthetic_stream


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(replay, [str(argument) for argument in arguments])


def in_topic(data_dir: Path, topic: str = "interactions") -> list[tuple[Any, Any]]:
    """Key and value of each record, values parsed."""
    chunks = chunks_in(data_dir, topic)
    return [(key, json.loads(value)) for c in chunks for key, value in zip(c.keys, c.values, strict=True)]


def record_times_ms(data_dir: Path, topic: str = "interactions") -> list[int]:
    return [time_ms for chunk in chunks_in(data_dir, topic) for time_ms in chunk.timestamps_ms]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_lines_are_written_as_they_are_keyed_by_user(tmp_path: Path, file: Path):
    events = [{"user_id": k % 3, "item_id": f"i{k}", "timestamp": 1_700_000_000 + k, "extra": k} for k in range(20)]
    file.write_text("\n".join(map(json.dumps, events)))
    result = invoked("jsonl", "--in-order", "--path", file, "--data-dir", tmp_path, "--topic", "t", "--partitions", 2)
    assert result.exit_code == 0, result.output
    assert "20 events written to t" in result.stdout
    found = in_topic(tmp_path, "t")
    assert sorted((e for _, e in found), key=lambda e: e["extra"]) == events
    assert all(key == str(event["user_id"]).encode() for key, event in found)


def test_malformed_lines_are_counted_and_named_and_the_rest_goes_on(tmp_path: Path, file: Path):
    good = '{"user_id": "a", "item_id": "b"}'
    array = '[{"user_id": "c", "item_id": "d", "rating": 4}, {"user_id": "c"}, {"user_id": "e", "item_id": "f"}]'
    file.write_text(f'{good}\nno json\n\n{good}\n{{"user_id": "a"}}\n{array}\n')
    result = invoked("jsonl", "--in-order", "--path", file, "--data-dir", tmp_path)
    assert result.exit_code == 0, result.output
    assert "4 events written" in result.stdout
    assert f"{file}, line 2: not_json" in result.stderr
    assert f"{file}, line 5: missing_item_id" in result.stderr
    assert f"{file}, line 6, element 2: missing_item_id" in result.stderr
    assert "3 malformed events were left out" in result.stderr
    found = in_topic(tmp_path)
    assert (b"c", {"user_id": "c", "item_id": "d", "rating": 4}) in found
    assert (b"e", {"user_id": "e", "item_id": "f"}) in found


def test_of_many_malformed_lines_the_first_are_listed(tmp_path: Path, file: Path):
    file.write_text("x\n" * 50)
    result = invoked("jsonl", "--in-order", "--path", file, "--data-dir", tmp_path)
    assert result.exit_code == 0
    assert result.stderr.count("not_json") == 20
    assert "50 malformed events were left out, the first 20 are listed" in result.stderr


def test_json_has_the_counts(tmp_path: Path, file: Path):
    file.write_text('{"user_id": 1, "item_id": 2}\nx\n')
    result = invoked("jsonl", "--in-order", "--path", file, "--data-dir", tmp_path, "--json")
    found = json.loads(result.stdout)
    assert (found["written"], found["malformed"], found["reasons"]) == (1, 1, {"not_json": 1})
    assert found["interrupted"] is False


def test_fields_of_other_names_are_written_by_ours(tmp_path: Path, file: Path):
    file.write_text('{"uid": 1, "iid": 2, "at": 5, "user_id": "somebody else", "n": 1}\n[{"uid": 3, "iid": 4}]\n')
    fields = ["--field", "user_id=uid", "--field", "item_id=iid", "--field", "timestamp=at"]
    result = invoked("jsonl", "--in-order", "--path", file, "--data-dir", tmp_path, *fields)
    assert result.exit_code == 0, result.output
    assert sorted(in_topic(tmp_path)) == [
        (b"1", {"user_id": 1, "item_id": 2, "timestamp": 5, "n": 1}),
        (b"3", {"user_id": 3, "item_id": 4}),
    ]


def test_a_limit_and_a_gzip_file(tmp_path: Path):
    path = tmp_path / "events.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"user_id": "a", "item_id": "b"}\n' * 100))
    result = invoked("jsonl", "--in-order", "--path", path, "--data-dir", tmp_path, "--limit", 7)
    assert result.exit_code == 0, result.output
    assert len(in_topic(tmp_path)) == 7


def test_standard_input_is_written_each_time_it_is_read(tmp_path: Path):
    import subprocess
    import sys

    arguments = ["replay", "jsonl", "--path", "-", "--data-dir", str(tmp_path)]
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "streamer", *arguments],
            input=b'{"user_id": "a", "item_id": "b"}\n',
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert in_topic(tmp_path) == [(b"a", {"user_id": "a", "item_id": "b"})] * 2


def zipped(raw: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("events.jsonl", raw)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("ending", "pack", "told"),
    [
        (".zip", zipped, "a zip archive"),
        (".zst", lambda raw: b"\x28\xb5\x2f\xfd" + raw, "compressed by zstd"),
        (".bz2", bz2.compress, "compressed by bzip2"),
        (".xz", lzma.compress, "compressed by xz"),
        ("", gzip.compress, "compressed by gzip, but not named .gz"),
    ],
)
def test_lines_in_their_order_are_not_taken_from_what_is_packed(tmp_path: Path, ending: str, pack: Any, told: str):
    path = tmp_path / f"events.jsonl{ending}"
    path.write_bytes(pack(b'{"user_id": "a", "item_id": "b"}\n'))
    result = invoked("jsonl", "--in-order", "--path", path, "--data-dir", tmp_path / "data")
    assert isinstance(result.exception, SourceError)
    assert f"is {told}" in str(result.exception)
    assert not (tmp_path / "data").exists()


def test_lines_in_their_order_come_from_a_pipe_too(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[b'{"user_id": "a", "item_id": "b"}\n'])
    writer.start()
    result = invoked("jsonl", "--in-order", "--path", tmp_path / "pipe", "--data-dir", tmp_path)
    writer.join()
    assert result.exit_code == 0, repr(result.exception)
    assert in_topic(tmp_path) == [(b"a", {"user_id": "a", "item_id": "b"})]


@pytest.mark.parametrize("how", [[], ["--in-order"]])
def test_a_missing_file_is_named_and_nothing_is_created(tmp_path: Path, how: list[str]):
    (tmp_path / "nine.jsonl").touch()
    result = invoked("jsonl", *how, "--path", tmp_path / "none.jsonl", "--data-dir", tmp_path / "data")
    assert isinstance(result.exception, SourceError)
    assert "none.jsonl" in str(result.exception)
    assert not (tmp_path / "data").exists()


def test_an_unknown_field_is_an_error(file: Path):
    with pytest.raises(SettingsError, match="no field 'user'"):
        JsonLines(file, EventSettings(fields={"user": "uid"}))


def test_another_number_of_partitions_is_an_error(tmp_path: Path, file: Path):
    file.write_text('{"user_id": 1, "item_id": 2}\n')
    assert invoked("jsonl", "--in-order", "--path", file, "--data-dir", tmp_path, "--partitions", 2).exit_code == 0
    result = invoked("jsonl", "--in-order", "--path", file, "--data-dir", tmp_path, "--partitions", 3)
    assert isinstance(result.exception, SourceError)


def test_a_synthetic_stream_is_written(tmp_path: Path):
    result = invoked("synthetic", "--events", 3000, "--data-dir", tmp_path, "--seed", 3)
    assert result.exit_code == 0, result.output
    assert "3,000 events written to interactions" in result.stdout
    assert len(in_topic(tmp_path)) == 3000


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


def test_two_paces_are_an_error(tmp_path: Path):
    result = invoked("synthetic", "--rate", 5, "--speed", 2, "--data-dir", tmp_path / "data")
    assert isinstance(result.exception, SettingsError)
    assert not (tmp_path / "data").exists()


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


def test_events_come_in_the_order_of_their_times(tmp_path: Path, csv: Path):
    result = invoked("csv", "--path", csv, *NAMED, "--data-dir", tmp_path, "--partitions", 1)
    assert result.exit_code == 0, result.output
    assert [event["timestamp"] for _, event in in_topic(tmp_path)] == [10, 20, 30, 40, 50, 60]
    assert pairs_in(tmp_path)[:2] == [("bob", "b"), ("ann", "c")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--min-rating", 5], [("ann", "a"), ("cid", "a")]),
        (["--limit", 2], [("bob", "b"), ("ann", "c")]),
        (["--since", "20", "--until", "1970-01-01T00:00:40"], [("ann", "c"), ("ann", "a")]),
        (["--min-user-events", 3], [("ann", "c"), ("ann", "a"), ("ann", "d")]),
        (
            ["--k-core", 2, "--min-item-events", 0],
            [("bob", "b"), ("ann", "c"), ("ann", "a"), ("ann", "d"), ("bob", "a")],
        ),
        (["--min-item-events", 3], [("ann", "a"), ("cid", "a"), ("bob", "a")]),
    ],
)
def test_filters_leave_events_out(tmp_path: Path, csv: Path, options: list[Any], expected: list[tuple[str, str]]):
    result = invoked("csv", "--path", csv, *NAMED, *options, "--data-dir", tmp_path, "--partitions", 1)
    assert result.exit_code == 0, repr(result.exception)
    assert pairs_in(tmp_path) == expected


def test_filters_that_leave_nothing_are_an_error(tmp_path: Path, csv: Path):
    result = invoked("csv", "--path", csv, *NAMED, "--k-core", 9, "--data-dir", tmp_path / "data")
    assert isinstance(result.exception, SourceError)
    assert "the filters leave no event of it" in str(result.exception)
    assert not (tmp_path / "data").exists()


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


def test_a_sample_of_users_has_all_their_events(tmp_path: Path, csv: Path):
    counts = {"ann": 3, "bob": 2, "cid": 1}
    result = invoked("csv", "--path", csv, *NAMED, "--sample-users", 2, "--data-dir", tmp_path, "--partitions", 1)
    assert result.exit_code == 0, repr(result.exception)
    users = [user for user, _ in pairs_in(tmp_path)]
    assert len(set(users)) == 2
    assert len(users) == sum(counts[user] for user in set(users))


def test_a_seed_orders_events_of_equal_time(tmp_path: Path):
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id,timestamp\n" + "".join(f"u{k},i{k},7\n" for k in range(50)))
    orders = []
    for topic, seed in (("a", 1), ("b", 1), ("c", 2)):
        options = ["--topic", topic, "--seed", seed, "--partitions", 1]
        assert invoked("csv", "--path", path, "--data-dir", tmp_path, *options).exit_code == 0
        orders.append([key for key, _ in in_topic(tmp_path, topic)])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_passes_write_the_log_again_at_later_times(tmp_path: Path, csv: Path):
    result = invoked("csv", "--path", csv, *NAMED, "--passes", 2, "--data-dir", tmp_path, "--partitions", 1)
    assert result.exit_code == 0, repr(result.exception)
    assert [event["timestamp"] for _, event in in_topic(tmp_path)] == [10, 20, 30, 40, 50, 60, 61, 71, 81, 91, 101, 111]


def test_a_pattern_that_reaches_into_directories_is_written_whole(tmp_path: Path):
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "part.csv").write_text(f"user_id,item_id,timestamp\n{part},x,1\n")
    result = invoked("csv", "--path", tmp_path / "*" / "part.csv", "--data-dir", tmp_path / "data")
    assert result.exit_code == 0, repr(result.exception)
    assert sorted(pairs_in(tmp_path / "data")) == [("a", "x"), ("b", "x")]


def test_what_the_reader_says_goes_to_standard_error_once(tmp_path: Path):
    path = tmp_path / "log.csv"
    path.write_bytes(b"user_id,item_id,timestamp\na,b,1\r\nc,d,2\n")
    for _ in range(2):
        result = invoked("csv", "--path", path, "--data-dir", tmp_path, "--json")
        assert json.loads(result.stdout)["malformed"] == 0
        assert result.stderr.count("log.csv: its lines end in different ways") == 1


@pytest.mark.parametrize("option", [["--sample-users", "inf"], ["--sample-users", "nan"], ["--rate", "nan"]])
def test_a_number_that_is_none_is_refused(tmp_path: Path, csv: Path, option: list[str]):
    result = invoked("csv", "--path", csv, *NAMED, *option, "--data-dir", tmp_path / "data")
    assert result.exit_code == 2
    assert f"'{option[0]}': '{option[1]}': it must be a number above 0" in result.stderr
    assert not (tmp_path / "data").exists()


def test_malformed_rows_are_counted_and_named_and_the_rest_goes_on(tmp_path: Path):
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id,timestamp\na,b,1\n,b,2\na,c,never\na,d,4\n")
    result = invoked("csv", "--path", path, "--data-dir", tmp_path, "--json")
    assert result.exit_code == 0, repr(result.exception)
    found = json.loads(result.stdout)
    assert (found["written"], found["malformed"]) == (2, 2)
    assert f"{path}, line 3: " in result.stderr
    assert f"{path}, line 4: " in result.stderr


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path, csv: Path):
    result = invoked("csv", "--path", csv, "--column", "user_id=user", "--data-dir", tmp_path / "data")
    assert isinstance(result.exception, SourceError)
    assert "'user'" in str(result.exception)
    assert "uid, iid, at, stars" in str(result.exception)
    assert not (tmp_path / "data").exists()


def test_all_wrong_options_are_reported_at_once(tmp_path: Path, csv: Path):
    options = ["--since", "tomorrow", "--sample-users", "1.5", "--column", "colour=red"]
    result = invoked("csv", "--path", csv, *options, "--data-dir", tmp_path / "data")
    assert isinstance(result.exception, SettingsError)
    assert len(result.exception.problems) == 3


def test_json_lines_of_a_file_are_sorted_as_other_data_sets_are(tmp_path: Path, file: Path):
    lines = [{"user_id": "a", "item_id": f"i{time}", "timestamp": time} for time in (30, 10, 20)]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert invoked("jsonl", "--path", file, "--data-dir", tmp_path).exit_code == 0
    assert [item for _, item in pairs_in(tmp_path)] == ["i10", "i20", "i30"]


def test_lines_in_their_order_cannot_be_filtered(tmp_path: Path, file: Path):
    file.write_text('{"user_id": 1, "item_id": 2}\n')
    options = ["--min-rating", 3, "--passes", 2, "--limit", 5, "--field", "user_id=uid"]
    result = invoked("jsonl", "--in-order", "--path", file, *options, "--data-dir", tmp_path / "data")
    assert isinstance(result.exception, SettingsError)
    assert [problem.split()[0] for problem in result.exception.problems] == ["--min-rating", "--passes"]


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
import streamer.replay.kafka.sink, streamer.replay.producer, streamer.replay.streams, streamer.replay.cli.writing
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


# going on -------------------------------------------------------------------------------------------------------------


def test_the_same_command_again_writes_nothing_and_says_so(tmp_path: Path, csv: Path):
    command = ["csv", "--path", csv, *NAMED, "--data-dir", tmp_path]
    assert "6 events written" in invoked(*command).stdout
    assert "nothing left to write: 6 events are in interactions" in invoked(*command).stdout
    assert len(in_topic(tmp_path)) == 6


def test_more_memory_or_another_pace_is_the_same_replay(tmp_path: Path, csv: Path):
    command = ["csv", "--path", csv, *NAMED, "--data-dir", tmp_path, "--json"]
    assert json.loads(invoked(*command).stdout)["written"] == 6
    for same in (["--memory-limit", "300MB"], ["--rate", "100000"], ["--temp-dir", tmp_path]):
        assert json.loads(invoked(*command, *same).stdout)["written"] == 0


def test_other_events_are_another_replay(tmp_path: Path, csv: Path):
    command = ["csv", "--path", csv, *NAMED, "--data-dir", tmp_path, "--json"]
    for other, count in ((["--seed", 1], 6), (["--min-rating", 4], 4), (["--passes", 2], 12), (["--topic", "t"], 6)):
        assert json.loads(invoked(*command, *other).stdout)["written"] == count


def test_a_restart_writes_all_again(tmp_path: Path, csv: Path):
    command = ["csv", "--path", csv, *NAMED, "--data-dir", tmp_path, "--json"]
    assert json.loads(invoked(*command).stdout)["written"] == 6
    assert json.loads(invoked(*command, "--restart").stdout)["written"] == 6
    assert len(in_topic(tmp_path)) == 12


def test_a_replay_that_is_not_to_be_remembered_is_not(tmp_path: Path, csv: Path):
    command = ["csv", "--path", csv, *NAMED, "--data-dir", tmp_path, "--json"]
    for how in (["--no-resume"], ["--no-resume"], []):
        assert json.loads(invoked(*command, *how).stdout)["written"] == 6
    assert json.loads(invoked(*command).stdout)["written"] == 0


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


def test_lines_that_were_added_to_a_file_make_it_another(tmp_path: Path, file: Path):
    file.write_text('{"user_id": 1, "item_id": 2}\n')
    command = ["jsonl", "--in-order", "--path", file, "--data-dir", tmp_path, "--json"]
    assert json.loads(invoked(*command).stdout)["written"] == 1
    assert json.loads(invoked(*command).stdout)["written"] == 0
    file.write_text('{"user_id": 1, "item_id": 2}\n' * 3)
    assert json.loads(invoked(*command).stdout)["written"] == 3


# whole logs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TIMED)
def test_a_log_is_written_whole_and_in_order(tmp_path: Path, name: str):
    log = write_log(name, tmp_path)
    result = invoked(log.kind, "--path", log.path, "--data-dir", tmp_path, "--partitions", 1, "--json")
    assert result.exit_code == 0, repr(result.exception)
    assert json.loads(result.stdout)["written"] == len(log.rows)
    times_ms = record_times_ms(tmp_path)
    assert times_ms == sorted(1000 * int(row.time_s or 0) for row in log.rows)
    found = Counter((event["user_id"], event["item_id"], event["timestamp"]) for _, event in in_topic(tmp_path))
    assert found == Counter((row.user, row.item, row.time_s) for row in log.rows)


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


def test_movielens_has_titles(tmp_path: Path):
    (tmp_path / "ratings.dat").write_text("1::10::5::100\n")
    (tmp_path / "movies.dat").write_text("10::Heat (1995)::Action|Crime\n")
    result = invoked("movielens", "--path", tmp_path, "--data-dir", tmp_path, "--catalogue-topic", "items")
    assert result.exit_code == 0, result.output
    ((_, event),) = in_topic(tmp_path, "items")
    assert (event["title"], event["item_features"]) == ("Heat (1995)", {"genres": "Action|Crime"})
