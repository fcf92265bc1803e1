"""Streams that can be replayed: each can begin at any of its events, so that a replay can go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from streamer.replay.events import Events, Record
from streamer.replay.resume import replay_name

if TYPE_CHECKING:
    from streamer.replay.datasets import Log, LogOptions
    from streamer.replay.lines import JsonLines, Malformed

AFTER_PASS_S = 1.0
"""Between the last event of a pass and the first one of the next."""


class Stream(Protocol):
    """Events in an order that is the same each time."""

    @property
    def name(self) -> str | None:
        """Of the replay; None for a stream that is gone when it was read."""
        ...

    @property
    def total(self) -> int | None:
        """Events, if that is known."""
        ...

    @property
    def has_time(self) -> bool:
        """Whether events say when they happened; if not, their records get the time at which they are written."""
        ...

    def chunks(self, start: int = 0) -> Iterator[Sequence[Record]]:
        """The events from number `start` on, in chunks."""
        ...


@dataclass(frozen=True, slots=True)
class LogStream:
    """The events of a log, one or several times.

    Each pass shuffles anew what the log itself does not order: events of equal time, or all of them if it has no times.
    Times go on: a pass begins when the one before has ended.

    Args:
        log: where they come from.
        name: of the replay.
        passes: how many times.
        seed: of the first pass; the next ones count on from it.
    """

    log: Log
    name: str | None
    passes: int = 1
    seed: int = 0

    @property
    def total(self) -> int:
        """Events of all passes."""
        return self.passes * len(self.log)

    @property
    def has_time(self) -> bool:
        """As the log has."""
        return self.log.has_time

    def chunks(self, start: int = 0) -> Iterator[Sequence[Record]]:
        """See `Stream.chunks`."""
        first, skipped = divmod(start, max(len(self.log), 1))
        for number in range(first, self.passes):
            later_s = self._later_s(number)
            for events in self.log.batches(pass_seed=self.seed + number, start=skipped):
                yield delayed(events, later_s).records()
            skipped = 0

    def _later_s(self, number: int) -> float:
        """How much later than in the log events happen in a pass."""
        if not number or not self.log.has_time:
            return 0.0
        about = self.log.describe()
        return float(number * (about["last_s"] - about["first_s"] + AFTER_PASS_S))


def delayed(events: Events, later_s: float) -> Events:
    """The same events at a later time."""
    if not later_s or events.timestamps_s is None:
        return events
    times_s = [time_s + later_s for time_s in events.timestamps_s]
    return Events(events.users, events.items, times_s, events.user_features, events.item_features)


@dataclass(frozen=True, slots=True)
class SyntheticReplay:
    """A made-up stream, up to a number of events. It happens as it is written; made-up times only tell how fast.

    Args:
        total: how many.
        seed: determines them.
    """

    total: int
    seed: int = 0
    has_time = False

    @property
    def name(self) -> str:
        """Of the replay; with more events it is the same one, and goes on."""
        return replay_name("synthetic", {"seed": self.seed})

    def chunks(self, start: int = 0) -> Iterator[Sequence[Record]]:
        """See `Stream.chunks`."""
        from streamer.replay.synthetic import SyntheticSettings, SyntheticStream

        stream = SyntheticStream(SyntheticSettings(seed=self.seed))
        yield from up_to(self.total - start, map(_untimed, _skipped(stream, start)))


@dataclass(frozen=True, slots=True)
class LinesStream:
    """Events of JSON lines as they stand, or as they come in by standard input.

    Args:
        lines: the reader.
        name: of the replay; None for standard input.
        limit: no more events than this.
    """

    lines: JsonLines
    name: str | None
    limit: int | None = None
    total: int | None = None
    has_time = True

    @property
    def malformed(self) -> Malformed:
        """What was no event, of what was read so far."""
        return self.lines.malformed

    def chunks(self, start: int = 0) -> Iterator[Sequence[Record]]:
        """See `Stream.chunks`."""
        rest = _skipped(self.lines, start)
        yield from rest if self.limit is None else up_to(self.limit - start, rest)


def log_name(kind: str, files: Sequence[Path], options: LogOptions, passes: int) -> str:
    """The name of the replay of a log. What changes neither events nor order does not count: memory, threads.

    Args:
        kind: its format.
        files: all that were read, see `Log.files`.
        options: what of it, and in which order.
        passes: how many times.

    Raises:
        SourceError: one cannot be read.
    """
    settings: dict[str, Any] = asdict(options) | {"passes": passes}
    for name in ("memory_limit", "temp_dir", "threads"):
        settings.pop(name, None)
    return replay_name(kind, settings, files)


def up_to(most: int, chunks: Iterable[Sequence[Record]]) -> Iterator[Sequence[Record]]:
    """The first so many records; nothing more is made."""
    if most <= 0:
        return
    for chunk in chunks:
        yield chunk[:most]
        most -= len(chunk)
        if most <= 0:
            return


def _untimed(events: Events) -> list[Record]:
    """Records of events that do not say when they happened; the times of the records are for the pace."""
    records = Events(events.users, events.items).records()
    return [(key, value, time_ms) for (key, value, _), time_ms in zip(records, events.times_ms(), strict=True)]


def _skipped(chunks: Iterable[Any], start: int) -> Iterator[Any]:
    """The chunks without their first `start` events."""
    for chunk in chunks:
        if start < len(chunk):
            yield chunk[start:] if start else chunk
        start = max(0, start - len(chunk))
