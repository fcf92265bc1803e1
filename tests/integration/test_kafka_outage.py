"""Kafka sources and dead letters while the broker goes away and comes back."""

from __future__ import annotations

import itertools
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from contracts.source_contract import RecordingListener, read, rows_of
from kafka_harness import KafkaHarness, letter, letters_of, numbered, until, warnings
from line_harness import events, run_settings, values_of
from servers.kafka import KafkaServer
from servers.redis import LocalRedis

from streamer.build import build_pipeline
from streamer.dead_letters.kafka import KafkaDeadLetters
from streamer.errors import SourceUnavailable
from streamer.metrics.monitor import Monitor
from streamer.pipeline import Pipeline
from streamer.sources.base import Partition
from streamer.sources.kafka import watch as kafka_watch
from streamer.web.live import monitor_server, new_monitor

pytestmark = pytest.mark.servers
QUICK = ("--dim", 8, "--batch-size", 64, "--set", "hash_slots=64", "--checkpoint-every", 0.2, "--max-age", 0.1)


@pytest.fixture
def broker(restartable: KafkaHarness, monkeypatch: pytest.MonkeyPatch) -> KafkaServer:
    """A broker that may be killed, and a watch that notices soon."""
    monkeypatch.setattr(kafka_watch, "EVERY_S", 0.2)
    monkeypatch.setattr(kafka_watch, "PATIENCE_MS", 500)
    return restartable.server


def test_reading_and_commits_go_on_after_an_outage_with_nothing_lost_and_one_warning(
    kafka: KafkaHarness, broker: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.make_topic(2)
    zero, one = Partition(topic, 0), Partition(topic, 1)
    for partition in (0, 1):
        kafka.append(topic, partition, numbered(20))
    settings = kafka.settings(topic, client={"session_timeout_ms": 60_000})
    source = kafka.source(settings, RecordingListener({}))
    rows: list[tuple[Partition, int, bytes]] = []
    step = lambda: rows.extend(rows_of(source.poll(3, 0.1)))  # noqa: E731

    until(lambda: len(rows) >= 15, step)
    broker.kill()
    source.commit({zero: 7})
    until(lambda: bool(warnings(caplog, "does not respond")), step)
    assert source.end_offsets() == {zero: 20, one: 20}
    source.commit({zero: 8})

    broker.restart()
    kafka.append(topic, 0, numbered(5, first=20))
    until(lambda: len(rows) >= 45, step)
    until(lambda: bool(warnings(caplog, "responds again")), step)
    until(lambda: kafka.committed(settings.group_id) == {zero: 8}, step)
    expected = [(zero, offset) for offset in range(25)] + [(one, offset) for offset in range(20)]
    assert sorted(row[:2] for row in rows) == expected
    assert len(warnings(caplog, "does not respond")) == 1


def test_close_returns_while_the_broker_is_away(kafka: KafkaHarness, broker: KafkaServer) -> None:
    topic = kafka.make_topic(1)
    kafka.append(topic, 0, numbered(3))
    source, _ = kafka.open_source(topic, close_timeout_s=1)
    read(source, 3)
    broker.stop()
    source.commit({Partition(topic, 0): 3})
    source.poll(10, 0.1)
    source.close()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("streamer-kafka")])


def test_dead_letters_wait_for_the_broker_and_arrive(kafka: KafkaHarness, broker: KafkaServer, tmp_path: Path) -> None:
    topic, now = kafka.make_topic(1), time.monotonic
    letters = KafkaDeadLetters(kafka.settings("t"), topic, tmp_path / "refused.jsonl", 5.0, clock=lambda: now())
    letters.write([letter(value=b"before")])
    letters.flush()
    broker.stop()
    letters.write([letter(value=b"meanwhile")])
    now = itertools.chain([0], itertools.count(1)).__next__  # it ticks with each reading
    with pytest.raises(SourceUnavailable, match=topic):
        letters.flush()
    now = lambda: 0.0  # noqa: E731  (who flushes does not wait until it is time to try again)
    broker.restart()
    until(lambda: flushed(letters), lambda: None)
    letters.write([letter(value=b"after")])
    letters.flush()
    letters.close()
    assert {value for _, value, _, _ in letters_of(kafka, topic, 3)} == {b"before", b"meanwhile", b"after"}


def flushed(letters: KafkaDeadLetters) -> bool:
    try:
        letters.flush()
    except SourceUnavailable:
        return False
    return True


def test_it_is_ready_only_while_broker_store_and_checkpoint_directory_respond(
    kafka: KafkaHarness, broker: KafkaServer, redis: LocalRedis, tmp_path: Path
) -> None:
    """On a topic with nothing to do: health is not only noticed by those who have work."""
    topic, saved = kafka.make_topic(1), tmp_path / "checkpoints"
    kafka.append(topic, 0, values_of(events(64)))
    arguments = ["--bootstrap-servers", kafka.server.bootstrap, "--topic", topic, "--group-id", topic, *QUICK]
    arguments += ["--redis-url", redis.url, "--set", "share_every=0.05", "--checkpoint-dir", saved]
    pipeline = build_pipeline(run_settings(*arguments))
    monitor = new_monitor(topic)
    with monitor_server(monitor) as server, running(pipeline, monitor):
        url = server.url
        ready(url, "caught up")
        # 1. the broker
        broker.kill()
        not_ready(url, "does not respond")
        assert monitor.instruments.value("streamer_source_live") == 0
        broker.restart()
        ready(url, "caught up")
        assert monitor.instruments.value("streamer_source_live") == 1
        # 2. Redis
        redis.kill()
        not_ready(url, "cannot be reached")
        assert monitor.instruments.value("streamer_store_live") == 0
        redis.start()
        ready(url, "caught up")
        # 3. the directory: a file stands where checkpoints are to be written
        until(lambda: pipeline.last_checkpoint is not None, nothing)
        saved.rename(tmp_path / "elsewhere")
        saved.touch()
        kafka.append(topic, 0, values_of(events(64)))
        not_ready(url, "cannot write a checkpoint")
        assert monitor.instruments.value("streamer_checkpoint_writable") == 0
        saved.unlink()
        (tmp_path / "elsewhere").rename(saved)
        ready(url, "caught up")
        assert monitor.instruments.value("streamer_checkpoint_writable") == 1


def nothing() -> None:
    time.sleep(0.05)


def readyz(url: str) -> tuple[bool, str]:
    try:
        with urllib.request.urlopen(f"{url}readyz", timeout=5) as response:
            return True, response.read().decode()
    except urllib.error.HTTPError as error:
        return False, error.read().decode()


def ready(url: str, why: str) -> None:
    until(lambda: (found := readyz(url))[0] and why in found[1], nothing)


def not_ready(url: str, why: str) -> None:
    until(lambda: not (found := readyz(url))[0] and why in found[1], nothing)


@contextmanager
def running(pipeline: Pipeline, monitor: Monitor) -> Iterator[None]:
    pipeline.watch(monitor)
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    try:
        yield
    finally:
        pipeline.stop()
        thread.join()


def test_letters_that_nobody_acknowledges_stop_reading_at_a_bound_and_none_is_lost(
    kafka: KafkaHarness, broker: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is killed when all records have been read: from then on letters wait."""
    monkeypatch.setattr("streamer.dead_letters.kafka.MAX_WAITING_BYTES", 20_000)
    topic, letters = kafka.make_topic(1), kafka.make_topic(1)
    kafka.append(topic, 0, [value if k % 2 else value[:-1] for k, value in enumerate(values_of(events(2_000)))])
    stream = ("--bootstrap-servers", broker.bootstrap, "--topic", topic, "--group-id", topic, "--until-end")
    options = ("--dim", 8, "--batch-size", 16, "--data-dir", tmp_path, "--dead-letters", letters)
    pipeline = build_pipeline(run_settings(*stream, *options))
    pipeline.start()
    until(lambda: pipeline.ingest.queued_events >= 1_000)
    broker.kill()

    def stands_still() -> bool:
        before = pipeline.accounting.dead_lettered
        for _ in range(5):
            pipeline.step()
        return pipeline.status.backpressure_reason is not None and pipeline.accounting.dead_lettered == before

    until(stands_still)
    assert pipeline.accounting.dead_lettered < 100, "20,000 bytes, and those of one more batch"
    broker.restart()
    until(lambda: pipeline.ingest.finished, pipeline.step)
    pipeline.close()
    assert pipeline.accounting.consumed == 2_000
    offsets = {int(headers["offset"]) for _, _, headers, _ in letters_of(kafka, letters, 1_000)}
    assert offsets == set(range(0, 2_000, 2))
