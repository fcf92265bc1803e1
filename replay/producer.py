"""Writes events to a topic, at a pace.

    reader -> chunks of records -> pace -> sink

A reader is anything that yields chunks of records in stream order; `Events.records()`
makes them from columns. A sink is a topic of the embedded log, or of Kafka
(`streamer.replay.kafka.sink`). Both key a record by its user, so that a user's events
stay in order.

Stopped at any moment, even by SIGKILL, a replay goes on without losing or doubling an
event: the transaction that appends events also writes the replay's position, the number
of its events that the topic holds. A replay is known by its name, see
`streams.replay_name`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from streamer.errors import SourceError
from streamer.replay.events import Record
from streamer.replay.pacing import Pace
from streamer.replay.settings import DEFAULT_PARTITIONS
from streamer.sources.embedded.log import EmbeddedLog

MAX_WRITE_RECORDS = 16_384


class EventSink(Protocol):
    """Where events are written. Called by one thread; every method raises StreamerError
    if it cannot do its work.
    """

    def resume(self, replay: str, restart: bool = False) -> int:
        """The number of events of this replay that the topic holds; 0 for a restart,
        which writes them all again.

        Called before the first write. Without it no position is kept, and a replay that
        is killed cannot go on.
        """
        ...

    def write(self, events: Sequence[Record]) -> None:
        """Take the events that come next. All are safe, and the position with them, or
        none; `close` waits for it.
        """
        ...

    def close(self) -> None:
        """Return when everything is safe, and disconnect. May be called twice."""
        ...


class EmbeddedSink(EmbeddedLog):
    """A topic of the embedded log; created if it is not there, with
    `DEFAULT_PARTITIONS` unless others are given.

    The table `replays` of the log holds the positions: topic, name of the replay,
    events written.

    Raises:
        SourceError: the topic is there with another number of partitions, or the log
            cannot be written.
    """

    def __init__(
        self, data_dir: str | Path, topic: str, partitions: int | None = None
    ) -> None:
        super().__init__(data_dir)
        self._topic = topic
        self._replay: str | None = None
        self._position = 0  # of the replay
        self._written = 0  # events of the write in progress
        try:
            self.create_topic(
                topic, partitions or self.topics().get(topic, DEFAULT_PARTITIONS)
            )
        except BaseException:
            self.close()
            raise

    def resume(self, replay: str, restart: bool = False) -> int:
        """See `EventSink.resume`."""
        with self._transaction():
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS replays (topic TEXT NOT NULL, name TEXT NOT NULL,"
                " written INTEGER NOT NULL, PRIMARY KEY (topic, name))"
            )
            query = (
                "INSERT INTO replays VALUES (?, ?, 0) "
                "ON CONFLICT DO UPDATE SET written = coalesce(?, written) RETURNING written"
            )
            [row] = self._db.execute(
                query, (self._topic, replay, 0 if restart else None)
            ).fetchall()
        self._replay = replay
        self._position = int(row[0])
        return self._position

    def write(self, events: Sequence[Record]) -> None:
        """See `EventSink.write`. Raises SourceError if another process writes the same
        replay to the topic.
        """
        self._written = len(events)
        try:
            self.append(self._topic, events)
            self._position += len(events)
        finally:
            self._written = 0

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction of the log that also moves the position behind the events of a
        write.
        """
        with super()._transaction():
            yield
            if self._replay is not None and self._written:
                query = "UPDATE replays SET written = ? WHERE topic = ? AND name = ? AND written = ?"
                after = self._position + self._written
                values = (after, self._topic, self._replay, self._position)
                if self._db.execute(query, values).rowcount != 1:
                    raise SourceError(
                        f"{self._path}: another process writes the same replay to topic {self._topic!r}. "
                        "Nothing was doubled; make sure that it runs only once, and start it again"
                    )


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
        on_written: called after each write with the number of records in it.
        stamp: seconds since the epoch: the time that records get as they are written.
            None leaves them theirs.
    """
    pace = pace or Pace()
    written = 0
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
