"""What a chunk of records becomes: columns of events, and where each record ends in
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

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
class Decoded:
    """What one chunk became, in the chunk's order: its events as columns, its records
    as running totals.

    Record `r` has the events `events_upto[r - 1]` to `events_upto[r]`, and so with its
    letters. A record that yielded no event is among the records too, so that positions
    can move past it.
    """

    partition: Partition

    # one entry an event
    users: list[str] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
    timestamps_s: list[float] = field(default_factory=list)
    user_features: FeatureColumn | None = None  # None: no event of the chunk has any
    item_features: FeatureColumn | None = None
    offsets: list[int] = field(
        default_factory=list
    )  # of the event's record; equal neighbours share a record

    # one entry a record; each total includes the record itself
    record_offsets: list[int] = field(default_factory=list)
    events_upto: list[int] = field(default_factory=list)
    filtered_upto: list[int] = field(default_factory=list)
    letters_upto: list[int] = field(default_factory=list)

    letters: list[DeadLetter] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.users)

    def __bool__(self) -> bool:
        """A chunk without events counts too: it has letters, or moves positions."""
        return True

    @property
    def filtered(self) -> int:
        """How many events were left out by the filters."""
        return self.filtered_upto[-1] if self.filtered_upto else 0

    @property
    def consumed(self) -> int:
        """How many events the chunk held, whatever became of them."""
        return len(self) + self.filtered + len(self.letters)

    @property
    def next_offset(self) -> int | None:
        """The position after the chunk's last record; None if the chunk has no record."""
        return self.record_offsets[-1] + 1 if self.record_offsets else None


class Rows(NamedTuple):
    """Valid events as columns."""

    users: list[str]
    items: list[str]
    timestamps_s: list[float]
    user_features: FeatureColumn
    item_features: FeatureColumn

    def where(self, keep: list[bool]) -> Rows:
        """Only the events that are to be kept."""
        return Rows._make(list(compress(column, keep)) for column in self)


class Writer:
    """Builds the `Decoded` of a chunk, record by record and in order."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self._out = Decoded(chunk.partition)
        self._user_features: FeatureColumn = []
        self._item_features: FeatureColumn = []

    def events(self, rows: Rows, offsets: Sequence[int]) -> None:
        """Append valid events, with the offset of each one's record."""
        out = self._out
        out.users += rows.users
        out.items += rows.items
        out.timestamps_s += rows.timestamps_s
        self._user_features += rows.user_features
        self._item_features += rows.item_features
        out.offsets += offsets

    def letter(
        self,
        record: int,
        problem: Invalid,
        value: bytes | None,
        index: int | None = None,
    ) -> None:
        """Append a dead letter of the chunk's record number `record`."""
        chunk = self.chunk
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
        self._out.letters.append(letter)

    def end_record(self, record: int, filtered: int) -> None:
        """All of a record is appended; `filtered` of its events were filtered."""
        out = self._out
        filtered_upto = out.filtered + filtered
        out.filtered_upto.append(filtered_upto)
        out.record_offsets.append(self.chunk.offsets[record])
        out.events_upto.append(len(out.users))
        out.letters_upto.append(len(out.letters))

    def plain_records(
        self, rows: Rows, keep: list[bool] | None, start: int, stop: int
    ) -> None:
        """Append records `start` to `stop`, one valid event each, of which `keep`
        (None: all) are kept.
        """
        out = self._out
        offsets = self.chunk.offsets[start:stop]
        events = len(out)
        filtered = out.filtered
        if keep is None:
            self.events(rows, offsets)
            first = events + 1
            out.events_upto += range(first, first + len(offsets))
            out.filtered_upto += [filtered] * len(offsets)
        else:
            kept_offsets = list(compress(offsets, keep))
            self.events(rows.where(keep), kept_offsets)
            for kept in keep:
                events += kept
                filtered += not kept
                out.events_upto.append(events)
                out.filtered_upto.append(filtered)
        out.record_offsets += offsets
        out.letters_upto += [len(out.letters)] * len(offsets)

    def finish(self) -> Decoded:
        """The whole chunk."""
        self._out.user_features = none_if_empty(self._user_features)
        self._out.item_features = none_if_empty(self._item_features)
        return self._out


def none_if_empty(column: FeatureColumn) -> FeatureColumn | None:
    """A column of features, or None if no event has any."""
    return None if column.count(None) == len(column) else column
