"""A synthetic stream that behaves like a real one: long-tailed, with tastes, sessions
and drift.

Items belong to themes. Within a theme they stand in a ring, where neighbours are
related, and each has a rank: its popularity falls with the rank by Zipf's law. A user
likes a few themes. In a session a user takes one item after another, and each next one
is

- related to the one before (the better ranked of two that follow in the ring; a session
goes one way), or
- one that the user had before, more often a recent one, or
- a new start: a popular item of a theme that the user likes.

Meanwhile new users come, new items replace old ones and begin near the top, others rise
out of the tail, and tastes change. So what is popular for long says little about what
comes next; a user's last items say much.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from streamer.replay.events import Events

_THEME_NAMES = (
    "jazz tea chess bread birds maps robots roses cinema boats poetry running coffee "
    "stars trains cheese dogs opera cycling history pottery surfing cats blues gardens "
    "physics pasta castles hiking fonts clocks spices comics knitting rivers judo radio "
    "honey islands puzzles"
)
THEMES = _THEME_NAMES.split()
"""Groups of related items."""
ITEMS_PER_THEME = 150
"""At any one time."""
ITEM_ZIPF = 1.2
"""How steeply the popularity of items falls with their rank in a theme."""
THEME_ZIPF = 1.0
FIRST_USERS = 4000
USERS_PER_REGULAR = 10
NEW_USERS = 0.05
"""Share of sessions that a new user begins."""
REGULARS = 0.4
"""Share of the other sessions that regulars begin."""
TASTES = 3
"""Themes that a user likes, the first one best."""
NEW_TASTE = 0.05
"""Chance that one of them is new when a session begins."""
SESSION_EVENTS = 8.0
"""Mean length of a session."""
RELATED = 0.6
"""Chance that an item is related to the one before."""
RETURNING = 0.15
"""Chance that it is one that the user had before."""
MAX_DISTANCE = 5
"""How far related items are apart in the ring, at most."""
REMEMBERED = 20
"""Items of a user that a session can return to."""
RISING_ITEMS = 10.0
"""Items that rise to the top of their theme, in 1,000 sessions."""
NEW_ITEMS = 40.0
"""Items that replace an old one, in 1,000 sessions."""
START_S = 1_700_000_000.0
SESSION_EVERY_S = 2.0
"""Seconds between the beginnings of sessions."""
PAUSE_S = 30.0
"""Mean seconds between the events of a session."""
BLOCK = 256
"""Sessions whose events are yielded together."""


class _MadeItem(NamedTuple):
    name: str
    theme: int
    slot: int
    """Where it stands in the ring of its theme."""


@dataclass(slots=True)
class _Theme:
    """A ring of items, and their popularity."""

    ring: list[_MadeItem]
    by_rank: list[int]
    """The slot of the most popular item, and so on."""
    made: int = ITEMS_PER_THEME
    """Items so far, with those that were replaced."""


@dataclass(slots=True)
class _User:
    name: str
    tastes: list[int]
    """Themes, the first one liked best."""
    past: deque[_MadeItem] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


class SyntheticStream:
    """An endless stream, made while it is read; the seed determines all of it.

    Examples:
        >>> events = next(iter(SyntheticStream()))
        >>> len(events.users) == len(events.items) > 0
        True
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._by_theme = _zipf(len(THEMES), THEME_ZIPF)
        self._by_rank = _zipf(ITEMS_PER_THEME, ITEM_ZIPF)
        slots = range(ITEMS_PER_THEME)
        self._themes = [
            _Theme(
                [_MadeItem(f"{name}-{slot + 1}", theme, slot) for slot in slots],
                self._random.sample(slots, len(slots)),
            )
            for theme, name in enumerate(THEMES)
        ]
        self._users: list[_User] = []
        for _ in range(FIRST_USERS):
            self._new_user()

    def __iter__(self) -> Iterator[Events]:
        """Events in the order of their times, those of some sessions at a time."""
        waiting: list[tuple[float, str, str]] = []  # a heap
        now_s = START_S
        while True:
            for _ in range(BLOCK):
                self._drift()
                for event in self._session(now_s):
                    heapq.heappush(waiting, event)
                now_s += SESSION_EVERY_S
            ready = []
            while waiting and waiting[0][0] < now_s:
                ready.append(heapq.heappop(waiting))
            if ready:
                times_s, users, items = map(list, zip(*ready, strict=True))
                yield Events(users, items, times_s)

    def _session(self, time_s: float) -> Iterator[tuple[float, str, str]]:
        """Time, user and item of each event."""
        chances = self._random
        user = self._visitor()
        if chances.random() < NEW_TASTE:
            user.tastes[chances.randrange(TASTES)] = self._draw_theme()
        direction = chances.choice((-1, 1))
        item = None
        for _ in range(chances.randint(1, round(2 * SESSION_EVENTS - 1))):
            time_s += chances.expovariate(1 / PAUSE_S)
            chance = chances.random()
            if chance < RELATED and item is not None:
                item = self._related(item, direction)
            elif RELATED <= chance < RELATED + RETURNING and user.past:
                # more often a recent one
                back = 1 + int(len(user.past) * chances.random() ** 2)
                item = user.past[-back]
            else:
                liked = int(TASTES * chances.random() ** 2)
                theme = self._themes[user.tastes[liked]]
                (slot,) = chances.choices(theme.by_rank, cum_weights=self._by_rank)
                item = theme.ring[slot]
            user.past.append(item)
            yield round(time_s, 3), user.name, item.name

    def _related(self, item: _MadeItem, direction: int) -> _MadeItem:
        """A neighbour in one direction: of two, the one with the better rank."""
        theme = self._themes[item.theme]
        slots = []
        for _ in range(2):
            distance = self._random.randint(1, MAX_DISTANCE)
            slots.append((item.slot + direction * distance) % ITEMS_PER_THEME)
        return theme.ring[min(slots, key=theme.by_rank.index)]

    def _visitor(self) -> _User:
        chances = self._random
        if chances.random() < NEW_USERS:
            return self._new_user()
        if chances.random() < REGULARS:
            regulars = range(0, len(self._users), USERS_PER_REGULAR)
            return self._users[chances.choice(regulars)]
        return chances.choice(self._users)

    def _new_user(self) -> _User:
        tastes = [self._draw_theme() for _ in range(TASTES)]
        user = _User(f"user-{len(self._users)}", tastes)
        self._users.append(user)
        return user

    def _draw_theme(self) -> int:
        (theme,) = self._random.choices(range(len(THEMES)), cum_weights=self._by_theme)
        return theme

    def _drift(self) -> None:
        """What happens while a session begins: an item may rise, a new one replace an
        old one and rise.
        """
        chances = self._random
        if chances.random() < RISING_ITEMS / 1000:
            self._raise(
                chances.choice(self._themes), chances.randrange(ITEMS_PER_THEME)
            )
        if chances.random() < NEW_ITEMS / 1000:
            theme = chances.choice(self._themes)
            rank = chances.randrange(ITEMS_PER_THEME // 2, ITEMS_PER_THEME)
            old = theme.ring[theme.by_rank[rank]]
            theme.made += 1
            new = f"{THEMES[old.theme]}-{theme.made}"
            theme.ring[old.slot] = old._replace(name=new)
            self._raise(theme, rank)

    def _raise(self, theme: _Theme, rank: int) -> None:
        """Move an item to the top of its theme, or close to it; those that it passes
        fall by one rank.
        """
        to = min(rank, int(self._random.expovariate(0.5)))
        theme.by_rank.insert(to, theme.by_rank.pop(rank))


def _zipf(size: int, exponent: float) -> list[float]:
    """Weights that fall with the rank, added up."""
    return list(accumulate(1 / rank**exponent for rank in range(1, size + 1)))
