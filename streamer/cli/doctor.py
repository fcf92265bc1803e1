"""`streamer doctor`: examines everything that a run needs, and says what to do about
what is wrong.

It changes nothing: no directory, topic or key is created, and no consumer group is
joined.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import click

from streamer.cache_store.errors import StoreError
from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.cli.output import format_age, format_bytes
from streamer.errors import StreamerError
from streamer.settings import RunSettings

OLDEST_PYTHON = (3, 11)
OLDEST_REDIS = (6, 2)
"""The first with XTRIM MINID."""
ENOUGH_SPACE_BYTES = 1_000_000_000
SAMPLED_RECORDS = 2000
"""Records of each partition that are looked at."""
KAFKA_TIMEOUT_S = 4.0
REDIS_TIMEOUT_S = 2.0
COLOURS = {"ok": "green", "warning": "yellow", "failure": "red"}
INDENT = 23
"""Columns before what was found."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and what to do about it."""

    name: str
    status: Literal["ok", "warning", "failure"]
    found: str
    advice: str | None = None


@click.command(cls=GroupedCommand)
@settings_options(RunSettings)
@option("Report", "--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(settings: RunSettings, as_json: bool) -> None:
    """Check Python, torch and its device, directories, stream and Redis, and say what
    to do about each problem.

    Give the options that you give to `streamer run`. Nothing is changed. The exit code
    is 1 if anything failed.
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
        click.echo(
            json.dumps(
                {
                    "ok": not failures,
                    "checks": [dataclasses.asdict(finding) for finding in findings],
                }
            )
        )
    elif failures or warnings:
        click.echo(f"{_count(failures, 'failure')}, {_count(warnings, 'warning')}")
    else:
        click.echo("no problems found")
    sys.exit(1 if failures else 0)


def describe(finding: Finding) -> str:
    """A finding for a person; long ones are broken into lines at a terminal."""
    width = (
        max(shutil.get_terminal_size().columns - INDENT, 40)
        if sys.stdout.isatty()
        else sys.maxsize
    )
    texts = [finding.found, *([f"-> {finding.advice}"] if finding.advice else [])]
    wrapped = [
        textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
        for text in texts
    ]
    status = click.style(f"{finding.status:<8}", fg=COLOURS[finding.status])
    return f"{status} {finding.name:<12}  " + f"\n{'':{INDENT}}".join(
        line for lines in wrapped for line in lines
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def diagnose(settings: RunSettings) -> Iterator[Finding]:
    """The findings of every check that the settings ask for. A check that breaks is a
    failure; the others go on.
    """
    checks: dict[str, Callable[[RunSettings], Iterable[Finding]]] = {
        "python": check_python,
        "torch": check_torch,
        "numba": check_numba,
        "cores": check_cores,
        "memory": check_memory,
    }
    if settings.source:
        checks |= {"source": check_source, "data": check_data}
    elif settings.bootstrap_servers:
        checks |= {
            "kafka": check_kafka,
            "codecs": check_codecs,
            "dead letters": check_dead_letters,
        }
    else:
        checks |= {"topic": check_embedded_log, "data": check_data}
    if settings.trainers is not None:
        checks["keys"] = check_keys
    checks |= {"checkpoints": check_checkpoints} | (
        {"redis": check_redis} if settings.redis_url else {}
    )
    for name, check in checks.items():
        try:
            yield from check(settings)
        except (StreamerError, StoreError) as error:
            yield Finding(name, "failure", str(error))
        except Exception as error:
            yield Finding(name, "failure", f"{type(error).__name__}: {error}")


# this machine ---------------------------------------------------------------------------------------------------------


def check_python(_: RunSettings) -> Iterator[Finding]:
    version, oldest = (
        ".".join(map(str, numbers)) for numbers in (sys.version_info[:3], OLDEST_PYTHON)
    )
    if sys.version_info[:2] >= OLDEST_PYTHON:
        yield Finding("python", "ok", version)
    else:
        yield Finding(
            "python",
            "failure",
            f"{version} is too old",
            f"install Python {oldest} or newer",
        )


def check_torch(_: RunSettings) -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:
        advice = "install it again: pip install --force-reinstall torch"
        yield Finding("torch", "failure", f"cannot be imported: {error}", advice)
        return
    if torch.cuda.is_available():
        yield Finding(
            "torch",
            "ok",
            f"{torch.__version__}, trains on {torch.cuda.get_device_name()}",
        )
    elif shutil.which("nvidia-smi"):
        found = f"{torch.__version__}, trains on the CPU although this machine has an NVIDIA driver"
        advice = "install a torch with CUDA that fits the driver (https://pytorch.org), or choose --device cpu"
        yield Finding("torch", "warning", found, advice)
    else:
        yield Finding("torch", "ok", f"{torch.__version__}, trains on the CPU")


def check_numba(_: RunSettings) -> Iterator[Finding]:
    """Compile something, and load the project's own compiled code, which wants a place
    for its cache.
    """
    try:
        import numba

        assert numba.njit(lambda x: x + 1)(41) == 42
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
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    if quota is not None and quota < cores:
        advice = (
            f"give `streamer run` --threads {max(1, int(quota))}, or the container more"
        )
        yield Finding(
            "cores",
            "warning",
            f"{cores}, but this container may use only {quota:g} of them",
            advice,
        )
    elif cores == 1:
        yield Finding(
            "cores",
            "warning",
            "1: reading and training share it",
            "two let reading run ahead of training",
        )
    else:
        yield Finding("cores", "ok", str(cores))


def check_memory(settings: RunSettings) -> Iterator[Finding]:
    from streamer.limits import limits_of, machine_memory

    limits = limits_of(settings)
    found = f"{format_bytes(machine_memory())}; at most {limits.users:,} users and {limits.items:,} items are kept"
    yield Finding("memory", "ok", found)


def cpu_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """How many cores this control group may use; None for no limit."""
    try:
        quota, period = path.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


# directories ----------------------------------------------------------------------------------------------------------


def check_data(settings: RunSettings) -> Iterator[Finding]:
    """Where the embedded log is, and the file of dead letters."""
    yield examine_directory("data", Path(settings.data_dir), ENOUGH_SPACE_BYTES)
    if settings.dead_letters:
        yield examine_directory(
            "dead letters", Path(settings.dead_letters).absolute().parent, 0
        )


def check_checkpoints(settings: RunSettings) -> Iterator[Finding]:
    """The directory, and whether a run would find a checkpoint in it."""
    from streamer.snapshot import CheckpointStore

    store = CheckpointStore(settings.checkpoints, readonly=True)
    sizes = {path.name: path.stat().st_size for path in store.list() if path.exists()}
    wanted_bytes = max(ENOUGH_SPACE_BYTES, 2 * max(sizes.values(), default=0))
    yield examine_directory("checkpoints", store.directory, wanted_bytes)
    loaded = store.load()
    if loaded is None:
        yield Finding("checkpoints", "ok", "none yet: a run would begin anew")
        return
    name = loaded.path.name
    events = loaded.meta["accounting"]["consumed"]
    age = format_age(time.time() - loaded.meta["saved_at"])
    chain = f"{format_bytes(loaded.size_bytes)} in {len(loaded.chain)} points"
    found = f"{name} is whole: {events:,} events, {chain}, saved {age} ago"
    if corrupt := ", ".join(other for other in sorted(sizes) if other > name):
        advice = "a run would go on from the one before; check the disk, then remove the corrupt ones"
        yield Finding("checkpoints", "warning", f"{corrupt} corrupt; {found}", advice)
    else:
        yield Finding("checkpoints", "ok", found)


def examine_directory(name: str, path: Path, wanted_bytes: int) -> Finding:
    """Whether files can be written into a directory, which may have to be created, and
    how much space there is.
    """
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir():
        return Finding(
            name, "failure", f"{existing} is not a directory", "choose another one"
        )
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        advice = "change its permissions, or choose another one"
        return Finding(
            name, "failure", f"cannot write to {existing}: {error.strerror}", advice
        )
    free = shutil.disk_usage(existing).free
    found = f"{path} {'can be written to' if existing == path else 'will be created'}, {format_bytes(free)} free"
    if free < wanted_bytes:
        return Finding(
            name,
            "warning",
            found,
            f"make room: {format_bytes(wanted_bytes)} would be safe",
        )
    return Finding(name, "ok", found)


# the stream -----------------------------------------------------------------------------------------------------------


def check_source(settings: RunSettings) -> Iterator[Finding]:
    if settings.source == "-":
        yield Finding("source", "ok", "standard input")
        return
    path = Path(settings.source or "")
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        yield Finding(
            "source",
            "failure",
            f"cannot read {path}: {error.strerror}",
            "check the path given by --source",
        )
        return
    yield Finding("source", "ok", f"{path}, {format_bytes(path.stat().st_size)}")


def check_embedded_log(settings: RunSettings) -> Iterator[Finding]:
    """The topics of the embedded log."""
    from streamer.sources.embedded.database import (
        LOG_FILE,
        connect,
        format_of,
        rows_of,
        translated_errors,
    )

    path = Path(settings.data_dir) / LOG_FILE
    if not path.exists():
        advice = "write events with `streamer replay`, or give --source or --bootstrap-servers; a run waits for the log"
        yield Finding(
            "topic",
            "warning",
            f"there is no embedded log in {settings.data_dir} yet",
            advice,
        )
        return
    with (
        translated_errors(path),
        contextlib.closing(connect(path, "ro", busy_timeout_s=2.0)) as db,
    ):
        is_written = format_of(db, path) > 0
        partitions = {
            topic: rows_of(db, topic) if is_written else []
            for topic in settings.all_topics
        }
    for topic, rows in partitions.items():
        if rows:
            found = f"{topic}: {_count(len(rows), 'partition')}, {sum(end for _, end in rows):,} records, embedded"
            yield Finding("topic", "ok", found)
        else:
            advice = "check --topic, or write it with `streamer replay`; a run waits for the topic"
            yield Finding(
                "topic",
                "warning",
                f"{topic} is not in the embedded log {path.parent}",
                advice,
            )


def check_kafka(settings: RunSettings) -> Iterator[Finding]:
    """Brokers, topics and committed offsets, by the consumer of a run; it joins no
    group.
    """
    from kafka import KafkaConsumer, TopicPartition

    from streamer.build import kafka_settings
    from streamer.sources.kafka.client import connect, explained

    kafka = kafka_settings(settings)
    assert kafka is not None
    consumer = connect(KafkaConsumer, kafka.consumer_config())
    timeout_ms = 1000 * KAFKA_TIMEOUT_S
    try:
        with explained(f"Kafka at {settings.bootstrap_servers}"):
            existing = consumer.topics()
            version = ".".join(map(str, consumer.config["api_version"]))
            found = f"{settings.bootstrap_servers} is reachable, {_count(len(existing), 'topic')}, version {version}"
            yield Finding("kafka", "ok", found)
            ends: dict[Any, int] = {}
            for topic in kafka.topics:
                if topic not in existing:
                    close = " or ".join(get_close_matches(topic, existing))
                    advice = "Check --topic, create it, or let this user describe it"
                    advice = f"did you mean {close}? {advice}" if close else advice
                    yield Finding(
                        "topic",
                        "failure",
                        f"{topic} does not exist, or this user may not see it",
                        advice,
                    )
                    continue
                partitions = [
                    TopicPartition(topic, n)
                    for n in sorted(consumer.partitions_for_topic(topic) or ())
                ]
                begins = consumer.beginning_offsets(partitions, timeout_ms=timeout_ms)
                ends |= (end := consumer.end_offsets(partitions, timeout_ms=timeout_ms))
                some = [f"{tp.partition}: {end[tp]:,}" for tp in partitions[:8]] + [
                    "..."
                ] * (len(partitions) > 8)
                found = f"{topic}: {_count(len(partitions), 'partition')}, "
                found += f"{sum(end.values()) - sum(begins.values()):,} records, ends {', '.join(some)}"
                yield Finding("topic", "ok", found)
            offsets = {tp: consumer.committed(tp, timeout_ms=timeout_ms) for tp in ends}
            if committed := {
                tp: offset for tp, offset in offsets.items() if offset is not None
            }:
                lag = sum(ends[tp] - offset for tp, offset in committed.items())
                found = f"committed offsets in {len(committed)} of {len(ends)} partitions, lag {lag:,}"
                yield Finding("group", "ok", f"{settings.group_id} has {found}")
            elif ends:
                yield Finding(
                    "group", "ok", f"{settings.group_id} has no committed offsets yet"
                )
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


def check_keys(settings: RunSettings) -> Iterator[Finding]:
    """Whether each user of a sample is in one partition, where a group keeps the user's
    state.
    """
    from streamer.build import lockstep_of
    from streamer.event import EventDecoder
    from streamer.ingest.batcher import Batcher
    from streamer.ingest.handover import Handover
    from streamer.ingest.ingest import Ingest
    from streamer.ingest.stop_condition import StopCondition
    from streamer.lockstep.group import Group

    lockstep = lockstep_of(dataclasses.replace(settings, start="earliest"), Group())
    partitions = lockstep.partitions()
    decoder = EventDecoder(settings, settings.catalogue_topic)
    wanted = dict.fromkeys(partitions, SAMPLED_RECORDS)
    source = lockstep.make_source(
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
        yield Finding(
            "keys",
            "warning",
            found,
            "let the producer use the user's id as the key of its records",
        )
    else:
        yield Finding(
            "keys",
            "ok",
            f"each of {len(user_partitions):,} users of a sample is in one partition",
        )


def check_codecs(_: RunSettings) -> Iterator[Finding]:
    """Whether batches of every compression can be read, by reading some."""
    from kafka import codec

    broken = []
    for name in ("gzip", "snappy", "lz4", "zstd"):
        try:
            assert (
                getattr(codec, f"{name}_decode")(
                    getattr(codec, f"{name}_encode")(b"record")
                )
                == b"record"
            )
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
        yield Finding(
            "dead letters", "ok", f"{name} does not exist; a run would create it"
        )
    else:
        yield Finding("dead letters", "ok", f"{name} exists")


# redis ----------------------------------------------------------------------------------------------------------------


def check_redis(settings: RunSettings) -> Iterator[Finding]:
    """Whether Redis responds, its version, and whether it may evict keys: what is
    evicted must be learned again.
    """
    from redis.exceptions import NoPermissionError

    from streamer.cache_store.redis.connection import (
        ERRORS,
        as_store_error,
        connect,
        without_passwords,
    )

    url = settings.redis_url or ""
    info = None
    try:
        with contextlib.closing(connect(url, REDIS_TIMEOUT_S)) as client:
            started = time.perf_counter()
            client.ping()
            milliseconds = 1000 * (time.perf_counter() - started)
            with contextlib.suppress(NoPermissionError):  # a run does without
                info = client.info()
    except ERRORS as error:
        raise as_store_error(error, without_passwords(url)) from error
    found = f"{without_passwords(url)} responds in {milliseconds:.1f} ms"
    oldest = ".".join(map(str, OLDEST_REDIS))
    if info is None:
        advice = f"make sure that it is Redis {oldest} or newer, or Valkey, with the maxmemory-policy noeviction"
        yield Finding(
            "redis",
            "warning",
            f"{found}, but does not let this user see its version and memory",
            advice,
        )
        return
    version = info["redis_version"]
    limit = info["maxmemory"]
    policy = info["maxmemory_policy"]
    found = f"{found}, version {version}"
    if tuple(map(int, version.split(".")[:2])) >= OLDEST_REDIS:
        yield Finding("redis", "ok", found)
    else:
        yield Finding(
            "redis",
            "failure",
            f"{found} is too old",
            f"install Redis {oldest} or newer, or Valkey",
        )
    used = f"{format_bytes(info['used_memory'])} used of {format_bytes(limit) if limit else 'no limit'}"
    if policy == "noeviction":
        yield Finding("redis memory", "ok", f"{used}, policy {policy}")
    else:
        advice = "CONFIG SET maxmemory-policy noeviction, or keys may be evicted"
        yield Finding("redis memory", "warning", f"{used}, policy {policy}", advice)
