"""The shared state of a model in a real Redis, for tests of the store."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import redis
from contracts.store_trainer import Trainer
from line_harness import PATIENCE_S

from streamer.cache_store.redis.admin import StoreAdmin
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.store import CacheStore

_numbers = itertools.count()


class RedisBackend:
    """One model in a server that other tests may use as well."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys = Keys(f"model-{next(_numbers)}", namespace="tests")
        self._client = redis.Redis.from_url(url)
        self._servers: list[RedisServer] = []

    def connect(self) -> RedisServer:
        self._servers.append(RedisServer(self.url, self.keys))
        return self._servers[-1]

    def _all(self) -> list[bytes]:
        return list(self._client.scan_iter(self.keys.pattern))

    def wipe(self) -> None:
        if found := self._all():
            self._client.delete(*found)

    def copy(self) -> dict[bytes, bytes]:
        return {key: self._client.dump(key) for key in self._all()}

    def restore(self, copied: dict[bytes, bytes]) -> None:
        self.wipe()
        for key, dumped in copied.items():
            self._client.restore(key, 0, dumped)

    def trainers(self) -> set[str]:
        return {name.decode() for name in self._client.hkeys(self.keys.trainers)}

    def close(self) -> None:
        self.wipe()
        for server in self._servers:
            server.close()
        self._client.close()


def returns_soon(call: Callable[[], Any]) -> Any:
    """What `call` answers; a call that waits for a server that never answers fails the test."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S / 2)
    assert not thread.is_alive(), "it waits for the server"
    return answers[0]


def started(url: str, keys: Keys, name: str = "ada", timeout_s: float = 1.0, every_s: float = 0.01) -> Trainer:
    """A trainer whose store exchanges on its own thread, often."""
    store = CacheStore(RedisServer(url, keys, timeout_s=timeout_s), name, every_s)
    store.start()
    return Trainer(store)


def counted(url: str, model: str, namespace: str = "streamer") -> Counter[str]:
    """What all counts of a model add up to."""
    with closing(StoreAdmin(url, Keys(model, namespace))) as admin:
        summary = admin.summary()
        if summary is None:
            return Counter()
        contents = admin.contents(summary.entries)
    return +Counter(dict(zip(contents.ids, contents.counts.tolist(), strict=True)))
