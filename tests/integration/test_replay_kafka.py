"""Replays to a real Kafka: killed, doubled, cut off or mixed with others, every event is there once and in order."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from contracts.source_contract import RecordingListener
from crash_harness import Zygote
from kafka import KafkaConsumer, TopicPartition
from kafka_harness import KafkaHarness, until

from streamer.errors import SettingsError, SourceError
from streamer.replay.cli.replay import replay
from streamer.replay.events import Events, Record
from streamer.replay.kafka.batches import SEQUENCES, Batch, KeyPartitioner
from streamer.replay.kafka.sink import GROUP, KafkaSink
from streamer.replay.kafka.topic import KafkaTopic
from streamer.replay.producer import produce
from streamer.replay.streams import SyntheticReplay

pytestmark = pytest.mark.servers

DATA = Path(__file__).parents[3] / "shared" / "data"

Rows = list[tuple[bytes | None, bytes | None]]


def records(count: int, first: int = 0) -> list[Record]:
    users, items = [f"u{k % 17}" for k in range(first, first + count)], [f"i{k}" for k in range(first, first + count)]
    return Events(users, items, [float(1_700_000_000 + k) for k in range(count)]).records()


def by_partition(stream: Sequence[Record], partitions: int) -> dict[int, Rows]:
    """What each partition is to hold."""
    wanted: dict[int, Rows] = {number: [] for number in range(partitions)}
    keys = [key or b"" for key, _, _ in stream]
    for (key, value, _), number in zip(stream, KeyPartitioner(partitions)(keys), strict=True):
        wanted[number].append((key, value))
    return wanted


def in_topic(kafka: KafkaHarness, topic: str, count: int) -> dict[int, Rows]:
    """What each partition holds, read by our own source; waits for `count` records, and for more that may come."""
    source, _ = kafka.open_source(topic)
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
        self.opened: list[Any] = []

    def sink(self, **client: Any) -> KafkaSink:
        self.opened.append(KafkaSink(self.kafka.settings(self.name, client=client), self.name))
        return self.opened[-1]

    def raw(self) -> KafkaTopic:
        self.opened.append(KafkaTopic(self.kafka.settings(self.name), self.name))
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


def killed(sink: KafkaSink) -> None:
    """What SIGKILL leaves of a sink: its last write may be safe, but nothing more is remembered."""
    sink._wait()
    sink._group = None


# sinks ----------------------------------------------------------------------------------------------------------------


def test_a_replay_goes_on_after_a_kill_wherever_it_was(topic: Topic):
    stream = records(3_000)
    for stop in (1_000, 1_001, 2_500):
        sink = topic.sink()
        start = sink.resume("r")
        sink.write(stream[start:stop])
        killed(sink)
    sink = topic.sink()
    start = sink.resume("r")
    assert sink.write(stream[start:]) == 500
    sink.close()
    assert topic.holds(stream)


def test_after_a_clean_end_nothing_is_looked_at_again(topic: Topic):
    stream = records(2_000)
    sink = topic.sink()
    sink.resume("r")
    sink.write(stream[:1_500])
    sink.close()
    sink = topic.sink()
    assert sink.resume("r") == 1_500
    assert sink.write(stream[1_500:]) == 500
    sink.close()
    sink = topic.sink()
    assert sink.resume("r") == 2_000
    sink.close()
    assert topic.holds(stream)


def test_a_write_of_which_only_some_partitions_arrived_is_completed(topic: Topic):
    """As when a process is killed between two brokers' requests."""
    stream = records(900)
    sink = topic.sink()
    sink.resume("r")
    whole = sink._missing(stream)
    sink._topic.write({1: sink._batches(1, whole[1]), 2: sink._batches(2, whole[2][:10])})
    killed(sink)
    sink = topic.sink()
    start = sink.resume("r")
    assert start == 0
    assert sink.write(stream) == len(whole[0]) + len(whole[2]) - 10
    sink.close()
    assert topic.holds(stream)


def test_positions_of_partitions_may_be_of_different_age(topic: Topic):
    stream = records(900)
    sink = topic.sink()
    sink.resume("r")
    old = sink._topic.notes(GROUP + "r")
    sink.write(stream[:600])
    sink._wait()
    sink._take_notes()
    killed(sink)
    sink._topic.keep_notes(GROUP + "r", {0: old[0]})
    sink = topic.sink()
    start = sink.resume("r")
    assert start == 0
    assert sink.write(stream[:300]) == 0
    sink.close()
    sink = topic.sink()
    assert sink.resume("r") == 300
    assert sink.write(stream[300:]) == 300
    sink.close()
    assert topic.holds(stream)


def test_events_of_others_in_between_do_no_harm(topic: Topic, kafka: KafkaHarness):
    stream = records(400)
    sink = topic.sink()
    kafka.append(topic.name, 0, [b"before"])
    sink.resume("r")
    sink.write(stream[:200])
    killed(sink)
    for number in range(topic.partitions):
        kafka.append(topic.name, number, [b"between"] * 50)
    sink = topic.sink()
    sink.write(stream[sink.resume("r") :])
    sink.close()
    found = in_topic(kafka, topic.name, 400 + 151)
    ours = {n: [row for row in rows if row[1] and row[1].startswith(b"{")] for n, rows in found.items()}
    assert ours == by_partition(stream, topic.partitions)


def test_what_a_killed_writer_had_on_its_way_and_arrives_late_is_not_doubled(topic: Topic):
    stream = records(600)
    one = topic.sink()
    one.resume("r")
    one.write(stream[:200])
    one._wait()
    other = topic.sink()
    start = other.resume("r")
    one.write(stream[200:400])  # the broker has it only now
    killed(one)
    other.write(stream[start:500])
    with pytest.raises(SourceError, match="Nothing was doubled"):
        other.close()
    last = topic.sink()
    last.write(stream[last.resume("r") :])
    last.close()
    assert topic.holds(stream)


def test_a_batch_that_is_sent_twice_is_written_once(topic: Topic):
    raw, rows = topic.raw(), [(b"k", b"v%d" % k, 0) for k in range(10)]
    batch = Batch(rows, 1_700_000_000_000, raw.new_producer(), 0)
    assert raw.write({0: [batch]}) == raw.write({0: [batch]}) == {0: 10}
    assert raw.ends() == [10, 0, 0]


def test_numbers_of_records_begin_again_after_two_thousand_million(topic: Topic):
    raw = topic.raw()
    producer, first = raw.new_producer(), 2 * SEQUENCES - 5
    for start in (first, first + 3, first + 9):
        rows = [(b"k", b"v", 0)] * (3 if start == first else 6)
        raw.write({0: [Batch(rows, 1_700_000_000_000, producer, start)]})
    [last, none, _] = raw.last_sequences(producer, [0, 0, 0], raw.ends())
    assert (last, none) == ((first + 14) % SEQUENCES, None)


def test_a_restart_writes_all_again_and_is_what_goes_on_then(topic: Topic, kafka: KafkaHarness):
    stream = records(300)
    sink = topic.sink()
    sink.resume("r")
    sink.write(stream)
    sink.close()
    sink = topic.sink()
    assert sink.resume("r", restart=True) == 0
    assert sink.write(stream[:100]) == 100
    killed(sink)
    sink = topic.sink()
    sink.write(stream[sink.resume("r") :])
    sink.close()
    assert topic.holds([*stream, *stream])


def test_compressed_events_arrive_and_settle_the_position(topic: Topic):
    stream = records(2_000)
    for stop in (1_200, 2_000):
        sink = topic.sink(compression_type="lz4")
        sink.write(stream[sink.resume("r") : stop])
        killed(sink)
    assert topic.holds(stream)


def test_a_compression_that_is_none_is_an_error(topic: Topic):
    with pytest.raises(SettingsError, match="compression_type"):
        topic.sink(compression_type="rar")


def test_large_writes_are_cut_into_batches_that_a_broker_takes(topic: Topic):
    stream = [(b"u", b'"%d %s"' % (k, b"x" * 60_000), 0) for k in range(60)]
    sink = topic.sink()
    sink.write(stream)
    sink.close()
    assert topic.holds(stream)


def test_an_event_that_a_broker_does_not_take_is_an_error(topic: Topic):
    sink = topic.sink()
    sink.write([(b"u", b"x" * 3_000_000, 0)])
    with pytest.raises(SourceError, match=topic.name):
        sink.close()


def test_another_number_of_partitions_is_an_error_that_names_the_way_out(topic: Topic, kafka: KafkaHarness):
    sink = topic.sink()
    sink.resume("r")
    sink.close()
    with kafka.server.admin() as admin:
        admin.create_partitions({topic.name: 5})
    until(lambda: topic.raw().partitions == 5)
    sink = topic.sink()
    with pytest.raises(SourceError, match=r"it had 3 partitions then, and has 5 now\. --restart"):
        sink.resume("r")
    assert sink.resume("r", restart=True) == 0


def test_a_topic_that_was_replaced_is_an_error_that_names_the_way_out(topic: Topic):
    sink = topic.sink()
    sink.resume("r")
    notes = sink._topic.notes(GROUP + "r")
    sink._topic.keep_notes(GROUP + "r", {number: (7, words) for number, (_, words) in notes.items()})
    with pytest.raises(SourceError, match=r"ends at offset 0, but events went up to 7\. --restart"):
        topic.sink().resume("r")


def test_records_that_were_removed_before_their_position_was_known_are_an_error(topic: Topic, kafka: KafkaHarness):
    sink = topic.sink()
    sink.resume("r")
    sink.write(records(300))
    killed(sink)
    ends = sink._topic.ends()
    with kafka.server.admin() as admin:
        admin.delete_records({TopicPartition(topic.name, number): end for number, end in enumerate(ends)})
    with pytest.raises(SourceError, match=r"has lost its records.*--restart"):
        topic.sink().resume("r")


@pytest.mark.slow
def test_a_broker_that_is_away_for_a_while_is_waited_for(topic: Topic, kafka: KafkaHarness):
    if not kafka.server.can_restart:
        pytest.skip("this broker cannot be killed")
    stream, sink = records(60_000), topic.sink()
    sink.resume("r")
    chunks = (stream[start : start + 200] for start in range(0, len(stream), 200))
    writing = threading.Thread(target=lambda: produce(chunks, sink), daemon=True)
    writing.start()
    until(lambda: sink._event > 2_000)
    kafka.server.kill()
    kafka.server.restart()
    writing.join(120)
    sink.close()
    assert topic.holds(stream)


# the command ----------------------------------------------------------------------------------------------------------


def invoked(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(replay, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output + repr(result.exception)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("pace", [["--rate", "40000"], []])
def test_killed_at_any_moment_and_started_again_every_event_is_there_once_and_in_order(
    topic: Topic, zygote: Zygote, pace: list[str]
):
    events = 30_000 if pace else 100_000
    servers = ["--bootstrap-servers", topic.kafka.server.bootstrap, "--topic", topic.name]
    command = ["replay", "synthetic", "--events", events, "--json", *servers, *pace]
    summary, kills = zygote.summary_after_kills(command, random.Random(3), 1.2)
    assert kills >= 2
    assert summary["written"] + summary["already"] == events
    assert topic.holds([record for chunk in SyntheticReplay(events).chunks() for record in chunk])
    assert zygote.summary(command)["written"] == 0


@pytest.mark.parametrize("name", ["gowalla-time", "tmall", "ml-100k"])
def test_a_real_log_arrives_in_the_order_of_its_times(topic: Topic, name: str):
    path = DATA / f"{name}.inter.gz"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    servers = ["--bootstrap-servers", topic.kafka.server.bootstrap, "--topic", topic.name]
    command = ["recbole", "--path", path, "--limit", 5_000, *servers]
    assert invoked(*command)["written"] == 5_000
    assert invoked(*command)["written"] == 0
    found = in_topic(topic.kafka, topic.name, 5_000)
    assert sum(map(len, found.values())) == 5_000
    for rows in found.values():
        events = [json.loads(value or b"") for _, value in rows]
        assert [event["timestamp"] for event in events] == sorted(event["timestamp"] for event in events)
        assert [event["user_id"].encode() for event in events] == [key for key, _ in rows]


def test_a_plain_client_sees_the_time_of_writing(topic: Topic):
    sink = topic.sink()
    sink.write(records(50))
    sink.close()
    consumer = KafkaConsumer(topic.name, bootstrap_servers=topic.kafka.server.bootstrap, auto_offset_reset="earliest")
    found: list[Any] = []
    until(lambda: len(found) >= 50, lambda: [found.extend(rows) for rows in consumer.poll(200).values()])
    consumer.close()
    happened_s = [json.loads(record.value)["timestamp"] for record in found]
    assert min(record.timestamp for record in found) / 1000 > max(happened_s) + 86_400


def test_our_source_reads_what_was_written_whatever_was_there_before(topic: Topic):
    """The trainer's positions are offsets: they count every record, ours and those of others."""
    stream = records(100)
    sink = topic.sink()
    sink.write(stream)
    sink.close()
    source = topic.kafka.source(topic.kafka.settings(topic.name), RecordingListener({}))
    found: list[int] = []
    until(lambda: len(found) >= 100, lambda: [found.extend(c.offsets) for c in source.poll(1000, 0.2)])
    sizes = [len(rows) for rows in by_partition(stream, topic.partitions).values()]
    assert sorted(found) == sorted(offset for size in sizes for offset in range(size))
