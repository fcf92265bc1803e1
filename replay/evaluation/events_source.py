"""A log in memory as a stream: columns of events become records as they are polled, one
partition, read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice

from streamer.replay.events import Events, Record
from streamer.sources.base import Chunk, Partition, Positions, RebalanceListener


class EventsSource:
    """A `Source` of `total` events in the wire format, in their order; takes one chunk
    of them at a time.

    Without times all are of one moment, the same in every run. What the `catalogue`
    holds comes before.
    """

    all_assigned = True
    at_end = False
    problem = None

    def __init__(
        self,
        chunks: Iterable[Events],
        total: int,
        topic: str = "events",
        catalogue: Sequence[Record] = (),
    ) -> None:
        self.partition = Partition(topic, 0)
        self._total = total + len(catalogue)
        self._position = 0
        records = (events.records(lambda: 0.0) for events in chunks)
        self._records = chain(catalogue, chain.from_iterable(records))

    def open(self, listener: RebalanceListener) -> None:
        listener.on_assigned([self.partition])

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """The next events; nothing ever comes later, so nothing is waited for."""
        records = list(islice(self._records, max_records))
        self.at_end = self.at_end or len(records) < max_records
        if not records:
            return []
        keys, values, times_ms = map(list, zip(*records, strict=True))
        offsets = list(range(self._position, self._position + len(records)))
        self._position += len(records)
        return [Chunk(self.partition, offsets, times_ms, keys, values)]

    def positions(self) -> Positions:
        return {self.partition: self._position}

    def commit(self, positions: Positions) -> None:
        """Does nothing: the stream is read once."""

    def end_offsets(self) -> Positions:
        return {self.partition: max(self._total, self._position)}

    def close(self) -> None:
        """Does nothing."""
