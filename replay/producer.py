"""Writes events to a topic, at a pace.

    reader -> chunks of records -> pace -> sink

A reader is anything that yields chunks of records in stream order; `Events.records()` makes them from columns. A sink
is a topic of the embedded log, or of Kafka (`replay.kafka`). In both, a record is keyed by its user, so that a
user's events stay in order. A sink knows which events of a replay it has (`streamer.replay.resume`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from streamer.replay.events import Record
from streamer.replay.pacing import Pace, Unpaced
from streamer.replay.resume import ReplayLog

PARTITIONS = 4
"""Of a new topic of the embedded log."""
MOST_AT_ONCE = 16_384
"""Records of one write."""


class EventSink(Protocol):
    """Where events are written. Called by one thread."""

    def resume(self, replay: str, restart: bool = False) -> int:
        """Be told before the first write which replay it is; answer from which of its events to write on, 0 at first.

        Writes then begin with that event. The sink itself leaves out those that it has. Without this, all that is
        written is new, and a replay that is killed cannot go on.

        Args:
            replay: its name, see `replay_name`.
            restart: write all events again, whether they are there or not.

        Raises:
            StreamerError: it cannot be said where the replay stands.
        """
        ...

    def write(self, events: Sequence[Record]) -> int:
        """Take some records, in their order; they are safe only after `close`. Answer how many were not there.

        Raises:
            StreamerError: they cannot be written.
        """
        ...

    def close(self) -> None:
        """Return when everything is safe, and let go. May be called twice.

        Raises:
            StreamerError: something could not be written.
        """
        ...


class MemorySink:
    """Keeps the records; for tests."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.writes: list[int] = []
        self._positions: dict[str, int] = {}
        self._replay = ""

    def resume(self, replay: str, restart: bool = False) -> int:
        self._replay = replay
        if restart:
            self._positions.pop(replay, None)
        return self._positions.get(replay, 0)

    def write(self, events: Sequence[Record]) -> int:
        self.records += events
        self.writes.append(len(events))
        self._positions[self._replay] = self._positions.get(self._replay, 0) + len(events)
        return len(events)

    def close(self) -> None:
        """Nothing to let go of."""


class EmbeddedSink:
    """A topic of the embedded log; created if it is not there.

    Args:
        data_dir: the directory of the log.
        topic: the topic.
        partitions: of the topic. None takes those that it has, or `PARTITIONS` for a new one.

    Raises:
        SourceError: the topic is there with another number of partitions, or the log cannot be written.
    """

    def __init__(self, data_dir: str | Path, topic: str, partitions: int | None = None) -> None:
        self._topic, self._log = topic, ReplayLog(data_dir)
        self._replay: str | None = None
        self._at = 0
        try:
            self._log.create_topic(topic, partitions or self._log.topics().get(topic, PARTITIONS))
        except BaseException:
            self._log.close()
            raise

    def resume(self, replay: str, restart: bool = False) -> int:
        """See `EventSink.resume`."""
        self._replay, self._at = replay, self._log.begin(self._topic, replay, restart)
        return self._at

    def write(self, events: Sequence[Record]) -> int:
        """Append all of them, or none."""
        if self._replay is None:
            self._log.append(self._topic, events)
        else:
            self._log.append_next(self._topic, events, self._replay, self._at)
            self._at += len(events)
        return len(events)

    def close(self) -> None:
        self._log.close()


def produce(
    chunks: Iterable[Sequence[Record]],
    sink: EventSink,
    pace: Pace | None = None,
    limit: int | None = None,
    on_written: Callable[[int, int], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    stamp: Callable[[], float] | None = None,
) -> int:
    """Write a stream until it ends; answer how many records of it were written. The sink stays open.

    Args:
        chunks: records in stream order.
        sink: where they go.
        pace: when; None for as fast as possible.
        limit: write no more than so many.
        on_written: called after each write with the number of records in it, and how many were new to the sink.
        stopped: asked before each write; when it says so, writing ends.
        stamp: seconds since the epoch: the time that records get as they are written. None leaves them theirs.
    """
    pace, written = pace or Unpaced(), 0
    for rest in _cut(chunks, limit):
        while rest:
            part = rest[: pace.due([time_ms for _, _, time_ms in rest])]
            if stopped():
                return written
            new = sink.write(part if stamp is None else _stamped(part, stamp()))
            written += len(part)
            if on_written is not None:
                on_written(len(part), new)
            rest = rest[len(part) :]
    return written


def _stamped(records: Sequence[Record], time_s: float) -> list[Record]:
    time_ms = round(time_s * 1000)
    return [(key, value, time_ms) for key, value, _ in records]


def _cut(chunks: Iterable[Sequence[Record]], limit: int | None) -> Iterator[Sequence[Record]]:
    """The chunks in parts that are not too large, up to a number of records."""
    left = sys.maxsize if limit is None else limit
    for chunk in chunks:
        for start in range(0, min(len(chunk), left), MOST_AT_ONCE):
            yield chunk[start : start + min(MOST_AT_ONCE, left - start)]
        left -= len(chunk)
        if left <= 0:
            return
