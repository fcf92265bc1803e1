"""Writes events to a topic, at a pace.

    reader -> chunks of records -> pace -> sink

A reader is anything that yields chunks of records in stream order; `Events.records()` makes them from columns. A sink
is a topic of the embedded log, or of Kafka (`streamer.replay.kafka.sink`). Both key a record by its user, so that a
user's events stay in order, and store with the events how many of a replay they hold (`streamer.replay.resume`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from streamer.replay.events import Record
from streamer.replay.pacing import Pace, Unpaced
from streamer.replay.resume import ReplayLog
from streamer.replay.settings import DEFAULT_PARTITIONS

MAX_WRITE_RECORDS = 16_384


class EventSink(Protocol):
    """Where events are written. Called by one thread."""

    def resume(self, replay: str, restart: bool = False) -> int:
        """How many events of this replay the topic holds; writes go on after those.

        Called before the first write. Without it nothing is remembered, and a replay that is killed cannot go on.

        Args:
            replay: its name, see `replay_name`.
            restart: write all events again, also those that the topic holds; returns 0.

        Raises:
            StreamerError: the position cannot be read.
        """
        ...

    def write(self, events: Sequence[Record]) -> None:
        """Take the events that come next. All are safe, and the position with them, or none; `close` waits for it.

        Raises:
            StreamerError: these cannot be written, or those of the write before.
        """
        ...

    def close(self) -> None:
        """Return when everything is safe, and disconnect. May be called twice.

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

    def write(self, events: Sequence[Record]) -> None:
        self.records += events
        self.writes.append(len(events))
        self._positions[self._replay] = self._positions.get(self._replay, 0) + len(events)

    def close(self) -> None:
        """Does nothing."""


class EmbeddedSink:
    """A topic of the embedded log; created if it is not there.

    Args:
        data_dir: the directory of the log.
        topic: the topic.
        partitions: of the topic. None takes those that it has, or `DEFAULT_PARTITIONS` for a new one.

    Raises:
        SourceError: the topic is there with another number of partitions, or the log cannot be written.
    """

    def __init__(self, data_dir: str | Path, topic: str, partitions: int | None = None) -> None:
        self._topic, self._log = topic, ReplayLog(data_dir)
        self._replay: str | None = None
        self._position = 0
        try:
            self._log.create_topic(topic, partitions or self._log.topics().get(topic, DEFAULT_PARTITIONS))
        except BaseException:
            self._log.close()
            raise

    def resume(self, replay: str, restart: bool = False) -> int:
        """See `EventSink.resume`."""
        self._replay, self._position = replay, self._log.start_replay(self._topic, replay, restart)
        return self._position

    def write(self, events: Sequence[Record]) -> None:
        """Append all of them, or none."""
        if self._replay is None:
            self._log.append(self._topic, events)
        else:
            self._log.append_at(self._topic, events, self._replay, self._position)
            self._position += len(events)

    def close(self) -> None:
        self._log.close()


def produce(
    chunks: Iterable[Sequence[Record]],
    sink: EventSink,
    pace: Pace | None = None,
    on_written: Callable[[int], None] = lambda count: None,
    stamp: Callable[[], float] | None = None,
) -> int:
    """Write a stream until it ends; returns the number of records. The sink stays open.

    Args:
        chunks: records in stream order.
        sink: where they go.
        pace: when; None for as fast as possible.
        on_written: called after each write with the number of records in it.
        stamp: seconds since the epoch: the time that records get as they are written. None leaves them theirs.
    """
    pace, written = pace or Unpaced(), 0
    for rest in chunks:
        while rest:
            part = rest[:MAX_WRITE_RECORDS]
            part = part[: pace.due([time_ms for _, _, time_ms in part])]
            rest = rest[len(part) :]
            if stamp is not None:
                time_ms = round(stamp() * 1000)
                part = [(key, value, time_ms) for key, value, _ in part]
            sink.write(part)
            on_written(len(part))
            written += len(part)
    return written
