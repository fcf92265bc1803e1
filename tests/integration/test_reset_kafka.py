"""`streamer reset` on a real Kafka: group and checkpoints move together, and shared counts stay exact."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from commands import Command
from crash_harness import Zygote, records, trained_items
from kafka_harness import KafkaHarness
from kafka_runs import Topic
from redis_harness import counted
from servers.redis import RedisServer

from streamer.sources.base import Partition

pytestmark = [pytest.mark.servers, pytest.mark.slow]

LIVE = ["--max-age", "0.1", "--checkpoint-every", "0.2"]


def moves(zygote: Zygote, run: list[Any], *to: Any) -> list[tuple[Any, Any, str]]:
    """Move what a run has trained; what became of each partition."""
    options = [part for part in run[1:] if part != "--until-end"]
    rows = zygote.summary(["reset", *options, *to, "--yes"])["moves"]
    return [(row["from"], row["to"], row["events"]) for row in rows]


def test_group_and_checkpoint_move_together(kafka: KafkaHarness, zygote: Zygote, tmp_path: Path):
    topic = Topic(kafka, tmp_path, 2)
    topic.append(records(1_000))
    run = topic.run("a", "--until-end")
    zygote.summary(run)
    assert moves(zygote, run, "--to-offset", 100) == [(500, 100, "400 read again")] * 2
    assert kafka.committed(topic.group) == dict.fromkeys(topic.ends, 100)
    assert zygote.summary(run)["events_this_run"] == 800
    topic.append(records(1_000))
    assert moves(zygote, run, "--to-offset", 700) == [(500, 700, "200 skipped")] * 2
    assert zygote.summary(run)["events_this_run"] == 600
    assert kafka.committed(topic.group) == topic.ends


def test_the_checkpoint_of_another_trainer_does_not_win(kafka: KafkaHarness, zygote: Zygote, tmp_path: Path):
    """What it has trained before the group was moved is to be read again, too."""
    topic = Topic(kafka, tmp_path, 1)
    topic.append(records(600))
    with Command(topic.run("a", *LIVE), tmp_path / "a.log") as a:
        a.wait_until(lambda: kafka.committed(topic.group) == topic.ends)
        with Command(topic.run("b", *LIVE), tmp_path / "b.log") as b:
            b.wait_until(lambda: kafka.members(topic.group, settled=True) == 2)
            a.signal(signal.SIGTERM)
            assert a.ended()[0] == 0
            topic.append(records(300))
            b.wait_until(lambda: kafka.committed(topic.group) == topic.ends)
            options = topic.run("a", "--to-beginning", "--yes")[1:]
            assert zygote.run(["reset", *options]) == 1
            assert "has 1 members" in zygote.errors
            assert "stop its trainers first" in zygote.errors
            b.signal(signal.SIGTERM)
            assert b.ended()[0] == 0
    assert moves(zygote, topic.run("b"), "--to-offset", 200) == [(900, 200, "700 read again")]
    assert zygote.summary(topic.run("b", "--until-end", "--set", "max_events=100"))["events_this_run"] == 100
    assert zygote.summary(topic.run("a", "--until-end"))["events_this_run"] == 600
    assert kafka.committed(topic.group) == {Partition(topic.name, 0): 900}


def test_shared_counts_stay_exact(
    kafka: KafkaHarness, redis_server: RedisServer, zygote: Zygote, tmp_path: Path
) -> None:
    """What is read again is not counted again, and what is left out is counted and not learned."""
    topic = Topic(kafka, tmp_path, 1)
    topic.append(records(1_000))
    where = ["--redis-url", redis_server.url, "--model", topic.group, "--method", "xir"]
    run = topic.run("a", "--until-end", *where)
    zygote.summary([*run, "--set", "max_events=300"])
    at = kafka.committed(topic.group)[Partition(topic.name, 0)]
    assert moves(zygote, run, "--to-offset", at + 100) == [(at, at + 100, "100 skipped")]
    learned = zygote.summary(run)["trained"]
    assert learned == sum(trained_items(topic.all_values[:at] + topic.all_values[at + 100 :]).values())
    expected = trained_items(topic.all_values)
    assert counted(redis_server.url, topic.group) == expected
    assert moves(zygote, run, "--to-beginning") == [(1_000, 0, "1,000 read again")]
    assert zygote.summary(run)["events_this_run"] == 1_000
    assert counted(redis_server.url, topic.group) == expected
