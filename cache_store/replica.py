"""The shared state as one trainer knows it: a prefix of the log, added up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_store.adding import add_to
from cache_store.base import Counts, Increments
from cache_store.codec import Entry, Malformed, pack, unpack

BEGINNING = "0-0"


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
        self.size = 0

    @property
    def counts(self) -> Counts:
        """[N] events of each item; a view."""
        return self._counts[: self.size]

    @property
    def drawn(self) -> Counts:
        """[N] how often each item was resampled; a view."""
        return self._drawn[: self.size]

    def apply(self, entry: Entry, position: Position) -> None:
        """Add the entry that follows."""
        _add(self, entry.items, entry.drawn)
        self.events += entry.events
        self.next |= {span.partition: span.stop for span in entry.spans}
        self.position = position

    def grow(self, size: int) -> None:
        """Hold at least so many rows."""
        if size > len(self._counts):
            capacity = max(1024, 1 << (size - 1).bit_length())
            self._counts = np.concatenate([self._counts, np.zeros(capacity - len(self._counts), np.int64)])
            self._drawn = np.concatenate([self._drawn, np.zeros(capacity - len(self._drawn), np.int64)])
        self.size = max(self.size, size)

    def pack(self) -> bytes:
        """A snapshot."""
        return pack(self.values(), [self.counts, self.drawn])

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
        replica.counts[:] = counts
        replica.drawn[:] = drawn
        return replica


def _add(replica: Replica, items: Increments, drawn: Increments) -> None:
    for increments, of in ((items, "counts"), (drawn, "drawn")):
        if len(increments.rows):
            replica.grow(int(increments.rows.max()) + 1)
            add_to(getattr(replica, of), increments.rows, increments.counts)
