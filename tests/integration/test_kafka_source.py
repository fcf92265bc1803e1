"""A Kafka source against a real broker: where it starts, what it returns, what it commits, how it refuses."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator

import pytest
from contracts.source_contract import RecordingListener, SourceContract, read, read_chunks
from kafka import KafkaProducer, TopicPartition
from kafka_harness import NOON_MS, KafkaHarness, numbered, until, values_read, warnings
from servers.kafka import SASL_PASSWORD, SASL_USER
from servers.process import free_ports

from streamer.errors import SourceError, SourceUnavailable, UnknownTopic
from streamer.event import EventDecoder
from streamer.settings.events import MAX_RECORD_BYTES
from streamer.sources.base import Partition
from streamer.sources.kafka.settings import client_settings, settings_from_environment
from streamer.sources.kafka.source import KafkaSource

pytestmark = pytest.mark.servers

COMPRESSIONS = ("gzip", "lz4", "snappy", "zstd")


class TestContract(SourceContract):
    @pytest.fixture
    def harness(self, kafka: KafkaHarness) -> KafkaHarness:
        return kafka


class TestRecords:
    def test_keys_times_and_values_are_those_that_were_written(self, kafka: KafkaHarness) -> None:
        topic = kafka.make_topic(1)
        kafka.append(topic, 0, [b"a", None, b""], key=b"k", first_time_ms=NOON_MS)
        kafka.append(topic, 0, [b"b"], first_time_ms=NOON_MS + 9)
        source, _ = kafka.open_source(topic)
        chunks = read_chunks(source, 4)
        assert [value for chunk in chunks for value in chunk.values] == [b"a", b"", b"", b"b"]
        assert [key for chunk in chunks for key in chunk.keys] == [b"k", b"k", b"k", None]
        times = [time for chunk in chunks for time in chunk.timestamps_ms]
        assert times == [NOON_MS, NOON_MS + 1, NOON_MS + 2, NOON_MS + 9]

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_compressed_batches_are_read_from_their_middle(self, kafka: KafkaHarness, compression: str) -> None:
        topic = kafka.make_topic(1)
        kafka.append(topic, 0, numbered(50), compression=compression)
        source, _ = kafka.open_source(topic, {Partition(topic, 0): 33})
        assert values_read(source, 17) == numbered(17, first=33)

    def test_marks_of_transactions_are_not_records_and_not_waited_for(self, kafka: KafkaHarness) -> None:
        """The last offset of the partition holds the mark of a commit: no record ever comes from there."""
        topic = kafka.make_topic(1)
        with transaction(kafka, topic, [b"a", b"b"]):
            pass
        source, _ = kafka.open_source(topic)
        assert source.end_offsets() == {Partition(topic, 0): 3}
        rows = read(source, 2)
        assert [row[1:] for row in rows] == [(0, b"a"), (1, b"b")]
        until(lambda: source.positions() == {Partition(topic, 0): 3}, lambda: source.poll(10, 0.1))
        assert source.end_offsets() == {Partition(topic, 0): 2}
        kafka.append(topic, 0, [b"c"])
        assert [row[1:] for row in read(source, 1)] == [(3, b"c")]
        assert source.end_offsets() == {Partition(topic, 0): 4}

    def test_record_that_decompresses_to_too_much_is_a_dead_letter(self, kafka: KafkaHarness) -> None:
        topic, values = kafka.make_topic(1), [b"a", b" " * (3 * MAX_RECORD_BYTES), b"b"]
        kafka.append(topic, 0, values, compression="gzip")
        source, _ = kafka.open_source(topic)
        letters = [letter for chunk in read_chunks(source, 3) for letter in EventDecoder().decode(chunk).letters]
        assert [letter.reason for letter in letters] == ["not_json", "record_too_large", "not_json"]

    def test_aborted_and_open_transactions_are_not_read(self, kafka: KafkaHarness) -> None:
        topic = kafka.make_topic(1)
        with transaction(kafka, topic, [b"aborted"], commit=False):
            pass
        with transaction(kafka, topic, [b"committed"]):
            pass
        with transaction(kafka, topic, [b"open"]):
            kafka.append(topic, 0, [b"behind it"])
            source, _ = kafka.open_source(topic)
            assert source.end_offsets() == {Partition(topic, 0): 4}
            assert [row[2] for row in read(source, 1)] == [b"committed"]
            assert source.poll(10, 0.5) == []
            everything, _ = kafka.open_source(topic, client={"isolation_level": "read_uncommitted"})
            assert [row[2] for row in read(everything, 4)] == [b"aborted", b"committed", b"open", b"behind it"]
        assert [row[2] for row in read(source, 2)] == [b"open", b"behind it"]


@contextlib.contextmanager
def transaction(kafka: KafkaHarness, topic: str, values: list[bytes], *, commit: bool = True) -> Iterator[None]:
    """Records in a transaction that ends with the block."""
    producer = KafkaProducer(bootstrap_servers=kafka.server.bootstrap, transactional_id=f"tx-{topic}")
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.send(topic, value)
    producer.flush()
    yield
    producer.commit_transaction() if commit else producer.abort_transaction()
    producer.close()


class TestStart:
    def test_error_refuses_a_partition_without_a_position(self, kafka: KafkaHarness) -> None:
        topic = kafka.make_topic(1)
        with pytest.raises(SourceError, match=rf"{topic}\[0\].*no position.*--start"):
            kafka.open_source(topic, auto_offset_reset="error")

    def test_a_start_time_chooses_the_first_record_at_or_after_it(self, kafka: KafkaHarness) -> None:
        topic = kafka.make_topic(3)
        kafka.append(topic, 0, numbered(10), first_time_ms=NOON_MS)
        kafka.append(topic, 1, numbered(10), first_time_ms=NOON_MS - 100)
        kafka.append(topic, 2, numbered(10), first_time_ms=NOON_MS)
        source, _ = kafka.open_source(topic, {Partition(topic, 2): 9}, start_timestamp_ms=NOON_MS + 7)
        kafka.append(topic, 1, [b"later"])
        rows = sorted(read(source, 5))
        assert [row[1] for row in rows if row[0].number == 0] == [7, 8, 9]
        assert [row[1] for row in rows if row[0].number == 1] == [10], "it had no record so young"
        assert [row[1] for row in rows if row[0].number == 2] == [9], "the listener's answer rules"

    @pytest.mark.parametrize(
        ("policy", "position", "start"), [("earliest", 99, 5), ("latest", 99, 5), ("latest", 0, 2)]
    )
    def test_a_position_out_of_range_is_reported_and_the_nearest_one_is_taken(
        self, kafka: KafkaHarness, caplog: pytest.LogCaptureFixture, policy: str, position: int, start: int
    ) -> None:
        topic = self.topic_from_2_to_5(kafka)
        source, _ = kafka.open_source(topic, {Partition(topic, 0): position}, auto_offset_reset=policy)
        kafka.append(topic, 0, numbered(1))
        assert read(source, 6 - start)[0][1] == start
        (warning,) = warnings(caplog)
        for part in (f"{topic}[0]", str(position), f"at offset {start}"):
            assert part in warning

    def test_a_position_out_of_range_is_an_error_if_asked_for(self, kafka: KafkaHarness) -> None:
        topic = self.topic_from_2_to_5(kafka)
        with pytest.raises(SourceError, match=rf"{topic}\[0\].*ends at offset 5.*99"):
            kafka.open_source(topic, {Partition(topic, 0): 99}, auto_offset_reset="error")

    @pytest.mark.parametrize("policy", ["earliest", "error"])
    def test_records_removed_before_they_were_read_are_reported(
        self, kafka: KafkaHarness, caplog: pytest.LogCaptureFixture, policy: str
    ) -> None:
        topic = kafka.make_topic(1)
        kafka.append(topic, 0, numbered(5))
        source, _ = kafka.open_source(topic, {Partition(topic, 0): 0}, auto_offset_reset=policy)
        remove_records(kafka, topic, before=4)
        if policy == "error":
            with pytest.raises(SourceError, match=rf"{topic}\[0\].* 0 to 3 were removed"):
                values_read(source, 1)
        else:
            assert read(source, 1) == [(Partition(topic, 0), 4, b"4")]
            (warning,) = warnings(caplog)
            assert "0 to 3 were removed" in warning

    def test_removed_records_are_not_waited_for(self, kafka: KafkaHarness) -> None:
        topic = kafka.make_topic(1)
        kafka.append(topic, 0, numbered(5))
        source, _ = kafka.open_source(topic)
        remove_records(kafka, topic, before=5)
        for _ in range(3):
            assert source.poll(10, 0.3) == []
        assert source.end_offsets() == {Partition(topic, 0): 5}
        kafka.append(topic, 0, [b"new"])
        assert read(source, 1) == [(Partition(topic, 0), 5, b"new")]

    def topic_from_2_to_5(self, kafka: KafkaHarness) -> str:
        topic = kafka.make_topic(1)
        kafka.append(topic, 0, numbered(5))
        remove_records(kafka, topic, before=2)
        return topic


def remove_records(kafka: KafkaHarness, topic: str, before: int) -> None:
    with kafka.server.admin() as admin:
        admin.delete_records({TopicPartition(topic, 0): before})


class TestCommit:
    def test_commits_are_seen_from_outside_while_reading_goes_on(self, kafka: KafkaHarness) -> None:
        topic = kafka.make_topic(2)
        settings = kafka.settings(topic)
        for partition in (0, 1):
            kafka.append(topic, partition, numbered(4))
        source = kafka.source(settings, RecordingListener({}))
        read(source, 8)
        source.commit({Partition(topic, 0): 2})
        source.commit({Partition(topic, 0): 3, Partition(topic, 1): 1})
        wanted = {Partition(topic, 0): 3, Partition(topic, 1): 1}
        until(lambda: kafka.committed(settings.group_id) == wanted, lambda: source.poll(0, 0.05))

    def test_the_last_commit_is_sent_by_close(self, kafka: KafkaHarness) -> None:
        topic = kafka.make_topic(1)
        settings = kafka.settings(topic)
        kafka.append(topic, 0, numbered(4))
        source = kafka.source(settings, RecordingListener({}))
        source.commit({Partition(topic, 0): 1})
        source.poll(0, 0)
        source.commit({Partition(topic, 0): 4})
        source.close()
        assert kafka.committed(settings.group_id) == {Partition(topic, 0): 4}
        assert kafka.members(settings.group_id) == 0


class TestEnds:
    def test_ends_follow_the_writers_though_nothing_is_read(self, kafka: KafkaHarness) -> None:
        topic = kafka.make_topic(1)
        source, _ = kafka.open_source(topic)
        kafka.append(topic, 0, numbered(7))
        until(lambda: source.end_offsets() == {Partition(topic, 0): 7}, lambda: source.poll(0, 0.05))


class TestRefusals:
    def test_unknown_topic_is_an_error_with_near_names_and_is_not_created(self, kafka: KafkaHarness) -> None:
        topic = kafka.make_topic(1)
        wrong = topic + "x"
        with pytest.raises(UnknownTopic, match=rf"'{wrong}'.*did you mean .*{topic}"):
            kafka.open_source(wrong)
        with kafka.server.admin() as admin:
            assert wrong not in admin.list_topics()

    def test_absent_broker_is_reported_with_its_address_and_leaves_nothing_behind(self, kafka: KafkaHarness) -> None:
        (port,) = free_ports(1)
        settings = kafka.settings("t", bootstrap_servers=f"127.0.0.1:{port}", open_timeout_s=0.5)
        before = set(threading.enumerate())
        with pytest.raises(SourceUnavailable, match=rf"127\.0\.0\.1:{port} within 0\.5 s"):
            KafkaSource(settings).open(RecordingListener({}))
        until(lambda: set(threading.enumerate()) <= before)

    def test_password_opens_the_door(self, kafka: KafkaHarness) -> None:
        topic = kafka.make_topic(1)
        kafka.append(topic, 0, [b"a"])
        environment = {
            "STREAMER_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "STREAMER_KAFKA_SASL_MECHANISM": "PLAIN",
            "STREAMER_KAFKA_SASL_USERNAME": SASL_USER,
            "STREAMER_KAFKA_SASL_PASSWORD": SASL_PASSWORD,
        }
        client = client_settings(settings_from_environment(environment))
        source, _ = kafka.open_source(topic, bootstrap_servers=self.guarded(kafka), client=client)
        assert values_read(source, 1) == [b"a"]

    def test_wrong_password_is_reported_as_such(self, kafka: KafkaHarness) -> None:
        client = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": SASL_USER}
        client["sasl_password"] = "wrong"
        with pytest.raises(SourceError, match=r"check .*sasl_password"):
            kafka.open_source("t", bootstrap_servers=self.guarded(kafka), client=client, open_timeout_s=1)

    def guarded(self, kafka: KafkaHarness) -> str:
        if kafka.server.sasl_bootstrap is None:
            pytest.skip("this broker wants no password")
        return kafka.server.sasl_bootstrap

    def test_open_may_be_tried_again(self, kafka: KafkaHarness) -> None:
        topic = f"late-{uuid.uuid4().hex[:8]}"
        source, listener = KafkaSource(kafka.settings(topic)), RecordingListener({})
        with pytest.raises(UnknownTopic):
            source.open(listener)
        kafka.server.create_topic(topic)
        kafka.append(topic, 0, [b"a"])
        source.open(listener)
        assert values_read(source, 1) == [b"a"]
        source.close()

    def test_poll_after_close_is_an_error(self, kafka: KafkaHarness) -> None:
        source, _ = kafka.open_source(kafka.make_topic(1))
        source.close()
        with pytest.raises(SourceError, match="not open"):
            source.poll(1, 0)
        assert source.end_offsets() == {}
