"""The store over Redis: random interleavings."""

from __future__ import annotations

import pytest
from contracts.store_machine import StoreMachine, unhurried
from contracts.store_trainer import Backend
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from redis_harness import RedisBackend
from servers.redis import RedisServer

pytestmark = pytest.mark.servers


def test_random_interleavings(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.cache_store.table.LEAST_ROWS", 0)
    monkeypatch.setattr("streamer.cache_store.table.CHANGES_PER_ROW", 0.01)

    class RedisMachine(StoreMachine):
        def backend(self) -> Backend:
            self.redis = RedisBackend(redis_server.url)
            return self.redis

        def teardown(self) -> None:
            super().teardown()
            self.redis.close()

    run_state_machine_as_test(RedisMachine, settings=settings(unhurried, max_examples=15, stateful_step_count=40))
