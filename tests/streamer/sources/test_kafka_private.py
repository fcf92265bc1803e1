"""The private parts of kafka-python that Streamer uses are what they were: if not, `private.py` has to follow.

Neither consumer nor producer reaches a broker here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import kafka
import pytest
from clock import Clock
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import UnknownMemberIdError

import streamer.replay
from streamer.sources.kafka import private

ZERO = TopicPartition("clicks", 0)
NOBODY = {"bootstrap_servers": "127.0.0.1:1", "api_version": (3, 9)}
CHANGED = (
    f"kafka-python {kafka.__version__} has changed: look at streamer/sources/kafka/private.py, "
    "and whether a public method does it now"
)


@pytest.fixture
def consumer() -> Iterator[KafkaConsumer]:
    consumer = KafkaConsumer(**NOBODY, group_id="g", enable_auto_commit=False, auto_offset_reset="none")
    consumer.assign([ZERO])
    yield consumer
    consumer.close(autocommit=False, timeout_ms=100)


def test_a_position_is_sought_with_its_leader_epoch(consumer: KafkaConsumer) -> None:
    private.seek(consumer, ZERO, 7, 3)
    assert consumer.position(ZERO, timeout_ms=0) == 7, CHANGED
    assert consumer._subscription.assignment[ZERO].position.leader_epoch == 3, CHANGED


def test_an_answered_heartbeat_is_as_old_as_its_sending(
    consumer: KafkaConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the process was suspended before it read the answer."""
    coordinator = consumer._coordinator
    clock = Clock()
    answered: list[float] = []
    monkeypatch.setattr("kafka.coordinator.heartbeat.time.monotonic", clock)
    private.on_heartbeat(consumer, answered.append)

    async def answer() -> None:
        clock.now += 60

    async def refuse() -> None:
        raise UnknownMemberIdError

    for send in (answer, refuse):
        monkeypatch.setattr(coordinator, "_send_heartbeat_request", send)
        with suppress(StopIteration, UnknownMemberIdError):
            coordinator._do_heartbeat().send(None)
    assert answered == [Clock().now], CHANGED


def test_a_member_can_ask_for_a_rebalance(consumer: KafkaConsumer) -> None:
    coordinator = consumer._coordinator
    coordinator.rejoin_needed = False
    private.request_rejoin(consumer)
    assert coordinator.rejoin_needed is True, CHANGED


@pytest.mark.parametrize("allowed", [True, False])
def test_every_commit_is_asked_for_when_it_is_sent(
    consumer: KafkaConsumer, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    sent: list[object] = []

    async def send(offsets: object) -> None:
        sent.append(offsets)

    monkeypatch.setattr(consumer._coordinator, "_send_offset_commit_request", send)
    private.ask_before_commits(consumer, lambda: allowed)
    offsets = {ZERO: OffsetAndMetadata(1, "", -1)}
    future = consumer._coordinator._manager.call_soon(consumer._coordinator._send_offset_commit_request, offsets)
    consumer._net.run(consumer._manager.wait_for, future, 60_000)
    assert sent == ([offsets] if allowed else []), CHANGED
    source = Path(kafka.__file__).parent.joinpath("coordinator", "consumer.py").read_text()
    assert len(re.findall(r"self\._send_offset_commit_request, offsets", source)) == 2, CHANGED


def test_a_producer_that_drops_what_it_cannot_send_closes_and_leaves_no_thread() -> None:
    producer = KafkaProducer(**NOBODY, max_block_ms=1)
    private.drop_unsent(producer)
    producer.close(timeout=60)
    producer._sender.join(60)
    assert not producer._sender.is_alive(), CHANGED


def test_nothing_else_of_the_client_is_private() -> None:
    """Five functions in one file, two of which touch twice."""
    touched = re.compile(r"\b(?:consumer|client|producer|admin|network|cluster|coordinator)\._[a-z]")
    found: dict[str, int] = {}
    for package in (streamer, streamer.replay):
        for path in Path(package.__file__ or "").parent.rglob("*.py"):
            text = path.read_text()
            if "from kafka" in text and touched.search(text):
                found[path.name] = len(touched.findall(text))
    assert found == {"private.py": 7}
