"""The store over Redis: the contract, random interleavings, and what only a server does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contracts.store_machine import StoreMachine, unhurried
from contracts.store_trainer import Backend
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from redis_harness import RedisBackend
from servers.redis import RedisServer

pytestmark = pytest.mark.servers


@pytest.fixture
def backend(redis_server: RedisServer) -> Iterator[RedisBackend]:
    backend = RedisBackend(redis_server.url)
    yield backend
    backend.close()


def test_random_interleavings(redis_server: RedisServer) -> None:
    class RedisMachine(StoreMachine):
        def backend(self) -> Backend:
            self.redis = RedisBackend(redis_server.url)
            return self.redis

        def teardown(self) -> None:
            super().teardown()
            self.redis.close()

    run_state_machine_as_test(RedisMachine, settings=settings(unhurried, max_examples=15, stateful_step_count=40))
