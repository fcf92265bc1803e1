"""`streamer doctor`: examines everything that a run needs, and advises.

It changes nothing: no directory, topic or key is created, and no consumer group is
joined.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from streamer.cache_store.errors import StoreError
from streamer.cli.findings import Finding, count, describe
from streamer.cli.options import GroupedCommand, json_option, settings_options
from streamer.cli.output import format_age, format_bytes
from streamer.errors import OtherSource, StreamerError
from streamer.settings import RunSettings

ENOUGH_SPACE_BYTES = 1_000_000_000
OLDEST_REDIS = (6, 2)
"""The first with XTRIM MINID."""
KAFKA_TIMEOUT_S = 4.0
REDIS_TIMEOUT_S = 2.0


Check = Callable[[RunSettings], Iterable[Finding]]


@click.command(cls=GroupedCommand)
@settings_options(RunSettings)
@json_option
def doctor(settings: RunSettings, as_json: bool) -> None:
    """Check what a run needs, and say what to do about each problem.

    Give the options that you give to `streamer run`. It looks at torch and its device,
    cores, memory, directories, stream and Redis, and changes nothing. The exit code is
    1 if anything failed.
    """
    findings = []
    for finding in diagnose(settings):
        findings.append(finding)
        if not as_json:
            click.echo(describe(finding))

    states = [finding.status for finding in findings]
    failures = states.count("failure")
    warnings = states.count("warning")
    if as_json:
        checks = [finding._asdict() for finding in findings]
        click.echo(json.dumps({"ok": not failures, "checks": checks}))
    elif failures or warnings:
        click.echo(f"{count(failures, 'failure')}, {count(warnings, 'warning')}")
    else:
        click.echo("no problems found")
    sys.exit(1 if failures else 0)


def diagnose(settings: RunSettings) -> Iterator[Finding]:
    """The findings of every check that the settings ask for.

    A check that breaks is a failure; the others go on.
    """
    for name, check in checks_for(settings).items():
        try:
            yield from check(settings)
        except (StreamerError, StoreError) as error:
            yield Finding(name, "failure", str(error))
        except Exception as error:
            yield Finding(name, "failure", f"{type(error).__name__}: {error}")


def checks_for(settings: RunSettings) -> dict[str, Check]:
    """The checks that the settings ask for, by name."""
    checks: dict[str, Check] = {
        "torch": check_torch,
        "numba": check_numba,
        "cores": check_cores,
        "memory": check_memory,
    }
    if settings.source:
        checks["source"] = check_source
        checks["data"] = check_data
    elif settings.bootstrap_servers:
        checks["kafka"] = check_kafka
        checks["dead letters"] = check_dead_letters
    else:
        checks["topic"] = check_embedded_log
        checks["data"] = check_data
    checks["checkpoints"] = check_checkpoints
    checks["events"] = check_events
    if settings.redis_url:
        checks["redis"] = check_redis
    return checks


# this machine -------------------------------------------------------------------------


def check_torch(_: RunSettings) -> Iterator[Finding]:
    """Where torch trains."""
    import torch

    device = "the CPU"
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    yield Finding("torch", "ok", f"{torch.__version__}, trains on {device}")


def check_numba(_: RunSettings) -> Iterator[Finding]:
    """Whether numba compiles, and has a place for its cache."""
    try:
        import numba

        from streamer.model.rows.recent_items import RecentItems

        RecentItems(length=1)
    except Exception as error:
        advice = "install it again: pip install --force-reinstall numba"
        if "cache" in str(error) or "locator" in str(error):
            advice = "set NUMBA_CACHE_DIR to a directory that can be written to"
        yield Finding("numba", "failure", f"cannot compile: {error}", advice)
        return
    yield Finding("numba", "ok", f"{numba.__version__}, compiles")


def check_cores(_: RunSettings) -> Iterator[Finding]:
    """How many cores there are, and may be used."""
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    if quota is not None and quota < cores:
        found = f"{cores}, but this container may use only {quota:g} of them"
        threads = max(1, int(quota))
        advice = f"give `streamer run` --threads {threads}, or the container more"
        yield Finding("cores", "warning", found, advice)
    else:
        yield Finding("cores", "ok", str(cores))


def cpu_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """How many cores this control group may use; None for no limit."""
    try:
        quota, period = path.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def check_memory(settings: RunSettings) -> Iterator[Finding]:
    """How many users and items fit into memory."""
    from streamer.limits import limits_of, machine_memory

    limits = limits_of(settings)
    kept = f"max_users={limits.users:,}, max_items={limits.items:,}"
    yield Finding("memory", "ok", f"{format_bytes(machine_memory())}; limits: {kept}")


def check_data(settings: RunSettings) -> Iterator[Finding]:
    """Where the embedded log is, and the file of dead letters."""
    yield examine_directory("data", Path(settings.data_dir), ENOUGH_SPACE_BYTES)
    if settings.dead_letters:
        parent = Path(settings.dead_letters).absolute().parent
        yield examine_directory("dead letters", parent)


def check_checkpoints(settings: RunSettings) -> Iterator[Finding]:
    """The directory, and whether a run would find a checkpoint in it."""
    from streamer.snapshot import SnapshotDirectory

    store = SnapshotDirectory(settings.checkpoints)
    sizes = {path.name: path.stat().st_size for path in store.paths() if path.exists()}
    wanted_bytes = max(ENOUGH_SPACE_BYTES, 2 * max(sizes.values(), default=0))
    yield examine_directory("checkpoints", store.directory, wanted_bytes)

    loaded = store.load()
    if loaded is None:
        yield Finding("checkpoints", "ok", "none yet: a run would begin anew")
        return
    name = loaded.path.name
    events = loaded.meta["accounting"]["consumed"]
    age = format_age(time.time() - loaded.meta["saved_at"])
    chain = f"{format_bytes(loaded.size_bytes)} in {len(loaded.chain)} files"
    found = f"{name} is whole: {events:,} events, {chain}, saved {age} ago"
    corrupt = ", ".join(other for other in sorted(sizes) if other > name)
    if corrupt:
        advice = "a run would go on from the one before; check the disk, then remove the corrupt ones"
        yield Finding("checkpoints", "warning", f"{corrupt} corrupt; {found}", advice)
    else:
        yield Finding("checkpoints", "ok", found)


def check_events(settings: RunSettings) -> Iterator[Finding]:
    """Whether the records that a run would read are events."""
    from streamer.cli.look import examine_events, next_records
    from streamer.snapshot import SnapshotDirectory
    from streamer.snapshot.snapshot import positions_from_json
    from streamer.sources.base import check_topics

    if settings.source == "-":  # what is read from it is gone
        return
    try:
        loaded = SnapshotDirectory(settings.checkpoints).load()
        listed = loaded.meta.get("positions", ()) if loaded is not None else ()
        trained = positions_from_json(listed)
        check_topics(trained, settings.log_names, settings.checkpoints)
        chunks = next_records(settings, trained)
    except OtherSource:
        raise
    except StreamerError:
        return  # the other checks say why
    yield from examine_events(settings, chunks)


def examine_directory(name: str, path: Path, wanted_bytes: int = 0) -> Finding:
    """Whether files can be written into a directory, and how much space there is.

    The directory may not exist yet: a run would create it.
    """
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir():
        found = f"{existing} is not a directory"
        return Finding(name, "failure", found, "choose another one")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        found = f"cannot write to {existing}: {error.strerror}"
        advice = "change its permissions, or choose another one"
        return Finding(name, "failure", found, advice)

    free = shutil.disk_usage(existing).free
    state = "can be written to" if existing == path else "will be created"
    found = f"{path} {state}, {format_bytes(free)} free"
    if free < wanted_bytes:
        advice = f"make room: {format_bytes(wanted_bytes)} would be safe"
        return Finding(name, "warning", found, advice)
    return Finding(name, "ok", found)


def check_source(settings: RunSettings) -> Iterator[Finding]:
    """Whether the file can be read."""
    if settings.source == "-":
        yield Finding("source", "ok", "standard input")
        return
    path = Path(settings.source or "")
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        found = f"cannot read {path}: {error.strerror}"
        advice = "check the path given by --source"
        yield Finding("source", "failure", found, advice)
        return
    yield Finding("source", "ok", f"{path}, {format_bytes(path.stat().st_size)}")


def check_embedded_log(settings: RunSettings) -> Iterator[Finding]:
    """The topics of the embedded log."""
    from streamer.sources.embedded import database

    path = Path(settings.data_dir) / database.LOG_FILE
    if not path.exists():
        found = f"there is no embedded log in {settings.data_dir} yet"
        advice = "write events with `streamer replay`, or give --source or --bootstrap-servers; a run waits for the log"
        yield Finding("topic", "warning", found, advice)
        return
    connection = database.connect(path, 2.0, "ro")
    with database.translated_errors(path), contextlib.closing(connection) as db:
        is_written = database.format_of(db, path) > 0
        for topic in settings.all_topics:
            rows = database.rows_of(db, topic) if is_written else []
            if rows:
                records = sum(end for _, end in rows)
                found = f"{topic}: {count(len(rows), 'partition')}, {records:,} records, embedded"
                yield Finding("topic", "ok", found)
            else:
                found = f"{topic} is not in the embedded log {path.parent}"
                advice = "check --topic, or write it with `streamer replay`; a run waits for the topic"
                yield Finding("topic", "warning", found, advice)


# servers ------------------------------------------------------------------------------


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
            for topic in kafka.topics:
                if topic in existing:
                    yield _examine_topic(consumer, topic, settings.group_id)
                    continue
                found = f"{topic} does not exist, or this user may not see it"
                advice = "Check --topic, create it, or let this user describe it"
                close = " or ".join(get_close_matches(topic, existing))
                if close:
                    advice = f"did you mean {close}? {advice}"
                yield Finding("topic", "failure", found, advice)
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


def _examine_topic(consumer: Any, topic: str, group_id: str) -> Finding:
    """How much a topic holds, and how far the group has come in it."""
    from kafka import TopicPartition

    timeout_ms = 1000 * KAFKA_TIMEOUT_S
    numbers = sorted(consumer.partitions_for_topic(topic) or ())
    partitions = [TopicPartition(topic, number) for number in numbers]
    begins = consumer.beginning_offsets(partitions, timeout_ms=timeout_ms)
    ends = consumer.end_offsets(partitions, timeout_ms=timeout_ms)
    records = sum(ends.values()) - sum(begins.values())
    lag = 0
    committed = 0
    for partition in partitions:
        offset = consumer.committed(partition, timeout_ms=timeout_ms)
        if offset is not None:
            committed += 1
            lag += ends[partition] - offset
    group = f"{group_id} has no committed offsets yet"
    if committed:
        group = f"{group_id} has committed offsets in {committed} of them, lag {lag:,}"
    size = f"{count(len(partitions), 'partition')}, {records:,} records"
    return Finding("topic", "ok", f"{topic}: {size}; {group}")


def check_dead_letters(settings: RunSettings) -> Iterator[Finding]:
    """The topic, and if it is missing whether it could be created; or the file."""
    from streamer.build import dead_letters_name, kafka_settings
    from streamer.dead_letters.base import is_file
    from streamer.dead_letters.kafka import create_topic

    name = dead_letters_name(settings)
    kafka = kafka_settings(settings)
    assert kafka is not None
    if is_file(name):
        yield examine_directory("dead letters", Path(name).absolute().parent)
    elif create_topic(kafka, name, dry_run=True) == "possible":
        found = f"{name} does not exist; a run would create it"
        yield Finding("dead letters", "ok", found)
    else:
        yield Finding("dead letters", "ok", f"{name} exists")


def check_redis(settings: RunSettings) -> Iterator[Finding]:
    """Whether Redis responds, its version, and whether it may evict keys.

    What is evicted must be learned again.
    """
    from redis.exceptions import NoPermissionError

    from streamer.cache_store.redis import connection

    url = settings.redis_url or ""
    where = connection.without_passwords(url)
    oldest = ".".join(map(str, OLDEST_REDIS))
    try:
        with contextlib.closing(connection.connect(url, REDIS_TIMEOUT_S)) as client:
            started = time.perf_counter()
            client.ping()
            milliseconds = 1000 * (time.perf_counter() - started)
            info: dict[str, Any] = client.info()
    except NoPermissionError:
        found = f"{where} does not let this user see its version and memory"
        advice = f"make sure that it is Redis {oldest} or newer, or Valkey, with the maxmemory-policy noeviction"
        yield Finding("redis", "warning", found, advice)
        return
    except connection.ERRORS as error:
        raise connection.as_store_error(error, where) from error

    version = info["redis_version"]
    found = f"{where} responds in {milliseconds:.1f} ms, version {version}"
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
