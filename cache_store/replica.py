"""The shared state as one trainer knows it: a prefix of the log, added up."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.adding import add_to
from streamer.cache_store.base import Counts, Increments
from streamer.cache_store.codec import Entry, Malformed, pack, unpack

BEGINNING = "0-0"
MOST_LATE = 32
"""Entries that are not added up yet."""


class Position(NamedTuple):
    """A place in the log.

    A generation begins when an empty server is seeded. Entries of a generation are numbered and chained: each names
    the one before, so that a reader notices whatever was lost between two of them.
    """

    generation: str
    number: int
    chain: str
    entry: str

    @classmethod
    def beginning(cls, generation: str) -> Position:
        """Before the first entry of a generation."""
        return cls(generation, 0, generation, BEGINNING)


class Replica:
    """Counts and occurrence by the store's rows, up to a position of the log.

    Entries are added up several at a time, or when somebody looks: one after the other they find the counters in the
    processor's caches. What changes it needs a lock, looking does not.

    Examples:
        >>> replica = Replica(Position.beginning("g"))
        >>> replica.counts
        array([], dtype=int64)
    """

    def __init__(self, position: Position) -> None:
        self.position = position
        self.next: dict[str, int] = {}
        """For each partition the offset up to which it has contributions."""
        self.events = 0
        self._counts = np.zeros(0, np.int64)
        self._drawn = np.zeros(0, np.int64)
        self._late: list[tuple[Increments, Increments]] = []  # of entries that are not added up yet
        self._adding = threading.Lock()
        self.size = 0

    @property
    def counts(self) -> Counts:
        """[N] events of each item; a view."""
        return self.arrays()[0]

    @property
    def drawn(self) -> Counts:
        """[N] how often each item was resampled; a view."""
        return self.arrays()[1]

    def arrays(self) -> tuple[Counts, Counts]:
        """`counts` and `drawn`, of equal length."""
        with self._adding:
            self._add_up()
            return self._counts[: self.size], self._drawn[: self.size]

    def apply(self, entry: Entry, position: Position) -> None:
        """Add the entry that follows."""
        with self._adding:
            self._late.append((entry.items, entry.drawn))
            largest = max(int(part.rows.max(initial=-1)) for part in (entry.items, entry.drawn))
            self.size = max(self.size, largest + 1)
            if len(self._late) >= MOST_LATE:
                self._add_up()
        self.events += entry.events
        self.next |= {span.partition: span.stop for span in entry.spans}
        self.position = position

    def grow(self, size: int) -> None:
        """Hold at least so many rows."""
        with self._adding:
            self.size = max(self.size, size)

    def _add_up(self) -> None:
        self._reserve(self.size)
        for items, drawn in self._late:
            add_to(self._counts, *items)
            add_to(self._drawn, *drawn)
        self._late.clear()

    def _reserve(self, size: int) -> None:
        if size > len(self._counts):
            capacity = max(1024, 1 << (size - 1).bit_length())
            self._counts = np.concatenate([self._counts, np.zeros(capacity - len(self._counts), np.int64)])
            self._drawn = np.concatenate([self._drawn, np.zeros(capacity - len(self._drawn), np.int64)])

    def pack(self) -> bytes:
        """A snapshot."""
        return pack(self.values(), self.arrays())

    @classmethod
    def unpack(cls, packed: bytes) -> Replica:
        """From a snapshot.

        Raises:
            Malformed: it is none.
        """
        values, arrays = unpack(packed)
        if len(arrays) != 2:
            raise Malformed("not a snapshot")
        return cls.of(values, *arrays)

    def values(self) -> dict[str, Any]:
        """Everything but the arrays."""
        return {"position": list(self.position), "next": dict(self.next), "events": self.events}

    @classmethod
    def of(cls, values: Mapping[str, Any], counts: NDArray[np.int64], drawn: NDArray[np.int64]) -> Replica:
        """From `values()` and both arrays.

        Raises:
            Malformed: something is missing.
        """
        try:
            replica = cls(Position(*values["position"]))
            replica.next = {str(name): int(offset) for name, offset in values["next"].items()}
            replica.events = int(values["events"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Malformed(f"not a snapshot: {error}") from error
        if len(counts) != len(drawn):
            raise Malformed(f"not a snapshot: counts of {len(counts)} items, and occurrence of {len(drawn)}")
        replica.grow(len(counts))
        for ours, given in zip(replica.arrays(), (counts, drawn), strict=True):
            ours[:] = given
        return replica
