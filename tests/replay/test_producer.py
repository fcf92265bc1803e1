from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from contracts.source_contract import RecordingListener
from embedded_topic import read, records_in
from hypothesis import given
from hypothesis import strategies as st
from memory_sink import MemorySink

from streamer.errors import SourceError, SourceUnavailable, UnknownTopic
from streamer.event import encode
from streamer.replay.events import Events, Record
from streamer.replay.producer import MAX_WRITE_RECORDS, EmbeddedSink, produce
from streamer.replay.settings import DEFAULT_PARTITIONS
from streamer.sources.embedded.log import EmbeddedLog
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.source import KafkaSource


def records(count: int, first: int = 0) -> list[Record]:
    users, items = [f"u{k % 7}" for k in range(count)], [f"i{k}" for k in range(first, first + count)]
    return Events(users, items, [float(1_700_000_000 + k) for k in range(count)]).records()


class FixedPace:
    """So many events at a time."""

    def __init__(self, count: int) -> None:
        self.count, self.asked = count, 0

    def due(self, timestamps_ms: Sequence[int]) -> int:
        self.asked += 1
        return min(self.count, len(timestamps_ms))


def test_the_pace_decides_how_many_are_written_at_once():
    sink = MemorySink()
    produce([records(10)], sink, FixedPace(4))
    assert sink.writes == [4, 4, 2]


def test_no_write_is_too_large():
    sink = MemorySink()
    produce([records(MAX_WRITE_RECORDS + 1)], sink)
    assert sink.writes == [MAX_WRITE_RECORDS, 1]


def test_progress_is_reported():
    counts: list[int] = []
    produce([records(10)], MemorySink(), FixedPace(6), on_written=counts.append)
    assert counts == [6, 4]


def test_records_of_events_without_time_get_the_time_of_their_write():
    sink, seconds = MemorySink(), iter([1.0, 2.5])
    produce([records(3)], sink, FixedPace(2), stamp=lambda: next(seconds))
    assert [time_ms for _, _, time_ms in sink.records] == [1000, 1000, 2500]


def assert_each_user_is_in_order(found: dict[int, list[Record]], wanted: list[Record]) -> None:
    """In one partition."""
    for user in {key for key, _, _ in wanted}:
        [mine] = [rows for rows in found.values() if any(key == user for key, _, _ in rows)]
        assert [row[:2] for row in mine if row[0] == user] == [row[:2] for row in wanted if row[0] == user]


def test_the_embedded_log_holds_what_was_written_keyed_by_user(tmp_path: Path):
    wanted = records(500)
    sink = EmbeddedSink(tmp_path, "t")
    produce([wanted], sink, FixedPace(64))
    sink.close()
    found = records_in(tmp_path, "t")
    assert len(found) > 1
    assert sorted(row for rows in found.values() for row in rows) == sorted(wanted)
    assert_each_user_is_in_order(found, wanted)


def test_a_topic_keeps_the_partitions_it_has(tmp_path: Path):
    EmbeddedSink(tmp_path, "t", partitions=2).close()
    EmbeddedSink(tmp_path, "t").close()
    EmbeddedSink(tmp_path, "other").close()
    with EmbeddedLog(tmp_path) as log:
        assert log.topics() == {"t": 2, "other": DEFAULT_PARTITIONS}
    with pytest.raises(SourceError, match="has 2 partitions, not 3"):
        EmbeddedSink(tmp_path, "t", partitions=3)


def test_features_are_written_and_events_without_time_get_that_of_writing():
    events = Events(["a", "b"], ["x", "y"], item_features=[{"genre": "jazz"}, None])
    written = events.records(clock=lambda: 12.5)
    assert [time_ms for _, _, time_ms in written] == [12_500, 12_500]
    assert written[0][1] == b'{"user_id":"a","item_id":"x","item_features":{"genre":"jazz"}}'
    assert written[1][1] == b'{"user_id":"b","item_id":"y"}'


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
features = st.none() | st.dictionaries(texts, texts | st.floats(allow_nan=False, allow_infinity=False), max_size=3)


@given(st.lists(st.tuples(texts, texts, st.floats(0, 4e9), features, features), max_size=20))
def test_many_events_are_written_as_each_one_is(rows: list[tuple[Any, ...]]):
    users, items, times_s, about_users, about_items = map(list, zip(*rows, strict=True)) if rows else ([],) * 5
    written = Events(users, items, times_s, about_users, about_items).records(clock=lambda: 0.0)
    assert written == [
        (u.encode(), encode(u, i, t, user_features=about, item_features=of), round(t * 1000))
        for u, i, t, about, of in rows
    ]


@pytest.mark.parametrize("wrong", [{"timestamps_s": [1.0, math.nan]}, {"item_features": [None, {"price": math.inf}]}])
def test_numbers_that_are_not_finite_are_not_written(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match="must be finite"):
        Events(["a", "b"], ["x", "y"], **wrong).records()


# Kafka ----------------------------------------------------------------------------------------------------------------


@pytest.mark.servers
def test_kafka_holds_what_was_written_keyed_by_user(kafka_server: Any):
    from streamer.replay.kafka.sink import KafkaSink

    topic, wanted = kafka_server.create_topic(partitions=3), records(3_000)
    settings = KafkaSettings(kafka_server.bootstrap, topic, group_id=f"g-{topic}")
    sink = KafkaSink(settings, topic)
    produce([wanted], sink)
    sink.close()
    sink.close()
    source = KafkaSource(settings)
    source.open(RecordingListener({}))
    found = read(source, timeout_s=1.0)
    source.close()
    rows_found = [row for rows in found.values() for row in rows]
    assert sorted(row[:2] for row in rows_found) == sorted(row[:2] for row in wanted)
    assert min(row[2] for row in rows_found) > max(row[2] for row in wanted), "old records would be removed at once"
    assert_each_user_is_in_order(found, wanted)


@pytest.mark.servers
def test_a_name_that_no_kafka_topic_can_have_is_an_error(kafka_server: Any):
    from streamer.replay.kafka.sink import KafkaSink

    with pytest.raises(SourceError, match=r"'a/b'.*is illegal"):
        KafkaSink(KafkaSettings(kafka_server.bootstrap, "a/b"), "a/b")


@pytest.mark.servers
def test_a_kafka_topic_that_does_not_appear_in_time_is_an_error(kafka_server: Any):
    from streamer.replay.kafka.sink import KafkaSink

    settings = KafkaSettings(kafka_server.bootstrap, "late", client={"max_block_ms": 0})
    with pytest.raises(UnknownTopic, match=r"'late'.*Create it first"):
        KafkaSink(settings, "late")


def test_a_broker_that_does_not_answer_is_named():
    from streamer.replay.kafka.sink import KafkaSink

    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:1"):
        KafkaSink(KafkaSettings("127.0.0.1:1", "t", open_timeout_s=0.5), "t")
