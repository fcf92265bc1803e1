"""The compiled way to read fetched batches, held against the client's own."""

from __future__ import annotations

import re
import struct
import tracemalloc
from importlib import metadata
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition, errors
from kafka.consumer.fetcher import Fetcher, IsolationLevel
from kafka.protocol.consumer.fetch import FetchResponse
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.util import calc_crc32c

from streamer.settings import MAX_RECORD_BYTES
from streamer.sources.kafka.records import FIELDS, MAX_HELD_BYTES, PIECE_BYTES, RowRecords, _parse, columns, use_rows

TP = TopicPartition("t", 0)
Aborted = FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction
NOON_MS = 1_700_000_000_000
GZIP, SNAPPY, LZ4, ZSTD, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 1, 2, 3, 4, 0x08, 0x10, 0x20

texts = st.binary(max_size=200) | st.none()
headers = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5) | st.none()), max_size=3)
records = st.lists(st.tuples(st.integers(1, 200), st.integers(-(2**40), 2**40), texts, texts, headers), max_size=30)
batches = st.lists(st.tuples(records, st.integers(0, ZSTD), st.booleans()), max_size=4)


def batch(base: int, rows: list[Any], compression: int = 0, attributes: int = 0, producer: int = -1) -> bytes:
    """A batch as a broker stores it. Each row: gap to the offset before, time, key, value, headers."""
    builder = DefaultRecordBatchBuilder(2, compression, False, producer, -1, -1, 1_000_000_000)
    offset = -1
    for gap, time_ms, key, value, head in rows:
        offset += gap
        builder.append(offset, NOON_MS + time_ms, key, value, head)
    content = bytearray(builder.build())
    struct.pack_into(">q", content, 0, base)
    (given,) = struct.unpack_from(">h", content, 21)
    struct.pack_into(">h", content, 21, given | attributes)
    struct.pack_into(">I", content, 17, calc_crc32c(memoryview(content)[21:]))
    return bytes(content)


def row(value: bytes | None, key: bytes | None = None, gap: int = 1) -> tuple[Any, ...]:
    return (gap, 0, key, value, [])


def taken(kind: type, content: bytes, start: int = 0, size: int | None = None, **options: Any) -> tuple[Any, ...]:
    """All that a reader of what was fetched hands out, and where it ends."""
    part = kind(start, TP, MemoryRecords(content), **options)
    found: list[Any] = []
    positions = []
    while part:
        found.extend(part.take(size))
        positions.append(part.next_fetch_offset)
    return (columns(found) if found else None), part.next_fetch_offset, part.leader_epoch, positions


@given(batches=batches, start=st.integers(0, 100), size=st.integers(1, 40))
def test_rows_are_what_the_client_would_read(batches: list[Any], start: int, size: int) -> None:
    content, base = b"", 0
    for rows, compression, appended in batches:
        if rows:
            content += batch(base, rows, compression, LOG_APPEND_TIME if appended else 0)
            base += sum(gap for gap, *_ in rows) + 7
    assert taken(RowRecords, content, start, size)[:3] == taken(Fetcher.PartitionRecords, content, start, size)[:3]


def test_position_follows_the_rows_and_passes_the_gap_behind_the_last() -> None:
    content = batch(0, [row(b"a"), row(b"b", gap=3)]) + batch(20, [row(b"c")])
    _, _, _, positions = taken(RowRecords, content, size=1)
    assert positions[:3] == [1, 4, 21]


def test_old_batches_and_marks_of_transactions_are_treated_as_by_the_client() -> None:
    builder = LegacyRecordBatchBuilder(1, 0, 10_000)
    builder.append(0, NOON_MS, b"k", b"old")
    mark = batch(1, [row(b"\x00" * 6, key=b"\x00\x00\x00\x01")], attributes=CONTROL)
    content = bytes(builder.build()) + mark + batch(2, [row(b"new")])
    assert taken(RowRecords, content)[:3] == taken(Fetcher.PartitionRecords, content)[:3]
    (_, _, _, values), end, _, _ = taken(RowRecords, content)
    assert (values, end) == ([b"old", b"new"], 3)


def test_batch_with_a_wrong_checksum_is_an_error_and_not_an_endless_loop() -> None:
    good, bad = batch(0, [row(b"a")]), bytearray(batch(1, [row(b"b")]))
    bad[-2] ^= 0xFF
    part = RowRecords(0, TP, MemoryRecords(good + bytes(bad)), check_crcs=True)
    assert columns(part.take(10))[3] == [b"a"]
    with pytest.raises(errors.CorruptRecordError, match="offset 1"):
        part.take(10)
    assert not part


@given(content=st.binary(max_size=60), count=st.integers(1, 5))
def test_parser_never_reads_beyond_malformed_content(content: bytes, count: int) -> None:
    fields = np.zeros((FIELDS, count), np.int64)
    whole, end = _parse(np.frombuffer(content, np.uint8), fields)
    assert 0 <= whole <= count
    assert -1 <= end <= len(content)
    assert not whole or fields[2:, :whole].max() <= len(content)


def test_malformed_batch_is_an_error_though_checksums_are_not_checked() -> None:
    content = bytearray(batch(0, [row(b"a"), row(b"b")]))
    content[DefaultRecordBatch.HEADER_STRUCT.size] = 0x7F  # the first record's length
    part = RowRecords(0, TP, MemoryRecords(bytes(content)), check_crcs=False)
    with pytest.raises(errors.CorruptRecordError, match="malformed"):
        part.take(10)


@pytest.mark.parametrize("compression", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_damaged_compressed_batch_is_a_clear_error_though_checksums_are_not_checked(
    compression: int, damage: str
) -> None:
    good = batch(7, [row(b"%d" % n * 50) for n in range(100)], compression)
    head = DefaultRecordBatch.HEADER_STRUCT.size
    bad = bytearray({"cut": good[:-20], "gone": good[:head], "flipped": good}[damage])
    if damage == "flipped":
        bad[head : head + 12] = b"\xff" * 12
    struct.pack_into(">i", bad, 8, len(bad) - 12)
    with pytest.raises(errors.CorruptRecordError, match="offset 7 is damaged"):
        taken(RowRecords, bytes(bad), check_crcs=False)


def test_number_of_records_that_no_memory_would_hold_is_an_error() -> None:
    content = bytearray(batch(0, [row(b"a")]))
    struct.pack_into(">i", content, DefaultRecordBatch.HEADER_STRUCT.size - 4, 2**31 - 1)
    part = RowRecords(0, TP, MemoryRecords(bytes(content)), check_crcs=False)
    assert len(part.take(10)) == 1
    with pytest.raises(errors.CorruptRecordError, match="malformed"):
        part.take(10)


@pytest.mark.parametrize("compression", [GZIP, SNAPPY, LZ4, ZSTD])
def test_record_that_decompresses_to_more_than_is_allowed_is_cut_and_the_others_are_read(compression: int) -> None:
    bomb, size = b"x" * (8 * MAX_HELD_BYTES), 200_000
    many = [row(b"%06d" % n * 100) for n in range(20_000)]  # several pieces
    content = batch(0, [row(b"a"), (1, 5, b"k", bomb, []), *many, row(b"z")], compression)
    del bomb
    tracemalloc.start()
    part, found = RowRecords(0, TP, MemoryRecords(content)), []
    while part:
        found += [(offset, ms, key, value[:600], len(value)) for offset, ms, key, value in part.take(size)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [f[0] for f in found] == list(range(20_003))
    assert found[1][1:3] == (NOON_MS + 5, b"k")
    assert MAX_RECORD_BYTES < found[1][4] <= MAX_HELD_BYTES + PIECE_BYTES
    assert [f[3] for f in found[2:-1]] == [r[3] for r in many]
    assert part.next_fetch_offset == 20_003
    assert peak - 3 * len(content) < 4 * MAX_HELD_BYTES  # what was fetched is copied, too


transactions = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["write", "commit", "abort"])), max_size=20)


@given(steps=transactions, level=st.sampled_from(IsolationLevel), start=st.integers(0, 30))
def test_aborted_transactions_are_left_out_as_by_the_client(steps: list[Any], level: Any, start: int) -> None:
    """What a broker stores of a few producers, and says of those that aborted; the last ones stay open."""
    content, base, aborted, begun = b"", 0, [], {}
    for producer, step in steps:
        if step == "write":
            begun.setdefault(producer, base)
            content += batch(base, [row(b"%d" % base), row(b"more")], 0, TRANSACTIONAL, producer)
            base += 2
        elif producer in begun:
            if step == "abort":
                aborted.append(Aborted(producer_id=producer, first_offset=begun[producer]))
            del begun[producer]
            mark = b"\x00\x00\x00" + (b"\x00" if step == "abort" else b"\x01")
            content += batch(base, [row(b"\x00" * 6, key=mark)], 0, TRANSACTIONAL | CONTROL, producer)
            base += 1
    given = {"isolation_level": level, "aborted_transactions": aborted}
    ours, theirs = (taken(kind, content, start, 3, **given) for kind in (RowRecords, Fetcher.PartitionRecords))
    assert ours[:3] == theirs[:3]


def test_every_codec_comes_with_a_plain_install() -> None:
    needed = {re.split(r"[^\w-]", text)[0] for text in metadata.requires("streamer") or [] if "extra ==" not in text}
    assert {"lz4", "python-snappy", "zstandard"} <= needed


class Consumer:
    """As much of a client as `use_rows` looks at."""

    def __init__(self) -> None:
        self._fetcher = type("Fetcher", (), {})()


def test_client_is_left_alone_that_is_not_as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert use_rows(Consumer())
    assert not use_rows(type("Consumer", (), {})())
    monkeypatch.delattr(Fetcher.PartitionRecords, "_unpack_records")
    assert not use_rows(Consumer())
