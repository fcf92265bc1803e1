"""Events on their way to a topic: columns, as readers make them, and records, as topics hold them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from streamer.event import Features, encode_all
from streamer.sources.positions import Record

__all__ = ["Events", "Record"]

Column = Sequence[Features | None]


@dataclass(slots=True)
class Events:
    """Some events in stream order, as columns of equal length.

    Args:
        users: id of each event's user.
        items: id of each event's item.
        timestamps_s: seconds since the epoch; None if the log has no time, events then take that of writing.
        user_features: what is known of each user; None if nothing is known of any.
        item_features: the same of each item.
    """

    users: list[str]
    items: list[str]
    timestamps_s: list[float] | None = None
    user_features: Column | None = None
    item_features: Column | None = None

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, part: slice) -> Events:
        """Some of the events."""
        columns = (self.timestamps_s, self.user_features, self.item_features)
        return Events(self.users[part], self.items[part], *(None if c is None else c[part] for c in columns))  # type: ignore[arg-type]

    def records(self, clock: Callable[[], float] = time.time) -> list[Record]:
        """Each event in the wire format, keyed by its user, at its time."""
        times_s = self.timestamps_s or None
        values = encode_all(self.users, self.items, times_s, self.user_features, self.item_features)
        return list(zip([user.encode() for user in self.users], values, self.times_ms(clock), strict=True))

    def times_ms(self, clock: Callable[[], float] = time.time) -> list[int]:
        """The time of each event in milliseconds; that of the clock where the log has none."""
        if not self.timestamps_s:
            return [round(clock() * 1000)] * len(self)
        found: list[int] = np.rint(np.multiply(self.timestamps_s, 1000)).astype(np.int64).tolist()
        return found
