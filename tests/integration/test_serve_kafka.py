"""A server that follows its trainer and the events through a real Kafka."""

from __future__ import annotations

import time

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka_harness import QUICK, KafkaHarness
from line_harness import events
from serve_harness import Server, Trainer, said, served, wait_until

from streamer.event import EventDecoder, encode
from streamer.publish.topic import KafkaWriter, TopicReader
from streamer.serve.follower import Tail
from streamer.serve.service import Asked
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
    monkeypatch.setattr("streamer.publish.topic.PART_BYTES", 10_000)  # so that a point has many records
    topic = f"points-{time.time_ns()}"
    trainer = Trainer(KafkaWriter(settings(kafka, topic), topic))
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
    again = Trainer(KafkaWriter(settings(kafka, topic), topic), trainer.learner)
    again.learn(STREAM[:50])
    server.reach(again)
    assert_equal(server, again)
    for each in (server, later, again):
        each.close()


def test_events_count_before_they_are_learned_and_from_the_positions_of_the_model_on(kafka):
    topic, points = kafka.make_topic(1), f"points-{time.time_ns()}"
    trainer = Trainer(KafkaWriter(settings(kafka, points), points))
    trainer.learn(STREAM[:100])  # as if they were the first hundred of the topic
    kafka.append(topic, 0, [encode("u1", "i149", 1e9)] * 100)
    server = Server(reader(kafka, points))
    tail = Tail(server.service, lambda: KafkaTail(settings(kafka, topic)), EventDecoder())
    trainer.publisher.step(dict)
    server.reach(trainer)
    tail.start()
    kafka.append(topic, 0, [encode("u1", STREAM[0][1], 2e9), encode("u1", STREAM[1][1], 2e9 + 1)])
    wait_until(lambda: server.service.recommend(Asked("u1"))["recent"][:2] == [STREAM[1][1], STREAM[0][1]], "seeing")
    for each in (tail, server, trainer):
        each.close()


def test_a_broker_that_is_away_is_shown_and_caught_up(kafka):
    if not kafka.server.can_restart:
        pytest.skip("the broker is not ours to stop")
    topic = f"points-{time.time_ns()}"
    trainer = Trainer(KafkaWriter(settings(kafka, topic), topic))
    server = Server(reader(kafka, topic))
    trainer.learn(STREAM[:200])
    server.reach(trainer)
    kafka.server.stop()
    try:
        trainer.learner.learn(STREAM[200:300])
        wait_until(lambda: trainer.publisher.step(dict) or trainer.publisher.status.problem, "noticing")
        wait_until(lambda: server.follower.problem, "noticing")
        assert served(server.service, "u1")
    finally:
        kafka.server.restart()
    wait_until(lambda: trainer.publisher.status.problem is None, "publishing again")
    trainer.learn(STREAM[300:400])
    server.reach(trainer)
    assert_equal(server, trainer)
    server.close()
    trainer.close()
