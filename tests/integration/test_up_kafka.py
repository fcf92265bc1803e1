"""`streamer up` on a topic of a real Kafka."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import Command
from kafka_harness import KafkaHarness
from servers.process import free_ports

pytestmark = pytest.mark.servers

EVENTS = 1000


def test_a_topic_with_names_of_its_own_is_learned_answered_and_not_read_twice(kafka: KafkaHarness, tmp_path: Path):
    topic = kafka.make_topic(2)
    values = []
    for k in range(EVENTS):
        event = {"customer": f"c{k % 31}", "product": f"p{k * k % 47}", "when": 1_731_700_000 + k}
        values.append(json.dumps(event).encode())
    for partition in range(2):
        kafka.append(topic, partition, values[partition::2])
    (port,) = free_ports(1)
    arguments = ["up", topic, "--bootstrap-servers", kafka.server.bootstrap, "--port", port, "--until-end"]
    for said, more in {"first": [], "again": [], "anew": ["--restart"]}.items():
        with Command([*arguments, *more, "--set", "dim=8"], tmp_path / said, cwd=tmp_path) as command:
            code, out = command.ended()
            assert code == 0, command.said()
        assert re.search(r"user_id +customer +e\.g\. c\d+", command.said())
        assert f"{EVENTS:,} = {EVENTS:,} trained" in out
        (answer,) = map(json.loads, re.findall(r"^\{.*\}$", out, re.MULTILINE))
        assert re.fullmatch(r"c\d+", answer["user"])
        assert all(re.fullmatch(r"p\d+", one["item"]) for one in answer["items"])
