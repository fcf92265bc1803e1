"""A Kafka source on a client that is not there: errors of the client, and a pause longer than a session."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from clock import Clock
from contracts.source_contract import RecordingListener
from fake_kafka import OURS, FakeKafka
from kafka import OffsetAndMetadata, errors
from kafka.net.connection import KafkaConnection
from kafka.protocol.broker_version_data import BrokerVersionData
from line_harness import events, values_of

from streamer.errors import SourceError, SourceUnavailable, StreamerError
from streamer.event import EventDecoder
from streamer.ingest.batcher import Batcher
from streamer.ingest.ingest import Ingest
from streamer.ingest.reader import Reader
from streamer.sources.base import Partition
from streamer.sources.kafka.client import GuardedClient, connect
from streamer.sources.kafka.source import KafkaSource

ZERO = Partition("t", 0)
SESSION_S = 45.0


@pytest.fixture
def fake() -> FakeKafka:
    return FakeKafka()


@pytest.fixture
def source(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaSource]:
    with contextlib.closing(fake.source(monkeypatch)) as source:
        yield source


# errors ---------------------------------------------------------------------------------------------------------------


def errors_of(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from errors_of(narrower)


def make(kind: type[Exception]) -> Exception:
    return kind({}) if kind is errors.LogTruncationError else kind()


ALL_ERRORS = [*dict.fromkeys(errors_of(errors.KafkaError)), OSError, ValueError, AssertionError, KeyError]


def use(source: KafkaSource, listener: RecordingListener) -> None:
    """All that a reader does with a source."""
    source.open(listener)
    source.poll(10, 0)
    source.commit({ZERO: 2})
    source.poll(0, 0)
    source.poll(10, 0)
    assert source.poll(10, 0) == []
    assert source.all_assigned in (True, False)
    source.positions()
    source.end_offsets()


def calls_of_readers() -> Iterator[tuple[str, str]]:
    for reader in ("group", "tail"):
        with pytest.MonkeyPatch.context() as monkeypatch:
            fake = FakeKafka()
            source = fake.source(monkeypatch, reader)
            use(source, RecordingListener({}))
            source.close()
        yield from ((reader, name) for name in sorted(fake.calls))


@pytest.mark.parametrize(("reader", "name"), [*calls_of_readers()])
def test_whatever_the_client_raises_whatever_leaves_the_source_is_ours(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch, reader: str, name: str
) -> None:
    monkeypatch.setattr("streamer.sources.kafka.reader.time.sleep", lambda _: None)
    for kind in ALL_ERRORS:
        fake.__init__()
        source = fake.source(monkeypatch, reader)
        fake.fails[name] = make(kind)
        with contextlib.suppress(StreamerError):
            use(source, RecordingListener({}))
        source.close()
        assert not fake.fails, f"{name} was not called"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.UnknownTopicOrPartitionError("gone"), SourceUnavailable),
        (errors.CommitFailedError("rebalanced"), SourceUnavailable),
        (errors.SaslAuthenticationFailedError("the password has changed"), SourceUnavailable),
        (errors.TopicAuthorizationFailedError({"t"}), SourceError),
        (OSError("no route"), SourceError),
    ],
)
def test_an_error_says_what_and_where_and_knows_its_cause(error: Exception, kind: type[Exception]) -> None:
    def fail(_: Any = None) -> None:
        raise error

    guarded = GuardedClient({"poll": 1}, "Kafka at b:9092")
    with pytest.raises(kind, match="Kafka at b:9092") as raised:
        guarded.private(fail)
    assert raised.value.__cause__ is error
    assert type(raised.value) is kind


class Unreachable:
    """A client that logs what happened to its connections, and gives up."""

    DEFAULT_CONFIG: ClassVar = {"kafka_client": None}

    def __init__(self, answered: bool, lost: Exception, **_: Any) -> None:
        version = BrokerVersionData((4, 0)) if answered else None
        connection = KafkaConnection(None, broker_version_data=version)
        logging.getLogger("kafka.net.connection").error("%s: Connection lost: %s", connection, lost)
        raise errors.KafkaTimeoutError


@pytest.mark.parametrize(
    ("answered", "lost", "protocol", "kind"),
    [
        (True, errors.SaslAuthenticationFailedError(), "SASL_SSL", SourceError),
        (True, errors.KafkaConnectionError("socket disconnected"), "SASL_PLAINTEXT", SourceError),
        (True, errors.KafkaConnectionError("socket disconnected"), "PLAINTEXT", SourceUnavailable),
        (False, errors.KafkaConnectionError("connection refused"), "SASL_SSL", SourceUnavailable),
    ],
)
def test_a_refused_login_is_an_error_and_an_absent_broker_is_waited_for(
    answered: bool, lost: Exception, protocol: str, kind: type[Exception]
) -> None:
    """A broker may also hang up on a wrong login, without an answer."""
    config = {"bootstrap_servers": ["b:9092"], "bootstrap_timeout_ms": 5, "security_protocol": protocol}
    with pytest.raises(SourceError, match="sasl_password" if kind is SourceError else "is it running") as raised:
        connect(Unreachable, config | {"answered": answered, "lost": lost})
    assert type(raised.value) is kind


# a pause longer than a session ----------------------------------------------------------------------------------------


@pytest.fixture
def clock(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = fake.clock = Clock()
    monkeypatch.setattr("streamer.sources.kafka.source.time.monotonic", clock)
    return clock


def test_a_member_that_was_removed_trains_saves_and_commits_nothing_more_and_joins_again_behind_the_others(
    source: KafkaSource, fake: FakeKafka, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """From poll to batch: what is fetched and queued is dropped; what is trained stays trained."""
    fake.values = values_of(events(12))
    ingest = Ingest(Batcher(4))
    reader = Reader(lambda: source, EventDecoder(), ingest, max_queued_events=8)
    source = reader._open()
    reader._read(source)  # settles
    for _ in range(4):
        reader._read(source)
    with ingest.batch(0) as batch:
        assert batch.offsets == [0, 1, 2, 3]
    assert ingest.queued_events == 4

    clock.now += SESSION_S + 1
    for sent_s in (clock.now - SESSION_S - 0.5, None):
        with ingest.batch(0) as batch:
            assert batch is None
        if sent_s is not None:
            fake.answer(sent_s)  # sent before the pause, and read after it
    theirs = OffsetAndMetadata(10, "streamer-1 streamer-b id 2 2", -1)
    fake.committed_offsets[OURS] = theirs
    fake.fails["commit_async"] = errors.CommitFailedError()  # as a broker does
    ingest.commit({ZERO: 4})
    fake.is_lost = True
    with caplog.at_level(logging.INFO):
        reader._read(source)
        assert not ingest.handover_wanted
        ingest.commit({ZERO: 4})
        reader._read(source)
    assert "Lost partitions: t[0] (trained up to offset 4)" in caplog.text
    assert fake.committed_offsets[OURS].offset == theirs.offset
    assert source.is_member
    assert "t[0] was trained by others from offset 2 to 10, of which we have trained 2 too" in caplog.text
    ingest.at_end = True
    with ingest.batch(0) as batch:
        assert batch.offsets == [10, 11]
