"""A group on a real broker: partitions are assigned by name, and offsets are committed from the manifest."""

from __future__ import annotations

import uuid

import pytest
from group_harness import Ranks, model
from kafka_harness import KafkaHarness, WrittenTopic
from line_harness import until

from streamer.event import encode
from streamer.sources.base import Partition

pytestmark = pytest.mark.servers


def values(partition: int, count: int, first: int = 0) -> list[bytes]:
    return [encode(f"u{partition}.{k % 13}", f"i{k * k % 97}", 1_700_000_000 + k) for k in range(first, first + count)]


def test_ranks_on_kafka_train_the_same_model_as_one_and_take_up_new_partitions(kafka: KafkaHarness, forker, tmp_path):
    topic = WrittenTopic(kafka, 3)
    for partition, count in ((0, 900), (1, 300), (2, 20)):
        kafka.append(topic.name, partition, values(partition, count))
    groups = {size: f"group-{uuid.uuid4().hex[:8]}" for size in (1, 2)}
    sources = {
        size: ["--bootstrap-servers", kafka.server.bootstrap, "--topic", topic.name, "--group-id", group]
        for size, group in groups.items()
    }
    one, two = tmp_path / "one", tmp_path / "two"
    assert Ranks(forker, sources[1], one, 1, "--trainers", "1").wait_all() == [0]
    assert Ranks(forker, sources[2], two, 2).wait_all() == [0, 0]
    assert model(one) == model(two)
    # lag monitors see both
    ends = {Partition(topic.name, 0): 900, Partition(topic.name, 1): 300, Partition(topic.name, 2): 20}
    for group in groups.values():
        until(lambda group=group: kafka.committed(group) == ends)
    # a partition is added: it is read from its beginning, whoever gets it
    with kafka.server.admin() as admin:
        admin.create_partitions({topic.name: 5})
    kafka.forget_producers()
    kafka.append(topic.name, 4, values(4, 150))
    kafka.append(topic.name, 0, values(0, 150, first=900))
    assert Ranks(forker, sources[2], two, 2, "--start", "latest").wait_all() == [0, 0]
    assert Ranks(forker, sources[1], one, 1, "--trainers", "1").wait_all() == [0]
    assert model(one) == model(two)
    assert model(two)["accounting"]["trained"] == 900 + 300 + 20 + 150 + 150
