"""A group that shares through a real Redis, beside a trainer of another topic, and killed again and again."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from pathlib import Path

import pytest
from group_harness import Ranks
from line_harness import popularity_counts
from redis_harness import counted
from servers.redis import RedisServer

from streamer.event import encode
from streamer.learner import OnlineLearner
from streamer.sources.embedded.log import EmbeddedLog

pytestmark = pytest.mark.servers


def write(log: EmbeddedLog, topic: str, partitions: int, events: int) -> Counter[str]:
    """Events of a topic; returns how often each item has come."""
    log.create_topic(topic, partitions)
    rng, items = random.Random(topic), Counter[str]()
    for partition in range(partitions):
        records = []
        for k in range(events // partitions):
            item = f"i{int(rng.paretovariate(0.6)) % 200}"
            items[item] += 1
            records.append((b"u", encode(f"{topic}{partition}.{k % 11}", item, 1_700_000_000 + k), 0))
        log.append(topic, records, partition)
    return items


def test_a_group_counts_once_and_receives_what_others_count(redis_server: RedisServer, tmp_path: Path):
    name, rng = f"group-{uuid.uuid4().hex[:8]}", random.Random(3)
    with EmbeddedLog(tmp_path / "log") as log:
        elsewhere, ours = write(log, "elsewhere", 1, 400), write(log, "clicks", 5, 3000)
    share = ["--redis-url", redis_server.url, "--model", name, "--set", "share_every=0.05"]
    other = Ranks(tmp_path / "log", tmp_path / "other", 1, "--trainers", "1", "--topic", "elsewhere", *share)
    assert other.wait_all() == [0], other.errors(0)
    often = [*share, "--topic", "clicks", "--checkpoint-every-events", "300", "--keep-checkpoints", "1"]
    for size in (2, 3):
        ranks = Ranks(tmp_path / "log", tmp_path / "ours", size, *often)
        ranks.wait(0, rng.uniform(0.8, 2.0))
        for rank in range(size):
            ranks.kill(rank)
        ranks.wait_all()
    ranks = Ranks(tmp_path / "log", tmp_path / "ours", 2, *often)
    assert ranks.wait_all() == [0, 0], ranks.errors(0) + ranks.errors(1)
    assert counted(redis_server.url, name) == elsewhere + ours
    assert popularity_counts(OnlineLearner.load(tmp_path / "ours")) == elsewhere + ours
