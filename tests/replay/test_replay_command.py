from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from contracts.source_contract import RecordingListener

from replay.command import replay
from replay.lines import JsonLines
from streamer.errors import SettingsError, SourceError
from streamer.event import EventSettings
from streamer.sources.embedded import EmbeddedSource


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(replay, [str(argument) for argument in arguments])


def in_topic(data_dir: Path, topic: str = "interactions") -> list[tuple[Any, Any]]:
    """Key and value of each record, values parsed."""
    source = EmbeddedSource(data_dir, topic)
    source.open(RecordingListener({}))
    rows = [
        (key, json.loads(value))
        for chunk in source.poll(100_000, 0.5)
        for key, value in zip(chunk.keys, chunk.values, strict=True)
    ]
    source.close()
    return rows


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_lines_are_written_as_they_are_keyed_by_user(tmp_path: Path, file: Path):
    events = [{"user_id": k % 3, "item_id": f"i{k}", "timestamp": 1_700_000_000 + k, "extra": k} for k in range(20)]
    file.write_text("\n".join(map(json.dumps, events)))
    result = invoked("jsonl", "--path", file, "--data-dir", tmp_path, "--topic", "t", "--partitions", 2)
    assert result.exit_code == 0, result.output
    assert "20 events written to t" in result.stdout
    found = in_topic(tmp_path, "t")
    assert sorted((e for _, e in found), key=lambda e: e["extra"]) == events
    assert all(key == str(event["user_id"]).encode() for key, event in found)


def test_malformed_lines_are_counted_and_named_and_the_rest_goes_on(tmp_path: Path, file: Path):
    good = '{"user_id": "a", "item_id": "b"}'
    array = '[{"user_id": "c", "item_id": "d", "rating": 4}, {"user_id": "c"}, {"user_id": "e", "item_id": "f"}]'
    file.write_text(f'{good}\nno json\n\n{good}\n{{"user_id": "a"}}\n{array}\n')
    result = invoked("jsonl", "--path", file, "--data-dir", tmp_path)
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
    result = invoked("jsonl", "--path", file, "--data-dir", tmp_path)
    assert result.exit_code == 0
    assert result.stderr.count("not_json") == 20
    assert "50 malformed events were left out, the first 20 are listed" in result.stderr


def test_json_has_the_counts(tmp_path: Path, file: Path):
    file.write_text('{"user_id": 1, "item_id": 2}\nx\n')
    result = invoked("jsonl", "--path", file, "--data-dir", tmp_path, "--json")
    found = json.loads(result.stdout)
    assert (found["written"], found["malformed"], found["reasons"]) == (1, 1, {"not_json": 1})
    assert found["interrupted"] is False


def test_fields_of_other_names_are_written_by_ours(tmp_path: Path, file: Path):
    file.write_text('{"uid": 1, "iid": 2, "at": 5, "user_id": "somebody else", "n": 1}\n[{"uid": 3, "iid": 4}]\n')
    fields = ["--field", "user_id=uid", "--field", "item_id=iid", "--field", "timestamp=at"]
    result = invoked("jsonl", "--path", file, "--data-dir", tmp_path, *fields)
    assert result.exit_code == 0, result.output
    assert sorted(in_topic(tmp_path)) == [
        (b"1", {"user_id": 1, "item_id": 2, "timestamp": 5, "n": 1}),
        (b"3", {"user_id": 3, "item_id": 4}),
    ]


def test_a_limit_and_a_gzip_file(tmp_path: Path):
    path = tmp_path / "events.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"user_id": "a", "item_id": "b"}\n' * 100))
    result = invoked("jsonl", "--path", path, "--data-dir", tmp_path, "--limit", 7)
    assert result.exit_code == 0, result.output
    assert len(in_topic(tmp_path)) == 7


def test_standard_input_is_read(tmp_path: Path):
    import subprocess
    import sys

    arguments = ["replay", "jsonl", "--path", "-", "--data-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "streamer", *arguments],
        input=b'{"user_id": "a", "item_id": "b"}\n',
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert in_topic(tmp_path) == [(b"a", {"user_id": "a", "item_id": "b"})]


def test_a_missing_file_is_named_and_nothing_is_created(tmp_path: Path):
    result = invoked("jsonl", "--path", tmp_path / "none.jsonl", "--data-dir", tmp_path / "data")
    assert result.exit_code == 2
    assert "none.jsonl' does not exist" in result.stderr
    assert not (tmp_path / "data").exists()


def test_an_unknown_field_is_an_error(file: Path):
    with pytest.raises(SettingsError, match="no field 'user'"):
        JsonLines(file, EventSettings(fields={"user": "uid"}))


def test_another_number_of_partitions_is_an_error(tmp_path: Path, file: Path):
    file.write_text('{"user_id": 1, "item_id": 2}\n')
    assert invoked("jsonl", "--path", file, "--data-dir", tmp_path, "--partitions", 2).exit_code == 0
    result = invoked("jsonl", "--path", file, "--data-dir", tmp_path, "--partitions", 3)
    assert isinstance(result.exception, SourceError)


def test_a_synthetic_stream_is_written(tmp_path: Path):
    result = invoked("synthetic", "--events", 3000, "--data-dir", tmp_path, "--seed", 3)
    assert result.exit_code == 0, result.output
    assert "3,000 events written to interactions" in result.stdout
    assert len(in_topic(tmp_path)) == 3000


def test_the_environment_says_where_to_write_but_not_how_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STREAMER_DATA_DIR", str(tmp_path / "there"))
    monkeypatch.setenv("STREAMER_RATE", "0.001")  # of `streamer run`: a learning rate
    assert invoked("synthetic", "--events", 100).exit_code == 0
    assert len(in_topic(tmp_path / "there")) == 100


def test_two_paces_are_an_error(tmp_path: Path):
    result = invoked("synthetic", "--rate", 5, "--speed", 2, "--data-dir", tmp_path / "data")
    assert isinstance(result.exception, SettingsError)
    assert not (tmp_path / "data").exists()


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
