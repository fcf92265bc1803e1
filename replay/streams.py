"""Streams to replay. Each can begin at any of its events, so that a replay can go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from streamer.replay.events import Events, Record
from streamer.replay.resume import replay_name
from streamer.replay.settings import LogSettings

if TYPE_CHECKING:
    from streamer.replay.datasets import Log
    from streamer.replay.events import Malformed
    from streamer.replay.json_lines import JsonLines

PASS_GAP_S = 1.0
"""Between the last event of a pass and the first one of the next."""


class Stream(Protocol):
    """Events in an order that is the same each time."""

    @property
    def name(self) -> str | None:
        """Of the replay; None for a stream that can be read only once."""
        ...

    @property
    def total(self) -> int | None:
        """Number of events, if that is known."""
        ...

    @property
    def has_time(self) -> bool:
        """Whether events have times; if not, their records get the time at which they are written."""
        ...

    def chunks(self, start: int = 0) -> Iterator[Sequence[Record]]:
        """The events from number `start` on, in chunks."""
        ...


@dataclass(frozen=True, slots=True)
class LogStream:
    """The events of a log, one or several times.

    Each pass shuffles anew what the log itself does not order: events of equal time, or all of them if it has no times.
    The times of a pass follow those of the pass before.

    Args:
        log: the log.
        name: of the replay.
        passes: how many times.
        seed: of the first pass; each of the next ones has the next number.
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
            delay_s = number * self._pass_s() if number else 0.0
            for events in self.log.batches(pass_seed=self.seed + number, start=skipped):
                if delay_s and events.timestamps_s is not None:
                    events = replace(events, timestamps_s=[time_s + delay_s for time_s in events.timestamps_s])
                yield events.records()
            skipped = 0

    def _pass_s(self) -> float:
        """Seconds from the first event of a pass to the first one of the next."""
        if not self.log.has_time:
            return 0.0
        described = self.log.describe()
        return float(described["last_s"] - described["first_s"] + PASS_GAP_S)


@dataclass(frozen=True, slots=True)
class SyntheticReplay:
    """A synthetic stream, up to a number of events. They happen as they are written: their own times only set the pace.

    Args:
        total: number of events.
        seed: determines them.
    """

    total: int
    seed: int = 0
    has_time = False

    @property
    def name(self) -> str:
        """Of the replay, which is the same one with more events, and goes on."""
        return replay_name("synthetic", {"seed": self.seed})

    def chunks(self, start: int = 0) -> Iterator[Sequence[Record]]:
        """See `Stream.chunks`."""
        from streamer.replay.synthetic import SyntheticSettings, SyntheticStream

        stream = SyntheticStream(SyntheticSettings(seed=self.seed))
        yield from up_to(self.total - start, map(_untimed, _skip(stream, start)))


@dataclass(frozen=True, slots=True)
class LinesStream:
    """Events of JSON lines in the order of the file, or of standard input.

    Args:
        lines: the reader.
        name: of the replay; None for standard input.
        limit: at most this many events.
    """

    lines: JsonLines
    name: str | None
    limit: int | None = None
    total: int | None = None
    has_time = True

    @property
    def malformed(self) -> Malformed:
        """What was no event, among the lines read so far."""
        return self.lines.malformed

    def chunks(self, start: int = 0) -> Iterator[Sequence[Record]]:
        """See `Stream.chunks`."""
        rest = _skip(self.lines, start)
        yield from rest if self.limit is None else up_to(self.limit - start, rest)


def log_name(kind: str, files: Sequence[Path], settings: LogSettings, passes: int) -> str:
    """The name of the replay of a log. Settings that change neither events nor order do not count: memory, threads.

    Args:
        kind: its format.
        files: all that it was read from, see `Log.files`.
        settings: which of its events, and in which order.
        passes: how many times.

    Raises:
        SourceError: a file cannot be read.
    """
    determining = asdict(settings.only(LogSettings)) | {"passes": passes, "min_events": settings.min_events}
    for name in ("memory_limit", "temp_dir", "threads", "k_core", "min_user_events", "min_item_events"):
        del determining[name]
    return replay_name(kind, determining, files)


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
    return [(key, value, time_ms) for (key, value, _), time_ms in zip(records, events.times_ms(), strict=True)]


def _skip(chunks: Iterable[Any], start: int) -> Iterator[Any]:
    """The chunks without their first `start` events."""
    for chunk in chunks:
        if start < len(chunk):
            yield chunk[start:] if start else chunk
        start = max(0, start - len(chunk))
