"""Records as brokers store them: to which partition each goes, and the bytes of a batch.

kafka-python hashes keys and builds batches record by record, in Python. Here keys are hashed many at a time, once
each, and a batch is joined from its parts. What comes out is the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from kafka.record.default_records import DefaultRecordBatchBuilder
from numpy.typing import NDArray

from streamer.replay.events import Record

CODECS = {None: 0, "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Compression by the client's name for it."""
SEQUENCES = 1 << 31
"""Sequence numbers begin again at 0 after so many records of a partition."""
RECORD_OVERHEAD = 20
"""Bytes of a record beside key and value, about."""
MOST_KNOWN_KEYS = 1 << 20

_SEED, _MIX = 0x9747B28C, 0x5BD1E995


class KeyPartitioner:
    """Kafka's own choice of a partition: murmur2 of the key.

    Args:
        partitions: how many the topic has.
    """

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._known: dict[bytes, int] = {}

    def __call__(self, keys: Sequence[bytes]) -> list[int]:
        """The partition of each key."""
        known = self._known
        try:
            return [known[key] for key in keys]
        except KeyError:
            if len(known) > MOST_KNOWN_KEYS:
                known.clear()
            self._learn({key for key in keys if key not in known})
            return [known[key] for key in keys]

    def _learn(self, keys: set[bytes]) -> None:
        by_length: dict[int, list[bytes]] = {}
        for key in keys:
            by_length.setdefault(len(key), []).append(key)
        for alike in by_length.values():
            chosen = (murmur2(alike) & 0x7FFFFFFF) % self._partitions
            self._known.update(zip(alike, chosen.tolist(), strict=True))


def murmur2(keys: Sequence[bytes]) -> NDArray[np.uint32]:
    """Kafka's hash of each of some keys of equal length."""
    length = len(keys[0])
    content = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), length)
    mix, whole = np.uint32(_MIX), length // 4 * 4
    hashes = np.full(len(keys), _SEED ^ length, np.uint32)
    for word in np.ascontiguousarray(content[:, :whole]).view("<u4").T:
        mixed = word * mix
        mixed ^= mixed >> np.uint32(24)
        hashes = (hashes * mix) ^ (mixed * mix)
    if whole < length:
        for place, byte in enumerate(content[:, whole:].T):
            hashes ^= byte.astype(np.uint32) << np.uint32(8 * place)
        hashes *= mix
    hashes ^= hashes >> np.uint32(13)
    hashes *= mix
    return hashes ^ (hashes >> np.uint32(15))


class Batch(DefaultRecordBatchBuilder):  # type: ignore[misc]
    """Some records of one partition, as they are sent.

    Args:
        records: with keys; their own times are left out.
        time_ms: the time of all of them.
        producer: id and epoch of the producer.
        sequence: number of the first record among the producer's records of this partition.
        codec: one of `CODECS`.
    """

    def __init__(
        self, records: Sequence[Record], time_ms: int, producer: tuple[int, int], sequence: int, codec: int = 0
    ) -> None:
        super().__init__(2, codec, False, *producer, sequence % SEQUENCES, 0)
        self._first_timestamp = self._max_timestamp = time_ms
        self._last_offset, self._num_records = len(records) - 1, len(records)
        self._buffer += _joined(records)
        self.content: Any = self.build()
        """The bytes."""

    def __len__(self) -> int:
        return int(self._num_records)


def cut(records: Sequence[Record], most_bytes: int) -> Iterator[Sequence[Record]]:
    """The records in parts of about so many bytes; a record that is larger stands alone."""
    sizes = [len(key or b"") + len(value) + RECORD_OVERHEAD for key, value, _ in records]
    if records and sum(sizes) <= most_bytes:
        yield records
        return
    start, size = 0, 0
    for place, more in enumerate(sizes):
        if size + more > most_bytes and place > start:
            yield records[start:place]
            start, size = place, 0
        size += more
    if records:
        yield records[start:]


def _joined(records: Sequence[Record]) -> bytes:
    """Each record: its length, attributes, time and offset in the batch, key, value, no headers."""
    varint = _VARINTS
    bodies = [
        b"\0\0%b%b%b%b%b\0" % (varint[place], varint[len(key or b"")], key or b"", varint[len(value)], value)
        for place, (key, value, _) in enumerate(records)
    ]
    return b"".join([part for body in bodies for part in (varint[len(body)], body)])


class _Varints(dict[int, bytes]):
    """Numbers from 0 on as Kafka writes them: sign in the lowest bit, seven bits a byte, lowest first."""

    def __missing__(self, number: int) -> bytes:
        rest, written = 2 * number, bytearray()
        while rest > 0x7F:
            written.append(rest & 0x7F | 0x80)
            rest >>= 7
        written.append(rest)
        if len(self) < 1 << 16:
            self[number] = bytes(written)
        return bytes(written)


_VARINTS = _Varints()
