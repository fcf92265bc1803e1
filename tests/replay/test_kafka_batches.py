from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.producer.future import FutureRecordMetadata
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.record import MemoryRecords
from kafka.record.memory_records import MemoryRecordsBuilder

from streamer.replay.events import Record
from streamer.replay.kafka.batches import batch_of, cut, send_batches, send_each, sender_for

TIME_MS = 1_700_000_000_123

lengths = st.sampled_from([0, 1, 2, 3, 4, 5, 31, 63, 64, 65, 8191, 8192, 20_000])
values = st.builds(lambda length, byte: bytes([byte]) * length, lengths, st.integers(0, 255))
records = st.lists(st.tuples(st.binary(max_size=80), values, st.just(0)), min_size=1, max_size=150)


def content(batch: MemoryRecordsBuilder, producer: tuple[int, int, int, bool]) -> bytes:
    """What the client sends of a batch."""
    batch.set_producer_state(*producer)
    batch.close()
    return bytes(batch.buffer())


@given(records, st.tuples(st.just(4711), st.just(3), st.integers(0, (1 << 31) - 1), st.booleans()))
def test_a_batch_has_the_bytes_that_the_client_writes(rows: list[Record], producer: tuple[int, int, int, bool]):
    theirs = MemoryRecordsBuilder(2, 0, 1 << 30)
    for key, value, _ in rows:
        theirs.append(TIME_MS, key, value)
    ours = batch_of(rows, TIME_MS)
    assert (ours.next_offset(), ours.is_full()) == (len(rows), True)
    assert content(ours, producer) == content(theirs, producer)


@pytest.mark.parametrize("codec", [1, 3])
def test_a_compressed_batch_holds_the_same_records(codec: int):
    rows: list[Record] = [(b"user-%d" % k, b'{"user_id":"%d"}' % k, 0) for k in range(300)]
    compressed = content(batch_of(rows, TIME_MS, codec), (4711, 3, 7, True))
    assert len(compressed) < len(content(batch_of(rows, TIME_MS), (4711, 3, 7, True))) / 2
    found = MemoryRecords(compressed).next_batch()
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (4711, 3, 7)
    assert [(r.key, r.value, r.timestamp) for r in found] == [(key, value, TIME_MS) for key, value, _ in rows]


@given(records, st.integers(1, 40_000))
def test_parts_are_small_and_together_all_of_it(rows: list[Record], max_bytes: int):
    parts = list(cut(rows, max_bytes))
    assert [row for part in parts for row in part] == rows
    for part in parts:
        size = sum(len(key or b"") + len(value) + 20 for key, value, _ in part)
        assert len(part) == 1 or size <= max_bytes


def test_of_no_records_there_is_no_part():
    assert list(cut([], 100)) == []


# with a broker --------------------------------------------------------------------------------------------------------


@pytest.fixture
def producer(kafka_server: Any) -> Any:
    producer = KafkaProducer(bootstrap_servers=kafka_server.bootstrap, batch_size=1000)
    yield producer
    with contextlib.suppress(errors.KafkaError):  # the client complains of a batch that it has split
        producer.close(5)


@pytest.mark.servers
def test_both_ways_of_sending_leave_the_same_records_in_a_topic(kafka_server: Any, producer: Any):
    rows: list[Record] = [(b"k%d" % k if k % 3 else None, b"v" * (k % 200), 0) for k in range(500)]
    topic = kafka_server.create_topic(partitions=2)
    ways = [send_batches, send_each]
    for number, send in enumerate(ways):
        for future in send(producer, TopicPartition(topic, number), rows, TIME_MS):
            assert future.get(10).partition == number
    with KafkaConsumer(bootstrap_servers=kafka_server.bootstrap, auto_offset_reset="earliest") as consumer:
        found: list[list[Any]] = [[], []]
        consumer.assign([TopicPartition(topic, number) for number in range(2)])
        while min(map(len, found)) < 500:
            for partition, polled in consumer.poll(200).items():
                found[partition.partition] += [(r.offset, r.timestamp, r.key, r.value) for r in polled]
    assert found[0] == found[1]


@pytest.mark.servers
@pytest.mark.parametrize("missing", [(RecordAccumulator, "_tp_lock"), (FutureRecordMetadata, "rebind")])
def test_a_client_without_a_part_that_we_use_sends_record_by_record(
    producer: Any, monkeypatch: pytest.MonkeyPatch, missing: tuple[type, str]
):
    assert sender_for(producer) is send_batches
    monkeypatch.delattr(*missing)
    assert sender_for(producer) is send_each


@pytest.mark.servers
def test_a_client_that_writes_other_bytes_sends_record_by_record(producer: Any, monkeypatch: pytest.MonkeyPatch):
    class OtherBuilder(MemoryRecordsBuilder):  # type: ignore[misc]
        def append(self, *record: Any) -> Any:
            return super().append(*record, [("header", b"")])

    monkeypatch.setattr("streamer.replay.kafka.batches.MemoryRecordsBuilder", OtherBuilder)
    assert sender_for(producer) is send_each


def test_any_other_producer_sends_record_by_record(caplog: pytest.LogCaptureFixture):
    assert sender_for(object()) is send_each
    assert "ten times slower" in caplog.text


@pytest.mark.servers
def test_a_batch_that_the_topic_does_not_take_fails_as_a_whole(kafka_server: Any, producer: Any):
    """The client splits such a batch and sends its halves: of the second one we would not know the outcome."""
    topic = kafka_server.create_topic(**{"max.message.bytes": "500"})
    [future, _] = send_batches(producer, TopicPartition(topic, 0), [(b"k", b"v" * 200, 0)] * 8, TIME_MS)
    with pytest.raises(errors.MessageSizeTooLargeError, match=r"no batch of 9\d\d bytes; give .* a smaller batch_size"):
        future.get(10)
