from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_the_client
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from streamer.replay.events import Record
from streamer.replay.kafka.batches import CODECS, SEQUENCES, Batch, KeyPartitioner, cut, murmur2

TIME_MS, PRODUCER = 1_700_000_000_123, (4711, 3)

lengths = st.sampled_from([0, 1, 2, 3, 4, 5, 31, 63, 64, 65, 8191, 8192, 20_000])
values = st.builds(lambda length, byte: bytes([byte]) * length, lengths, st.integers(0, 255))
records = st.lists(st.tuples(st.binary(max_size=80), values, st.just(0)), min_size=1, max_size=150)


def as_the_client_writes_it(rows: list[Record], sequence: int, codec: int = 0) -> bytes:
    """Record by record."""
    builder = DefaultRecordBatchBuilder(2, codec, False, *PRODUCER, sequence, 1 << 30)
    for place, (key, value, _) in enumerate(rows):
        builder.append(place, TIME_MS, key, value, [])
    return bytes(builder.build())


@given(records, st.integers(0, SEQUENCES - 1))
def test_a_batch_has_the_bytes_that_the_client_writes(rows: list[Record], sequence: int):
    assert bytes(Batch(rows, TIME_MS, PRODUCER, sequence).content) == as_the_client_writes_it(rows, sequence)


@pytest.mark.parametrize("codec", [CODECS["gzip"], CODECS["lz4"]])
def test_a_compressed_batch_holds_the_same_records(codec: int):
    rows: list[Record] = [(b"user-%d" % k, b'{"user_id":"%d"}' % k, 0) for k in range(300)]
    batch = Batch(rows, TIME_MS, PRODUCER, 7, codec)
    assert len(batch) == 300
    assert len(batch.content) < len(Batch(rows, TIME_MS, PRODUCER, 7).content) / 2
    found = MemoryRecords(bytes(batch.content)).next_batch()
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (*PRODUCER, 7)
    assert [(r.key, r.value, r.timestamp) for r in found] == [(key, value, TIME_MS) for key, value, _ in rows]


def test_sequence_numbers_begin_again():
    rows: list[Record] = [(b"k", b"v", 0)] * 5
    found = MemoryRecords(bytes(Batch(rows, TIME_MS, PRODUCER, SEQUENCES - 2).content)).next_batch()
    assert (found.base_sequence, found.last_sequence) == (SEQUENCES - 2, 2)
    assert Batch(rows, TIME_MS, PRODUCER, SEQUENCES + 3).base_sequence == 3


@given(st.integers(0, 21).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=1, max_size=20)))
def test_keys_hash_as_they_do_in_the_client(keys: list[bytes]):
    assert murmur2(keys).tolist() == [murmur2_of_the_client(key) for key in keys]


@given(st.lists(st.lists(st.binary(max_size=9), max_size=30), max_size=5), st.integers(1, 12))
def test_keys_go_to_the_partitions_of_the_client_however_they_come(chunks: list[list[bytes]], partitions: int):
    choose = KeyPartitioner(partitions)
    for keys in chunks:
        assert choose(keys) == [(murmur2_of_the_client(key) & 0x7FFFFFFF) % partitions for key in keys]


def test_keys_beyond_the_memory_of_the_partitioner_go_where_they_belong(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("streamer.replay.kafka.batches.MOST_KNOWN_KEYS", 10)
    choose, fresh = KeyPartitioner(7), KeyPartitioner(7)
    keys = [b"user-%d" % k for k in range(100)]
    choose(keys[:50])
    assert choose(keys[40:]) == fresh(keys[40:])


@given(records, st.integers(1, 40_000))
def test_parts_are_small_and_together_all_of_it(rows: list[Record], most_bytes: int):
    parts = list(cut(rows, most_bytes))
    assert [row for part in parts for row in part] == rows
    for part in parts:
        size = sum(len(key or b"") + len(value) + 20 for key, value, _ in part)
        assert len(part) == 1 or size <= most_bytes


def test_of_no_records_there_is_no_part():
    assert list(cut([], 100)) == []
