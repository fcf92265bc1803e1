"""Micro-batches: what is trained in one step, and how far each partition has come when
it is.

A batch is a stretch of whole records in the order in which they were added, partitions
interleaved. It ends with the record that fills it, and the next begins with the next
record; so a position never hides an event that is not trained, and where batches end
follows from the order of the records alone, not from how they came in chunks. Records
without an event (filtered, dead letters) belong to the batch that is open when they
come.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from streamer.dead_letters.base import DeadLetter
from streamer.event.decoded import COLUMNS, NO_USER, Decoded, EventColumns
from streamer.sources.base import Partition

CATALOGUE_AGE_S = 0.1
"""What the catalogue says of items is not trained, so a larger batch of nothing else is
worth no longer wait.
"""
MAX_UNTRAINED_BYTES = 16 << 20
"""Bytes of dead letters and filtered events that fill a batch."""
FILTERED_BYTES = 16
"""What a filtered event is taken to weigh."""


class Origin(NamedTuple):
    """Events `start` to `stop` of a batch come from this partition, and their offsets
    ascend.
    """

    partition: Partition
    start: int
    stop: int


@dataclass(slots=True)
class MicroBatch(EventColumns):
    """What is trained in one step. It may have positions and no events: then there is
    nothing to train.
    """

    origins: list[Origin] = field(
        default_factory=list
    )  # cover the events in order, as few as possible
    positions: dict[Partition, int] = field(
        default_factory=dict
    )  # next offsets, once this batch is trained
    filtered: int = 0
    dead_letters: list[DeadLetter] = field(default_factory=list)
    step_events: int = 0  # where several train together: events of the whole step
    lost: int = (
        0  # offsets before its records that were removed before they could be read
    )
    arrived_s: float | None = field(
        default=None, compare=False
    )  # when its oldest record came, by the clock
    not_admitted: int = (
        0  # of its events, those of users or items that have not come often enough
    )
    catalogue: int = 0  # of its events, those of the catalogue, which have no user
    trained_by_others: int = 0  # of its events, those that are only counted
    of_catalogue: MicroBatch | None = (
        None  # in a group: its events of the catalogue, if it does not hold them
    )

    @property
    def learned(self) -> int:
        """How many of its events are trained."""
        skipped = self.not_admitted + self.catalogue + self.trained_by_others
        return len(self) - skipped

    def only(self, events: Sequence[int]) -> MicroBatch:
        """Some of its events, ascending, without all that is not an event."""
        some = MicroBatch()
        for name in COLUMNS:
            column = getattr(self, name)
            if column:  # one that a program made has no offsets
                setattr(some, name, [column[k] for k in events])
        for partition, start, stop in self.origins:
            first = bisect_left(events, start)
            last = bisect_left(events, stop)
            if last > first:
                some.origins.append(Origin(partition, first, last))
        return some

    @property
    def consumed(self) -> int:
        """How many events the batch accounts for, whatever became of them."""
        return len(self) + self.filtered + len(self.dead_letters)


class _QueuedChunk:
    """A decoded chunk, of which the records before `start` are in batches already.

    `events`, `filtered`, `letters` and `untrained_bytes` are totals before each record,
    and after the last.
    """

    def __init__(self, decoded: Decoded, arrived_s: float, lost: int) -> None:
        self.decoded = decoded
        self.arrived_s = arrived_s
        self.lost = lost
        self.start = 0
        self.end = len(decoded.record_offsets)
        self.events = [0, *decoded.events_upto]
        self.filtered = [0, *decoded.filtered_upto]
        self.letters = [0, *decoded.letters_upto]
        self.untrained_bytes = [FILTERED_BYTES * count for count in self.filtered]
        if decoded.letters:
            sizes = [0, *accumulate(letter.size for letter in decoded.letters)]
            for record, count in enumerate(self.letters):
                self.untrained_bytes[record] += sizes[count]
        self.is_catalogue = bool(decoded.users) and all(
            user == NO_USER for user in decoded.users
        )

    @property
    def consumed(self) -> int:
        """How many events the queued records hold, whatever becomes of them."""
        return sum(
            column[self.end] - column[self.start]
            for column in (self.events, self.filtered, self.letters)
        )

    def stop(self, events: int, untrained_bytes: int) -> int:
        """Where the queued records end that just take up this room, or all of them if
        they do not.
        """
        start = self.start
        full_events = self.events[start] + events
        full_bytes = self.untrained_bytes[start] + untrained_bytes
        return min(
            bisect_left(self.events, full_events, lo=start + 1),
            bisect_left(self.untrained_bytes, full_bytes, lo=start + 1),
            self.end,
        )


class Batcher:
    """Collects decoded chunks and closes micro-batches. Used by one thread at a time.

    A batch is full with `batch_size` events, and never splits a record: one with more
    events makes a larger batch. To go on where hardly anything is trained, it is also
    full with `MAX_UNTRAINED_BYTES` of what is not trained. A batch that is not full
    closes by the age of its oldest record; one of catalogue events alone, early.

    Args:
        batch_size: events that fill a batch.
        max_age_s: how long a record may wait; None: for ever.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        batch_size: int,
        max_age_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.batch_size = batch_size
        self._max_age_s = max_age_s
        self._clock = clock
        self._queue: deque[_QueuedChunk] = deque()
        self._queued_events = 0
        self._untrained_bytes = 0

    @property
    def queued_events(self) -> int:
        """How many events wait to be trained."""
        return self._queued_events

    @property
    def oldest_s(self) -> float | None:
        """When the oldest record that waits came, by the clock; None if none waits."""
        return self._queue[0].arrived_s if self._queue else None

    def has_room(self, max_events: int) -> bool:
        """Whether fewer than `max_events` wait, and less than fills a batch of what is
        not trained.
        """
        return not self._is_full(max_events)

    def _is_full(self, events: int) -> bool:
        has_bytes = self._untrained_bytes >= MAX_UNTRAINED_BYTES
        return has_bytes or self._queued_events >= events

    def add(self, decoded: Decoded, lost: int = 0) -> None:
        """Take a decoded chunk; for `lost` see `Chunk`."""
        if decoded.record_offsets:
            chunk = _QueuedChunk(decoded, self._clock(), lost)
            self._queue.append(chunk)
            self._queued_events += chunk.events[-1]
            self._untrained_bytes += chunk.untrained_bytes[-1]

    def take(self) -> MicroBatch | None:
        """Return the next batch that is full or old enough, or None. Call again until
        None.
        """
        deadline = self.next_deadline()
        if deadline is None:
            return None
        if not self._is_full(self.batch_size) and self._clock() < deadline:
            return None
        return self.flush()

    def flush(self) -> MicroBatch | None:
        """Return the next batch, full or not, or None if nothing is queued. Call again
        until None.
        """
        if not self._queue:
            return None
        batch = MicroBatch.opened()
        room_bytes = MAX_UNTRAINED_BYTES
        while self._queue and len(batch) < self.batch_size and room_bytes > 0:
            chunk = self._queue[0]
            stop = chunk.stop(self.batch_size - len(batch), room_bytes)
            room_bytes += chunk.untrained_bytes[chunk.start]
            room_bytes -= chunk.untrained_bytes[stop]
            self._move(batch, chunk, stop)
        return batch.closed()

    def move_into(self, batch: MicroBatch, events: int) -> None:
        """Move records into a batch until it has this many events more, with the
        records after them that have none.
        """
        wanted = len(batch) + events
        while self._queue:
            chunk = self._queue[0]
            start = chunk.start
            missing = wanted - len(batch)
            reached = min(
                chunk.end,
                bisect_left(chunk.events, chunk.events[start] + missing, lo=start),
            )
            stop = bisect_right(chunk.events, chunk.events[reached]) - 1
            is_whole = stop == chunk.end
            if stop > start:
                self._move(batch, chunk, stop)
            if not is_whole:
                return

    def _move(self, batch: MicroBatch, chunk: _QueuedChunk, stop: int) -> None:
        """Move the first records of the oldest chunk into a batch."""
        arrived_s = chunk.arrived_s
        batch.arrived_s = min(batch.arrived_s or arrived_s, arrived_s)
        _append(batch, chunk, chunk.start, stop)
        self._take_off(chunk, stop)
        if stop == chunk.end:
            self._queue.popleft()

    def _take_off(self, chunk: _QueuedChunk, stop: int) -> None:
        """Note that the records up to `stop` of a chunk do not wait any more."""
        start = chunk.start
        self._queued_events -= chunk.events[stop] - chunk.events[start]
        self._untrained_bytes -= (
            chunk.untrained_bytes[stop] - chunk.untrained_bytes[start]
        )
        chunk.start = stop

    def drop(self, partitions: Collection[Partition]) -> int:
        """Drop all that is queued of these partitions, and return how many events that
        was, also those not to train.

        They are in no batch's accounting or positions; whoever gets the partitions next
        consumes them.
        """
        queue = self._queue
        self._queue = deque()
        dropped = 0
        for chunk in queue:
            if chunk.decoded.partition in partitions:
                dropped += chunk.consumed
                self._take_off(chunk, chunk.end)
            else:
                self._queue.append(chunk)
        return dropped

    def next_deadline(self) -> float | None:
        """Return when `take` has a batch at the latest, by the clock; None: not before
        more is added.
        """
        arrived_s = self.oldest_s
        if arrived_s is None or self._is_full(self.batch_size):
            return arrived_s
        if self._max_age_s is None:
            return None
        is_catalogue = all(chunk.is_catalogue for chunk in self._queue)
        max_age_s = min(CATALOGUE_AGE_S if is_catalogue else math.inf, self._max_age_s)
        return arrived_s + max_age_s


def _append(batch: MicroBatch, chunk: _QueuedChunk, start: int, stop: int) -> None:
    """Append the records `start` to `stop` of a chunk."""
    decoded = chunk.decoded
    first = chunk.events[start]
    last = chunk.events[stop]
    batch.positions[decoded.partition] = decoded.record_offsets[stop - 1] + 1
    batch.filtered += chunk.filtered[stop] - chunk.filtered[start]
    batch.lost += chunk.lost if start == 0 else 0
    batch.dead_letters += decoded.letters[chunk.letters[start] : chunk.letters[stop]]
    if first == last:
        return
    before = batch.origins[-1] if batch.origins else None
    begin = len(batch)
    if (
        before is not None
        and before.partition == decoded.partition
        and batch.offsets[-1] <= decoded.offsets[first]
    ):
        begin = batch.origins.pop().start
    batch.origins.append(Origin(decoded.partition, begin, len(batch) + last - first))
    absent = [None] * (last - first)
    for name in COLUMNS:
        column = getattr(decoded, name)
        getattr(batch, name).extend(column[first:last] if column else absent)
