"""`streamer doctor`: looks at everything that a run needs, and says what to do about what is wrong.

It changes nothing: no directory, topic or key is created, and no consumer group is joined.
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
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import click

from streamer.cli.loading import age_shown, size_shown
from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.errors import CorruptCheckpoint, StreamerError
from streamer.settings import RunSettings

OLDEST_PYTHON = (3, 11)
OLDEST_REDIS = (6, 2)
"""XTRIM MINID is of 6.2."""
LITTLE_SPACE_BYTES = 1_000_000_000
KAFKA_TIMEOUT_S = 4.0
REDIS_TIMEOUT_S = 2.0


@click.command(cls=GroupedCommand)
@settings_options(RunSettings)
@option("Report", "--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(settings: RunSettings, as_json: bool) -> None:
    """Check Python, torch and its device, directories, stream and Redis, and say what to do about each problem.

    Give the options that you give to `streamer run`. Nothing is changed. The exit code is 1 if anything failed.
    """
    checks = []
    for check in diagnosed(settings):
        checks.append(check)
        if not as_json:
            click.echo("\n".join(described(check)))
    failed = any(check.status == "failure" for check in checks)
    if as_json:
        click.echo(json.dumps({"ok": not failed, "checks": [dataclasses.asdict(check) for check in checks]}))
    else:
        click.echo(summarised(checks))
    sys.exit(1 if failed else 0)


@dataclass(frozen=True, slots=True)
class Check:
    """What was found, and what to do about it."""

    name: str
    status: Literal["ok", "warning", "failure"]
    found: str
    advice: str | None = None


def ok(name: str, found: str) -> Check:
    return Check(name, "ok", found)


def warning(name: str, found: str, advice: str) -> Check:
    return Check(name, "warning", found, advice)


def failure(name: str, found: str, advice: str | None = None) -> Check:
    return Check(name, "failure", found, advice)


COLOURS = {"ok": "green", "warning": "yellow", "failure": "red"}


INDENT = 23


def described(check: Check) -> Iterator[str]:
    """A check for a person; long ones are broken into lines at a terminal."""
    first, *more = _wrapped(check.found)
    yield f"{click.style(f'{check.status:<8}', fg=COLOURS[check.status])} {check.name:<12}  {first}"
    if check.advice:
        more += _wrapped(f"-> {check.advice}")
    yield from (f"{'':{INDENT}}{line}" for line in more)


def _wrapped(text: str) -> list[str]:
    if not sys.stdout.isatty():
        return [text]
    width = max(shutil.get_terminal_size().columns - INDENT, 40)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def summarised(checks: Iterable[Check]) -> str:
    """All checks in one line."""
    states = [check.status for check in checks]
    failures, warnings = states.count("failure"), states.count("warning")
    if not failures and not warnings:
        return "all is well"
    return f"{_counted(failures, 'failure')}, {_counted(warnings, 'warning')}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def diagnosed(o: RunSettings) -> Iterator[Check]:
    """All checks that the options ask for. One that breaks is a failure itself, and the others go on."""
    for name, examine in _examinations(o):
        try:
            yield from examine(o)
        except StreamerError as error:
            yield failure(name, str(error))
        except Exception as error:
            yield failure(name, f"{type(error).__name__}: {error}")


def _examinations(o: RunSettings) -> Iterator[tuple[str, Callable[[RunSettings], Iterable[Check]]]]:
    yield "python", python_checks
    yield "torch", torch_checks
    yield "numba", numba_checks
    yield "cores", core_checks
    if o.source:
        yield "source", source_checks
    elif o.bootstrap_servers:
        yield "kafka", kafka_checks
    else:
        yield "topic", embedded_checks
    if o.source or not o.bootstrap_servers:
        yield "data", data_checks
    yield "checkpoints", checkpoint_checks
    if o.redis_url:
        yield "redis", redis_checks


# this machine ---------------------------------------------------------------------------------------------------------


def python_checks(_: RunSettings) -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= OLDEST_PYTHON:
        yield ok("python", version)
    else:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield failure("python", f"{version} is too old", f"install Python {oldest} or newer")


def torch_checks(_: RunSettings) -> Iterator[Check]:
    try:
        import torch
    except Exception as error:
        yield failure("torch", f"cannot be imported: {error}", "install it again: pip install --force-reinstall torch")
        return
    if torch.cuda.is_available():
        yield ok("torch", f"{torch.__version__}, trains on {torch.cuda.get_device_name()}")
    elif shutil.which("nvidia-smi"):
        yield warning(
            "torch",
            f"{torch.__version__}, trains on the CPU although this machine has an NVIDIA driver",
            "install a torch with CUDA that fits the driver (https://pytorch.org), or choose --device cpu",
        )
    else:
        yield ok("torch", f"{torch.__version__}, trains on the CPU")


def numba_checks(_: RunSettings) -> Iterator[Check]:
    """Compile something, and load the project's own compiled code, which wants a place for its cache."""
    try:
        import numba

        assert numba.njit(lambda x: x + 1)(41) == 42
        from streamer.model.recent import RecentItems

        RecentItems(length=1)
    except Exception as error:
        advice = "install it again: pip install --force-reinstall numba"
        if "cache" in str(error) or "locator" in str(error):
            advice = "set NUMBA_CACHE_DIR to a directory that can be written to"
        yield failure("numba", f"cannot compile: {error}", advice)
        return
    yield ok("numba", f"{numba.__version__}, compiles")


def core_checks(_: RunSettings) -> Iterator[Check]:
    cores, quota = len(os.sched_getaffinity(0)), cpu_quota()
    if quota is not None and quota < cores:
        threads = max(1, int(quota))
        yield warning(
            "cores",
            f"{cores}, but this container may use only {quota:g} of them",
            f"give `streamer run` --threads {threads}, or the container more",
        )
    elif cores == 1:
        yield warning("cores", "1: reading and training share it", "two let reading run ahead of training")
    else:
        yield ok("cores", str(cores))


def cpu_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """How many cores this control group may use; None for no limit."""
    try:
        quota, period = path.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


# directories ----------------------------------------------------------------------------------------------------------


def data_checks(o: RunSettings) -> Iterator[Check]:
    """Where the embedded log is, and dead letters if they go to a file."""
    yield directory_check("data", Path(o.data_dir), LITTLE_SPACE_BYTES)
    if o.dead_letters:
        yield directory_check("dead letters", Path(o.dead_letters).absolute().parent, 0)


def directory_check(name: str, path: Path, wanted_bytes: int) -> Check:
    """Whether files can be written into a directory, which may have to be created, and how much space there is."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not there.is_dir():
        return failure(name, f"{there} is not a directory", "choose another one")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        advice = "change its permissions, or choose another one"
        return failure(name, f"cannot write to {there}: {error.strerror}", advice)
    free = shutil.disk_usage(there).free
    found = f"{path} {'can be written to' if there == path else 'will be created'}, {size_shown(free)} free"
    if free < wanted_bytes:
        return warning(name, found, f"make room: {size_shown(wanted_bytes)} would be safe")
    return ok(name, found)


def checkpoint_checks(o: RunSettings) -> Iterator[Check]:
    """The directory, and whether a run would find a checkpoint in it."""
    from streamer.checkpoint import CheckpointStore

    store = CheckpointStore(o.checkpoints, readonly=True)
    paths = store.list()
    yield directory_check("checkpoints", store.directory, max(LITTLE_SPACE_BYTES, 2 * _size(paths[-1:])))
    try:
        found = store.load()
    except CorruptCheckpoint as error:
        yield failure("checkpoints", str(error))
        return
    if found is None:
        yield ok("checkpoints", "none yet: a run would begin anew")
        return
    events, age = found.meta["accounting"]["consumed"], age_shown(found.meta["saved_at"])
    text = f"{found.path.name} is whole: {events:,} events, {size_shown(_size([found.path]))}, saved {age}"
    if skipped := [path.name for path in paths if path.name > found.path.name]:
        advice = "a run would go on from the one before; check the disk, then remove the corrupt ones"
        yield warning("checkpoints", f"{', '.join(skipped)} corrupt; {text}", advice)
    else:
        yield ok("checkpoints", text)


def _size(directories: Iterable[Path]) -> int:
    """Bytes of the files in these directories."""
    return sum(file.stat().st_size for directory in directories for file in directory.iterdir())


# the stream -----------------------------------------------------------------------------------------------------------


def source_checks(o: RunSettings) -> Iterator[Check]:
    if o.source == "-":
        yield ok("source", "standard input")
        return
    path = Path(o.source or "")
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        yield failure("source", f"cannot read {path}: {error.strerror}", "check the path given by --source")
        return
    yield ok("source", f"{path}, {size_shown(path.stat().st_size)}")


def embedded_checks(o: RunSettings) -> Iterator[Check]:
    """The topics of the embedded log."""
    from streamer.sources.embedded.database import LOG_FILE, connect, format_of, rows_of, translated_errors

    path = Path(o.data_dir) / LOG_FILE
    if not path.exists():
        advice = "write events with `streamer replay`, or give --source or --bootstrap-servers; a run waits for it"
        yield warning("topic", f"there is no embedded log in {o.data_dir} yet", advice)
        return
    with translated_errors(path), contextlib.closing(connect(path, "ro", busy_timeout_s=2.0)) as db:
        ready = format_of(db, path) > 0
        rows = {topic: rows_of(db, topic) if ready else [] for topic in o.topics}
    for topic, partitions in rows.items():
        if partitions:
            records = sum(end for _, end in partitions)
            yield ok("topic", f"{topic}: {_counted(len(partitions), 'partition')}, {records:,} records, embedded")
        else:
            advice = "check --topic, or write it with `streamer replay`; a run waits for it"
            yield warning("topic", f"{topic} is not in the embedded log {path.parent}", advice)


def kafka_checks(o: RunSettings) -> Iterator[Check]:
    """Broker, topics, group and dead-letter topic, as a consumer that joins no group sees them."""
    from kafka import KafkaConsumer

    from streamer.build import kafka_settings
    from streamer.sources.kafka.client import connect, explained

    given = kafka_settings(o)
    assert given is not None
    settings = dataclasses.replace(given, open_timeout_s=KAFKA_TIMEOUT_S)
    timeouts = {"request_timeout_ms": round(KAFKA_TIMEOUT_S * 1000)}
    consumer = connect(KafkaConsumer, settings.consumer_config() | timeouts)
    try:
        with explained(f"Kafka at {o.bootstrap_servers}"):
            existing = consumer.topics()
            version = ".".join(map(str, consumer.config["api_version"]))
            yield ok("kafka", f"{o.bootstrap_servers} answers, {_counted(len(existing), 'topic')}, version {version}")
            for topic in settings.topics:
                yield from topic_checks(consumer, topic, existing)
            yield from group_checks(consumer, [t for t in settings.topics if t in existing], o.group_id)
            yield dead_letter_check(o.dead_letters or f"{settings.topics[0]}.dead-letters", existing)
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


def topic_checks(consumer: Any, topic: str, existing: Collection[str]) -> Iterator[Check]:
    if topic not in existing:
        close = " or ".join(get_close_matches(topic, existing))
        advice = (f"did you mean {close}? " if close else "") + "Check --topic, create it, or let this user describe it"
        yield failure("topic", f"{topic} does not exist, or may not be seen", advice)
        return
    partitions = _partitions(consumer, topic)
    first = consumer.beginning_offsets(partitions, timeout_ms=KAFKA_TIMEOUT_S * 1000)
    end = consumer.end_offsets(partitions, timeout_ms=KAFKA_TIMEOUT_S * 1000)
    records = sum(end.values()) - sum(first.values())
    ends = ", ".join(f"{tp.partition}: {end[tp]:,}" for tp in partitions[:8]) + (", ..." if len(partitions) > 8 else "")
    yield ok("topic", f"{topic}: {_counted(len(partitions), 'partition')}, {records:,} records, ends {ends}")


def group_checks(consumer: Any, topics: Iterable[str], group: str) -> Iterator[Check]:
    """Whether the group's positions can be read, and how far they are behind."""
    partitions = [tp for topic in topics for tp in _partitions(consumer, topic)]
    if not partitions:
        return
    committed = {tp: consumer.committed(tp, timeout_ms=KAFKA_TIMEOUT_S * 1000) for tp in partitions}
    known = {tp: offset for tp, offset in committed.items() if offset is not None}
    if not known:
        yield ok("group", f"{group} has no positions yet")
        return
    end = consumer.end_offsets(list(known), timeout_ms=KAFKA_TIMEOUT_S * 1000)
    lag = sum(end[tp] - offset for tp, offset in known.items())
    yield ok("group", f"{group} has positions in {len(known)} of {len(partitions)} partitions, lag {lag:,}")


def dead_letter_check(topic: str, existing: Iterable[str]) -> Check:
    if topic in existing:
        return ok("dead letters", f"{topic} exists")
    advice = "create it, unless the brokers create topics on writing (auto.create.topics.enable)"
    return warning("dead letters", f"{topic} does not exist", advice)


def _partitions(consumer: Any, topic: str) -> list[Any]:
    from kafka import TopicPartition

    return [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]


# redis ----------------------------------------------------------------------------------------------------------------


def redis_checks(o: RunSettings) -> Iterator[Check]:
    """Whether it answers, its version, and whether it may throw keys away. The URL may hold a password: never shown."""
    import redis

    try:
        client = redis.Redis.from_url(
            o.redis_url or "",
            retry=None,  # or redis-py tries for seconds
            socket_connect_timeout=REDIS_TIMEOUT_S,
            socket_timeout=REDIS_TIMEOUT_S,
        )
    except ValueError as error:
        yield failure("redis", f"--redis-url: {error}", "give it as redis://host:port/0")
        return
    where = _address(client.connection_pool.connection_kwargs)
    try:
        with client:
            started = time.perf_counter()
            client.ping()
            answer_ms = (time.perf_counter() - started) * 1000
            server, memory = client.info("server"), client.info("memory")
    except redis.AuthenticationError as error:
        yield failure("redis", f"{where} does not let us in: {error}", "check user and password in --redis-url")
        return
    except redis.RedisError as error:
        yield failure("redis", f"{where} does not answer: {error}", "is it running, and is --redis-url right?")
        return
    yield _version_check(f"{where} answers in {answer_ms:.1f} ms", server["redis_version"])
    yield _memory_check(memory)


def _address(settings: dict[str, Any]) -> str:
    """Where a Redis is, without its password."""
    if path := settings.get("path"):
        return str(path)
    return f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}/{settings.get('db') or 0}"


def _version_check(answer: str, version: str) -> Check:
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < OLDEST_REDIS:
        oldest = ".".join(map(str, OLDEST_REDIS))
        return failure(
            "redis", f"{answer}, version {version} is too old", f"install Redis {oldest} or newer, or Valkey"
        )
    return ok("redis", f"{answer}, version {version}")


def _memory_check(memory: dict[str, Any]) -> Check:
    """Shared state must not be evicted: what is gone is learned again, or not at all."""
    limit, policy = memory["maxmemory"], memory["maxmemory_policy"]
    found = f"{size_shown(memory['used_memory'])} used of {size_shown(limit) if limit else 'no limit'}, policy {policy}"
    if policy != "noeviction":
        return warning("redis memory", found, "CONFIG SET maxmemory-policy noeviction, or keys may be thrown away")
    return ok("redis memory", found)
