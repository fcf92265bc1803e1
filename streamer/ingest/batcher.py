"""Micro-batches: what is trained in one step, and how far each partition has come when it is.

A batch is a stretch of whole records in the order in which they were added, partitions interleaved. It ends
with the record that fills it, and the next begins with the next record; so a position never hides an event
that is not trained, and where batches end follows from the order of the records alone, not from how they came
in chunks. Records without an event (filtered, dead letters) belong to the batch that is open when they come.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from streamer.dead_letters.base import DeadLetter
from streamer.errors import SettingsError
from streamer.event.decoded import Decoded, FeatureColumn, none_if_empty
from streamer.sources.base import Partition

LETTER_BYTES = 512
"""What a dead letter is taken to weigh besides its value and key."""


class Origin(NamedTuple):
    """Events `start` to `stop` of a batch come from this partition, and their offsets ascend."""

    partition: Partition
    start: int
    stop: int


@dataclass(slots=True)
class MicroBatch:
    """What is trained in one step. It may have positions and no events: then there is nothing to train."""

    # one entry an event
    users: list[str] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
    timestamps_s: list[float] = field(default_factory=list)
    user_features: FeatureColumn | None = None  # None: no event has any
    item_features: FeatureColumn | None = None
    offsets: list[int] = field(default_factory=list)

    origins: list[Origin] = field(default_factory=list)  # cover the events in order, as few as possible
    positions: dict[Partition, int] = field(default_factory=dict)  # next offsets, once this batch is trained
    filtered: int = 0
    dead_letters: list[DeadLetter] = field(default_factory=list)
    arrived_s: float | None = field(default=None, compare=False)  # when its oldest record came, by the clock

    def __len__(self) -> int:
        return len(self.users)

    def __bool__(self) -> bool:
        """A batch without events counts too: `while batch := batcher.take()` must not lose its positions."""
        return True

    @property
    def consumed(self) -> int:
        """How many events the batch accounts for, whatever became of them."""
        return len(self) + self.filtered + len(self.dead_letters)


class _Load(NamedTuple):
    """What fills a batch."""

    events: int = 0
    filtered: int = 0
    letter_bytes: int = 0

    def plus(self, other: _Load) -> _Load:
        return _Load(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: _Load) -> _Load:
        return _Load(*(a - b for a, b in zip(self, other, strict=True)))

    def reaches(self, limit: _Load) -> bool:
        return any(a >= b for a, b in zip(self, limit, strict=True))


class _Waiting:
    """A decoded chunk, of which the records before `start` are in batches already."""

    def __init__(self, decoded: Decoded, arrived_s: float) -> None:
        self.decoded = decoded
        self.arrived_s = arrived_s
        self.start = 0
        self._upto = (decoded.events_upto, decoded.filtered_upto, _letter_bytes_upto(decoded))

    @property
    def end(self) -> int:
        return len(self.decoded.record_offsets)

    def load(self, start: int, stop: int) -> _Load:
        """What the records `start` to `stop` amount to."""
        return _Load(*(_before(upto, stop) - _before(upto, start) for upto in self._upto))

    def filling(self, room: _Load) -> int:
        """The end of the waiting records that just take up the room, or of all if they do not."""
        stops = (
            bisect_left(upto, _before(upto, self.start) + space, lo=self.start) + 1
            for upto, space in zip(self._upto, room, strict=True)
        )
        return min(self.end, *stops)


def _before(upto: Sequence[int], record: int) -> int:
    """The total before a record."""
    return upto[record - 1] if record else 0


def _letter_bytes_upto(decoded: Decoded) -> list[int]:
    """For each record what the letters up to it weigh."""
    if not decoded.letters:
        return decoded.letters_upto  # zeros
    weights = (LETTER_BYTES + len(x.value or b"") + len(x.key or b"") for x in decoded.letters)
    totals = [0, *accumulate(weights)]
    return [totals[count] for count in decoded.letters_upto]


class Batcher:
    """Collects decoded chunks and closes micro-batches. Used by one thread.

    A batch is full with `batch_size` events, and never splits a record: one with more events makes a larger
    batch. To go on where hardly anything is trained, it is also full with `max_filtered` filtered events or
    `max_letter_bytes` of dead letters. A batch that is not full closes by the age of its oldest record.

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
        problems = [f"{name} must be at least 1, not {n}" for name, n in limits.items() if n < 1]
        if max_age_s is not None and not max_age_s >= 0:
            problems.append(f"max_age_s must be at least 0, not {max_age_s}")
        if problems:
            raise SettingsError(problems)
        self._full = _Load(batch_size, max_filtered, max_letter_bytes)
        self._max_age_s = max_age_s
        self._clock = clock
        self._queue: deque[_Waiting] = deque()
        self._load = _Load()

    @property
    def waiting(self) -> int:
        """How many events wait to be trained."""
        return self._load.events

    def has_room(self, events: int) -> bool:
        """Whether fewer than so many events wait, and less than fills a batch of what is not trained."""
        filtered, letter_bytes = self._load.filtered, self._load.letter_bytes
        return self.waiting < events and filtered < self._full.filtered and letter_bytes < self._full.letter_bytes

    def add(self, decoded: Decoded, now_s: float | None = None) -> None:
        """Take a decoded chunk; `now_s` is when it came, by the clock, if not now."""
        if not decoded.record_offsets:
            return
        waiting = _Waiting(decoded, self._clock() if now_s is None else now_s)
        self._queue.append(waiting)
        self._load = self._load.plus(waiting.load(0, waiting.end))

    def take(self) -> MicroBatch | None:
        """The next batch that is full or old enough. Call again until None."""
        deadline = self.next_deadline()
        if deadline is None or (not self._is_full() and self._clock() < deadline):
            return None
        return self._close()

    def flush(self) -> MicroBatch | None:
        """The next batch, full or not. Call again until None, and nothing waits any more."""
        return self._close() if self._queue else None

    def drop(self, partitions: Collection[Partition]) -> int:
        """Forget all that waits of these partitions, and return how many events that was.

        They are in no batch's accounting or positions; whoever gets the partitions next consumes them.
        """
        before = self.waiting
        self._queue = deque(w for w in self._queue if w.decoded.partition not in partitions)
        self._load = _Load()
        for waiting in self._queue:
            self._load = self._load.plus(waiting.load(waiting.start, waiting.end))
        return before - self.waiting

    def next_deadline(self) -> float | None:
        """When `take` has a batch at the latest, by the clock; None: not before more is added."""
        if not self._queue:
            return None
        arrived_s = self._queue[0].arrived_s
        if self._is_full():
            return arrived_s
        return None if self._max_age_s is None else arrived_s + self._max_age_s

    def _is_full(self) -> bool:
        return self._load.reaches(self._full)

    def _close(self) -> MicroBatch:
        """Move records into a batch until it is full or none waits."""
        batch, load = MicroBatch(user_features=[], item_features=[], arrived_s=self._queue[0].arrived_s), _Load()
        while self._queue and not load.reaches(self._full):
            waiting = self._queue[0]
            start, stop = waiting.start, waiting.filling(self._full.minus(load))
            load = load.plus(waiting.load(start, stop))
            _append(batch, waiting.decoded, start, stop)
            waiting.start = stop
            if stop == waiting.end:
                self._queue.popleft()
        self._load = self._load.minus(load)
        batch.user_features = none_if_empty(batch.user_features or [])
        batch.item_features = none_if_empty(batch.item_features or [])
        return batch


def _append(batch: MicroBatch, decoded: Decoded, start: int, stop: int) -> None:
    """Append the records `start` to `stop` of a chunk."""
    first, last = _before(decoded.events_upto, start), _before(decoded.events_upto, stop)
    _append_events(batch, decoded, first, last)
    batch.positions[decoded.partition] = decoded.record_offsets[stop - 1] + 1
    batch.filtered += _before(decoded.filtered_upto, stop) - _before(decoded.filtered_upto, start)
    letters = slice(_before(decoded.letters_upto, start), _before(decoded.letters_upto, stop))
    batch.dead_letters += decoded.letters[letters]


def _append_events(batch: MicroBatch, decoded: Decoded, first: int, last: int) -> None:
    """Append the events `first` to `last` of a chunk."""
    if first == last:
        return
    begin = len(batch)
    if (
        batch.origins
        and batch.origins[-1].partition == decoded.partition
        and batch.offsets[-1] <= decoded.offsets[first]
    ):
        begin = batch.origins.pop().start
    batch.origins.append(Origin(decoded.partition, begin, len(batch) + last - first))
    absent: FeatureColumn = [None] * (last - first)
    batch.user_features += decoded.user_features[first:last] if decoded.user_features else absent  # type: ignore
    batch.item_features += decoded.item_features[first:last] if decoded.item_features else absent  # type: ignore
    batch.users += decoded.users[first:last]
    batch.items += decoded.items[first:last]
    batch.timestamps_s += decoded.timestamps_s[first:last]
    batch.offsets += decoded.offsets[first:last]
