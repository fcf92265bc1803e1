"""Dead letters in a topic of a real broker."""

from __future__ import annotations

import pytest
from kafka_harness import NOON_MS, KafkaHarness, Letter, letters_of
from servers.process import free_ports

from streamer.dead_letters.base import DeadLetter, DeadLetters, Reason
from streamer.dead_letters.kafka import KEPT_OF_LARGE_BYTES, KafkaDeadLetters
from streamer.errors import SourceUnavailable

pytestmark = pytest.mark.servers


def test_letter_holds_the_record_as_it_was_and_why_it_is_dead(kafka: KafkaHarness) -> None:
    topic = kafka.make_topic(1)
    letters: DeadLetters = KafkaDeadLetters(kafka.settings("events"), topic)
    letters.write([Letter(), Letter(index=2, key=None, value=None, timestamp_ms=-1)])
    letters.flush()
    first, second = letters_of(kafka, topic, 2)
    letters.close()
    letters.close()
    where = {"topic": b"events", "partition": b"3", "offset": b"41"}
    why = {"reason": b"not_json", "detail": "byte 0: 'ü'".encode()}
    assert first == (b"user", b"\x00\xff{", where | why, NOON_MS)
    assert second[:3] == (None, b"", where | why | {"index": b"2"})
    assert second[3] > NOON_MS


def test_letters_of_the_decoder_fit(kafka: KafkaHarness) -> None:
    topic = kafka.make_topic(1)
    letters = KafkaDeadLetters(kafka.settings("events"), topic)
    letters.write([DeadLetter(Reason.NOT_JSON, "why", "events", 0, 7, NOON_MS, None, b"x")])
    letters.close()
    ((_, value, headers, _),) = letters_of(kafka, topic, 1)
    assert (value, headers["reason"], headers["offset"]) == (b"x", b"not_json", b"7")


@pytest.mark.parametrize("size", [900_000, 3_000_000], ids=["for the broker", "for the client"])
def test_value_too_large_is_cut_short_and_the_others_go_through(kafka: KafkaHarness, size: int) -> None:
    topic = kafka.server.create_topic(**{"max.message.bytes": "200000"})
    letters = KafkaDeadLetters(kafka.settings("events"), topic)
    letters.write([Letter(value=b"a"), Letter(value=b"x" * size), Letter(value=b"b")])
    letters.flush()
    letters.close()
    found = {
        value[:1]: (len(value), headers.get("truncated_from")) for _, value, headers, _ in letters_of(kafka, topic, 3)
    }
    assert found == {b"a": (1, None), b"b": (1, None), b"x": (KEPT_OF_LARGE_BYTES, str(size).encode())}


def test_many_letters_are_flushed_without_being_asked(kafka: KafkaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.dead_letters.kafka.MOST_PENDING", 10)
    topic = kafka.make_topic(1)
    letters = KafkaDeadLetters(kafka.settings("events"), topic)
    for number in range(25):
        letters.write([Letter(offset=number)])
    found = letters_of(kafka, topic, 20)
    assert [int(headers["offset"]) for _, _, headers, _ in found][:20] == list(range(20))
    letters.close()


def test_absent_broker_is_reported_at_once_and_letters_are_kept(kafka: KafkaHarness) -> None:
    (port,) = free_ports(1)
    settings = kafka.settings("t", bootstrap_servers=f"127.0.0.1:{port}", open_timeout_s=0.3)
    letters = KafkaDeadLetters(settings, "dead")
    with pytest.raises(SourceUnavailable, match=str(port)):
        letters.open()
    with pytest.raises(SourceUnavailable):
        letters.write([Letter()])
    with pytest.raises(SourceUnavailable):
        letters.close()
