"""Events on their way to a topic: columns, as readers make them, records, as topics
hold them, and what is neither.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamer.event import Features, encode_all
from streamer.sources.base import Record

__all__ = ["MAX_EXAMPLES", "Events", "MalformedRows", "Record"]

MAX_EXAMPLES = 20
"""MalformedRows lines that are kept, and shown."""


@dataclass(slots=True)
class Events:
    """Some events in stream order, as columns of equal length."""

    users: list[str]
    items: list[str]
    timestamps_s: list[float] | None = None
    """Seconds since the epoch; None if the log has no times: records then get the time
    of writing.
    """
    user_features: Sequence[Features | None] | None = None
    """Of each event's user; None if no event has any."""
    item_features: Sequence[Features | None] | None = None
    types: Sequence[str | None] | None = None

    def __len__(self) -> int:
        return len(self.users)

    def records(self, clock: Callable[[], float] = time.time) -> list[Record]:
        """Each event as a record: keyed by its user, at its time."""
        times_s = self.timestamps_s or None
        values = encode_all(
            self.users,
            self.items,
            times_s,
            self.user_features,
            self.item_features,
            self.types,
        )
        return list(
            zip(
                [user.encode() for user in self.users],
                values,
                self.times_ms(clock),
                strict=True,
            )
        )

    def times_ms(self, clock: Callable[[], float] = time.time) -> list[int]:
        """The time of each event in milliseconds; that of the clock if the log has no
        times.
        """
        if not self.timestamps_s:
            return [round(clock() * 1000)] * len(self)
        found: list[int] = (
            np.rint(np.multiply(self.timestamps_s, 1000)).astype(np.int64).tolist()
        )
        return found


@dataclass(slots=True)
class MalformedRows:
    """What a reader found that is not an event: the number for each reason, and the
    first ones as examples.
    """

    by_reason: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    """`line 7: not_json: JSON is malformed`."""

    @property
    def total(self) -> int:
        """The number of events, or of whole lines, that were left out."""
        return self.by_reason.total()
