"""Settings of the Kafka source and of its client."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

from streamer.errors import SettingsError
from streamer.sources.kafka.settings import (
    OURS,
    KafkaSettings,
    client_settings,
    settings_from_environment,
    settings_from_file,
)


def problems(**client: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        client_settings(client)
    return caught.value.problems


def test_text_becomes_the_type_of_the_setting() -> None:
    given = {
        "security_protocol": "SASL_SSL",
        "fetch_max_wait_ms": "250",
        "check_crcs": "false",
        "ssl_check_hostname": "TRUE",
        "receive_buffer_bytes": "65536",
        "ssl_cafile": "ca.pem",
    }
    assert client_settings(given) == {
        "security_protocol": "SASL_SSL",
        "fetch_max_wait_ms": 250,
        "check_crcs": False,
        "ssl_check_hostname": True,
        "receive_buffer_bytes": 65536,
        "ssl_cafile": "ca.pem",
    }


def test_kafkas_own_spelling_and_short_names_work() -> None:
    given = {"sasl.mechanism": "PLAIN", "SASL-USERNAME": "me", "sasl_password": "secret"}
    expected = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "me", "sasl_plain_password": "secret"}
    assert client_settings(given) == expected


def test_every_problem_is_reported_by_name() -> None:
    found = problems(
        fetch_max_wait="1",
        fetch_min_bytes="many",
        check_crcs="maybe",
        enable_auto_commit=True,
        ssl_context="text",
        api_version="new",
        client_id=7,
        fetch_max_bytes=1.5,
        sasl_pasword="hunter2",
    )
    assert len(found) == 9
    assert "hunter2" not in str(found)
    assert "'fetch_max_wait'" in found[0]
    assert "fetch_max_wait_ms" in found[0], "a near name is offered"
    assert "sasl_password" in found[8]
    for name, text in zip(["fetch_min_bytes", "check_crcs", "enable_auto_commit"], found[1:4], strict=True):
        assert name in text


def test_settings_that_are_ours_cannot_be_given() -> None:
    for name, problem in zip(OURS, problems(**dict.fromkeys(OURS, "x")), strict=True):
        assert f"{name!r}: cannot be given" in problem


def test_own_settings_are_checked_together_with_the_clients() -> None:
    with pytest.raises(SettingsError) as caught:
        KafkaSettings(
            " , ",
            [],
            group_id="",
            auto_offset_reset="none",
            start_timestamp_ms=-1,
            client={"nonsense": 1},
        )
    assert len(caught.value.problems) == 6


def test_each_client_gets_the_settings_that_it_knows() -> None:
    client = {"compression_type": "gzip", "fetch_min_bytes": 5, "security_protocol": "SSL", "session_timeout_ms": 9}
    settings = KafkaSettings("a:1", "t", client=client, open_timeout_s=2)
    consumer, producer = settings.consumer_config(), settings.producer_config()
    assert consumer.keys() <= KafkaConsumer.DEFAULT_CONFIG.keys()
    assert producer.keys() <= KafkaProducer.DEFAULT_CONFIG.keys()
    assert (consumer["fetch_min_bytes"], consumer["session_timeout_ms"]) == (5, 9)
    assert producer["compression_type"] == "gzip"
    assert consumer["security_protocol"] == producer["security_protocol"] == "SSL"
    assert consumer["bootstrap_timeout_ms"] == producer["bootstrap_timeout_ms"] == 2000
    assert consumer["enable_auto_commit"] is False
    assert consumer["auto_offset_reset"] == "none", "the client never resets by itself"


def test_environment_gives_client_settings_and_leaves_other_variables() -> None:
    environment = {
        "STREAMER_KAFKA_SASL_PASSWORD": "secret",
        "STREAMER_KAFKA_FETCH_MIN_BYTES": "5",
        "STREAMER_KAFKA_GROUP_ID": "is an option of its own",
        "STREAMER_KAFKA_BOOTSTRAP_SERVERS": "is an option of its own",
        "STREAMER_REDIS_URL": "is not ours",
    }
    found = settings_from_environment(environment)
    assert client_settings(found) == {"sasl_plain_password": "secret", "fetch_min_bytes": 5}


def test_properties_file_gives_client_settings(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# secured\n\nsecurity.protocol = SASL_SSL\nsasl.password=a=b\n!old\n")
    expected = {"security_protocol": "SASL_SSL", "sasl_plain_password": "a=b"}
    assert client_settings(settings_from_file(path)) == expected


@pytest.mark.parametrize(("name", "text"), [("a.properties", "no equals sign"), ("none", None)])
def test_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError, match=name):
        settings_from_file(tmp_path / name)
