"""`streamer doctor`: what it finds, what it advises, and its exit code."""

from __future__ import annotations

import json
import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import torch
from click.testing import CliRunner, Result
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata
from servers.kafka import KafkaServer
from servers.redis import RedisServer

from streamer.cli import doctor as module
from streamer.cli.main import cli
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
    for name in ("numba", "cores"):
        assert states(checks[name]) == ["ok"]
    assert checks["torch"][0]["found"].startswith(torch.__version__)


def test_nothing_is_created(here):
    examined()
    assert list(here.iterdir()) == []


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


def test_a_directory_that_cannot_be_written_to_is_a_failure():
    check = module.examine_directory("data", Path("/proc/streamer"), 0)  # not even by root
    assert check.status == "failure"
    assert "cannot write to /proc" in check.found
    assert "permissions" in check.advice


def test_little_space_is_warned_of(here):
    assert module.examine_directory("data", here, 1).status == "ok"
    check = module.examine_directory("data", here, 10**18)
    assert (check.status, "make room" in check.advice) == ("warning", True)


def saved(directory: Path, *events: int) -> list[Path]:
    """Checkpoints, with as much in them as the doctor looks at."""
    with CheckpointStore(directory) as store:
        return [store.save([], {}, {"accounting": {"consumed": n}, "saved_at": 0.0}) for n in events]


@pytest.fixture
def prepared(here: Path) -> Path:
    """Files, checkpoints of which some are corrupt, and an embedded log."""
    for name in ("file", "events.jsonl"):
        (here / name).write_bytes(EVENT + b"\n")
    (here / "wrong.jsonl").write_text('{"customer": "ann", "product": 7, "colour": "red"}\n' * 120)
    (here / "half.jsonl").write_bytes(b"\n".join([EVENT, EVENT, b"{}"]))
    (here / "no-log").mkdir()
    (here / "no-log" / "log.sqlite3").write_text("something else, long enough to be looked at" * 100)
    saved(here / "whole" / "checkpoints", 10, 2000)
    saved(here / "half", 10, 20)[-1].write_text("{}")
    saved(here / "corrupt", 10)[-1].write_text("{}")
    with EmbeddedLog(here / "log") as log:
        log.create_topic("clicks", 3)
        log.append("clicks", [(None, EVENT, 1)] * 5)
        log.create_topic("avro", 1)
        log.append("avro", [(None, b"\0\0\0\0\x07\x06ann\x02", 1)] * 5)
    return here


EVENT = b'{"user_id": "ann", "item_id": 7}'
COLOUR = ("--item-feature", "colour", "--set", "item_layers=8", "--set", "user_layers=8")
WRONG = ["0 of the next 100 records", "customer, product, colour", "--field user_id=customer --field item_id=product"]


ABSENT_LOG = ("streamer replay", "--source", "--bootstrap-servers")
WRONG_CLIENT = ("--bootstrap-servers", "127.0.0.1:1", "--kafka", "sasl_mechanisn=PLAIN", "--kafka", "nonsense=1")
BROKER = ("--bootstrap-servers", "127.0.0.1:PORT", "--kafka", "bootstrap_timeout_ms=1000")


@pytest.mark.parametrize(
    ("arguments", "name", "expected", "words"),
    [
        (["--data-dir", "new/data"], "data", ["ok"], ["new/data will be created"]),
        (["--data-dir", "."], "data", ["ok"], ["can be written to"]),
        (["--data-dir", "file/data"], "data", ["failure"], ["file is not a directory"]),
        (["--dead-letters", "letters.jsonl"], "dead letters", ["ok"], []),
        (["--dead-letters", "/proc/letters.jsonl"], "dead letters", ["failure"], []),
        ([], "checkpoints", ["ok", "ok"], ["none yet"]),
        (["--data-dir", "whole"], "checkpoints", ["ok", "ok"], ["2,000 events"]),
        (["--checkpoint-dir", "half"], "checkpoints", ["ok", "warning"], ["2.base corrupt", "10 events"]),
        (["--checkpoint-dir", "corrupt"], "checkpoints", ["ok", "failure"], ["backup"]),
        (["--source", "events.jsonl"], "source", ["ok"], []),
        (["--source", "nothing.jsonl"], "source", ["failure"], ["--source"]),
        (["--source", "events.jsonl"], "events", ["ok"], ["1 of the next 1 records"]),
        (["--source", "wrong.jsonl"], "events", ["failure"], WRONG),
        (["--source", "events.jsonl", *COLOUR], "features", ["warning"], ["item-feature colour is in none of them"]),
        (["--source", "wrong.jsonl", "--accept-dead-letters"], "events", ["warning"], WRONG),
        (["--source", "half.jsonl"], "events", ["warning"], ["2 of the next 3 records", "user_id is missing"]),
        (["--data-dir", "log", "--topic", "clicks"], "events", ["ok"], ["5 of the next 5 records"]),
        (["--data-dir", "log", "--topic", "avro"], "events", ["failure"], ["schema 7", "Avro", "--schema-registry"]),
        ([], "topic", ["warning"], ABSENT_LOG),
        (["--data-dir", "log", "--topic", "clicks"], "topic", ["ok"], ["clicks: 3 partitions, 5 records"]),
        (["--data-dir", "log", "--topic", "views"], "topic", ["warning"], ["views is not in the embedded log"]),
        (["--data-dir", "no-log"], "topic", ["failure"], ["no-log/log.sqlite3"]),
        (WRONG_CLIENT, "kafka", ["failure"], ["sasl_mechanisn", "nonsense"]),
        pytest.param(BROKER, "kafka", ["failure"], ["127.0.0.1:PORT", "is it running"], marks=pytest.mark.slow),
        (["--redis-url", "redis://a:s3cret@127.0.0.1:PORT/2"], "redis", ["failure"], ["1:PORT/2 cannot be reached"]),
        (["--redis-url", "localhost"], "redis", ["failure"], ["begin with one of redis://"]),
    ],
)
def test_what_is_found_and_advised_and_the_rest_is_checked(prepared, closed_port, arguments, name, expected, words):
    code, checks = examined(*(argument.replace("PORT", str(closed_port)) for argument in arguments))
    assert code == int("failure" in expected)
    assert states(checks[name]) == expected
    for word in words:
        assert word.replace("PORT", str(closed_port)) in whole(checks[name][-1])
    assert checks["checkpoints"]
    assert ("topic" in checks) == (name in ("topic",) or not {"--source", "--bootstrap-servers"} & set(arguments))
    assert "s3cret" not in json.dumps(checks)


# --- Kafka ---------------------------------------------------------------------------------------------------


@pytest.mark.servers
def test_broker_topic_group_and_dead_letters_are_looked_at(kafka_server: KafkaServer):
    topic, group = kafka_server.create_topic(partitions=2), f"group-{uuid.uuid4().hex[:8]}"
    arguments = ["--bootstrap-servers", kafka_server.bootstrap, "--topic", topic, "--group-id", group]
    producer = KafkaProducer(bootstrap_servers=kafka_server.bootstrap)
    for k in range(5):
        producer.send(topic, EVENT, partition=k % 2)
    producer.close()

    code, checks = examined(*arguments)
    assert code == 0
    assert states(checks["kafka"]) == states(checks["topic"]) == states(checks["dead letters"]) == ["ok"]
    assert "5 of the next 5 records are events" in checks["events"][0]["found"]
    assert f"{topic}: 2 partitions, 5 records; {group} has no committed offsets yet" in checks["topic"][0]["found"]
    assert f"{topic}.dead-letters does not exist; a run would create it" in checks["dead letters"][0]["found"]

    commit(kafka_server, group, TopicPartition(topic, 0), 1)
    kafka_server.create_topic(f"{topic}.dead-letters")
    _, checks = examined(*arguments)
    assert "committed offsets in 1 of them, lag 2" in checks["topic"][0]["found"]
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
    monkeypatch.setattr(module, "OLDEST_REDIS", (99, 0))
    code, checks = examined("--redis-url", redis_server.url)
    assert (code, states(checks["redis"])) == (1, ["failure"])
    assert "99.0" in checks["redis"][0]["advice"]


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


# --- for a person --------------------------------------------------------------------------------------------


def test_a_person_sees_status_name_finding_and_advice(here):
    result = invoke("--source", here / "nothing.jsonl", "--redis-url", "localhost")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.split()[:2] == ["ok", "numba"]]
    at = next(k for k, line in enumerate(lines) if line.split()[:2] == ["failure", "source"])
    assert "nothing.jsonl" in lines[at]
    assert lines[at + 1].strip() == "-> check the path given by --source"
    assert lines[-1] == "2 failures, 0 warnings"


def test_all_is_well(here):
    (here / "events.jsonl").write_bytes(EVENT)
    assert invoke("--source", here / "events.jsonl").stdout.splitlines()[-1] == "no problems found"
