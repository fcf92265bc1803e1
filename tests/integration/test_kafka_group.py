"""Kafka sources as members of a group: partitions come and go, positions go with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator

import pytest
from contracts.source_contract import RecordingListener, rows_of
from kafka_harness import KafkaHarness, numbered, until

from streamer.sources.base import Partition, Positions, RebalanceListener
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.source import KafkaSource

pytestmark = pytest.mark.servers


class Member(RebalanceListener):
    """A source that is polled by a thread of its own, and remembers where it is: a trainer without a model."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.source = KafkaSource(settings)
        self.ours: set[Partition] = set()
        self.progress: dict[Partition, int] = {}
        self.rows: list[tuple[Partition, int, bytes]] = []
        self.revocations: list[list[Partition]] = []
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._hold = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> Member:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._hold.clear()
        self._thread.join()
        if self.error:
            raise self.error

    def stall(self, seconds: float) -> None:
        """Do not poll for a while."""
        self._hold.set()
        time.sleep(seconds)
        self._hold.clear()

    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        self.ours |= set(partitions)
        return {p: self.progress[p] for p in partitions if p in self.progress}

    def on_revoked(self, partitions: Iterable[Partition]) -> None:
        """Commit where we are, for the next owner, and forget it: the next time, the other one knows better."""
        gone = list(partitions)
        self.revocations.append(gone)
        self.ours -= set(gone)
        self.source.commit({p: self.progress.pop(p) for p in gone if p in self.progress})

    on_lost = on_revoked

    def _run(self) -> None:
        try:
            self.source.open(self)
            while not self._stop.is_set():
                if self._hold.is_set():
                    time.sleep(0.05)
                    continue
                for partition, offset, value in rows_of(self.source.poll(100, 0.1)):
                    assert partition in self.ours, "it was revoked"
                    self.rows.append((partition, offset, value))
                    self.progress[partition] = offset + 1
            self.source.commit(self.progress)
        except BaseException as error:
            self.error = error
        finally:
            self.source.close()


class Members:
    def __init__(self) -> None:
        self._all: list[Member] = []

    def start(self, settings: KafkaSettings) -> Member:
        member = Member(settings).start()
        self._all.append(member)
        return member

    def stop(self) -> None:
        for member in self._all:
            member.stop()


@pytest.fixture
def members() -> Iterator[Members]:
    members = Members()
    yield members
    members.stop()


def all_offsets(*members: Member) -> list[tuple[int, int]]:
    return sorted((partition.number, offset) for member in members for partition, offset, _ in member.rows)


def test_partitions_move_to_a_second_member_and_back_and_every_record_is_read_once(
    kafka: KafkaHarness, members: Members
) -> None:
    topic = kafka.make_topic(4)
    settings = kafka.settings(topic)
    for partition in range(4):
        kafka.append(topic, partition, numbered(10))
    first = members.start(settings)
    until(lambda: len(first.rows) == 40)

    second = members.start(settings)
    until(lambda: len(first.ours) == 2 and len(second.ours) == 2)
    assert not first.ours & second.ours
    for partition in range(4):
        kafka.append(topic, partition, numbered(10, first=10))
    until(lambda: len(first.rows) + len(second.rows) >= 80)

    second.stop()
    until(lambda: len(first.ours) == 4)
    for partition in range(4):
        kafka.append(topic, partition, numbered(10, first=20))
    until(lambda: len(first.rows) + len(second.rows) >= 120)
    assert all_offsets(first, second) == [(partition, offset) for partition in range(4) for offset in range(30)]


def test_a_source_is_settled_once_all_is_its_own_or_was_trained_by_others_to_its_end(
    kafka: KafkaHarness, members: Members
) -> None:
    topic = kafka.make_topic(2)
    settings = kafka.settings(topic)
    for partition in (0, 1):
        kafka.append(topic, partition, numbered(10))
    first = members.start(settings)
    until(lambda: len(first.rows) == 20)
    assert first.source.all_assigned
    first.on_revoked = first.ours.difference_update  # type: ignore[method-assign]
    second = members.start(settings)
    until(lambda: len(first.source.positions()) == 1 and len(second.rows) == 10)  # a commit before that is left out
    assert not second.source.all_assigned, "the first has not committed"
    first.source.commit(first.progress)
    until(lambda: second.source.all_assigned)


def test_member_that_stalled_loses_its_partitions_and_goes_on_with_its_progress(
    kafka: KafkaHarness, members: Members
) -> None:
    """The client leaves the group when nobody polls; with the next poll it is told so, and comes back."""
    topic = kafka.make_topic(1)
    member = members.start(kafka.settings(topic, client={"max_poll_interval_ms": 500}))
    kafka.append(topic, 0, numbered(10))
    until(lambda: len(member.rows) == 10)
    member.source.commit(member.progress)
    until(lambda: member.progress == kafka.committed(member.source._settings.group_id))
    member.stall(2)
    kafka.append(topic, 0, numbered(10, first=10))
    until(lambda: len(member.rows) >= 20)
    assert member.revocations == [[Partition(topic, 0)]]
    assert all_offsets(member) == [(0, offset) for offset in range(20)]


def test_polls_of_zero_records_keep_the_membership(kafka: KafkaHarness) -> None:
    topic = kafka.make_topic(1)
    source, listener = kafka.open_source(topic, client={"max_poll_interval_ms": 500})
    kafka.append(topic, 0, numbered(3))
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        assert source.poll(0, 0.05) == []
        time.sleep(0.05)
    assert listener.revoked == []
    rows: list[object] = []
    until(lambda: len(rows) == 3, lambda: rows.extend(rows_of(source.poll(10, 0.1))))


def test_polls_of_zero_records_serve_rebalances(kafka: KafkaHarness, members: Members) -> None:
    topic = kafka.make_topic(2)
    settings = kafka.settings(topic)
    listener = RecordingListener({})
    source = kafka.source(settings, listener)
    second = members.start(settings)
    until(lambda: len(second.ours) == 1, lambda: source.poll(0, 0.05))
    assert sorted(listener.revoked) == [Partition(topic, 0), Partition(topic, 1)]


def test_member_without_partitions_opens_and_waits(kafka: KafkaHarness, members: Members) -> None:
    topic = kafka.make_topic(1)
    settings = kafka.settings(topic)
    first = members.start(settings)
    until(lambda: len(first.ours) == 1)
    listener = RecordingListener({})
    spare = kafka.source(settings, listener)
    assert listener.assigned == []
    assert spare.end_offsets() == {}
    assert spare.poll(10, 0.05) == []
    first.stop()
    until(lambda: bool(listener.assigned), lambda: spare.poll(10, 0.1))


def test_error_of_the_listener_in_a_rebalance_comes_out_of_poll(kafka: KafkaHarness, members: Members) -> None:
    class Failing(RecordingListener):
        def on_revoked(self, partitions: Iterable[Partition]) -> None:
            raise LookupError("cannot let go")

    settings = kafka.settings(kafka.make_topic(2))
    source = kafka.source(settings, Failing({}))
    second = members.start(settings)
    with pytest.raises(LookupError, match="cannot let go"):
        until(lambda: False, lambda: source.poll(10, 0.1))
    source.close()
    until(lambda: len(second.ours) == 2)
