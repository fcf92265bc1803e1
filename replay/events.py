"""Events on their way to a topic: columns, as readers make them, and records, as topics hold them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

from streamer.event import Features, encode
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
        users, items, times_s = self.users, self.items, self.timestamps_s
        if self.user_features is None and self.item_features is None:
            values = list(map(encode, users, items, times_s or repeat(None)))
        else:
            values = self._values_with_features()
        times_ms = [round(t * 1000) for t in times_s] if times_s else [round(clock() * 1000)] * len(users)
        return list(zip([user.encode() for user in users], values, times_ms, strict=True))

    def _values_with_features(self) -> list[bytes]:
        rows = zip(
            self.users,
            self.items,
            self.timestamps_s or repeat(None, len(self)),
            self.user_features or repeat(None, len(self)),
            self.item_features or repeat(None, len(self)),
            strict=True,
        )
        return [encode(u, i, t, user_features=known, item_features=about) for u, i, t, known, about in rows]
