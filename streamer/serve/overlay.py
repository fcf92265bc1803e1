"""Events that the server has read itself and the trainer has not published yet, by
user.

Nobody publishes for some partitions: those that another trainer reads. Their events
would never be let go of, so that only each user's last ones are kept.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from streamer.event import NO_USER
from streamer.sources.base import Partition, Positions

MAX_EVENTS = 1_000_000
"""Of all partitions that the trainer reads; while it is away, the oldest give way."""
MAX_OTHER_EVENTS = 100_000
"""Of all other partitions; the users who have done nothing for longest give way."""
LAST_EVENTS = 50
"""What is kept of each user's events in the other partitions."""


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
        self._learned: Mapping[Partition, int] = {}
        self.clear()

    def clear(self) -> None:
        """Let go of everything: another generation begins, and events are read again
        from its positions.
        """
        self._by_partition: dict[Partition, deque[Event]] = defaultdict(deque)
        self._by_user: dict[str, list[Event]] = {}
        self._of_others: OrderedDict[str, list[Event]] = OrderedDict()
        self.waiting = 0
        """Events that the trainer will publish."""
        self.of_others = 0
        """Events of partitions for which nobody publishes."""

    def add(self, event: Event) -> bool:
        """Take an event in; False if the trainer has learned it already."""
        learned = self._learned.get(event.partition)
        if learned is None:
            self._keep_last(event)
            return True
        if event.offset < learned:
            return False
        self._by_partition[event.partition].append(event)
        if event.user != NO_USER:
            self._by_user.setdefault(event.user, []).append(event)
        self.waiting += 1
        if self.waiting > MAX_EVENTS:
            self._forget_first(max(self._by_partition.values(), key=len))
        return True

    def _keep_last(self, event: Event) -> None:
        events = self._of_others.setdefault(event.user, [])
        self._of_others.move_to_end(event.user)
        events.append(event)
        self.of_others += 1
        if len(events) > LAST_EVENTS:
            del events[0]
            self.of_others -= 1
        while self.of_others > MAX_OTHER_EVENTS:
            _, given_up = self._of_others.popitem(last=False)
            self.of_others -= len(given_up)

    def of(self, user: str) -> list[tuple[str, float]]:
        """A user's events, item and time each, in their order."""
        events = self._by_user.get(user, [])
        others = self._of_others.get(user)
        if others:
            events = sorted(events + others, key=lambda event: event.time_s)
        return [(event.item, event.time_s) for event in events]

    def prune(self, learned: Positions) -> Iterator[Event]:
        """Let go of events before these positions, which are part of the model now;
        yields each.
        """
        if learned.keys() != self._learned.keys():
            self._sort_again(learned)
        self._learned = learned
        for partition, offset in learned.items():
            waiting = self._by_partition[partition]
            while waiting and waiting[0].offset < offset:
                yield self._forget_first(waiting)

    def _sort_again(self, learned: Positions) -> None:
        """The trainer has got partitions, or has lost some."""
        events = [event for kept in self._of_others.values() for event in kept]
        for waiting in self._by_partition.values():
            events += waiting
        events.sort(key=lambda event: event.offset)
        self.clear()
        self._learned = dict.fromkeys(learned, 0)
        for event in events:
            self.add(event)

    def _forget_first(self, waiting: deque[Event]) -> Event:
        event = waiting.popleft()
        self.waiting -= 1
        if event.user != NO_USER:
            left = self._by_user[event.user]
            left.remove(event)
            if not left:
                del self._by_user[event.user]
        return event
