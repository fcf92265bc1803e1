"""Replays to a real Kafka: killed, doubled, cut off or mixed with others, every event is there once and in order."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from crash_harness import Zygote
from kafka import errors
from kafka.partitioner.default import murmur2
from kafka_harness import KafkaHarness, until

from streamer.errors import SourceError, SourceUnavailable
from streamer.replay.cli.replay import replay
from streamer.replay.events import Events, Record
from streamer.replay.kafka.sink import GROUP_PREFIX, KafkaSink
from streamer.replay.producer import produce
from streamer.replay.streams import synthetic_stream
from streamer.sources.base import Partition

pytestmark = pytest.mark.servers

Rows = list[tuple[bytes | None, bytes | None]]


def records(count: int, first: int = 0) -> list[Record]:
    users, items = [f"u{k % 17}" for k in range(first, first + count)], [f"i{k}" for k in range(first, first + count)]
    return Events(users, items, [float(1_700_000_000 + k) for k in range(count)]).records()


def by_partition(stream: Sequence[Record], partitions: int) -> dict[int, Rows]:
    """What each partition is to hold."""
    wanted: dict[int, Rows] = {number: [] for number in range(partitions)}
    for key, value, _ in stream:
        wanted[(murmur2(key) & 0x7FFFFFFF) % partitions].append((key, value))
    return wanted


def in_topic(kafka: KafkaHarness, topic: str, count: int) -> dict[int, Rows]:
    """What is committed in each partition, read by our own source; waits for `count` records, and for more."""
    source, _ = kafka.open_source(topic, client={"isolation_level": "read_committed"})
    found: dict[int, Rows] = {partition.number: [] for partition in source.positions()}

    def step() -> bool:
        chunks = source.poll(100_000, 0.3)
        for chunk in chunks:
            found[chunk.partition.number] += zip(chunk.keys, chunk.values, strict=True)
        return bool(chunks)

    until(lambda: sum(map(len, found.values())) >= count, step)
    while step():
        pass
    return found


class Topic:
    """A topic that sinks are opened on."""

    def __init__(self, kafka: KafkaHarness, partitions: int = 3) -> None:
        self.kafka, self.partitions = kafka, partitions
        self.name = kafka.make_topic(partitions)
        self.opened: list[KafkaSink] = []

    def sink(self, **client: Any) -> KafkaSink:
        self.opened.append(KafkaSink(self.kafka.settings(self.name, client=client), self.name))
        return self.opened[-1]

    def holds(self, stream: Sequence[Record]) -> bool:
        """Whether the topic holds these and nothing else, in their order."""
        return in_topic(self.kafka, self.name, len(stream)) == by_partition(stream, self.partitions)

    def close(self) -> None:
        for sink in self.opened:
            sink.close()


@pytest.fixture
def topic(kafka: KafkaHarness) -> Any:
    topic = Topic(kafka)
    yield topic
    topic.close()


def write_half(sink: KafkaSink, events: Sequence[Record]) -> None:
    """As a process that is killed before it commits: the brokers have its events, in a transaction that is open."""
    sink._producer.begin_transaction()
    sink._send_all(sink._producer, events)


# sinks ----------------------------------------------------------------------------------------------------------------


def test_a_replay_goes_on_after_a_kill_wherever_it_was(topic: Topic):
    stream, start = records(3_000), 0
    for stop in (1_000, 1_001, 2_500):
        sink = topic.sink()
        assert sink.resume("r") == start
        sink.write(stream[start:stop])
        sink._finish()
        write_half(sink, stream[stop : stop + 300])
        start = stop
    sink = topic.sink()
    assert sink.resume("r") == 2_500
    sink.write(stream[2_500:])
    sink.close()
    assert topic.holds(stream)


def test_the_position_is_committed_by_a_group_of_the_replay(topic: Topic):
    sink = topic.sink()
    sink.resume(topic.name)
    sink.write(records(40))
    sink.close()
    committed = {Partition(topic.name, 0): 40}  # visible when the broker has marked the end of the transaction
    until(lambda: topic.kafka.committed(GROUP_PREFIX + topic.name) == committed, what="it is committed")


def test_replays_and_topics_have_positions_of_their_own(topic: Topic, kafka: KafkaHarness):
    other = Topic(kafka)
    for sink, name in ((topic.sink(), "r"), (other.sink(), "r"), (topic.sink(), "s")):
        assert sink.resume(name) == 0
        sink.write(records(10))
    topic.close()
    other.close()
    assert topic.sink().resume("r") == 10


def test_events_of_others_in_between_do_no_harm(topic: Topic, kafka: KafkaHarness):
    stream = records(400)
    sink = topic.sink()
    kafka.append(topic.name, 0, [b"before"])
    sink.resume("r")
    sink.write(stream[:200])
    sink._finish()
    write_half(sink, stream[200:300])
    for number in range(topic.partitions):
        kafka.append(topic.name, number, [b"between"] * 50)
    sink = topic.sink()
    sink.write(stream[sink.resume("r") :])
    sink.close()
    found = in_topic(kafka, topic.name, 400 + 151)
    ours = {n: [row for row in rows if row[1] and row[1].startswith(b"{")] for n, rows in found.items()}
    assert ours == by_partition(stream, topic.partitions)


@pytest.mark.parametrize("waits", [False, True], ids=["all sent at once", "each waits for the one before"])
def test_a_writer_is_fenced_when_another_one_goes_on_with_its_replay(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, waits: bool
):
    """The client names the reason at the first call that fails, and only quotes it at later ones."""
    stream = records(600)
    one = topic.sink()
    one.resume("r")
    one.write(stream[:200])
    one._finish()
    other = topic.sink()
    assert other.resume("r") == 200
    send = one._producer.send

    def send_and_wait(*arguments: Any, **options: Any) -> Any:
        sent = send(*arguments, **options)
        with contextlib.suppress(errors.KafkaError):
            sent.get(60)
        return sent

    if waits:
        monkeypatch.setattr(one._producer, "send", send_and_wait)
    one.write(stream[200:400])
    with pytest.raises(SourceError, match=r"another process continues this replay.*Nothing was doubled"):
        one.close()
    other.write(stream[200:])
    other.close()
    assert topic.holds(stream)


def test_what_a_killed_writer_had_on_its_way_and_arrives_late_is_not_doubled(topic: Topic):
    stream = records(600)
    one = topic.sink()
    one.resume("r")
    write_half(one, stream[:200])
    other = topic.sink()
    assert other.resume("r") == 0
    other.write(stream)
    with pytest.raises(errors.ProducerFencedError):
        one._producer.commit_transaction()
    other.close()
    assert topic.holds(stream)


def test_a_write_of_unknown_outcome_is_written_again_only_if_it_was_not_committed(topic: Topic):
    stream = records(500)
    sink = topic.sink()
    sink.resume("r")
    sink.write(stream[:100])
    sink._finish()
    sink._write(None, stream[:100], 100)  # it was committed
    write_half(sink, stream[100:300])
    sink._write(None, stream[100:300], 300)  # it was not
    sink._position = 300
    sink.write(stream[300:])
    sink.close()
    assert topic.holds(stream)


def test_when_the_client_waits_without_end_another_one_takes_over(topic: Topic, monkeypatch: pytest.MonkeyPatch):
    """kafka-python 3.0.12 may lose a request of a transaction when a broker goes away, and waits for its answer."""
    stream, sink, answer = records(300), topic.sink(transaction_timeout_ms=2_000), threading.Event()
    sink.resume("r")
    sink.write(stream[:100])
    sink._finish()
    monkeypatch.setattr(sink._producer, "send_offsets_to_transaction", lambda *_: answer.wait())
    sink.write(stream[100:200])
    sink.write(stream[200:])
    sink.close()
    answer.set()
    assert topic.holds(stream)


def test_a_restart_writes_all_again_and_is_what_goes_on_then(topic: Topic):
    stream = records(300)
    sink = topic.sink()
    sink.resume("r")
    sink.write(stream)
    sink.close()
    sink = topic.sink()
    assert sink.resume("r", restart=True) == 0
    sink.close()
    sink = topic.sink()
    assert sink.resume("r") == 0
    sink.write(stream)
    sink.close()
    assert topic.holds([*stream, *stream])


@pytest.mark.parametrize("resumes", [True, False])
def test_an_event_that_a_broker_does_not_take_is_an_error_and_none_of_its_write_arrives(topic: Topic, resumes: bool):
    stream, sink = records(20), topic.sink()
    if resumes:
        sink.resume("r")
    sink.write(stream[:10])
    sink.write([*stream[10:], (b"u", b"x" * 3_000_000, 0)] if resumes else [(b"u", b"x" * 3_000_000, 0)])
    with pytest.raises(SourceError, match=topic.name):
        sink.close()
    assert topic.holds(stream[:10])


def test_another_number_of_partitions_is_an_error_that_names_the_way_out(topic: Topic, kafka: KafkaHarness):
    sink = topic.sink()
    sink.resume("r")
    sink.write(records(10))
    sink.close()
    with kafka.server.admin() as admin:
        admin.create_partitions({topic.name: 5})
    until(lambda: topic.sink()._count_partitions() == 5)
    sink = topic.sink()
    with pytest.raises(SourceError, match=r"it had 3 partitions then, and has 5 partitions now\. --restart"):
        sink.resume("r")
    assert sink.resume("r", restart=True) == 0


def test_in_a_topic_that_was_deleted_and_created_again_a_replay_begins_anew(topic: Topic, kafka: KafkaHarness):
    stream, name = records(50), topic.name
    sink = topic.sink()
    sink.resume(name)
    sink.write(stream)
    sink.close()
    kafka.server.delete_topic(name)
    until(lambda: not kafka.committed(GROUP_PREFIX + name))
    kafka.server.create_topic(name, partitions=3)
    sink = topic.sink()
    assert sink.resume(name) == 0
    sink.write(stream)
    sink.close()
    assert topic.holds(stream)


@pytest.mark.slow
def test_a_broker_that_is_away_for_a_while_is_waited_for(topic: Topic, restartable: KafkaHarness):
    stream, sink = records(60_000), topic.sink()
    sink.resume("r")
    chunks = (stream[start : start + 200] for start in range(0, len(stream), 200))
    writing = threading.Thread(target=lambda: produce(chunks, sink), daemon=True)
    writing.start()
    until(lambda: sink._position > 2_000)
    restartable.server.kill()
    restartable.server.restart()
    writing.join(120)
    sink.close()
    assert topic.holds(stream)


@pytest.mark.slow
@pytest.mark.parametrize("resumes", [True, False])
def test_brokers_that_do_not_come_back_are_an_error(topic: Topic, restartable: KafkaHarness, resumes: bool):
    sink = topic.sink(delivery_timeout_ms=3_000, request_timeout_ms=2_000, transaction_timeout_ms=1_000)
    if resumes:
        sink.resume("r")
    restartable.server.kill()
    sink.write(records(10))
    with pytest.raises(SourceUnavailable, match=r"have not taken a write within 3 s; see whether they run"):
        sink.close()


# the command ----------------------------------------------------------------------------------------------------------


def invoked(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(replay, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output + repr(result.exception)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.slow
def test_killed_at_any_moment_and_started_again_every_event_is_there_once_and_in_order(topic: Topic, zygote: Zygote):
    events = 20_000
    servers = ["--bootstrap-servers", topic.kafka.server.bootstrap, "--topic", topic.name]
    command = ["replay", "synthetic", "--events", events, "--json", "--rate", "20000", *servers]
    summary, kills = zygote.summary_after_kills(command, random.Random(3), 2.5)
    assert kills >= 2
    assert summary["written"] + summary["already"] == events
    assert topic.holds([record for chunk in synthetic_stream(events).chunks(0) for record in chunk])
    assert zygote.summary(command)["written"] == 0


def test_a_log_arrives_in_the_order_of_its_times(topic: Topic, tmp_path: Path):
    path = tmp_path / "log.csv"
    rows = (f"u{k % 50},i{k},{1_700_000_000 + k * 7919 % 3000}\n" for k in range(3_000))
    path.write_text("user_id,item_id,timestamp\n" + "".join(rows))
    servers = ["--bootstrap-servers", topic.kafka.server.bootstrap, "--topic", topic.name]
    command = ["csv", "--path", path, *servers]
    assert invoked(*command)["written"] == 3_000
    assert invoked(*command)["written"] == 0
    found = in_topic(topic.kafka, topic.name, 3_000)
    assert sum(map(len, found.values())) == 3_000
    for rows in found.values():
        events = [json.loads(value or b"") for _, value in rows]
        assert [event["timestamp"] for event in events] == sorted(event["timestamp"] for event in events)
        assert [event["user_id"].encode() for event in events] == [key for key, _ in rows]
