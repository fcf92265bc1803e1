"""What `streamer doctor` looks at on servers: brokers, topics, Redis."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from streamer.cli.doctor_machine import Finding, count, examine_directory
from streamer.cli.output import format_bytes
from streamer.settings import RunSettings

OLDEST_REDIS = (6, 2)
"""The first with XTRIM MINID."""
SAMPLED_RECORDS = 2000
"""Records of each partition that are looked at."""
MAX_LISTED = 8
"""Partitions whose ends are listed."""
KAFKA_TIMEOUT_S = 4.0
REDIS_TIMEOUT_S = 2.0


def check_kafka(settings: RunSettings) -> Iterator[Finding]:
    """Brokers, topics and committed offsets, by the consumer of a run.

    It joins no group.
    """
    from kafka import KafkaConsumer

    from streamer.build import kafka_settings
    from streamer.sources.kafka.client import connect, to_streamer_error

    kafka = kafka_settings(settings)
    assert kafka is not None
    consumer = connect(KafkaConsumer, kafka.consumer_config())
    try:
        with to_streamer_error(f"Kafka at {settings.bootstrap_servers}"):
            existing = consumer.topics()
            version = ".".join(map(str, consumer.config["api_version"]))
            topics = count(len(existing), "topic")
            found = f"{settings.bootstrap_servers} is reachable, {topics}, version {version}"
            yield Finding("kafka", "ok", found)

            ends: dict[Any, int] = {}
            for topic in kafka.topics:
                if topic in existing:
                    yield _examine_topic(consumer, topic, ends)
                else:
                    yield _missing_topic(topic, existing)
            if ends:
                yield _examine_group(consumer, settings.group_id, ends)
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


def _missing_topic(topic: str, existing: Collection[str]) -> Finding:
    found = f"{topic} does not exist, or this user may not see it"
    advice = "Check --topic, create it, or let this user describe it"
    close = " or ".join(get_close_matches(topic, existing))
    if close:
        advice = f"did you mean {close}? {advice}"
    return Finding("topic", "failure", found, advice)


def _examine_topic(consumer: Any, topic: str, ends: dict[Any, int]) -> Finding:
    """How much a topic holds; adds the ends of its partitions to `ends`."""
    from kafka import TopicPartition

    timeout_ms = 1000 * KAFKA_TIMEOUT_S
    numbers = sorted(consumer.partitions_for_topic(topic) or ())
    partitions = [TopicPartition(topic, number) for number in numbers]
    begins = consumer.beginning_offsets(partitions, timeout_ms=timeout_ms)
    own_ends = consumer.end_offsets(partitions, timeout_ms=timeout_ms)
    ends |= own_ends

    listed = [f"{tp.partition}: {own_ends[tp]:,}" for tp in partitions[:MAX_LISTED]]
    if len(partitions) > MAX_LISTED:
        listed.append("...")
    records = sum(own_ends.values()) - sum(begins.values())
    found = f"{topic}: {count(len(partitions), 'partition')}, {records:,} records, ends {', '.join(listed)}"
    return Finding("topic", "ok", found)


def _examine_group(consumer: Any, group_id: str, ends: dict[Any, int]) -> Finding:
    committed = {}
    for partition in ends:
        offset = consumer.committed(partition, timeout_ms=1000 * KAFKA_TIMEOUT_S)
        if offset is not None:
            committed[partition] = offset
    if not committed:
        return Finding("group", "ok", f"{group_id} has no committed offsets yet")
    lag = sum(ends[partition] - offset for partition, offset in committed.items())
    found = (
        f"committed offsets in {len(committed)} of {len(ends)} partitions, lag {lag:,}"
    )
    return Finding("group", "ok", f"{group_id} has {found}")


def check_keys(settings: RunSettings) -> Iterator[Finding]:
    """Whether each user of a sample is in one partition, as a group needs it."""
    from streamer.build import rank_sources
    from streamer.event import EventDecoder
    from streamer.ingest.batcher import Batcher
    from streamer.ingest.handover import Handover
    from streamer.ingest.ingest import Ingest
    from streamer.ingest.reader import StopCondition

    sources = rank_sources(dataclasses.replace(settings, start="earliest"))
    partitions = sources.partitions()
    decoder = EventDecoder(settings, settings.catalogue_topic)
    wanted = dict.fromkeys(partitions, SAMPLED_RECORDS)
    source = sources.make_source(
        lambda: partitions, lambda p: wanted[p] > 0, lambda: False
    )
    user_partitions: dict[str, set[int]] = {}
    with contextlib.closing(source):
        source.open(Handover(Ingest(Batcher(1)), StopCondition()))
        while any(wanted[p] > 0 and not source.has_no_more(p) for p in partitions):
            for chunk in source.poll(SAMPLED_RECORDS, 0.2):
                wanted[chunk.partition] -= len(chunk)
                for user in decoder.decode(chunk).users:
                    user_partitions.setdefault(user, set()).add(chunk.partition.number)
    spread = sum(len(numbers) > 1 for numbers in user_partitions.values())
    if spread:
        found = f"{spread:,} of {len(user_partitions):,} users of a sample have events in several partitions"
        advice = "let the producer use the user's id as the key of its records"
        yield Finding("keys", "warning", found, advice)
    else:
        found = (
            f"each of {len(user_partitions):,} users of a sample is in one partition"
        )
        yield Finding("keys", "ok", found)


def check_codecs(_: RunSettings) -> Iterator[Finding]:
    """Whether batches of every compression can be read, by reading some."""
    from kafka import codec

    broken = []
    for name in ("gzip", "snappy", "lz4", "zstd"):
        try:
            packed = getattr(codec, f"{name}_encode")(b"record")
            assert getattr(codec, f"{name}_decode")(packed) == b"record"
        except Exception as error:
            broken.append(f"{name} ({error or type(error).__name__})")
    if broken:
        advice = "a producer that uses it would stop a run; pip install lz4 python-snappy zstandard"
        yield Finding("codecs", "failure", f"cannot read {', '.join(broken)}", advice)
    else:
        yield Finding("codecs", "ok", "gzip, snappy, lz4 and zstd can be read")


def check_dead_letters(settings: RunSettings) -> Iterator[Finding]:
    """The topic, and if it is missing whether it could be created; or the file."""
    from streamer.build import dead_letters_name, is_file, kafka_settings
    from streamer.dead_letters.kafka import create_topic

    name = dead_letters_name(settings)
    kafka = kafka_settings(settings)
    assert kafka is not None
    if is_file(name):
        yield examine_directory("dead letters", Path(name).absolute().parent, 0)
    elif create_topic(kafka, name, dry_run=True):
        found = f"{name} does not exist; a run would create it"
        yield Finding("dead letters", "ok", found)
    else:
        yield Finding("dead letters", "ok", f"{name} exists")


def check_redis(settings: RunSettings) -> Iterator[Finding]:
    """Whether Redis responds, its version, and whether it may evict keys.

    What is evicted must be learned again.
    """
    from streamer.cache_store.redis.connection import without_passwords

    url = settings.redis_url or ""
    milliseconds, info = _ask_redis(url)
    found = f"{without_passwords(url)} responds in {milliseconds:.1f} ms"
    oldest = ".".join(map(str, OLDEST_REDIS))
    if info is None:
        found += ", but does not let this user see its version and memory"
        advice = f"make sure that it is Redis {oldest} or newer, or Valkey, with the maxmemory-policy noeviction"
        yield Finding("redis", "warning", found, advice)
        return

    version = info["redis_version"]
    found += f", version {version}"
    if tuple(map(int, version.split(".")[:2])) >= OLDEST_REDIS:
        yield Finding("redis", "ok", found)
    else:
        advice = f"install Redis {oldest} or newer, or Valkey"
        yield Finding("redis", "failure", f"{found} is too old", advice)

    policy = info["maxmemory_policy"]
    limit = format_bytes(info["maxmemory"]) if info["maxmemory"] else "no limit"
    found = f"{format_bytes(info['used_memory'])} used of {limit}, policy {policy}"
    if policy == "noeviction":
        yield Finding("redis memory", "ok", found)
    else:
        advice = "CONFIG SET maxmemory-policy noeviction, or keys may be evicted"
        yield Finding("redis memory", "warning", found, advice)


def _ask_redis(url: str) -> tuple[float, dict[str, Any] | None]:
    """Milliseconds of a round trip, and what the server says of itself.

    None if this user may not ask for that; a run does without.

    Raises:
        StoreError: it does not respond.
    """
    from redis.exceptions import NoPermissionError

    from streamer.cache_store.redis import connection

    info = None
    try:
        with contextlib.closing(connection.connect(url, REDIS_TIMEOUT_S)) as client:
            started = time.perf_counter()
            client.ping()
            milliseconds = 1000 * (time.perf_counter() - started)
            with contextlib.suppress(NoPermissionError):
                info = client.info()
    except connection.ERRORS as error:
        where = connection.without_passwords(url)
        raise connection.as_store_error(error, where) from error
    return milliseconds, info
