"""What reads bytes from elsewhere, and how each is specified to refuse them.

A target is made once and called with many inputs, one at a time or some at once. It raises nothing, or what it names.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from contracts.dataset_contract import rows_of

from fuzz.http import odd_requests, schema_requests
from streamer.cache_store.errors import StoreError
from streamer.cache_store.redis import server as redis_server
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.server import Request
from streamer.errors import CheckpointError, SettingsError, SourceError
from streamer.event import EventDecoder, EventSettings
from streamer.model.setting import parse_settings
from streamer.replay.datasets import open_log
from streamer.settings import RunSettings
from streamer.snapshot.frames import HEADER, MAGIC, STORED_KINDS, pack_chunk, unpack_chunk
from streamer.snapshot.snapshot import Snapshot
from streamer.sources.base import Chunk, Partition

Target = Callable[[Sequence[bytes]], None]
"""Takes some inputs, and raises what is not specified."""

EVENT = {"user_id": "u1", "item_id": 7, "timestamp": 1.7e9, "event_type": "buy", "price": 2.5, "tags": ["a"]}


@contextlib.contextmanager
def decoder() -> Iterator[Target]:
    """Every record becomes events, filtered events or dead letters."""
    decoders = [EventDecoder(), EventDecoder(EventSettings(event_types=("buy",), deletion_types=("delete",)))]

    def decode(values: Sequence[bytes]) -> None:
        count = len(values)
        chunk = Chunk(Partition("t", 0), list(range(count)), [0] * count, [None] * count, list(values))
        for one in decoders:
            decoded = one.decode(chunk)
            assert decoded.consumed >= count, "a record is not accounted for"
            assert all(np.isfinite(time) for time in decoded.timestamps_s)

    yield decode


@contextlib.contextmanager
def datasets() -> Iterator[Target]:
    """A file is read as far as possible, or refused as a whole."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.csv"

        def read(values: Sequence[bytes]) -> None:
            for value in values:
                path.write_bytes(value)
                with contextlib.suppress(SourceError), open_log(path, "jsonl" if value[:1] == b"{" else "csv") as log:
                    rows_of(log)

        yield read


@contextlib.contextmanager
def settings() -> Iterator[Target]:
    """Options and files: all problems are reported together."""
    names = sorted(RunSettings.all())

    def parse(values: Sequence[bytes]) -> None:
        for value in values:
            text = value.decode(errors="surrogateescape")
            with contextlib.suppress(ValueError, SettingsError):
                parse_settings(RunSettings, {names[zlib.crc32(value) % len(names)]: text})
            with contextlib.suppress(ValueError, SettingsError, RecursionError):
                parse_settings(RunSettings, tomllib.loads(text))

    yield parse


@contextlib.contextmanager
def snapshots() -> Iterator[Target]:
    """A file of frames is whole, or it is corrupt."""

    def read(values: Sequence[bytes]) -> None:
        for value in values:
            with contextlib.suppress(CheckpointError):
                snapshot = Snapshot.of_bytes("fuzz", value)
                snapshot.check()
                for chunk in snapshot.chunks():
                    assert all(array.nbytes <= 1 << 26 for array in chunk.arrays.values())

    yield read


@contextlib.contextmanager
def frames() -> Iterator[Target]:
    """What has the right checksum, and is none of ours: no frame, alone or as the end of a snapshot."""

    def read(values: Sequence[bytes]) -> None:
        for value in values:
            sealed = HEADER.pack(MAGIC, zlib.crc32(value), len(value)) + value
            with contextlib.suppress(CheckpointError):
                found = unpack_chunk(sealed)
                assert all(array.dtype.kind in STORED_KINDS for array in found.arrays.values())
                assert all(array.nbytes <= 1 << 26 for array in found.arrays.values())
            with contextlib.suppress(CheckpointError):
                Snapshot.of_bytes("fuzz", sealed)

    yield read


class Answering:
    """A client of Redis that answers with what it is given."""

    def __init__(self) -> None:
        self.value = b""

    def pipeline(self, **_: Any) -> Any:
        value = self.value
        half = value[: len(value) // 2]
        fields = {b"since": half, b"hashes": value, b"values": half}
        stream = [b"{streamer:m}:changes:counts:c[0]@i", [(half[:9], fields)]]
        answers = [(1, [half, value, b"counts:c[0]@i", half]), [stream]]
        ignored = dict.fromkeys(("execute_command", "xread"), lambda *_, **__: None)
        return SimpleNamespace(execute=lambda: answers, **ignored)

    def __getattr__(self, name: str) -> Any:
        value = self.value
        return lambda *_, **__: [value, None] if name == "hmget" else value


@contextlib.contextmanager
def redis() -> Iterator[Target]:
    """What comes back is what a trainer wrote, or the store is refused."""
    client = Answering()
    with mock.patch.object(redis_server, "connect", return_value=client):
        server = RedisServer("redis://nowhere", Keys("m"))
        server._is_checked = True

    def ask(values: Sequence[bytes]) -> None:
        for client.value in values:
            for call in (
                lambda: server.exchange(Request("p", reading={"counts:c[0]@i": (1, 0)})),
                lambda: server.ids(np.arange(2, dtype=np.uint64)),
            ):
                with contextlib.suppress(StoreError):
                    call()

    yield ask


def _snapshot_seed(compress: bool) -> bytes:
    arrays = {"lines": np.ones((4, 3), np.float32)}
    return pack_chunk("items", np.arange(4), arrays, {"a": 1}, compress=compress)


TARGETS: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[Target]], list[bytes], int]] = {
    "decoder": (
        decoder,
        [json.dumps(EVENT).encode(), json.dumps([EVENT, EVENT]).encode(), b'{"user_id":1,"item_id":"x"}'],
        600_000,
    ),
    "datasets": (
        datasets,
        [b"user_id,item_id,timestamp\na,1,1\nb,2,2014-11-11\n", b'{"user_id":"a","item_id":"b","timestamp":1}\n' * 3],
        2_000,
    ),
    "settings": (
        settings,
        [b'dim = 8\nmethod = "xir"\nmax_age = 0.5\n', b"12", b"0.5", b"a,b", b"10s", b"true", b"redis://h:1/0"],
        200_000,
    ),
    "snapshots": (snapshots, [_snapshot_seed(False), _snapshot_seed(True) * 2], 200_000),
    "frames": (frames, [_snapshot_seed(compress)[HEADER.size :] for compress in (False, True)], 200_000),
    "redis": (
        redis,
        [np.arange(4, dtype=np.uint64).tobytes(), b"12-0", b"1.5 beat counts:c[0]@i", b"\x00" * 16],
        150_000,
    ),
    "http": (odd_requests, [b"request"], 30_000),
    "openapi": (schema_requests, [b"request"], 5_000),
}
"""How each is made, what inputs are made from, and how many `make fuzz` tries."""
