"""What a baseline is: a trivial recommender that every method is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from streamer.evaluation.tally import Doubles, Ranks
from streamer.model.batch import Recent, Rows
from streamer.model.rows.seen_items import SeenBefore

RECENT = 10
"""How many of a user's last distinct items the baselines look at."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of the stream: events that are learned from, and among them those to be
    ranked.

    Without a feedback delay it is a micro-batch, and an event is ranked when all before
    it are learned. With one, it begins with events that were ranked and still wait to
    be learned from.

    Args:
        users: [n] user rows, in the order of the stream.
        items: [n] item rows.
        recent: [n, 10] the last distinct items of each event's user, as of the event.
        ages_s: [n, 10] how long before the event the user had each of them.
        ranked: [m] the places of the events to be ranked, ascending.
        due: [m] how many events of the stretch are learned before each of those is
            ranked; ascends.
        end: how many are learned when all are ranked.
        seen: what the users of the `ranked` had before.
    """

    users: Rows
    items: Rows
    recent: Recent
    ages_s: Doubles
    ranked: Rows
    due: Rows
    end: int
    seen: SeenBefore

    def __post_init__(self) -> None:
        assert 0 <= self.end <= len(self.items), (
            "an event can only be learned from when it has come"
        )
        assert ((self.due >= 0) & (self.due <= self.ranked)).all(), (
            "an event is ranked before it is learned from"
        )

    @property
    def targets(self) -> Rows:
        """[m] the items of the ranked events."""
        return self.items[self.ranked]


class Baseline(Protocol):
    """A trivial recommender, learning from every event."""

    name: str

    def walk(self, stretch: Stretch) -> Ranks:
        """Rank what is to be ranked and learn from what is due, event by event."""
        ...

    def forget(self, items: Rows) -> None:
        """Retire items: their rows are given to other items."""
        ...
