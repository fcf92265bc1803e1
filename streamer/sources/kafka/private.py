"""The private parts of kafka-python 3.0 that its public methods do not replace: these
five, and no others.

`tests/streamer/sources/test_kafka_private.py` says so when the client changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition


def seek(
    consumer: KafkaConsumer, tp: TopicPartition, offset: int, leader_epoch: int
) -> None:
    """Read on at an offset, after the client has checked that the log still has it.

    `KafkaConsumer.seek` takes no leader epoch. Without one, nobody notices that a log
    lost its end and has grown beyond our position since.
    """
    consumer._subscription.seek(tp, OffsetAndMetadata(offset, "", leader_epoch))


def on_heartbeat(consumer: KafkaConsumer, answered: Callable[[float], None]) -> None:
    """Call `answered` for each heartbeat that the group answers, with when it was sent,
    by the monotonic clock.

    A process that was suspended for longer than its session takes itself for a member
    until a heartbeat is refused. It may also find an answer from before it was
    suspended, so when an answer was read proves nothing, and the client's metrics know
    no more.
    """
    heartbeat = consumer._coordinator.heartbeat
    received = heartbeat.received_heartbeat

    def note() -> None:
        received()
        answered(heartbeat.last_send)

    heartbeat.received_heartbeat = note


def request_rejoin(consumer: KafkaConsumer) -> None:
    """Have the group rebalance.

    A static member that came back does not know that it leads the group, and looks for
    no new partitions (KAFKA-13435). Subscribing again changes nothing: the broker
    returns the old assignment.
    """
    consumer._coordinator.request_rejoin()


def ask_before_commits(consumer: KafkaConsumer, may_commit: Callable[[], bool]) -> None:
    """Have the client ask whether it may commit when it sends a commit.

    It sends it on its own thread, a while after `commit` was called, and the process
    may be suspended in between; without a group no broker refuses an old commit.
    """
    coordinator = consumer._coordinator
    send = coordinator._send_offset_commit_request

    async def send_if_allowed(
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> Any:
        return await send(offsets) if may_commit() else None

    coordinator._send_offset_commit_request = send_if_allowed


def drop_unsent(producer: KafkaProducer) -> None:
    """Have `close` not wait for records that cannot be sent.

    With a timeout, `KafkaProducer.close` raises and leaves its thread and connections
    behind.
    """
    producer._sender.force_close()
