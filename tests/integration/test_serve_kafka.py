"""A server that follows its trainer and the events through a real Kafka."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import pytest
from commands import Command
from kafka import KafkaConsumer, TopicPartition
from kafka_harness import QUICK, KafkaHarness
from line_harness import events
from serve_harness import Client, Server, Trainer, said, served, wait_until

import streamer
from streamer.event import EventDecoder, encode
from streamer.serve.follower import Tail
from streamer.serve.service import RecommendRequest
from streamer.snapshot.topic import TopicPlace, TopicReader
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.tail import KafkaTail

pytestmark = pytest.mark.servers

STREAM = events(900, users=30, items=150)


def settings(kafka: KafkaHarness, topic: str) -> KafkaSettings:
    return KafkaSettings(kafka.server.bootstrap, topic, client=QUICK)


def reader(kafka: KafkaHarness, topic: str) -> TopicReader:
    return TopicReader(lambda: KafkaTail(settings(kafka, topic)))


def first_offset(kafka: KafkaHarness, topic: str) -> int:
    consumer = KafkaConsumer(bootstrap_servers=kafka.server.bootstrap)
    try:
        return consumer.beginning_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
    finally:
        consumer.close()


def assert_equal(server: Server, trainer: Trainer) -> None:
    for user in [f"u{n}" for n in range(30)]:
        assert served(server.service, user) == said(trainer.learner, user)


def test_points_go_through_a_topic_that_keeps_two_bases(kafka, monkeypatch):
    monkeypatch.setattr("streamer.snapshot.topic.PART_BYTES", 10_000)  # so that a point has many records
    topic = f"points-{time.time_ns()}"
    trainer = Trainer(TopicPlace(settings(kafka, topic), topic))
    trainer.learn(STREAM[:300])
    server = Server(reader(kafka, topic))
    server.reach(trainer)
    for part in range(300, 900, 100):
        trainer.learn(STREAM[part : part + 100])
        trainer.base()
    server.reach(trainer)
    assert_equal(server, trainer)
    assert server.service.bases == 1
    assert first_offset(kafka, topic) > 0
    later = Server(reader(kafka, topic))
    later.reach(trainer)
    assert_equal(later, trainer)
    trainer.close()
    again = Trainer(TopicPlace(settings(kafka, topic), topic), trainer.learner)
    again.learn(STREAM[:50])
    server.reach(again)
    assert_equal(server, again)
    for each in (server, later, again):
        each.close()


def test_events_count_before_they_are_learned_and_from_the_positions_of_the_model_on(kafka):
    topic, points = kafka.make_topic(1), f"points-{time.time_ns()}"
    trainer = Trainer(TopicPlace(settings(kafka, points), points))
    trainer.learn(STREAM[:100])  # as if they were the first hundred of the topic
    kafka.append(topic, 0, [encode("u1", "i149", 1e9)] * 100)
    server = Server(reader(kafka, points))
    tail = Tail(server.service, lambda: KafkaTail(settings(kafka, topic)), EventDecoder())
    trainer.publisher.step(dict)
    server.reach(trainer)
    tail.start()
    kafka.append(topic, 0, [encode("u1", STREAM[0][1], 2e9), encode("u1", STREAM[1][1], 2e9 + 1)])
    wait_until(
        lambda: server.service.recommend(RecommendRequest(user="u1"))["recent"][:2] == [STREAM[1][1], STREAM[0][1]],
        "seeing",
    )
    for each in (tail, server, trainer):
        each.close()


def test_a_broker_that_is_away_is_shown_and_caught_up(restartable):
    kafka = restartable
    topic = f"points-{time.time_ns()}"
    trainer = Trainer(TopicPlace(settings(kafka, topic), topic))
    server = Server(reader(kafka, topic))
    trainer.learn(STREAM[:200])
    server.reach(trainer)
    kafka.server.stop()
    streamer.Learner(trainer.learner).learn(STREAM[200:300])
    wait_until(lambda: trainer.publisher.step(dict) or trainer.publisher.status.problem, "noticing")
    wait_until(lambda: server.follower.problem, "noticing")
    assert served(server.service, "u1")
    kafka.server.restart()
    wait_until(lambda: trainer.publisher.status.problem is None, "publishing again")
    trainer.learn(STREAM[300:400])
    server.reach(trainer)
    assert_equal(server, trainer)
    server.close()
    trainer.close()


Record = tuple[bytes, bytes]


def records_in(kafka: KafkaHarness, topic: str) -> list[Record]:
    """Keys and values of all records of a topic of one partition, those that were removed left out."""
    consumer, partition, found = KafkaConsumer(bootstrap_servers=kafka.server.bootstrap), TopicPartition(topic, 0), []
    try:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        while consumer.position(partition) < end:
            found += [(r.key, r.value) for rs in consumer.poll(timeout_ms=500).values() for r in rs]
    finally:
        consumer.close()
    return found


def flipped(value: bytes) -> bytes:
    return value[: len(value) // 2] + bytes([value[len(value) // 2] ^ 4]) + value[len(value) // 2 + 1 :]


DAMAGES: dict[str, Callable[[list[list[Record]]], list[list[Record]]]] = {
    "lost": lambda p: [*p[:2], *p[3:]],
    "doubled": lambda p: [one for point in p for one in (point, point)],
    "reordered": lambda p: [p[0], p[1], p[3], p[2], *p[4:]],
    "truncated": lambda p: [*p[:2], p[2][:-1], *p[3:]],
    "shortened": lambda p: [*p[:2], [*p[2][:-1], (p[2][-1][0], p[2][-1][1][:-9])], *p[3:]],
    "flipped": lambda p: [*p[:2], [(key, flipped(value)) for key, value in p[2]], *p[3:]],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_becomes_of_deltas_in_a_topic_only_states_of_the_trainer_are_served(kafka, monkeypatch, damage):
    """What was written is copied to another topic, damaged on the way."""
    monkeypatch.setattr("streamer.snapshot.topic.PART_BYTES", 20_000)
    whole, damaged = f"points-{time.time_ns()}", kafka.make_topic(1)
    trainer, points = Trainer(TopicPlace(settings(kafka, whole), whole)), list[list[Record]]()
    states: dict[int, list[list[str]]] = {}
    copied = 0
    for part in range(0, 600, 100):
        if part == 500:
            trainer.base()
        else:
            trainer.learn(STREAM[part : part + 100])
        records = records_in(kafka, whole)
        points.append(records[copied:])
        copied = len(records)
        states[trainer.learner.state.trainer.steps] = [[i for i, _ in said(trainer.learner, u)] for u in ("u1", "u2")]
    server = Server(reader(kafka, damaged))
    for point in DAMAGES[damage](points):
        for key, value in point:
            kafka.append(damaged, 0, [value], key=key)
        for _ in range(20 if server.step is not None else 0):
            answers = [server.service.recommend(RecommendRequest(user=user)) for user in ("u1", "u2")]
            for k, answer in enumerate(answers):
                assert [found["item"] for found in answer["items"]] == states[answer["step"]][k]
    wait_until(lambda: server.step is not None and server.step[1] == trainer.learner.state.trainer.steps, "following")
    assert_equal(server, trainer)
    assert (server.service.bases > 1) == (damage != "doubled")
    server.close()
    trainer.close()


def test_a_catalogue_topic_is_read_from_its_beginning_and_its_items_are_served(kafka, tmp_path):
    """From the broker to an answer over HTTP; restarted, what was read is not read again."""
    topic, items, points = kafka.make_topic(2), kafka.make_topic(1), f"points-{time.time_ns()}"
    kafka.append(items, 0, [encode(None, "old", 1e9, item_features={"brand": "b1"}, title="Old")])
    kafka.append(topic, 0, [encode("u1", "i0", 1e9)] * 50)
    common = ("--bootstrap-servers", kafka.server.bootstrap, "--topic", topic, "--catalogue-topic", items)
    where = (*common, "--group-id", topic, "--data-dir", tmp_path, "--publish-topic", points, "--item-feature", "brand")
    quick = ("--start", "latest", "--dim", 8, "--max-age", 0.2, "--publish-every", 0.1)
    run = ("run", "--log-format", "plain", *where, *quick)
    with Command(run, tmp_path / "run.log") as trainer:
        client = Client(
            tmp_path, from_dir=None, publish_topic=points, bootstrap_servers=kafka.server.bootstrap, topics=(topic,),
            catalogue_topic=items, kafka={name: str(value) for name, value in QUICK.items()},
        )  # fmt: skip
        client.ready()

        def recommended() -> dict[str, str]:
            answer = client.get("/users/u1/recommendations?k=100&exclude_seen=false")
            return {found["item"]: answer["titles"].get(found["item"], "") for found in answer["items"]}

        wait_until(lambda: recommended().get("old") == "Old", "the catalogue")
        assert "i0" not in recommended()  # --start latest
        kafka.append(topic, 1, [encode("u2", "i1", 1e9 + k) for k in range(20)])
        kafka.append(
            items,
            0,
            [encode(None, "new", item_features={"brand": "b1"}, title="New"), encode(None, "old", deleted=True)],
        )
        wait_until(lambda: recommended().get("new") == "New" and "old" not in recommended(), "what changed")
        assert client.get("/status")["freshness"]["new_item_s"]["count"] > 0
        client.close()
        trainer.signal(signal.SIGTERM)
        trainer.ended()
    with Command((*run, "--until-end", "--json"), tmp_path / "again.log") as again:
        code, out = again.ended()
    assert code == 0, again.said()
    assert json.loads(out)["catalogue"] == 3  # over the life of the model: none twice
