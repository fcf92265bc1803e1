"""A group on a real broker: partitions are assigned by name, and offsets are committed from the manifest."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest
from commands import signal_at
from group_harness import Ranks, assert_same_model, assert_served, model
from kafka_harness import QUICK, KafkaHarness, WrittenTopic
from line_harness import until
from serve_harness import Server

from streamer.event import encode
from streamer.snapshot import SnapshotDirectory
from streamer.snapshot.topic import TopicReader
from streamer.sources.base import Partition
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.tail import KafkaTail

pytestmark = pytest.mark.servers


def values(partition: int, count: int, first: int = 0) -> list[bytes]:
    return [encode(f"u{partition}.{k % 13}", f"i{k * k % 97}", 1_700_000_000 + k) for k in range(first, first + count)]


PATIENT = "import streamer.lockstep.kafka_source as source\nsource.STALLED_S = 1e9"
"""A prelude of a rank that waits for what a partition has, however slow the machine is."""


def test_ranks_on_kafka_train_the_same_model_as_one_and_take_up_new_partitions(kafka: KafkaHarness, tmp_path):
    topic = WrittenTopic(kafka, 3)
    for partition, count in ((0, 900), (1, 300), (2, 20)):
        kafka.append(topic.name, partition, values(partition, count))
    groups = {size: f"group-{uuid.uuid4().hex[:8]}" for size in (1, 2)}
    sources = {
        size: ["--bootstrap-servers", kafka.server.bootstrap, "--topic", topic.name, "--group-id", group]
        for size, group in groups.items()
    }
    one, two = tmp_path / "one", tmp_path / "two"
    patient = dict.fromkeys((0, 1), PATIENT)
    assert Ranks(sources[1], one, 1, "--trainers", "1", preludes=patient).wait_all() == [0]
    short = ["--set", "max_queued_events=256"]  # so that the queue of one partition is full before another one is read
    assert Ranks(sources[2], two, 2, *short, preludes=patient).wait_all() == [0, 0]
    assert_same_model(one, two)
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
    assert Ranks(sources[2], two, 2, "--start", "latest", preludes=patient).wait_all() == [0, 0]
    assert Ranks(sources[1], one, 1, "--trainers", "1", preludes=patient).wait_all() == [0]
    assert_same_model(one, two)
    assert model(two)["accounting"]["trained"] == 900 + 300 + 20 + 150 + 150


def trained(checkpoints: Path) -> int:
    """How many events the newest checkpoint holds."""
    found = SnapshotDirectory(checkpoints).load()
    return found.meta["accounting"]["trained"] if found is not None else 0


def test_a_silent_partition_stops_nobody_and_what_is_added_and_published_while_running_is_whole(
    kafka: KafkaHarness, tmp_path
):
    topic, points, checkpoints = kafka.make_topic(2), f"points-{uuid.uuid4().hex[:8]}", tmp_path / "checkpoints"
    source = ["--bootstrap-servers", kafka.server.bootstrap, "--topic", topic, "--group-id", topic]
    often = ["--max-age", "0.2", "--checkpoint-every", "0.3", "--publish-topic", points, "--publish-every", "0.1"]
    ranks = Ranks(source, checkpoints, 2, *often, "--no-until-end")
    for partition in (0, 1, 3, 2):  # one at a time has events, and the others wait with it
        if partition == 3:
            with kafka.server.admin() as admin:
                admin.create_partitions({topic: 4})
            kafka.forget_producers()
        before = trained(checkpoints)
        kafka.append(topic, partition, values(partition, 300))
        until(lambda before=before: trained(checkpoints) == before + 300, what=f"partition {partition} is trained")
    os.kill(ranks.pids[1], signal.SIGTERM)
    assert ranks.wait_all() == [0, 0], ranks.errors(0) + ranks.errors(1)
    server = Server(TopicReader(lambda: KafkaTail(KafkaSettings(kafka.server.bootstrap, points, client=QUICK))))
    assert_served(server, checkpoints, generation=1)
    server.close()


def test_a_group_that_slept_does_not_move_the_offsets_that_a_newer_start_has_committed(kafka: KafkaHarness, tmp_path):
    """It sleeps when its commit is inside the client already."""
    topic = WrittenTopic(kafka, 2)
    for partition in (0, 1):
        kafka.append(topic.name, partition, values(partition, 900))
    source = ["--bootstrap-servers", kafka.server.bootstrap, "--topic", topic.name, "--group-id", topic.name]
    run, often = (source, tmp_path / "checkpoints"), ("--checkpoint-every-events", "300")
    sleeps = signal_at("kafka.coordinator.consumer:ConsumerCoordinator:_do_commit_offsets_async", 1, "SIGSTOP")
    zombie = Ranks(*run, 1, *often, "--no-until-end", preludes={0: sleeps})
    zombie.sleep(when=0)
    assert Ranks(*run, 1, *often, "--group-timeout", "2", name="again").wait(0) == 0
    ends = {Partition(topic.name, 0): 900, Partition(topic.name, 1): 900}
    until(lambda: kafka.committed(topic.name) == ends, what="the newer start commits")
    zombie.wake()
    assert zombie.wait(0) not in (0, None), zombie.errors(0)
    assert kafka.committed(topic.name) == ends
    assert "a newer start (generation 2)" in zombie.errors(0)
