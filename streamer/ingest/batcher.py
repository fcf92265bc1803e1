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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.dead_letters.base import DeadLetter
from streamer.event.decoded import NO_USER, Decoded, FeatureColumn, none_if_empty
from streamer.sources.base import Partition

CATALOGUE_AGE_S = 0.1
"""What the catalogue says of items is not trained, so a larger batch of nothing else is
worth no longer wait.
"""
MAX_FILTERED = 1_000_000
"""Filtered events that fill a batch; they cost no memory."""
MAX_LETTER_BYTES = 16 << 20
"""Bytes of dead letters that fill a batch."""

Amount = NDArray[np.int64]
"""[3] events, filtered events, and bytes of dead letters."""

COLUMNS = (
    "users",
    "items",
    "timestamps_s",
    "user_features",
    "item_features",
    "offsets",
)


class Origin(NamedTuple):
    """Events `start` to `stop` of a batch come from this partition, and their offsets
    ascend.
    """

    partition: Partition
    start: int
    stop: int


@dataclass(slots=True)
class MicroBatch:
    """What is trained in one step. It may have positions and no events: then there is
    nothing to train.
    """

    # one entry an event
    users: list[str] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
    timestamps_s: list[float] = field(default_factory=list)
    user_features: FeatureColumn | None = None  # None: no event has any
    item_features: FeatureColumn | None = None
    offsets: list[int] = field(default_factory=list)

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
    of_catalogue: MicroBatch | None = (
        None  # in a group: its events of the catalogue, if it does not hold them
    )

    def __len__(self) -> int:
        return len(self.users)

    def __bool__(self) -> bool:
        """A batch without events counts too: `while batch := batcher.take()` must not
        lose its positions.
        """
        return True

    def closed(self) -> MicroBatch:
        """The batch, when all its records are in it."""
        self.user_features = none_if_empty(self.user_features or [])
        self.item_features = none_if_empty(self.item_features or [])
        return self

    @property
    def learned(self) -> int:
        """How many of its events are trained."""
        return len(self) - self.not_admitted - self.catalogue

    def only(self, events: Sequence[int]) -> MicroBatch:
        """Some of its events, ascending, without all that is not an event."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        some: dict[str, Any] = {
            name: column and [column[k] for k in events]
            for name, column in columns.items()
        }
        origins = []
        for partition, start, stop in self.origins:
            first = bisect_left(events, start)
            last = bisect_left(events, stop)
            if last > first:
                origins.append(Origin(partition, first, last))
        return MicroBatch(**some, origins=origins)

    @property
    def consumed(self) -> int:
        """How many events the batch accounts for, whatever became of them."""
        return len(self) + self.filtered + len(self.dead_letters)


class _QueuedChunk:
    """A decoded chunk, of which the records before `start` are in batches already."""

    def __init__(self, decoded: Decoded, arrived_s: float, lost: int) -> None:
        self.decoded = decoded
        self.arrived_s = arrived_s
        self.lost = lost
        self.start = 0
        self.end = len(decoded.record_offsets)
        self.events = [0, *decoded.events_upto]
        self.filtered = [0, *decoded.filtered_upto]
        self.letters = letter_bytes = [0, *decoded.letters_upto]
        if decoded.letters:
            sizes = [0, *accumulate(letter.size for letter in decoded.letters)]
            letter_bytes = [sizes[count] for count in self.letters]
        self._totals = np.array((self.events, self.filtered, letter_bytes))
        """[3, R + 1] what counts towards a full batch, before each record."""
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

    def amount(self, start: int, stop: int) -> Amount:
        """What the records `start` to `stop` amount to."""
        amount: Amount = self._totals[:, stop] - self._totals[:, start]
        return amount

    def stop(self, room: Amount) -> int:
        """Where the queued records end that just take up the room, or all of them if
        they do not.
        """
        taken = self._totals[:, self.start + 1 :] - self._totals[:, self.start, None]
        is_full = (taken >= room[:, None]).any(0)  # [R]
        full_at = int(is_full.argmax()) if is_full.any() else len(is_full) - 1
        return self.start + 1 + full_at


class Batcher:
    """Collects decoded chunks and closes micro-batches. Used by one thread at a time.

    A batch is full with `batch_size` events, and never splits a record: one with more
    events makes a larger batch. To go on where hardly anything is trained, it is also
    full with `MAX_FILTERED` filtered events or `MAX_LETTER_BYTES` of dead letters. A
    batch that is not full closes by the age of its oldest record; one of catalogue
    events alone, early.

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
        self._full = np.array((batch_size, MAX_FILTERED, MAX_LETTER_BYTES))
        self._max_age_s = max_age_s
        self._clock = clock
        self._queue: deque[_QueuedChunk] = deque()
        self._queued: Amount = np.zeros_like(self._full)

    @property
    def queued_events(self) -> int:
        """How many events wait to be trained."""
        return int(self._queued[0])

    @property
    def oldest_s(self) -> float | None:
        """When the oldest record that waits came, by the clock; None if none waits."""
        return self._queue[0].arrived_s if self._queue else None

    @property
    def _is_full(self) -> bool:
        return bool((self._queued >= self._full).any())

    def has_room(self, max_events: int) -> bool:
        """Whether fewer than `max_events` wait, and less than fills a batch of what is
        not trained.
        """
        is_full = (self._queued[1:] >= self._full[1:]).any()
        return self.queued_events < max_events and not is_full

    def add(self, decoded: Decoded, now_s: float | None = None, lost: int = 0) -> None:
        """Take a decoded chunk; `now_s` is when it came, by the clock, if not now. For
        `lost` see `Chunk`.
        """
        if decoded.record_offsets:
            arrived_s = self._clock() if now_s is None else now_s
            chunk = _QueuedChunk(decoded, arrived_s, lost)
            self._queue.append(chunk)
            self._queued = self._queued + chunk.amount(0, chunk.end)

    def take(self) -> MicroBatch | None:
        """Return the next batch that is full or old enough, or None. Call again until
        None.
        """
        deadline = self.next_deadline()
        if deadline is None or (not self._is_full and self._clock() < deadline):
            return None
        return self.flush()

    def flush(self) -> MicroBatch | None:
        """Return the next batch, full or not, or None if nothing is queued. Call again
        until None.
        """
        if not self._queue:
            return None
        batch = MicroBatch(user_features=[], item_features=[])
        room = self._full
        while self._queue and (room > 0).all():
            chunk = self._queue[0]
            stop = chunk.stop(room)
            room = room - chunk.amount(chunk.start, stop)
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
        self._queued = self._queued - chunk.amount(chunk.start, stop)
        _append(batch, chunk, chunk.start, stop)
        chunk.start = stop
        if stop == chunk.end:
            self._queue.popleft()

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
                self._queued = self._queued - chunk.amount(chunk.start, chunk.end)
                dropped += chunk.consumed
            else:
                self._queue.append(chunk)
        return dropped

    def next_deadline(self) -> float | None:
        """Return when `take` has a batch at the latest, by the clock; None: not before
        more is added.
        """
        arrived_s = self.oldest_s
        if arrived_s is None or self._is_full:
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
    absent: FeatureColumn = [None] * (last - first)
    batch.user_features += (
        decoded.user_features[first:last] if decoded.user_features else absent
    )  # type: ignore
    batch.item_features += (
        decoded.item_features[first:last] if decoded.item_features else absent
    )  # type: ignore
    batch.users += decoded.users[first:last]
    batch.items += decoded.items[first:last]
    batch.timestamps_s += decoded.timestamps_s[first:last]
    batch.offsets += decoded.offsets[first:last]
