"""Fixtures that all tests share: the real servers and what starts runs, one of each for the whole session."""

from __future__ import annotations

import gc
import os

# Processes run beside one another: threads of torch that wait for more to do would take their cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator
from typing import Any

import pytest
from commands import STARTED
from crash_harness import Zygote
from distribution import FileScheduling
from hypothesis import HealthCheck, settings
from servers.kafka import KafkaServer
from servers.process import ServerUnavailable, skip_or_fail
from servers.redis import RedisServer

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


LAST_COMMANDS = 8
SERVERS = {"kafka_server", "redis_server", "redis", "broker", "browser", "promtool"}
"""Fixtures that start or install a server. Tests that use one have the mark `servers`, those with a zygote `slow`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & SERVERS:
            item.add_marker("servers")
        if "zygote" in fixtures:
            item.add_marker("slow")
    # long files come first, so that no process is left with one of them at the end
    long = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("servers")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    gc.freeze()  # what is loaded stays: later collections need not look at it


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    return FileScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """A test whose server can neither be found nor started is skipped, or fails under CI."""
    STARTED.clear()
    try:
        return (yield)
    except ServerUnavailable as error:
        skip_or_fail(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure shows what a person needs: offsets, the commands, and the last lines of each."""
    report = yield
    if report.failed:
        fixtures = getattr(item, "funcargs", {}).values()
        known = [found for found in (*fixtures, *STARTED[-LAST_COMMANDS:]) if hasattr(found, "describe")]
        report.sections += [(type(found).__name__, _description(found)) for found in known]
    return report


def _description(found: object) -> str:
    """What it says of itself. The servers and commands of a failed test may be in any state, and must not hide it."""
    try:
        return found.describe()
    except Exception as error:
        return f"could not be described: {error!r}"


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """A running Kafka broker. A test that stops it starts it again."""
    yield from _running(KafkaServer())


@pytest.fixture
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Zygote:
    """Runs `streamer` in processes of their own, without the seconds that imports take."""
    return Zygote(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A running Redis server. A test that stops it starts it again, and no test relies on it being empty."""
    yield from _running(RedisServer())


def _running(server):
    """Start, hand out, take down; also after a start that failed or was interrupted."""
    try:
        server.start()
        yield server
    finally:
        server.delete()
