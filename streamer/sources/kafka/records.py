"""Records of a fetch as plain rows, parsed by a compiled loop, for a small part of the client's own cost.

kafka-python parses each record in Python and wraps it twice; we need four of its fields. Here a batch is parsed
as a whole, by replacing the part of the client that turns what was fetched into records. That part is not a
documented interface: `use_rows` leaves a client alone that does not look as expected, and `columns` takes the
client's own records as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from kafka import errors
from kafka.consumer.fetcher import ConsumerRecord, Fetcher
from kafka.record.default_records import DefaultRecordBatch
from numba import njit

Row = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp in milliseconds, key, value."""

Columns = tuple[list[int], list[int], list[bytes | None], list[bytes | None]]

FIELDS = 6
"""Of each record: timestamp and offset, relative to the batch's; start and end of key and value."""


def use_rows(consumer: Any) -> bool:
    """Let this consumer's `poll` return rows; False if it cannot, then it goes on returning records."""
    if not _as_expected(consumer) or consumer.config["isolation_level"] != "read_uncommitted":
        return False  # (only the client knows which transactions were aborted)
    _parse(np.zeros(0, np.uint8), 0, np.empty((FIELDS, 0), np.int64))  # compiled now, not in the first poll
    consumer._fetcher.PartitionRecords = RowRecords
    return True


def _as_expected(consumer: Any) -> bool:
    ours = {"_unpack_records", "_maybe_skip_record", "take", "drain"}
    return (
        hasattr(consumer, "_fetcher")
        and ours <= set(vars(Fetcher.PartitionRecords))
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

    The client asks for rows with `take`, and by `next_fetch_offset` where it has come. It is done when
    `record_iterator` is None, which `drain` sees to.
    """

    _rows: Sequence[Row] = ()  # of the current batch
    _taken = 0  # how many of them
    _behind = 0  # the offset after the current batch

    def take(self, n: int | None = None) -> list[Row]:
        """The next rows, `n` at most and all of one batch; none at the end."""
        if self._taken == len(self._rows):
            self._next_rows()
        end = len(self._rows) if n is None else min(len(self._rows), self._taken + n)
        rows = list(self._rows[self._taken : end])
        self._taken = end
        if rows:
            self.next_fetch_offset = self._behind if end == len(self._rows) else rows[-1][0] + 1
        return rows

    def _next_rows(self) -> None:
        """Unpack the next batch. After an error we are done, or the client would ask again without end."""
        self._rows, self._taken = (), 0
        try:
            self._rows = next(self.record_iterator, ())
        except Exception:
            self.drain()
            raise

    def _maybe_skip_record(self, _: Any) -> bool:
        return False

    def _unpack_records(self, tp: Any, records: Any, *_: Any) -> Iterator[Sequence[Row]]:
        """Yield the rows of each batch. What holds no rows is passed by."""
        self.bytes_read = records.size_in_bytes()
        while (batch := records.next_batch()) is not None:
            if self.check_crcs and not batch.validate_crc():
                raise errors.CorruptRecordError(f"batch of {tp} at offset {batch.base_offset}")
            rows = self._rows_of(batch)
            self.records_read += len(rows)
            self._behind = self._next_offset(batch, rows)
            if rows:
                yield rows
            self.next_fetch_offset = self._behind
        self.drain()

    def _rows_of(self, batch: Any) -> Sequence[Row]:
        """A batch comes as a whole, though we may have asked for an offset in its middle."""
        if batch.magic < 2:
            rows = [(record.offset, record.timestamp, record.key, record.value) for record in batch]
        else:
            self.leader_epoch = batch.leader_epoch
            rows = [] if batch.is_control_batch else rows_of(batch)
        if rows and rows[0][0] < self.fetch_offset:
            return [row for row in rows if row[0] >= self.fetch_offset]
        return rows

    def _next_offset(self, batch: Any, rows: Sequence[Row]) -> int:
        """The offset after a batch; only young ones know it, though their last records were removed."""
        if batch.magic >= 2:
            return int(batch.next_offset)
        return rows[-1][0] + 1 if rows else self.next_fetch_offset


def rows_of(batch: DefaultRecordBatch) -> list[Row]:
    """The rows of a batch.

    Raises:
        CorruptRecordError: its bytes are no batch.
    """
    iter(batch)  # uncompresses it
    content = bytes(batch._buffer)
    fields = np.empty((FIELDS, batch.records_count), np.int64)
    if _parse(np.frombuffer(content, np.uint8), batch._pos, fields) != len(content):
        raise errors.CorruptRecordError(f"batch at offset {batch.base_offset} is malformed")
    times = fields[0] + batch.first_timestamp
    if batch.timestamp_type == batch.LOG_APPEND_TIME:
        times[:] = batch.max_timestamp
    offsets = (fields[1] + batch.base_offset).tolist()
    keys, values = _cut(content, fields[2], fields[3]), _cut(content, fields[4], fields[5])
    return list(zip(offsets, times.tolist(), keys, values, strict=True))


def _cut(content: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[bytes | None]:
    """The bytes from each start to each end; None where the end is -1."""
    if len(ends) and ends.max() < 0:
        return [None] * len(ends)
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    return [content[start:end] if end >= 0 else None for start, end in places]


@njit(cache=True, nogil=True)
def _parse(content, pos, fields):  # type: ignore[no-untyped-def]
    """Parse the records in `content` [bytes] from `pos` on into `fields` [FIELDS, records].

    A record: its length, attributes, timestamp, offset, length and bytes of the key, the same of the value,
    headers. Every number is a varint: seven bits a byte, lowest first, with the sign in the lowest bit.

    Returns:
        The position after the last record; -1 if one reaches beyond its length or the content.
    """
    size = len(content)
    for record in range(fields.shape[1]):
        end = size
        for field in range(6):
            bits = np.uint64(0)
            shift = np.uint64(0)
            more = True
            while more:
                if pos >= end or shift > np.uint64(63):
                    return -1
                byte = content[pos]
                bits |= np.uint64(byte & 0x7F) << shift
                shift += np.uint64(7)
                more = byte >= 0x80
                pos += 1
            number = np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1))
            if field == 0:
                if number < 0 or number > size - pos:
                    return -1
                end = pos + number
            elif field == 2 or field == 3:  # timestamp, offset
                fields[field - 2, record] = number
            elif field >= 4:  # key, value
                if number > end - pos:
                    return -1
                fields[2 * field - 6, record] = pos
                fields[2 * field - 5, record] = pos + number if number >= 0 else -1
                if number > 0:
                    pos += number
        pos = end
    return pos
