"""What a chunk of records becomes: columns of events, and where each record ends in
them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import compress
from typing import Any, NamedTuple, Self

from streamer.dead_letters.base import (
    KEPT_KEY_BYTES,
    KEPT_VALUE_BYTES,
    DeadLetter,
    Reason,
)
from streamer.event.fields import Invalid
from streamer.sources.base import Chunk, Partition

Features = dict[str, str | float]
"""Name -> category (str) or number (float); empty only of a catalogue event that says
nothing of its item.
"""

FeatureColumn = list[Features | None]

NO_USER = ""
"""Stands for the user of a catalogue event: its item features say what its item is
like, None that it is deleted.
"""
TITLE = "title"
"""The feature that holds the title of an item."""


@dataclass(slots=True)
class EventColumns:
    """Valid events as columns of equal length."""

    users: list[str] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
    timestamps_s: list[float] = field(default_factory=list)
    user_features: FeatureColumn | None = None  # None: no event has any
    item_features: FeatureColumn | None = None
    offsets: list[int] = field(default_factory=list)  # of each event's record
    types: list[str | None] | None = None  # None: nobody asks for them
    weights: list[float | None] | None = None  # None: no event has its own

    def __len__(self) -> int:
        return len(self.users)

    def __bool__(self) -> bool:
        """Without events they count too: there are letters, or positions to move."""
        return True

    @classmethod
    def opened(cls, **others: Any) -> Self:
        """Columns that events can be added to."""
        empty: dict[str, Any] = {name: [] for name in OPTIONAL}
        return cls(**empty, **others)

    def closed(self) -> Self:
        """The columns, when all events are in them."""
        for name in OPTIONAL:
            column = getattr(self, name)
            if column is not None and column.count(None) == len(column):
                setattr(self, name, None)
        return self


COLUMNS = tuple(column.name for column in fields(EventColumns))
OPTIONAL = ("user_features", "item_features", "types", "weights")
"""Columns that are None if they say nothing of any event."""


@dataclass(slots=True)
class Decoded(EventColumns):
    """What one chunk became, in the chunk's order: its events as columns, its records
    as running totals.

    Record `r` has the events `events_upto[r - 1]` to `events_upto[r]`, and so with its
    letters. A record that yielded no event is among the records too, so that positions
    can move past it.
    """

    partition: Partition = field(kw_only=True)

    # one entry a record; each total includes the record itself
    record_offsets: list[int] = field(default_factory=list)
    events_upto: list[int] = field(default_factory=list)
    filtered_upto: list[int] = field(default_factory=list)
    letters_upto: list[int] = field(default_factory=list)

    letters: list[DeadLetter] = field(default_factory=list)

    @property
    def filtered(self) -> int:
        """How many events were left out by the filters."""
        return self.filtered_upto[-1] if self.filtered_upto else 0

    @property
    def consumed(self) -> int:
        """How many events the chunk held, whatever became of them."""
        return len(self) + self.filtered + len(self.letters)

    def last(self, events: int) -> tuple[int, list[DeadLetter]]:
        """How many events the last records held that have `events` or just more, and
        the dead letters among those.
        """
        records = range(len(self.record_offsets))
        first = bisect_right(records, self.consumed - events, key=self._consumed_upto)
        if first == 0:
            return self.consumed, self.letters
        before = self._consumed_upto(first - 1)
        return self.consumed - before, self.letters[self.letters_upto[first - 1] :]

    def _consumed_upto(self, record: int) -> int:
        events = self.events_upto[record] + self.filtered_upto[record]
        return events + self.letters_upto[record]

    def add(self, rows: Rows, offsets: Sequence[int]) -> None:
        """Append valid events, with the offset of each one's record."""
        self.users += rows.users
        self.items += rows.items
        self.timestamps_s += rows.timestamps_s
        self.user_features += rows.user_features  # type: ignore[operator]
        self.item_features += rows.item_features  # type: ignore[operator]
        self.types += rows.types  # type: ignore[operator]
        self.weights += rows.weights  # type: ignore[operator]
        self.offsets += offsets

    def add_letter(
        self,
        chunk: Chunk,
        record: int,
        problem: Invalid,
        value: bytes | None,
        index: int | None = None,
    ) -> None:
        """Append a dead letter of the chunk's record number `record`."""
        key = chunk.keys[record]
        if value and problem.reason is Reason.RECORD_TOO_LARGE:
            value = value[:KEPT_VALUE_BYTES]
        letter = DeadLetter(
            problem.reason,
            problem.detail,
            *chunk.partition,
            chunk.offsets[record],
            chunk.timestamps_ms[record],
            key and key[:KEPT_KEY_BYTES],
            value,
            index,
        )
        self.letters.append(letter)

    def end_record(self, offset: int, filtered: int) -> None:
        """All of a record is appended; `filtered` of its events were filtered."""
        filtered_upto = self.filtered + filtered
        self.filtered_upto.append(filtered_upto)
        self.record_offsets.append(offset)
        self.events_upto.append(len(self))
        self.letters_upto.append(len(self.letters))

    def add_plain_records(
        self, rows: Rows, keep: list[bool] | None, offsets: list[int]
    ) -> None:
        """Append records of one valid event each, of which `keep` (None: all) are
        kept.
        """
        events = len(self)
        filtered = self.filtered
        self.record_offsets += offsets
        self.letters_upto += [len(self.letters)] * len(offsets)
        if keep is None:
            self.add(rows, offsets)
            self.events_upto += range(events + 1, len(self) + 1)
            self.filtered_upto += [filtered] * len(offsets)
            return
        self.add(rows.where(keep), list(compress(offsets, keep)))
        for kept in keep:
            events += kept
            filtered += not kept
            self.events_upto.append(events)
            self.filtered_upto.append(filtered)


class Rows(NamedTuple):
    """Valid events as columns."""

    users: list[str]
    items: list[str]
    timestamps_s: list[float]
    user_features: FeatureColumn
    item_features: FeatureColumn
    types: list[str | None]
    weights: list[float | None]

    def where(self, keep: list[bool]) -> Rows:
        """Only the events that are to be kept."""
        return Rows._make(list(compress(column, keep)) for column in self)
