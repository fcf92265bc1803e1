"""`streamer doctor`: what it finds, what it advises, and its exit code."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import redis
import torch
from click.testing import CliRunner, Result
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata
from servers.kafka import KafkaServer
from servers.redis import LocalSentinel, RedisServer, local_cluster

from streamer.cli import doctor as command
from streamer.cli import doctor_machine as module
from streamer.cli import doctor_servers as servers
from streamer.cli.main import cli
from streamer.event import encode
from streamer.snapshot import CheckpointStore
from streamer.sources.embedded.log import EmbeddedLog

Checks = dict[str, list[dict]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and space and cores enough wherever the tests run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "ENOUGH_SPACE_BYTES", 0)
    monkeypatch.setattr(module, "check_cores", lambda _: [module.Finding("cores", "ok", "2")])
    return tmp_path


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections as long as the test runs: bound, but nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["doctor", *map(str, arguments)])


def examined(*arguments: object) -> tuple[int, Checks]:
    """Exit code and checks by name."""
    result = invoke("--json", *arguments)
    report = json.loads(result.stdout)
    assert report["ok"] == (result.exit_code == 0)
    found: Checks = {}
    for check in report["checks"]:
        found.setdefault(check["name"], []).append(check)
    return result.exit_code, found


def states(checks: list[dict]) -> list[str]:
    return [check["status"] for check in checks]


def whole(check: dict) -> str:
    return f"{check['found']} {check['advice']}"


# --- this machine --------------------------------------------------------------------------------------------


def test_a_machine_that_runs_these_tests_is_well():
    code, checks = examined()
    assert code == 0
    for name in ("python", "numba", "cores"):
        assert states(checks[name]) == ["ok"]
    assert checks["torch"][0]["found"].startswith(torch.__version__)
    assert checks["python"][0]["found"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(("key", "status"), [("user", "ok"), ("nothing", "warning")])
def test_a_group_is_told_whether_its_topic_is_keyed_by_user(here, key, status):
    records = [(b"%d" % (k % 50) if key == "user" else None, encode(f"u{k % 50}", "i", 1.0 + k), k) for k in range(777)]
    with EmbeddedLog(here) as log:
        log.create_topic("interactions", 4)
        log.append("interactions", records)
    _, checks = examined("--data-dir", here, "--trainers", "2")
    assert states(checks["keys"]) == [status]
    assert "50 users" in checks["keys"][0]["found"]


def test_nothing_is_created(here):
    examined()
    assert list(here.iterdir()) == []


def test_an_old_python_is_a_failure(monkeypatch):
    monkeypatch.setattr(module, "OLDEST_PYTHON", (9, 1))
    code, checks = examined()
    assert code == 1
    assert "install Python 9.1 or newer" in checks["python"][0]["advice"]


def test_a_gpu_that_torch_cannot_use_is_warned_of(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for program, status in [(None, "ok"), ("/usr/bin/nvidia-smi", "warning")]:
        monkeypatch.setattr(module.shutil, "which", lambda _, program=program: program)
        (check,) = module.check_torch({})
        assert check.status == status
    assert "--device cpu" in check.advice


def test_what_cannot_be_imported_is_a_failure_and_the_rest_is_checked(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    code, checks = examined()
    assert code == 1
    assert states(checks["numba"]) == ["failure"]
    assert "pip install" in checks["numba"][0]["advice"]
    assert states(checks["data"]) == ["ok"]


def test_a_check_that_breaks_is_a_failure_and_the_rest_is_checked(monkeypatch):
    def broken(_: object) -> list:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr(module, "check_torch", broken)
    code, checks = examined()
    assert code == 1
    assert (states(checks["torch"]), checks["torch"][0]["found"]) == (["failure"], "ZeroDivisionError: by accident")
    assert states(checks["data"]) == ["ok"]


@pytest.mark.parametrize(
    ("content", "cores"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("rubbish", None), (None, None)]
)
def test_the_quota_of_a_container(tmp_path, content, cores):
    path = tmp_path / "cpu.max"
    if content is not None:
        path.write_text(content)
    assert module.cpu_quota(path) == cores


def test_a_container_with_fewer_cores_than_the_machine_is_warned_of(monkeypatch):
    monkeypatch.undo()  # the real check of cores
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: range(8))
    for quota, status in [(None, "ok"), (2.5, "warning"), (8.0, "ok")]:
        monkeypatch.setattr(module, "cpu_quota", lambda quota=quota: quota)
        (check,) = module.check_cores({})
        assert check.status == status
        if status == "warning":
            assert "--threads 2" in check.advice


# --- directories ---------------------------------------------------------------------------------------------


def test_a_directory_that_will_be_created_is_well(here):
    _, checks = examined("--data-dir", here / "new" / "data")
    assert states(checks["data"]) == ["ok"]
    assert f"{here / 'new' / 'data'} will be created" in checks["data"][0]["found"]
    _, checks = examined("--data-dir", here)
    assert "can be written to" in checks["data"][0]["found"]


def test_a_file_in_the_way_is_a_failure(here):
    (here / "file").write_text("")
    code, checks = examined("--data-dir", here / "file" / "data")
    assert code == 1
    assert states(checks["data"]) == ["failure"]
    assert f"{here / 'file'} is not a directory" in checks["data"][0]["found"]


def test_a_directory_that_cannot_be_written_to_is_a_failure():
    check = module.examine_directory("data", Path("/proc/streamer"), 0)  # not even by root
    assert check.status == "failure"
    assert "cannot write to /proc" in check.found
    assert "permissions" in check.advice


def test_the_directory_of_a_dead_letter_file_is_looked_at(here):
    code, checks = examined("--dead-letters", here / "letters.jsonl")
    assert (code, states(checks["dead letters"])) == (0, ["ok"])
    code, checks = examined("--dead-letters", "/proc/letters.jsonl")
    assert (code, states(checks["dead letters"])) == (1, ["failure"])


def test_little_space_is_warned_of(here):
    assert module.examine_directory("data", here, 1).status == "ok"
    check = module.examine_directory("data", here, 10**18)
    assert (check.status, "make room" in check.advice) == ("warning", True)


def saved(directory: Path, *events: int) -> list[Path]:
    """Checkpoints, with as much in them as the doctor looks at."""
    with CheckpointStore(directory) as store:
        return [store.save([], {}, {"accounting": {"consumed": n}, "saved_at": 0.0}) for n in events]


def test_no_checkpoint_yet_is_well():
    _, checks = examined()
    assert states(checks["checkpoints"]) == ["ok", "ok"]
    assert "none yet" in checks["checkpoints"][1]["found"]


def test_the_newest_checkpoint_is_read(here):
    saved(here / "ckpts", 10, 2000)
    _, checks = examined("--checkpoint-dir", here / "ckpts")
    assert states(checks["checkpoints"]) == ["ok", "ok"]
    assert "2,000 events" in checks["checkpoints"][1]["found"]


def test_checkpoints_are_found_in_the_data_directory_as_a_run_does(here):
    saved(here / "data" / "checkpoints", 10)
    _, checks = examined("--data-dir", here / "data")
    assert "10 events" in checks["checkpoints"][1]["found"]


def test_a_corrupt_checkpoint_before_a_whole_one_is_warned_of(here):
    _, newest = saved(here / "ckpts", 10, 20)
    newest.write_text("{}")
    code, checks = examined("--checkpoint-dir", here / "ckpts")
    assert code == 0
    assert states(checks["checkpoints"]) == ["ok", "warning"]
    assert f"{newest.name} corrupt" in checks["checkpoints"][1]["found"]
    assert "10 events" in checks["checkpoints"][1]["found"]


def test_only_corrupt_checkpoints_are_a_failure(here):
    (only,) = saved(here / "ckpts", 10)
    only.write_text("{}")
    code, checks = examined("--checkpoint-dir", here / "ckpts")
    assert code == 1
    assert states(checks["checkpoints"]) == ["ok", "failure"]
    assert "backup" in whole(checks["checkpoints"][1])


# --- files and the embedded log ------------------------------------------------------------------------------


def test_a_source_file_is_looked_at(here):
    (here / "events.jsonl").write_text("{}\n")
    _, checks = examined("--source", here / "events.jsonl")
    assert states(checks["source"]) == ["ok"]
    assert "topic" not in checks
    code, checks = examined("--source", here / "nothing.jsonl")
    assert (code, states(checks["source"])) == (1, ["failure"])
    assert "--source" in checks["source"][0]["advice"]


def test_a_missing_embedded_log_is_warned_of_with_the_ways_out():
    code, checks = examined()
    assert code == 0
    assert states(checks["topic"]) == ["warning"]
    for way in ("streamer replay", "--source", "--bootstrap-servers"):
        assert way in checks["topic"][0]["advice"]


def test_the_topics_of_the_embedded_log_are_counted(here):
    with EmbeddedLog(here / "data") as log:
        log.create_topic("clicks", 3)
        log.append("clicks", [(None, b"{}", 1)] * 5)
    _, checks = examined("--data-dir", here / "data", "--topic", "clicks", "--topic", "views")
    assert states(checks["topic"]) == ["ok", "warning"]
    assert "clicks: 3 partitions, 5 records" in checks["topic"][0]["found"]
    assert "views is not in the embedded log" in checks["topic"][1]["found"]


def test_a_file_that_is_no_log_is_a_failure(here):
    (here / "log.sqlite3").write_text("something else, long enough to be looked at" * 100)
    code, checks = examined("--data-dir", here)
    assert (code, states(checks["topic"])) == (1, ["failure"])
    assert str(here / "log.sqlite3") in checks["topic"][0]["found"]


# --- Kafka ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_broker_that_is_away_is_a_failure_and_the_rest_is_checked(closed_port):
    impatient = ["--kafka", "bootstrap_timeout_ms=1000"]
    code, checks = examined("--bootstrap-servers", f"127.0.0.1:{closed_port}", *impatient)
    assert (code, states(checks["kafka"])) == (1, ["failure"])
    assert f"127.0.0.1:{closed_port}" in checks["kafka"][0]["found"]
    assert "is it running" in whole(checks["kafka"][0])
    assert states(checks["checkpoints"]) == ["ok", "ok"]
    assert "data" not in checks  # nothing is written there


def test_wrong_client_settings_are_named():
    arguments = ["--bootstrap-servers", "127.0.0.1:1", "--kafka", "sasl_mechanisn=PLAIN", "--kafka", "nonsense=1"]
    code, checks = examined(*arguments)
    assert (code, states(checks["kafka"])) == (1, ["failure"])
    for name in ("sasl_mechanisn", "nonsense"):
        assert name in checks["kafka"][0]["found"]


@pytest.mark.servers
def test_broker_topic_group_and_dead_letters_are_looked_at(kafka_server: KafkaServer):
    topic, group = kafka_server.create_topic(partitions=2), f"group-{uuid.uuid4().hex[:8]}"
    arguments = ["--bootstrap-servers", kafka_server.bootstrap, "--topic", topic, "--group-id", group]
    producer = KafkaProducer(bootstrap_servers=kafka_server.bootstrap)
    for k in range(5):
        producer.send(topic, b"{}", partition=k % 2)
    producer.close()

    code, checks = examined(*arguments)
    assert code == 0
    assert states(checks["kafka"]) == states(checks["topic"]) == states(checks["group"]) == ["ok"]
    assert f"{topic}: 2 partitions, 5 records, ends 0: 3, 1: 2" in checks["topic"][0]["found"]
    assert f"{group} has no committed offsets yet" in checks["group"][0]["found"]
    assert states(checks["codecs"]) == states(checks["dead letters"]) == ["ok"]
    assert f"{topic}.dead-letters does not exist; a run would create it" in checks["dead letters"][0]["found"]

    commit(kafka_server, group, TopicPartition(topic, 0), 1)
    kafka_server.create_topic(f"{topic}.dead-letters")
    _, checks = examined(*arguments)
    assert "committed offsets in 1 of 2 partitions, lag 2" in checks["group"][0]["found"]
    assert f"{topic}.dead-letters exists" in checks["dead letters"][0]["found"]
    _, checks = examined(*arguments, "--dead-letters", "no topic")
    assert states(checks["dead letters"]) == ["failure"]
    assert "give --dead-letters a file" in whole(checks["dead letters"][0])
    with kafka_server.admin() as admin:
        assert not admin.describe_groups([group])[group]["members"]


def commit(server: KafkaServer, group: str, partition: TopicPartition, offset: int) -> None:
    consumer = KafkaConsumer(bootstrap_servers=server.bootstrap, group_id=group, enable_auto_commit=False)
    consumer.assign([partition])
    consumer.commit({partition: OffsetAndMetadata(offset, "", -1)})
    consumer.close()


@pytest.mark.servers
def test_a_codec_that_is_broken_and_a_file_of_dead_letters_are_named(kafka_server: KafkaServer, monkeypatch, tmp_path):
    monkeypatch.setattr("kafka.codec.lz4_decode", None)
    stream = ["--bootstrap-servers", kafka_server.bootstrap, "--topic", kafka_server.create_topic()]
    code, checks = examined(*stream, "--dead-letters", tmp_path / "bad.jsonl")
    assert (code, states(checks["codecs"])) == (1, ["failure"])
    assert "cannot read lz4" in checks["codecs"][0]["found"]
    assert f"{tmp_path} can be written to" in checks["dead letters"][0]["found"]


@pytest.mark.servers
def test_a_missing_topic_is_a_failure_and_is_not_created(kafka_server: KafkaServer):
    missing = f"missing-{uuid.uuid4().hex[:8]}"
    for _ in range(2):
        code, checks = examined("--bootstrap-servers", kafka_server.bootstrap, "--topic", missing)
        assert (code, states(checks["kafka"]), states(checks["topic"])) == (1, ["ok"], ["failure"])
        assert missing in checks["topic"][0]["found"]
        assert "create it" in checks["topic"][0]["advice"]
    topic = kafka_server.create_topic()
    _, checks = examined("--bootstrap-servers", kafka_server.bootstrap, "--topic", f"{topic}s")
    assert f"did you mean {topic}" in checks["topic"][0]["advice"]


# --- Redis ---------------------------------------------------------------------------------------------------


def test_a_redis_that_is_away_is_a_failure_and_its_password_is_not_shown(closed_port):
    code, checks = examined("--redis-url", f"redis://someone:s3cret@127.0.0.1:{closed_port}/2")
    assert (code, states(checks["redis"])) == (1, ["failure"])
    assert f"127.0.0.1:{closed_port}/2 cannot be reached" in checks["redis"][0]["found"]
    assert "s3cret" not in json.dumps(checks)


def test_a_redis_that_says_nothing_is_a_failure(monkeypatch):
    monkeypatch.setattr(servers, "REDIS_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code, checks = examined("--redis-url", f"redis://127.0.0.1:{silent.getsockname()[1]}")
    assert (code, states(checks["redis"])) == (1, ["failure"])
    assert "did not respond in time" in checks["redis"][0]["found"]


def test_a_url_that_is_none_is_a_failure():
    code, checks = examined("--redis-url", "localhost")
    assert (code, states(checks["redis"])) == (1, ["failure"])
    assert "begin with one of redis://" in checks["redis"][0]["found"]


@pytest.mark.servers
def test_redis_version_and_memory_policy_are_looked_at(redis_server: RedisServer, monkeypatch):
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        version, before = client.info("server")["redis_version"], client.config_get("maxmemory-policy")
        try:
            for policy, status in [("noeviction", "ok"), ("allkeys-lru", "warning")]:
                client.config_set("maxmemory-policy", policy)
                code, checks = examined("--redis-url", redis_server.url)
                assert (code, states(checks["redis"]), states(checks["redis memory"])) == (0, ["ok"], [status])
                assert version in checks["redis"][0]["found"]
                assert policy in checks["redis memory"][0]["found"]
            assert "maxmemory-policy noeviction" in checks["redis memory"][0]["advice"]
        finally:
            client.config_set("maxmemory-policy", before["maxmemory-policy"])
    monkeypatch.setattr(servers, "OLDEST_REDIS", (99, 0))
    code, checks = examined("--redis-url", redis_server.url)
    assert (code, states(checks["redis"])) == (1, ["failure"])
    assert "99.0" in checks["redis"][0]["advice"]


@pytest.mark.servers
def test_a_redis_that_wants_a_password_says_so(redis_server: RedisServer):
    with redis.Redis.from_url(redis_server.url) as client:
        client.execute_command("ACL", "SETUSER", "doctor-test", "on", ">right", "~*", "+@all")
        try:
            url = redis_server.url.replace("redis://", "redis://doctor-test:wr0ng@")
            code, checks = examined("--redis-url", url)
        finally:
            client.execute_command("ACL", "DELUSER", "doctor-test")
    assert (code, states(checks["redis"])) == (1, ["failure"])
    assert "Check user and password" in checks["redis"][0]["found"]
    assert "wr0ng" not in json.dumps(checks)


@pytest.mark.servers
def test_a_redis_user_with_the_rights_that_a_run_needs_is_well(redis_server: RedisServer):
    rights = ["~{streamer:*", "+@all", "-@admin", "-@dangerous"]
    with redis.Redis.from_url(redis_server.url) as client:
        client.execute_command("ACL", "SETUSER", "doctor-test", "on", ">right", *rights)
        try:
            code, checks = examined("--redis-url", redis_server.url.replace("redis://", "redis://doctor-test:right@"))
        finally:
            client.execute_command("ACL", "DELUSER", "doctor-test")
    assert (code, states(checks["redis"])) == (0, ["warning"])
    assert "noeviction" in checks["redis"][0]["advice"]


@pytest.mark.servers
def test_a_redis_behind_a_sentinel_is_well(redis_server: RedisServer):
    if not redis_server.can_restart:
        pytest.skip("it is not a process of this machine")
    with LocalSentinel(redis_server.local, "clicks") as sentinel:
        code, checks = examined("--redis-url", f"redis+sentinel://127.0.0.1:{sentinel.port}/clicks")
        assert (code, states(checks["redis"]), states(checks["redis memory"])) == (0, ["ok"], ["ok"])
        code, checks = examined("--redis-url", f"redis+sentinel://127.0.0.1:{sentinel.port}/nobody")
        assert (code, states(checks["redis"])) == (1, ["failure"])


@pytest.mark.servers
def test_a_redis_cluster_is_well(closed_port):
    with local_cluster() as node:
        code, checks = examined("--redis-url", f"redis+cluster://127.0.0.1:{node.port}")
    assert (code, states(checks["redis"]), states(checks["redis memory"])) == (0, ["ok"], ["ok"])
    code, checks = examined("--redis-url", f"redis+cluster://127.0.0.1:{closed_port}")
    assert (code, states(checks["redis"])) == (1, ["failure"])


# --- for a person --------------------------------------------------------------------------------------------


def test_a_person_sees_status_name_finding_and_advice(here):
    result = invoke("--source", here / "nothing.jsonl", "--redis-url", "localhost")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.split()[:2] == ["ok", "python"]]
    at = next(k for k, line in enumerate(lines) if line.split()[:2] == ["failure", "source"])
    assert "nothing.jsonl" in lines[at]
    assert lines[at + 1].strip() == "-> check the path given by --source"
    assert lines[-1] == "2 failures, 0 warnings"


def test_long_findings_are_broken_into_lines_at_a_terminal(monkeypatch):
    check = module.Finding("kafka", "failure", "word " * 40 + "end", "try " * 40 + "again")
    assert len(command.describe(check).splitlines()) == 2
    monkeypatch.setattr(command.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = click.unstyle(command.describe(check)).splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).split() == ["failure", "kafka", *check.found.split(), "->", *check.advice.split()]


def test_all_is_well(here, monkeypatch):
    monkeypatch.setattr(module, "check_torch", lambda _: [])  # a machine with a GPU may lack its torch
    (here / "events.jsonl").write_text("{}\n")
    assert invoke("--source", here / "events.jsonl").stdout.splitlines()[-1] == "no problems found"


@pytest.mark.slow
def test_the_program_exits_with_1_if_anything_failed(here):
    command = [sys.executable, "-m", "streamer", "doctor", "--source", "nothing.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "failure" in done.stdout
