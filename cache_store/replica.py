"""The shared state as one trainer knows it: the log up to a position, added up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from streamer.cache_store.codec import Delta, Malformed, pack, unpack
from streamer.cache_store.contribution import Counts

MAX_UNADDED = 32
"""Entries that wait to be added."""


class Position(NamedTuple):
    """A place in the log.

    A generation begins when a server is seeded. The entries of a generation are numbered and chained: each has a random
    token, `chain`, and names that of the entry before, so that a reader notices whatever was lost between two of them.
    """

    generation: str
    number: int
    chain: str
    stream_id: str
    """Of the entry in the server's stream."""

    @classmethod
    def beginning(cls, generation: str) -> Position:
        """Before the first entry of a generation."""
        return cls(generation, 0, generation, "0-0")


class Replica:
    """Counts and occurrence by the store's rows, up to a position of the log. Not for several threads at once.

    `next_offsets` has for each partition the offset up to which its events are counted, `events` how many are counted.
    There must be as many counts as draws.
    """

    def __init__(
        self,
        position: Position,
        counts: Counts | None = None,
        drawn: Counts | None = None,
        next_offsets: Mapping[str, int] | None = None,
        events: int = 0,
    ) -> None:
        self.position, self.next_offsets, self.events = position, dict(next_offsets or {}), events
        given = np.empty((2, 0)) if counts is None or drawn is None else np.stack([counts, drawn])
        self._totals = given.astype(np.int64)  # [2, capacity]
        self.size = self._totals.shape[1]
        self._unadded: list[Delta] = []

    @property
    def counts(self) -> Counts:
        """[N] events of each item; a view."""
        return self.totals()[0]

    @property
    def drawn(self) -> Counts:
        """[N] how often each item was resampled; a view."""
        return self.totals()[1]

    def apply(self, delta: Delta, position: Position) -> None:
        """Add the entry that follows in the log. Several are added at once, while the counters are in the caches."""
        self.grow(1 + max(int(part.rows.max(initial=-1)) for part in (delta.items, delta.drawn)))
        self._unadded.append(delta)
        if len(self._unadded) == MAX_UNADDED:
            self.totals()
        self.events += delta.events
        self.next_offsets |= {span.partition: span.stop for span in delta.spans}
        self.position = position

    def totals(self) -> tuple[Counts, Counts]:
        """`counts` and `drawn`, once every entry is added."""
        for delta in self._unadded:
            np.add.at(self._totals[0], *delta.items)
            np.add.at(self._totals[1], *delta.drawn)
        self._unadded = []
        return self._totals[0, : self.size], self._totals[1, : self.size]

    def grow(self, size: int) -> None:
        """Hold at least `size` rows."""
        missing = size - self._totals.shape[1]
        if missing > 0:
            more = np.zeros((2, max(missing, self._totals.shape[1], 1024)), np.int64)
            self._totals = np.concatenate([self._totals, more], axis=1)
        self.size = max(self.size, size)

    def pack(self, position: Position | None = None) -> bytes:
        """A snapshot, at another position if one is given."""
        values = {"position": position or self.position, "next": self.next_offsets, "events": self.events}
        return pack(values, self.totals())

    @classmethod
    def unpack(cls, packed: bytes) -> Replica:
        """The replica that `pack` has packed; `Malformed` if it has not packed this."""
        values, arrays = unpack(packed)
        try:
            counts, drawn = arrays
            next_offsets = {str(name): int(offset) for name, offset in values["next"].items()}
            return cls(Position(*values["position"]), counts, drawn, next_offsets, int(values["events"]))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Malformed(f"not a snapshot: {error}") from error
