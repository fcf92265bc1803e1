"""The shared state of a model in a real Redis, for tests of the store."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import redis
from contracts.store_trainer import Trainer
from line_harness import PATIENCE_S

from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.state import StoreSettings
from streamer.cache_store.store import CacheStore

_numbers = itertools.count()


class RedisBackend:
    """One model in a server that other tests may use as well."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys = Keys(f"model-{next(_numbers)}", namespace="tests")
        self._client = redis.Redis.from_url(url)
        self._servers: list[RedisServer] = []

    def connect(self, hard_log_length: int = 4096) -> RedisServer:
        self._servers.append(RedisServer(self.url, self.keys, hard_log_length=hard_log_length))
        return self._servers[-1]

    def wipe(self) -> None:
        self._client.delete(*self.keys.all())

    def copy(self) -> dict[str, bytes]:
        found = {key: self._client.dump(key) for key in self.keys.all()}
        return {key: dumped for key, dumped in found.items() if dumped is not None}

    def restore(self, copied: dict[str, bytes]) -> None:
        self.wipe()
        for key, dumped in copied.items():
            self._client.restore(key, 0, dumped)

    def trainers(self) -> set[str]:
        return {name.decode() for name in self._client.hkeys(self.keys.trainers)}

    def resume(self) -> None:
        self._client.delete(self.keys.paused)

    def age(self) -> None:
        self._client.hset(self.keys.meta, "seeded", 0)

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


def started(url: str, keys: Keys, name: str = "ada", timeout_s: float = 1.0, **settings: Any) -> Trainer:
    """A trainer whose store exchanges on its own thread, often."""
    server = RedisServer(url, keys, timeout_s=timeout_s)
    store = CacheStore(server, StoreSettings(**({"every_s": 0.01, "live_s": 1.0} | settings)), name)
    store.start()
    return Trainer(store, name)
