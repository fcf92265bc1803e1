"""Events that the server has read itself and the trainer has not published yet, by
user.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

from streamer.sources.base import Partition, Positions

MAX_EVENTS = 1_000_000
"""While the trainer is away, the oldest events give way."""


class Event(NamedTuple):
    """An event as the server has read it."""

    partition: Partition
    offset: int
    user: str
    item: str
    time_s: float
    appended_s: float
    """When the record was written to the stream, in seconds since the epoch."""


class Overlay:
    """What users did since the latest delta. Not for several threads at once."""

    def __init__(self) -> None:
        self._by_user: dict[str, list[Event]] = {}
        self._by_partition: dict[Partition, deque[Event]] = defaultdict(deque)
        self._done: dict[Partition, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_partition.values()))

    def add(self, event: Event) -> bool:
        """Take an event in; False if the trainer has learned it already."""
        if event.offset < self._done.get(event.partition, 0):
            return False
        waiting = self._by_partition[event.partition]
        waiting.append(event)
        self._by_user.setdefault(event.user, []).append(event)
        if len(waiting) > MAX_EVENTS:
            self._forget(waiting.popleft())
        return True

    def of(self, user: str) -> list[tuple[str, float]]:
        """A user's events, item and time each, in their order."""
        return [(event.item, event.time_s) for event in self._by_user.get(user, ())]

    def prune(self, learned: Positions) -> Iterator[Event]:
        """Let go of events before these positions, which are part of the model now;
        yields each.
        """
        for partition, offset in learned.items():
            self._done[partition] = int(offset)
            waiting = self._by_partition[partition]
            while waiting and waiting[0].offset < offset:
                event = waiting.popleft()
                self._forget(event)
                yield event

    def _forget(self, event: Event) -> None:
        left = self._by_user[event.user]
        left.remove(event)
        if not left:
            del self._by_user[event.user]

    def clear(self) -> None:
        """Let go of everything: another generation begins, and events are read again
        from its positions.
        """
        self._by_user.clear()
        self._by_partition.clear()
        self._done.clear()
