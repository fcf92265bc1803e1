"""The watch of a Kafka source: what it says while the client does not return, or returns errors."""

from __future__ import annotations

import threading

import pytest
from kafka import errors

from streamer.sources.base import Partition, Position
from streamer.sources.kafka import watch as module
from streamer.sources.kafka.offsets import Commit, OffsetTable, Start
from streamer.sources.kafka.watch import Watch

ZERO = Partition("clicks", 0)


class Client:
    """Does next what the test says."""

    def __init__(self) -> None:
        self.fetch_wait_ms = 0
        self.next, self.released = lambda: 7, threading.Event()

    def end_offsets(self, wanted, timeout_ms):
        return dict.fromkeys(wanted, self.next())

    def hang(self) -> int:
        self.released.wait()
        return 3

    def fail(self) -> int:
        raise errors.KafkaTimeoutError


@pytest.fixture
def client():
    client = Client()
    yield client
    client.released.set()


@pytest.fixture
def table():
    table = OffsetTable()
    table.assign({ZERO: None})
    table.begin({ZERO: Start(Position(0), Commit(0), False, 0, 1)})
    return table


@pytest.mark.parametrize("trouble", ["hang", "fail"])
def test_a_look_that_fails_or_never_returns_is_a_problem_until_one_succeeds(client, table, monkeypatch, trouble):
    monkeypatch.setattr(module, "PATIENCE_MS", 50)
    watch = Watch(client, table, "Kafka")
    watch.look()
    assert (watch.problem, table.ends()) == (None, {ZERO: 7})
    client.next = getattr(client, trouble)
    for _ in range(2):
        watch.look()
        assert "Kafka does not respond" in (watch.problem or "")
    client.next = lambda: 9
    watch.look()
    assert (watch.problem, table.ends()) == (None, {ZERO: 9})
    watch.stop()
    client.released.set()
    for thread in threading.enumerate():
        if thread.name == "streamer-kafka":
            thread.join(60)
    assert table.ends() == {ZERO: 9}  # what came too late says nothing
    assert watch.problem is None


def test_it_looks_on_when_all_partitions_are_lost(client, table):
    """As after an outage that lasts longer than a session."""
    watch = Watch(client, table, "Kafka")
    watch.look()
    table.forget([ZERO])
    client.next = client.fail
    watch.look()
    assert "Kafka does not respond" in (watch.problem or "")
    client.next = lambda: 9
    watch.look()
    assert watch.problem is None
    assert table.ends() == {}
    watch.stop()
