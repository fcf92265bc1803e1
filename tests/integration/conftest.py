from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka_harness import KafkaHarness
from servers.kafka import KafkaServer
from servers.redis import LocalRedis


@pytest.fixture
def kafka(kafka_server: KafkaServer) -> Iterator[KafkaHarness]:
    """Topics and sources of a real broker; sources are closed after the test."""
    harness = KafkaHarness(kafka_server)
    yield harness
    harness.close()


@pytest.fixture
def restartable(kafka: KafkaHarness) -> Iterator[KafkaHarness]:
    """A broker of this machine that may be killed; it runs again after the test."""
    if not kafka.server.can_restart:
        pytest.skip("this broker is not ours to kill")
    yield kafka
    if not kafka.server.running:
        kafka.server.restart()


@pytest.fixture
def redis() -> Iterator[LocalRedis]:
    """A server that only this test knows."""
    with LocalRedis() as server:
        yield server
