"""Events in Avro and Protobuf, by the schemas of a real registry."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from commands import Command
from kafka_harness import KafkaHarness
from servers.registry import LocalRegistry

from streamer.dead_letters.base import Reason
from streamer.errors import SettingsError, SourceUnavailable
from streamer.event import EventDecoder, EventSettings
from streamer.event.fields import Invalid
from streamer.event.registry import ASK_AGAIN_S, HEADER, SchemaRegistry, read_indexes
from streamer.sources.base import Chunk, Partition

pytestmark = pytest.mark.servers

TIME = datetime(2026, 10, 1, 12, tzinfo=UTC)
PRODUCT = {"type": "record", "name": "Product", "fields": [{"name": "id", "type": "int"}]}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "user", "type": ["null", "string"]},
        {"name": "product", "type": "Product"},
        {"name": "at", "type": MILLIS},
        {"name": "item_features", "type": {"type": "map", "values": ["string", "double"]}},
    ],
}
PROTO = """
syntax = "proto3";
package shop;
import "product.proto";
import "google/protobuf/timestamp.proto";
message Unrelated { message Inner { string x = 1; } }
message Outer {
  message Event {
    string user = 1;
    Product product = 2;
    google.protobuf.Timestamp at = 3;
    map<string, string> item_features = 4;
  }
}
"""
FIELDS = {"user_id": "user", "item_id": "product.id", "timestamp": "at"}


@pytest.fixture(scope="module")
def registry() -> Iterator[LocalRegistry]:
    with LocalRegistry() as server:
        yield server


def register_avro(registry: LocalRegistry) -> int:
    registry.register("product", json.dumps(PRODUCT))
    reference = {"name": "Product", "subject": "product", "version": 1}
    return registry.register("events-value", json.dumps(EVENT), references=[reference])


def avro(number: int, event: dict[str, Any]) -> bytes:
    named: dict[str, Any] = {}
    fastavro.parse_schema(PRODUCT, named)
    out = io.BytesIO(HEADER.pack(0, number))
    out.seek(HEADER.size)
    fastavro.schemaless_writer(out, fastavro.parse_schema(EVENT, named), event)
    return out.getvalue()


def event(user: str | None = "ann", item: int = 7) -> dict[str, Any]:
    return {"user": user, "product": {"id": item}, "at": TIME, "item_features": {"genre": "tea"}}


def chunk_of(*values: bytes) -> Chunk:
    count = len(values)
    return Chunk(Partition("events", 0), list(range(count)), [1] * count, [None] * count, list(values))


def decoder(registry: LocalRegistry, value_format: str = "avro", **more: Any) -> EventDecoder:
    given = {"value_format": value_format, "schema_registry": registry.address, "fields": FIELDS}
    return EventDecoder(EventSettings(**given | more))


def test_avro_with_references_is_read_as_the_same_json_is(registry: LocalRegistry) -> None:
    number = register_avro(registry)
    found = decoder(registry).decode(chunk_of(avro(number, event()), avro(number, event("bob", 8))))
    same = [event(), event("bob", 8)]
    texts = [json.dumps(one | {"at": TIME.isoformat()}).encode() for one in same]
    wanted = EventDecoder(EventSettings(fields=FIELDS)).decode(chunk_of(*texts))
    assert found == wanted
    assert found.users == ["ann", "bob"]
    assert found.timestamps_s == [TIME.timestamp()] * 2


def test_protobuf_is_read_by_its_place_in_the_schema(registry: LocalRegistry) -> None:
    product = 'syntax = "proto3"; package shop; message Product { int32 id = 1; }'
    registry.register("product-proto", product, "PROTOBUF")
    reference = {"name": "product.proto", "subject": "product-proto", "version": 1}
    number = registry.register("events-proto", PROTO, "PROTOBUF", [reference])
    seconds = int(TIME.timestamp())
    time = bytes([0x08, *varint(seconds)])
    body = b"\x0a\x03ann" + b"\x12\x02\x08\x07" + bytes([0x1A, len(time)]) + time
    body += b"\x22\x0c\x0a\x05genre\x12\x03tea"
    place = bytes([4, 2, 0])  # zigzag: two numbers, the second message, the first inside of it
    found = decoder(registry, "protobuf").decode(chunk_of(HEADER.pack(0, number) + place + body))
    assert not found.letters
    assert (found.users, found.items, found.timestamps_s) == (["ann"], ["7"], [TIME.timestamp()])
    assert found.item_features == [{"genre": "tea"}]


def varint(number: int) -> bytes:
    found = []
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def test_the_first_message_of_a_schema_is_a_single_zero() -> None:
    assert read_indexes(b"\x00rest") == ([0], 1)
    assert read_indexes(bytes([4, 0xAC, 0x02, 6])) == ([150, 3], 4)


def test_what_cannot_be_read_is_a_dead_letter_with_the_record_as_it_came(registry: LocalRegistry) -> None:
    number = register_avro(registry)
    bad = [b"{}", HEADER.pack(0, number) + b"\xff", HEADER.pack(0, 4711) + b"x", avro(number, event(None))]
    found = decoder(registry).decode(chunk_of(*bad, avro(number, event())))
    wanted = [Reason.BAD_ENCODING, Reason.BAD_ENCODING, Reason.UNKNOWN_SCHEMA, Reason.MISSING_USER_ID]
    assert [letter.reason for letter in found.letters] == wanted
    assert [letter.value for letter in found.letters] == bad
    assert "4711" in found.letters[2].detail
    assert found.users == ["ann"]


def test_an_unknown_schema_is_asked_for_again_after_a_while(registry: LocalRegistry) -> None:
    now = [0.0]
    schemas = SchemaRegistry(registry.address, "avro", clock=lambda: now[0])
    number = registry.register("first", '"string"')
    value = HEADER.pack(0, number + 1) + b"\x06ann"
    assert schemas.as_json(chunk_of(value))[1][0].reason is Reason.UNKNOWN_SCHEMA
    assert registry.register("second", '"bytes"') == number + 1
    now[0] = 0.9 * ASK_AGAIN_S
    assert schemas.as_json(chunk_of(value))[1]
    now[0] = 1.1 * ASK_AGAIN_S
    in_json, problems = schemas.as_json(chunk_of(value))
    assert not problems
    assert in_json.values == [b'"YW5u"']


def test_wrong_settings_and_schemas_say_what_to_give(registry: LocalRegistry) -> None:
    with pytest.raises(SettingsError, match="give --schema-registry URL"):
        EventDecoder(EventSettings(value_format="avro"))
    number = registry.register("text", '"string"')
    found = decoder(registry, "protobuf").decode(chunk_of(HEADER.pack(0, number) + b"\x00"))
    assert "give --value-format avro" in found.letters[0].detail
    away = replace(decoder(registry).settings, schema_registry="http://user:secret@127.0.0.1:1")
    with pytest.raises(SourceUnavailable, match=r"http://127.0.0.1:1/? does not answer") as raised:
        EventDecoder(away).decode(chunk_of(HEADER.pack(0, 1) + b"x"))
    assert "secret" not in str(raised.value)


def test_a_reference_cannot_leave_its_directory() -> None:
    from streamer.event.registry import compile_protobuf

    with pytest.raises(Invalid, match="refers to"):
        compile_protobuf([("../../evil.proto", {"schema": ""}), ("schema.proto", {"schema": ""})])


def test_a_run_waits_for_a_registry_that_is_away_and_loses_nothing(kafka: KafkaHarness, tmp_path: Path) -> None:
    with LocalRegistry() as registry:
        number = register_avro(registry)
        topic = kafka.make_topic(1)
        kafka.append(topic, 0, [avro(number, event(f"u{k % 9}", k % 20)) for k in range(300)])
        registry.pause()
        arguments = ["--topic", topic, "--bootstrap-servers", kafka.server.bootstrap, "--group-id", topic]
        arguments += ["--data-dir", tmp_path / "data", "--value-format", "avro", "--schema-registry", registry.address]
        arguments += [f"--field={ours}={theirs}" for ours, theirs in FIELDS.items()]
        with Command(["doctor", *arguments], tmp_path / "doctor") as doctor:
            code, findings = doctor.ended()
        assert code == 1
        assert "does not answer" in findings
        with Command(["run", *arguments, "--until-end", "--log-format", "plain"], tmp_path / "run") as run:
            run.wait_until(lambda: "does not answer" in run.said())
            registry.resume()
            code, _ = run.ended()
        assert code == 0, run.said()
        assert "consumed   300 = 300 trained + 0 filtered + 0 dead-lettered" in run.said()
