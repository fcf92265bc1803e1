"""A log in memory as a stream: columns of events become records as they are polled, one partition, read once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamer.replay.events import Events
from streamer.sources.base import Chunk, Partition, Positions, RebalanceListener


class EventsSource:
    """Serves events in the wire format, in their order.

    Args:
        chunks: the events; taken one chunk at a time.
        total: how many there are.
        topic: what the stream is called.
    """

    all_assigned = True

    def __init__(self, chunks: Iterable[Events], total: int, topic: str = "events") -> None:
        self.partition, self._total = Partition(topic, 0), total
        self._chunks: Iterator[Events] = iter(chunks)
        self._events, self._taken, self._position = Events([], []), 0, 0
        self.at_end = False

    def open(self, listener: RebalanceListener) -> None:
        """Read from the first event."""
        listener.on_assigned([self.partition])

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """The next events; nothing ever comes later, so nothing is waited for."""
        while self._taken == len(self._events) and not self.at_end:
            self._next_chunk()
        part = self._events[self._taken : self._taken + max_records]
        if not len(part):
            return []
        self._taken += len(part)
        keys, values, times_ms = zip(*part.records(), strict=True)
        offsets = list(range(self._position, self._position + len(part)))
        self._position += len(part)
        return [Chunk(self.partition, offsets, list(times_ms), list(keys), list(values))]

    def _next_chunk(self) -> None:
        chunk = next(self._chunks, None)
        self._events, self._taken, self.at_end = chunk or Events([], []), 0, chunk is None

    def positions(self) -> Positions:
        """See `Source.positions`."""
        return {self.partition: self._position}

    def commit(self, positions: Positions) -> None:
        """Does nothing: the stream is read once."""

    def end_offsets(self) -> Positions:
        """See `Source.end_offsets`."""
        return {self.partition: max(self._total, self._position)}

    def close(self) -> None:
        """Does nothing."""
