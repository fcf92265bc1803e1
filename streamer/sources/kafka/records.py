"""Records of a fetch as plain rows, parsed by a compiled loop, for a small part of the
client's own cost.

kafka-python parses each record in Python and wraps it twice; we need four of its
fields. Here a batch is parsed as a whole, by replacing the part of the client that
turns what was fetched into records. That part is not a documented interface: `use_rows`
leaves a client alone that does not look as expected, and `columns` takes the client's
own records as well.

A compressed batch is read piece by piece: a few kilobytes may decompress to gigabytes.
"""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import lz4.frame
import numpy as np
import numpy.typing as npt
import snappy
import zstandard
from kafka import errors
from kafka.consumer.fetcher import ConsumerRecord, Fetcher, IsolationLevel
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.util import decode_varint
from numba import njit

from streamer.settings import MAX_RECORD_BYTES

Row = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp in milliseconds, key, value."""

Columns = tuple[list[int], list[int], list[bytes | None], list[bytes | None]]

FIELDS = 6
"""Of each record: timestamp and offset, relative to the batch's; start and end of key
and value.
"""
MIN_RECORD_BYTES = 7
PIECE_BYTES = 1 << 22
"""How much of a batch is decompressed at a time."""
SNAPPY_BLOCKS = 128
"""How many blocks of snappy are; they hold 32 kB as a rule."""
MAX_HELD_BYTES = MAX_RECORD_BYTES + (1 << 20)
"""A compressed record larger than this is cut to it, and still larger than any record
that is decoded.
"""


def use_rows(consumer: Any) -> bool:
    """Let this consumer's `poll` return rows; False if it cannot, then it goes on
    returning records.
    """
    if not _as_expected(consumer):
        return False
    _parse(
        np.zeros(0, np.uint8), np.empty((FIELDS, 0), np.int64)
    )  # compiled now, not in the first poll
    consumer._fetcher.PartitionRecords = RowRecords
    return True


def _as_expected(consumer: Any) -> bool:
    replaced = {"_unpack_records", "_maybe_skip_record", "take"}
    used = {
        "drain",
        "_consume_aborted_transactions_up_to",
        "_contains_abort_marker",
        "_is_batch_aborted",
    }
    return (
        hasattr(consumer, "_fetcher")
        and replaced | used <= set(vars(Fetcher.PartitionRecords))
        and {"_buffer", "_pos"} <= set(DefaultRecordBatch.__slots__)
    )


def columns(records: Sequence[Any]) -> Columns:
    """The four fields of rows or of the client's records, column by column."""
    if isinstance(records[0], ConsumerRecord):
        return (
            [record.offset for record in records],
            [record.timestamp for record in records],
            [record.key for record in records],
            [record.value for record in records],
        )
    offsets, timestamps, keys, values = zip(*records, strict=True)
    return list(offsets), list(timestamps), list(keys), list(values)


class RowRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """What was fetched of one partition, handed out as rows.

    The client asks for rows with `take`, and by `next_fetch_offset` where it has come.
    It is done when `record_iterator` is None, which `drain` sees to.
    """

    _rows: Sequence[Row] = ()  # of the current piece of a batch
    _taken = 0  # how many of them
    _behind = 0  # the offset to fetch after them

    def take(self, n: int | None = None) -> list[Row]:
        """The next rows, `n` at most and all of one piece; none at the end."""
        if self._taken == len(self._rows):
            self._next_rows()
        end = len(self._rows) if n is None else min(len(self._rows), self._taken + n)
        rows = list(self._rows[self._taken : end])
        self._taken = end
        if rows:
            self.next_fetch_offset = (
                self._behind if end == len(self._rows) else rows[-1][0] + 1
            )
        return rows

    def _next_rows(self) -> None:
        """Unpack the next piece. After an error we are done, or the client would ask
        again without end.
        """
        self._rows = ()
        self._taken = 0
        try:
            self._rows = next(self.record_iterator, ())
        except Exception:
            self.drain()
            raise

    def _maybe_skip_record(self, _: Any) -> bool:
        return False

    def _unpack_records(
        self, tp: Any, records: Any, *_: Any
    ) -> Iterator[Sequence[Row]]:
        """Yield the rows of each batch, piece by piece. What holds no rows is passed
        by.

        Raises:
            CorruptRecordError: the bytes of a batch are no batch.
            UnsupportedCodecError: it is compressed in a way that nobody knows.
        """
        self.bytes_read = records.size_in_bytes()
        at = self.fetch_offset
        try:
            while (batch := records.next_batch()) is not None:
                at = batch.base_offset
                if self.check_crcs and not batch.validate_crc():
                    text = (
                        f"the batch of {tp} at offset {at} does not match its checksum"
                    )
                    raise errors.CorruptRecordError(
                        f"{text} (it is read all the same with check_crcs=false)"
                    )
                for rows, behind in self._pieces(batch):
                    self.records_read += len(rows)
                    self._behind = behind
                    if rows:
                        yield rows
                    self.next_fetch_offset = behind
        except errors.KafkaError:
            raise
        except Exception as error:  # every library of a codec has errors of its own
            raise errors.CorruptRecordError(
                f"the batch of {tp} at offset {at} is damaged: {error}"
            ) from error
        self.drain()

    def _pieces(self, batch: Any) -> Iterator[tuple[list[Row], int]]:
        """Yield lists of rows, and the offset to fetch after each.

        A batch comes as a whole, though we may have asked for an offset in its middle.
        Young ones know the offset after them, though their last records were removed.
        """
        if batch.magic < 2:
            rows = [
                (record.offset, record.timestamp, record.key, record.value)
                for record in batch
            ]
            yield (
                self._from_fetch_offset(rows),
                rows[-1][0] + 1 if rows else self.next_fetch_offset,
            )
            return
        self.leader_epoch = batch.leader_epoch
        behind = batch.next_offset
        if not self._is_aborted(batch) and not batch.is_control_batch:
            for rows, is_last in pieces_of(batch):
                yield (
                    self._from_fetch_offset(rows),
                    behind if is_last else rows[-1][0] + 1,
                )
        self.next_fetch_offset = self._behind = behind

    def _from_fetch_offset(self, rows: list[Row]) -> list[Row]:
        return (
            rows
            if not rows or rows[0][0] >= self.fetch_offset
            else [r for r in rows if r[0] >= self.fetch_offset]
        )

    def _is_aborted(self, batch: Any) -> bool:
        """True if the batch is of a transaction that was aborted, and we are not to see
        such.

        What was fetched comes with the producers of aborted transactions and the
        offsets where those begin; the mark of an abort ends them. Transactions that are
        still open are not fetched.
        """
        if (
            self.isolation_level != IsolationLevel.READ_COMMITTED
            or not batch.has_producer_id()
        ):
            return False
        self._consume_aborted_transactions_up_to(batch.last_offset)
        if self._contains_abort_marker(batch):
            self.aborted_producer_ids.discard(batch.producer_id)
        return bool(self._is_batch_aborted(batch))


def pieces_of(batch: DefaultRecordBatch) -> Iterator[tuple[list[Row], bool]]:
    """Yield the rows of a batch in pieces of a few megabytes, each with whether it is
    the last.

    Raises:
        ValueError: its bytes are no batch. A library of a codec may raise something
            else.
        UnsupportedCodecError: it is compressed in a way that nobody knows.
    """
    read = _reader(batch)
    content = b""
    left = batch.records_count
    while left:
        piece = read(PIECE_BYTES)
        content += piece
        fields = np.empty(
            (FIELDS, max(0, min(left, len(content) // MIN_RECORD_BYTES))), np.int64
        )
        count, end = _parse(np.frombuffer(content, np.uint8), fields)
        if end < 0 or (count == 0 and not piece):
            raise ValueError("it is malformed")
        left -= count
        if left == 0 and (end < len(content) or read(1)):
            raise ValueError("it holds more than its records")
        if count:
            yield _rows(batch, content, fields[:, :count]), left == 0
        content = content[end:]
        if left and len(content) > MAX_HELD_BYTES:
            left -= 1
            yield [_cut_row(batch, content)], left == 0
            content = _behind_record(read, content)


def _reader(batch: DefaultRecordBatch) -> Callable[[int], bytes]:
    """What returns the next bytes of a batch's records, decompressed: none at the end,
    of snappy whole blocks.
    """
    content = bytes(memoryview(batch._buffer)[batch._pos :])
    kind = batch.compression_type
    if kind == batch.CODEC_NONE:
        return io.BytesIO(content).read
    batch._assert_has_codec(kind)
    if kind == batch.CODEC_SNAPPY:
        blocks = _snappy_blocks(content)
        return lambda _: b"".join(islice(blocks, SNAPPY_BLOCKS))
    decompressed: Any
    if kind == batch.CODEC_GZIP:
        decompressed = gzip.GzipFile(fileobj=io.BytesIO(content))
    elif kind == batch.CODEC_LZ4:
        decompressed = lz4.frame.LZ4FrameFile(io.BytesIO(content))
    else:
        decompressed = zstandard.ZstdDecompressor().stream_reader(
            content, read_across_frames=True
        )
    read: Callable[[int], bytes] = decompressed.read
    return read


def _snappy_blocks(content: bytes) -> Iterator[bytes]:
    """Yield what the blocks of Java's library hold; without its header all is one,
    which grows 21 times at most.
    """
    if not content.startswith(b"\x82SNAPPY\0"):
        yield snappy.decompress(content)
        return
    pos = 16
    while pos < len(content):
        (size,) = struct.unpack_from(">i", content, pos)
        pos += 4 + max(size, 0)
        yield snappy.decompress(content[pos - max(size, 0) : pos])


def _rows(
    batch: DefaultRecordBatch, content: bytes, fields: npt.NDArray[np.int64]
) -> list[Row]:
    times = fields[0] + batch.first_timestamp
    if batch.timestamp_type == batch.LOG_APPEND_TIME:
        times[:] = batch.max_timestamp
    offsets = (fields[1] + batch.base_offset).tolist()
    keys = _slices(content, fields[2], fields[3])
    values = _slices(content, fields[4], fields[5])
    return list(zip(offsets, times.tolist(), keys, values, strict=True))


def _cut_row(batch: DefaultRecordBatch, content: bytes) -> Row:
    """The row of a record of which `content` is only the beginning; its value is too
    large to be decoded.
    """
    _, pos = decode_varint(content, 0)
    _, pos = decode_varint(content, pos)
    delay_ms, pos = decode_varint(content, pos)
    number, pos = decode_varint(content, pos)
    key_bytes, pos = decode_varint(content, pos)
    key = content[pos : pos + key_bytes] if key_bytes >= 0 else None
    rest = content[pos + max(key_bytes, 0) :]
    value: bytes | None = content  # if it is the key that is too large
    if len(rest) > 10:
        value_bytes, pos = decode_varint(rest, 0)
        value = rest[pos : pos + value_bytes] if value_bytes >= 0 else None
    time_ms = (
        batch.max_timestamp
        if batch.timestamp_type == batch.LOG_APPEND_TIME
        else batch.first_timestamp + delay_ms
    )
    return batch.base_offset + number, time_ms, key, value


def _behind_record(read: Callable[[int], bytes], content: bytes) -> bytes:
    """Read to the end of a record of which `content` is the beginning; returns what was
    read behind it.
    """
    length, pos = decode_varint(content, 0)
    left = pos + length - len(content)
    while left > 0:
        content = read(min(left, PIECE_BYTES))
        if not content:
            raise ValueError("its last record has no end")
        left -= len(content)
    return content[len(content) + left :]


def _slices(
    content: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> list[bytes | None]:
    """The bytes from each start to each end; None where the end is -1."""
    if len(ends) and ends.max() < 0:
        return [None] * len(ends)
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    return [content[start:end] if end >= 0 else None for start, end in places]


@njit(cache=True, nogil=True)
def _parse(content, fields):  # type: ignore[no-untyped-def]
    """Parse the records that are whole in `content` [bytes] into `fields` [FIELDS,
    records].

    A record: its length, attributes, timestamp, offset, length and bytes of the key,
    the same of the value, headers. Every number is a varint: seven bits a byte, lowest
    first, with the sign in the lowest bit.

    Returns:
        How many records, and the position after them; -1 if the fields of one reach
        beyond its length.
    """
    size = len(content)
    pos: Any = 0
    for record in range(fields.shape[1]):
        start = pos
        end = size
        for field in range(6):
            bits = np.uint64(0)
            shift = np.uint64(0)
            more = True
            while more:
                if pos >= end:
                    return (record, start) if field == 0 else (record, -1)
                if shift > np.uint64(63):
                    return record, -1
                byte = content[pos]
                bits |= np.uint64(byte & 0x7F) << shift
                shift += np.uint64(7)
                more = byte >= 0x80
                pos += 1
            number = np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1))
            if field == 0:
                if number < 0:
                    return record, -1
                if number > size - pos:
                    return record, start
                end = pos + number
            elif field == 2 or field == 3:  # timestamp, offset
                fields[field - 2, record] = number
            elif field >= 4:  # key, value
                if number > end - pos:
                    return record, -1
                fields[2 * field - 6, record] = pos
                fields[2 * field - 5, record] = pos + number if number >= 0 else -1
                if number > 0:
                    pos += number
        pos = end
    return fields.shape[1], pos
