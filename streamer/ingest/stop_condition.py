"""Where reading stops: at the end as it was at the start, or after a number of events."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection

from streamer.event import Decoded
from streamer.sources.base import Chunk, Partition, Source

logger = logging.getLogger(__name__)


class StopCondition:
    """Knows how much of what is read is wanted. Used by the reading thread.

    Args:
        until_end: stop at the end of each partition as it was when its reading began.
        max_events: stop after the record with which this many events are read; None for
            no limit.
    """

    def __init__(self, until_end: bool = False, max_events: int | None = None) -> None:
        self.until_end = until_end
        self._events_left = max_events
        self._ends: dict[Partition, int] = {}

    def reached(self, source: Source, assigned: Collection[Partition]) -> bool:
        """Return whether nothing more is to be read of our partitions."""
        if self._events_left == 0 or source.at_end:
            return True
        if not self.until_end:
            return False
        self._note_ends(source, assigned)
        read = source.positions()
        return all(
            p in read and p in self._ends and read[p] >= self._ends[p] for p in assigned
        )

    def _note_ends(self, source: Source, assigned: Collection[Partition]) -> None:
        """Keep the end that a partition had when it was first assigned, also if it goes
        and comes back.
        """
        new = [p for p in assigned if p not in self._ends]
        ends = source.end_offsets() if new else {}
        for partition in sorted(p for p in new if p in ends):
            self._ends[partition] = ends[partition]
            logger.info(
                "reading %s to its end at %s", partition, f"{ends[partition]:,}"
            )

    def before_end(self, chunk: Chunk) -> Chunk:
        """Return the records before the partition's end."""
        end = self._ends.get(chunk.partition)
        return chunk if end is None else _first(chunk, bisect_left(chunk.offsets, end))

    def at_most(self, records: int) -> int:
        """Return how many of `records` to poll for; each holds an event at least."""
        return records if self._events_left is None else min(records, self._events_left)

    def before_max(self, chunk: Chunk, decoded: Decoded) -> Chunk:
        """Return the records up to the one with which `max_events` are read."""
        left = self._events_left
        if left is None or decoded.consumed <= left:
            return chunk
        columns = zip(
            decoded.events_upto,
            decoded.filtered_upto,
            decoded.letters_upto,
            strict=True,
        )
        return _first(chunk, bisect_left([sum(upto) for upto in columns], left) + 1)

    def count(self, events: int) -> None:
        """Count events that were read; a negative number, if they are dropped and will
        be read again.
        """
        if self._events_left is not None:
            self._events_left = max(0, self._events_left - events)


def _first(chunk: Chunk, n: int) -> Chunk:
    """The first n records of a chunk."""
    if n >= len(chunk):
        return chunk
    columns = (
        chunk.offsets[:n],
        chunk.timestamps_ms[:n],
        chunk.keys[:n],
        chunk.values[:n],
    )
    return Chunk(chunk.partition, *columns, lost=chunk.lost)
