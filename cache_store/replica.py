"""The shared state as one trainer knows it: the log up to a position, added up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.codec import MalformedEntry, StoreDelta, pack, unpack
from streamer.cache_store.contribution import NO_ROWS, Counts, Rows

MAX_UNADDED = 32
"""Entries that wait to be added."""


class LogPosition(NamedTuple):
    """A place in the log.

    A generation begins when a server is seeded. The entries of a generation are
    numbered and chained: each has a random token, `chain`, and names that of the entry
    before, so that a reader notices whatever was lost between two of them.
    """

    generation: str
    number: int
    chain: str
    stream_id: str
    """Of the entry in the server's stream."""

    @classmethod
    def beginning(cls, generation: str) -> LogPosition:
        """Before the first entry of a generation."""
        return cls(generation, 0, generation, "0-0")


class StoreReplica:
    """Counts and occurrence by the store's rows, up to a position of the log. Not for
    several threads at once.

    `next_offsets` has for each partition the offset up to which its events are counted,
    `events` how many are counted, those of items that were retired since among them.
    There must be as many counts as draws. A row that is retired has no item any more,
    and counts nothing: what comes for it later in the log is dropped.
    """

    def __init__(
        self,
        position: LogPosition,
        counts: Counts | None = None,
        drawn: Counts | None = None,
        next_offsets: Mapping[str, int] | None = None,
        events: int = 0,
        retired: Rows = NO_ROWS,
    ) -> None:
        self.position = position
        self.next_offsets = dict(next_offsets or {})
        self.events = events
        given = (
            np.empty((2, 0))
            if counts is None or drawn is None
            else np.stack([counts, drawn])
        )
        self._totals = given.astype(np.int64)  # [2, capacity]
        self.size = self._totals.shape[1]
        self._retired = np.zeros(self.size, np.bool_)  # [capacity]
        self._retired[retired] = True
        self._unadded: list[StoreDelta] = []

    @property
    def counts(self) -> Counts:
        """[N] events of each item; a view."""
        return self.totals()[0]

    @property
    def drawn(self) -> Counts:
        """[N] how often each item was resampled; a view."""
        return self.totals()[1]

    @property
    def retired(self) -> NDArray[np.bool_]:
        """[N] whether each row is retired; a view."""
        return self._retired[: self.size]

    def apply(self, delta: StoreDelta, position: LogPosition) -> StoreDelta:
        """Add the entry that follows in the log, and return it without what came too
        late for its rows.

        Several are added at once, while the counters are in the caches.
        """
        self.grow(
            1
            + max(
                int(rows.max(initial=-1))
                for rows in (delta.items.rows, delta.drawn.rows, delta.retired)
            )
        )
        items, drawn = (
            part.only(~self._retired[part.rows]) for part in (delta.items, delta.drawn)
        )
        if len(items.rows) + len(drawn.rows) < len(delta.items.rows) + len(
            delta.drawn.rows
        ):
            delta = msgspec.structs.replace(delta, items=items, drawn=drawn)
        self._unadded.append(delta)
        if len(self._unadded) == MAX_UNADDED or len(delta.retired):
            self.totals()
        self._totals[:, delta.retired] = 0
        self._retired[delta.retired] = True
        self.events += delta.events
        self.next_offsets |= {span.partition: span.stop for span in delta.spans}
        self.position = position
        return delta

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
            self._retired = np.concatenate(
                [self._retired, np.zeros(more.shape[1], np.bool_)]
            )
        self.size = max(self.size, size)

    def pack(self, position: LogPosition | None = None) -> bytes:
        """A snapshot, at another position if one is given."""
        values = {
            "position": position or self.position,
            "next": self.next_offsets,
            "events": self.events,
        }
        retired = np.flatnonzero(self.retired)
        return pack(
            values, [*self.totals(), retired] if len(retired) else self.totals()
        )

    def without_retired(self, position: LogPosition) -> StoreReplica:
        """The same state at another position, with the rows that have an item, in their
        order.
        """
        counts, drawn = (total[~self.retired] for total in self.totals())
        return StoreReplica(position, counts, drawn, self.next_offsets, self.events)

    @classmethod
    def unpack(cls, packed: bytes) -> StoreReplica:
        """The replica that `pack` has packed; `Malformed` if it has not packed this."""
        values, arrays = unpack(packed)
        try:
            counts, drawn, *more = arrays
            retired = more.pop() if more else NO_ROWS
            if more or int(retired.max(initial=-1)) >= len(counts):
                raise ValueError(f"{len(arrays)} arrays, {len(counts)} rows")
            next_offsets = {
                str(name): int(offset) for name, offset in values["next"].items()
            }
            return cls(
                LogPosition(*values["position"]),
                counts,
                drawn,
                next_offsets,
                int(values["events"]),
                retired,
            )
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            OverflowError,
        ) as error:
            raise MalformedEntry(f"not a snapshot: {error}") from error
