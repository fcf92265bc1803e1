"""What `streamer doctor` looks at on this machine: libraries, cores, directories."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streamer.cli.output import format_age, format_bytes
from streamer.settings import RunSettings

OLDEST_PYTHON = (3, 11)
ENOUGH_SPACE_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and what to do about it."""

    name: str
    status: Literal["ok", "warning", "failure"]
    found: str
    advice: str | None = None


def count(number: int, what: str) -> str:
    """A number of things: `1 topic`, `2 topics`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def check_python(_: RunSettings) -> Iterator[Finding]:
    """Whether Python is new enough."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= OLDEST_PYTHON:
        yield Finding("python", "ok", version)
        return
    oldest = ".".join(map(str, OLDEST_PYTHON))
    advice = f"install Python {oldest} or newer"
    yield Finding("python", "failure", f"{version} is too old", advice)


def check_torch(_: RunSettings) -> Iterator[Finding]:
    """Whether torch can be imported, and where it trains."""
    try:
        import torch
    except Exception as error:
        advice = "install it again: pip install --force-reinstall torch"
        yield Finding("torch", "failure", f"cannot be imported: {error}", advice)
        return
    version = torch.__version__
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
        yield Finding("torch", "ok", f"{version}, trains on {device}")
    elif shutil.which("nvidia-smi"):
        found = (
            f"{version}, trains on the CPU although this machine has an NVIDIA driver"
        )
        advice = "install a torch with CUDA that fits the driver (https://pytorch.org), or choose --device cpu"
        yield Finding("torch", "warning", found, advice)
    else:
        yield Finding("torch", "ok", f"{version}, trains on the CPU")


def check_numba(_: RunSettings) -> Iterator[Finding]:
    """Whether numba compiles, and has a place for its cache."""
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
    """How many cores there are, and may be used."""
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    if quota is not None and quota < cores:
        threads = max(1, int(quota))
        found = f"{cores}, but this container may use only {quota:g} of them"
        advice = f"give `streamer run` --threads {threads}, or the container more"
        yield Finding("cores", "warning", found, advice)
    elif cores == 1:
        found = "1: reading and training share it"
        advice = "two let reading run ahead of training"
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


# files and directories ----------------------------------------------------------------


def check_data(settings: RunSettings) -> Iterator[Finding]:
    """Where the embedded log is, and the file of dead letters."""
    yield examine_directory("data", Path(settings.data_dir), ENOUGH_SPACE_BYTES)
    if settings.dead_letters:
        parent = Path(settings.dead_letters).absolute().parent
        yield examine_directory("dead letters", parent, 0)


def check_checkpoints(settings: RunSettings) -> Iterator[Finding]:
    """The directory, and whether a run would find a checkpoint in it."""
    from streamer.snapshot import CheckpointStore

    store = CheckpointStore(settings.checkpoints, readonly=True)
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


def examine_directory(name: str, path: Path, wanted_bytes: int) -> Finding:
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


# sources on this machine --------------------------------------------------------------


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

    partitions = {}
    connection = database.connect(path, "ro", busy_timeout_s=2.0)
    with database.translated_errors(path), contextlib.closing(connection) as db:
        is_written = database.format_of(db, path) > 0
        for topic in settings.all_topics:
            partitions[topic] = database.rows_of(db, topic) if is_written else []

    for topic, rows in partitions.items():
        if rows:
            records = sum(end for _, end in rows)
            found = f"{topic}: {count(len(rows), 'partition')}, {records:,} records, embedded"
            yield Finding("topic", "ok", found)
        else:
            found = f"{topic} is not in the embedded log {path.parent}"
            advice = "check --topic, or write it with `streamer replay`; a run waits for the topic"
            yield Finding("topic", "warning", found, advice)
