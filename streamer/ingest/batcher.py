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

import operator
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from streamer.dead_letters.base import DeadLetter
from streamer.errors import SettingsError
from streamer.event.decoded import NO_USER, Decoded, FeatureColumn, none_if_empty
from streamer.sources.base import Partition

CATALOGUE_AGE_S = 0.1
"""What the catalogue says of items is not trained, so a larger batch of nothing else is
worth no longer wait.
"""
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


class _Amount(NamedTuple):
    """What counts towards a full batch."""

    events: int = 0
    filtered: int = 0
    letter_bytes: int = 0

    def plus(self, other: _Amount) -> _Amount:
        return _Amount(*map(operator.add, self, other))

    def minus(self, other: _Amount) -> _Amount:
        return _Amount(*map(operator.sub, self, other))

    def reaches(self, limits: _Amount) -> bool:
        return any(map(operator.ge, self, limits))


class _QueuedChunk:
    """A decoded chunk, of which the records before `start` are in batches already.

    Its columns are running totals: `events[r]` is the number of events before record
    `r`, and so with the others.
    """

    def __init__(self, decoded: Decoded, arrived_s: float, lost: int) -> None:
        self.decoded = decoded
        self.arrived_s = arrived_s
        self.lost = lost
        self.start = 0
        self.end = len(decoded.record_offsets)
        self.events = [0, *decoded.events_upto]
        self.filtered = [0, *decoded.filtered_upto]
        self.letters = self._letter_bytes = [0, *decoded.letters_upto]
        if decoded.letters:
            totals = [0, *accumulate(letter.size for letter in decoded.letters)]
            self._letter_bytes = [totals[count] for count in self.letters]
        self._columns = (self.events, self.filtered, self._letter_bytes)
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

    def amount(self, start: int, stop: int) -> _Amount:
        """What the records `start` to `stop` amount to."""
        return _Amount(*(column[stop] - column[start] for column in self._columns))

    def stop(self, room: _Amount) -> int:
        """Where the queued records end that just take up the room, or all of them if
        they do not.
        """
        columns = zip(self._columns, room, strict=True)
        return min(
            self.end,
            *(
                bisect_left(c, c[self.start] + space, lo=self.start + 1)
                for c, space in columns
            ),
        )


class Batcher:
    """Collects decoded chunks and closes micro-batches. Used by one thread at a time.

    A batch is full with `batch_size` events, and never splits a record: one with more
    events makes a larger batch. To go on where hardly anything is trained, it is also
    full with `max_filtered` filtered events or `max_letter_bytes` of dead letters. A
    batch that is not full closes by the age of its oldest record; one of catalogue
    events alone, early.

    Args:
        batch_size: events that fill a batch.
        max_age_s: how long a record may wait; None: for ever.
        clock: monotonic seconds.
        max_filtered: filtered events that fill a batch; they cost no memory.
        max_letter_bytes: bytes of dead letters that fill a batch.

    Raises:
        SettingsError: with every wrong setting.
    """

    def __init__(
        self,
        batch_size: int,
        max_age_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_filtered: int = 1_000_000,
        max_letter_bytes: int = 16 * 1_048_576,
    ) -> None:
        limits = {
            "batch_size": batch_size,
            "max_filtered": max_filtered,
            "max_letter_bytes": max_letter_bytes,
        }
        problems = [
            f"{name} must be at least 1, not {n}" for name, n in limits.items() if n < 1
        ]
        if max_age_s is not None and not max_age_s >= 0:
            problems.append(f"max_age_s must be at least 0, not {max_age_s}")
        if problems:
            raise SettingsError(problems)
        self._full = _Amount(batch_size, max_filtered, max_letter_bytes)
        self._max_age_s = max_age_s
        self._clock = clock
        self._queue: deque[_QueuedChunk] = deque()
        self._queued = _Amount()

    @property
    def batch_size(self) -> int:
        """Events that fill a batch."""
        return self._full.events

    @property
    def queued_events(self) -> int:
        """How many events wait to be trained."""
        return self._queued.events

    def has_room(self, max_events: int) -> bool:
        """Whether fewer than `max_events` wait, and less than fills a batch of what is
        not trained.
        """
        return not self._queued.reaches(self._full._replace(events=max_events))

    def add(self, decoded: Decoded, now_s: float | None = None, lost: int = 0) -> None:
        """Take a decoded chunk; `now_s` is when it came, by the clock, if not now. For
        `lost` see `Chunk`.
        """
        if decoded.record_offsets:
            chunk = _QueuedChunk(
                decoded, self._clock() if now_s is None else now_s, lost
            )
            self._queue.append(chunk)
            self._queued = self._queued.plus(chunk.amount(0, chunk.end))

    def take(self) -> MicroBatch | None:
        """Return the next batch that is full or old enough, or None. Call again until
        None.
        """
        deadline = self.next_deadline()
        if deadline is None or (
            not self._queued.reaches(self._full) and self._clock() < deadline
        ):
            return None
        return self._close()

    def flush(self) -> MicroBatch | None:
        """Return the next batch, full or not, or None if nothing is queued. Call again
        until None.
        """
        return self._close() if self._queue else None

    def drop(self, partitions: Collection[Partition]) -> int:
        """Drop all that is queued of these partitions, and return how many events that
        was, also those not to train.

        They are in no batch's accounting or positions; whoever gets the partitions next
        consumes them.
        """
        dropped = [
            chunk for chunk in self._queue if chunk.decoded.partition in partitions
        ]
        self._queue = deque(
            chunk for chunk in self._queue if chunk.decoded.partition not in partitions
        )
        for chunk in dropped:
            self._queued = self._queued.minus(chunk.amount(chunk.start, chunk.end))
        return sum(chunk.consumed for chunk in dropped)

    def next_deadline(self) -> float | None:
        """Return when `take` has a batch at the latest, by the clock; None: not before
        more is added.
        """
        if not self._queue:
            return None
        arrived_s = self._queue[0].arrived_s
        if self._queued.reaches(self._full):
            return arrived_s
        if self._max_age_s is None:
            return None
        is_catalogue = all(chunk.is_catalogue for chunk in self._queue)
        return arrived_s + (
            min(CATALOGUE_AGE_S, self._max_age_s) if is_catalogue else self._max_age_s
        )

    def _close(self) -> MicroBatch:
        """Move records into a batch until it is full or none is queued."""
        batch = MicroBatch(
            user_features=[], item_features=[], arrived_s=self._queue[0].arrived_s
        )
        amount = _Amount()
        while self._queue and not amount.reaches(self._full):
            chunk = self._queue[0]
            start = chunk.start
            stop = chunk.stop(self._full.minus(amount))
            amount = amount.plus(chunk.amount(start, stop))
            _append(batch, chunk, start, stop)
            chunk.start = stop
            if stop == chunk.end:
                self._queue.popleft()
        self._queued = self._queued.minus(amount)
        return batch.closed()

    @property
    def oldest_s(self) -> float | None:
        """When the oldest record that waits came, by the clock; None if none waits."""
        return self._queue[0].arrived_s if self._queue else None

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
            if stop > start:
                batch.arrived_s = min(
                    batch.arrived_s or chunk.arrived_s, chunk.arrived_s
                )
                self._queued = self._queued.minus(chunk.amount(start, stop))
                _append(batch, chunk, start, stop)
                chunk.start = stop
            if stop < chunk.end:
                return
            self._queue.popleft()


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
