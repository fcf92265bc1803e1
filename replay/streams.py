"""Streams to replay. Each can begin at any of its events, so that a replay can go on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from streamer.errors import SourceError
from streamer.replay.events import Events, Record
from streamer.replay.settings import LogSettings

if TYPE_CHECKING:
    from streamer.replay.datasets import Log
    from streamer.replay.json_lines import JsonLines

PASS_GAP_S = 1.0
"""Between the last event of a pass and the first one of the next."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Events in an order that is the same each time."""

    name: str | None
    """Of the replay; None for a stream that can be read only once."""
    total: int | None
    """Number of events, if that is known."""
    has_time: bool
    """Whether events have times; if not, their records get the time at which they are
    written.
    """
    chunks: Callable[[int], Iterator[Sequence[Record]]]
    """The events from a number on, in chunks."""


def log_stream(log: Log, name: str | None, passes: int = 1, seed: int = 0) -> Stream:
    """The events of a log, one or several times, the times of a pass after those of the
    pass before.

    Each pass shuffles anew what the log itself does not order: events of equal time, or
    all of them if it has no times. The first pass has the seed, each of the next ones
    the next number.
    """

    def chunks(start: int) -> Iterator[Sequence[Record]]:
        first, skipped = divmod(start, max(len(log), 1))
        for number in range(first, passes):
            delay_s = 0.0
            if number and log.has_time:
                described = log.describe()
                delay_s = number * (
                    described["last_s"] - described["first_s"] + PASS_GAP_S
                )
            for events in log.batches(pass_seed=seed + number, start=skipped):
                if delay_s and events.timestamps_s is not None:
                    events = replace(
                        events,
                        timestamps_s=[
                            time_s + delay_s for time_s in events.timestamps_s
                        ],
                    )
                yield events.records()
            skipped = 0

    return Stream(name, passes * len(log), log.has_time, chunks)


def catalogue_stream(records: Sequence[Record], name: str) -> Stream:
    """Catalogue events."""
    return Stream(
        name,
        len(records),
        True,
        lambda start: iter([records[start:]] if start < len(records) else []),
    )


def synthetic_stream(events: int, seed: int = 0) -> Stream:
    """A synthetic stream, up to a number of events; with more of them it is the same
    replay, and goes on.

    Its events happen as they are written: their own times only set the pace.
    """

    def chunks(start: int) -> Iterator[Sequence[Record]]:
        from streamer.replay.synthetic import SyntheticStream

        stream = SyntheticStream(seed)
        return up_to(events - start, map(_untimed, _skip(stream, start)))

    return Stream(replay_name("synthetic", {"seed": seed}), events, False, chunks)


def lines_stream(
    lines: JsonLines, name: str | None, limit: int | None = None
) -> Stream:
    """Events of JSON lines in the order of the file, or of standard input."""

    def chunks(start: int) -> Iterator[Sequence[Record]]:
        rest = _skip(lines, start)
        return rest if limit is None else up_to(limit - start, rest)

    return Stream(name, None, True, chunks)


def log_name(log: Log, settings: LogSettings, passes: int = 1) -> str:
    """The name of the replay of a log. Settings that change neither events nor order do
    not count: memory, threads.

    Raises:
        SourceError: one of its files cannot be read.
    """
    determining = asdict(settings.only(LogSettings)) | {
        "passes": passes,
        "min_events": settings.min_events,
    }
    for name in (
        "memory_limit",
        "temp_dir",
        "threads",
        "k_core",
        "min_user_events",
        "min_item_events",
    ):
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


def up_to(limit: int, chunks: Iterable[Sequence[Record]]) -> Iterator[Sequence[Record]]:
    """The first `limit` records; reads no chunk beyond them."""
    if limit <= 0:
        return
    for chunk in chunks:
        yield chunk[:limit]
        limit -= len(chunk)
        if limit <= 0:
            return


def _untimed(events: Events) -> list[Record]:
    """Records whose events have no times; the times of the records set the pace."""
    records = Events(events.users, events.items).records()
    return [
        (key, value, time_ms)
        for (key, value, _), time_ms in zip(records, events.times_ms(), strict=True)
    ]


def _skip(chunks: Iterable[Any], start: int) -> Iterator[Any]:
    """The chunks without their first `start` events."""
    for chunk in chunks:
        if start < len(chunk):
            yield chunk[start:] if start else chunk
        start = max(0, start - len(chunk))
