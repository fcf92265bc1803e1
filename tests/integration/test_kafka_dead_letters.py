"""Dead letters in a topic of a real broker, and what becomes of them where it does not take them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from kafka_harness import NOON_MS, KafkaHarness, letter, letters_of
from line_harness import events, run_settings, values_of
from servers.process import free_ports

from streamer.build import build_pipeline
from streamer.dead_letters.base import KEPT_VALUE_BYTES, DeadLetter
from streamer.dead_letters.kafka import KafkaDeadLetters
from streamer.errors import SourceError, SourceUnavailable, UnknownTopic
from streamer.pipeline import Pipeline

pytestmark = pytest.mark.servers

DAY_MS = 86_400_000


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    return tmp_path / "refused.jsonl"


def write(kafka: KafkaHarness, topic: str, refused: Path, *letters: DeadLetter) -> None:
    sink = KafkaDeadLetters(kafka.settings("events"), topic, refused)
    sink.open()
    sink.write(letters)
    sink.flush()
    sink.close()
    sink.close()


def in_file(path: Path) -> list[tuple[int, int]]:
    """Offset and size of the value of each letter in a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["offset"], len(line["value"])) for line in lines]


def test_letter_holds_the_record_and_why_it_is_dead(kafka: KafkaHarness, refused: Path) -> None:
    topic, now_ms = kafka.make_topic(1), time.time() * 1000
    write(kafka, topic, refused, letter(), letter(index=2, key=None, value=None, timestamp_ms=-1))
    first, second = letters_of(kafka, topic, 2)
    where = {"topic": b"events", "partition": b"3", "offset": b"41"}
    why = {"reason": b"not_json", "detail": "byte 0: 'ü'".encode()}
    assert first[:3] == (b"user", b"\x00\xff{", where | why | {"timestamp_ms": str(NOON_MS).encode()})
    assert second[:3] == (None, b"", where | why | {"timestamp_ms": b"-1", "index": b"2"})
    assert first[3] == pytest.approx(now_ms, abs=60_000)
    assert not refused.exists()


def test_letters_of_records_from_the_future_and_the_past_are_taken_and_kept(kafka: KafkaHarness, refused: Path) -> None:
    """A broker refuses the first by their time, and removes the second at once."""
    topic = kafka.server.create_topic(**{"message.timestamp.after.max.ms": "3600000", "retention.ms": str(7 * DAY_MS)})
    now_ms = round(time.time() * 1000)
    times_ms = [now_ms + 400 * DAY_MS, now_ms - 400 * DAY_MS, now_ms]
    write(kafka, topic, refused, *(letter(timestamp_ms=ms) for ms in times_ms))
    found = letters_of(kafka, topic, 3)
    assert [int(headers["timestamp_ms"]) for _, _, headers, _ in found] == times_ms
    assert all(abs(written_ms - now_ms) < 60_000 for *_, written_ms in found)


def test_missing_topic_is_created(kafka: KafkaHarness, refused: Path) -> None:
    topic = f"{kafka.make_topic(1)}.dead-letters"
    write(kafka, topic, refused, letter())
    assert len(letters_of(kafka, topic, 1)) == 1


def test_a_run_with_a_misspelt_topic_creates_nothing(kafka: KafkaHarness, tmp_path: Path) -> None:
    """The brokers of these tests create topics that are asked for, as Kafka does unless it is told not to."""
    with kafka.server.admin() as admin:
        before = set(admin.list_topics())
    wrong = f"{kafka.make_topic(1)}x"
    settings = run_settings("--data-dir", tmp_path, "--bootstrap-servers", kafka.server.bootstrap, "--topic", wrong)
    with pytest.raises(UnknownTopic, match=wrong):
        build_pipeline(settings).run()
    with kafka.server.admin() as admin:
        assert set(admin.list_topics()) - before == {wrong[:-1]}


def test_topic_that_cannot_be_created_is_said_at_once(kafka: KafkaHarness, refused: Path) -> None:
    sink = KafkaDeadLetters(kafka.settings("events"), "no topic", refused)
    with pytest.raises(SourceError, match=r"no topic 'no topic'.*give --dead-letters a file"):
        sink.open()
    sink.close()


@pytest.mark.parametrize("size", [900_000, 3_000_000], ids=["for the broker", "for the client"])
def test_value_too_large_is_cut_short_and_the_others_go_through(kafka: KafkaHarness, refused: Path, size: int) -> None:
    topic = kafka.server.create_topic(**{"max.message.bytes": "200000"})
    write(kafka, topic, refused, letter(value=b"a"), letter(value=b"x" * size), letter(value=b"b"))
    found = {
        value[:1]: (len(value), headers.get("truncated_from")) for _, value, headers, _ in letters_of(kafka, topic, 3)
    }
    assert found == {b"a": (1, None), b"b": (1, None), b"x": (KEPT_VALUE_BYTES, str(size).encode())}
    assert not refused.exists()


def test_letter_that_is_too_large_even_so_goes_to_the_file(kafka: KafkaHarness, refused: Path) -> None:
    topic = kafka.server.create_topic(**{"max.message.bytes": "1000"})
    write(kafka, topic, refused, letter(value=b"a"), letter(value=b"x" * 90_000, offset=7), letter(value=b"b"))
    assert [value for _, value, _, _ in letters_of(kafka, topic, 2)] == [b"a", b"b"]
    assert in_file(refused) == [(7, 90_000)]


def test_letter_that_is_refused_goes_to_the_file(
    kafka: KafkaHarness, refused: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A compacted topic takes no letter without a key."""
    topic = kafka.server.create_topic(**{"cleanup.policy": "compact"})
    write(kafka, topic, refused, letter(), letter(value=b"refused", key=None, offset=7))
    assert in_file(refused) == [(7, 7)]
    assert len(letters_of(kafka, topic, 1)) == 1
    assert str(refused) in caplog.text


def test_absent_broker_is_reported_and_letters_are_kept_up_to_a_bound(
    kafka: KafkaHarness, refused: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.dead_letters.kafka.MAX_WAITING_BYTES", 2_000)
    (port,) = free_ports(1)
    settings = kafka.settings("t", bootstrap_servers=f"127.0.0.1:{port}", open_timeout_s=0.3)
    sink = KafkaDeadLetters(settings, "dead", refused)
    with pytest.raises(SourceUnavailable, match=str(port)):
        sink.open()
    sink.write([letter()])
    assert sink.backpressure_reason() is None
    sink.write([letter()] * 4)
    assert f"127.0.0.1:{port}" in (sink.backpressure_reason() or "")
    for call in (sink.flush, sink.close):
        with pytest.raises(SourceUnavailable, match=str(port)):
            call()


# the whole line -------------------------------------------------------------------------------------------------------


def line(kafka: KafkaHarness, topic: str, directory: Path, *more: Any) -> Pipeline:
    stream = ("--bootstrap-servers", kafka.server.bootstrap, "--topic", topic, "--group-id", topic, "--until-end")
    options = ("--dim", 8, "--batch-size", 16, "--threads", 1, "--data-dir", directory)
    return build_pipeline(run_settings(*stream, *options, *more))


def half_bad(count: int) -> list[bytes]:
    return [value if k % 2 else value[:-1] for k, value in enumerate(values_of(events(count)))]


def test_letters_go_to_a_file_where_one_is_named(kafka: KafkaHarness, tmp_path: Path) -> None:
    topic, file = kafka.make_topic(1), tmp_path / "bad.jsonl"
    kafka.append(topic, 0, half_bad(100))
    line(kafka, topic, tmp_path, "--dead-letters", file).run()
    assert [offset for offset, _ in in_file(file)] == list(range(0, 100, 2))
    with kafka.server.admin() as admin:
        assert not [name for name in admin.list_topics() if name.startswith(f"{topic}.")]
