"""Streams to replay. Each can begin at any of its events, so that a replay can go on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from streamer.errors import SourceError
from streamer.replay.events import Events, Record
from streamer.replay.settings import LogSettings

if TYPE_CHECKING:
    from streamer.replay.datasets import Log

CHUNK = 4096
"""Events of a synthetic stream that are made at once."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Events in an order that is the same each time."""

    name: str
    """Of the replay."""
    total: int
    """Number of events."""
    has_time: bool
    """Whether events have times; if not, their records get the time at which they are
    written.
    """
    chunks: Callable[[int], Iterator[Sequence[Record]]]
    """The events from a number on, in chunks."""


def log_stream(log: Log, name: str) -> Stream:
    """The events of a log."""

    def chunks(start: int) -> Iterator[Sequence[Record]]:
        return (events.records() for events in log.batches(start=start))

    return Stream(name, len(log), log.has_time, chunks)


def catalogue_stream(records: Sequence[Record], name: str) -> Stream:
    """Catalogue events."""
    return Stream(name, len(records), True, lambda start: iter([records[start:]]))


def synthetic_stream(events: int, seed: int = 0) -> Stream:
    """A synthetic stream, up to a number of events; with more of them it is the same
    replay, and goes on.

    Its events happen as they are written: their own times only set the pace.
    """

    def records() -> Iterator[Record]:
        from streamer.replay.synthetic import SyntheticStream

        for made in SyntheticStream(seed):
            untimed = Events(made.users, made.items).records()
            for (key, value, _), time_ms in zip(untimed, made.times_ms(), strict=True):
                yield key, value, time_ms

    def chunks(start: int) -> Iterator[Sequence[Record]]:
        rest = islice(records(), start, max(start, events))
        while chunk := list(islice(rest, CHUNK)):
            yield chunk

    return Stream(replay_name("synthetic", {"seed": seed}), events, False, chunks)


def log_name(log: Log, settings: LogSettings) -> str:
    """The name of the replay of a log. Settings that change neither events nor order do
    not count: memory, threads.

    Raises:
        SourceError: one of its files cannot be read.
    """
    determining = asdict(settings.only(LogSettings))
    for name in ("memory_limit", "threads"):
        del determining[name]
    return replay_name(log.name, determining, log.files)


def replay_name(
    kind: str, settings: Mapping[str, Any], files: Iterable[Path] = ()
) -> str:
    """The name of a replay, by what determines its events and their order: `gowalla-`
    and 16 hexadecimal digits.

    The same command has the same name and goes on; another seed is another replay. A
    file is known by all that is in it, wherever it lies.

    Raises:
        SourceError: a file cannot be read.
    """
    digest = hashlib.sha256(
        msgspec.json.encode([kind, settings], order="deterministic", enc_hook=str)
    )
    for path in files:
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
        except OSError as error:
            raise SourceError(f"cannot read {path}: {error.strerror}") from error
    return f"{kind}-{digest.hexdigest()[:16]}"
