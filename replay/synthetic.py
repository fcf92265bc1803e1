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

Sessions are made in blocks, one step of all of them at a time, so that numpy does the
work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from streamer.model.rows.growing import grown
from streamer.replay.events import Events

Ints = NDArray[np.int64]

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
"""Sessions that are made at once."""
_EVENT = np.dtype([("user", np.int64), ("item", np.int64), ("time_s", np.float64)])


class SyntheticStream:
    """An endless stream, made while it is read; the seed determines all of it.

    Examples:
        >>> events = next(iter(SyntheticStream()))
        >>> len(events.users) == len(events.items) > 0
        True
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._items = _Items(self._rng)
        self._users = _Users(self._rng)

    def __iter__(self) -> Iterator[Events]:
        """Events in the order of their times, a block of sessions at a time."""
        waiting = np.empty(0, _EVENT)
        now_s = START_S
        names = self._items.names
        while True:
            waiting = np.concatenate([waiting, self._block(now_s)])
            waiting = waiting[np.argsort(waiting["time_s"], kind="stable")]
            now_s += BLOCK * SESSION_EVERY_S
            ready, waiting = np.split(
                waiting, [np.searchsorted(waiting["time_s"], now_s)]
            )
            if len(ready):
                yield Events(
                    [f"user-{number}" for number in ready["user"].tolist()],
                    [names[number] for number in ready["item"].tolist()],
                    np.round(ready["time_s"], 3).tolist(),
                )

    def _block(self, start_s: float) -> NDArray[np.void]:
        """The events of some sessions, of different users, that begin within a block's
        time.
        """
        rng = self._rng
        self._items.drift(BLOCK / 1000)
        users = self._users.visitors(BLOCK)
        lengths = -np.sort(-(1 + rng.poisson(SESSION_EVENTS - 1, len(users))))
        shape = (int(lengths[0]), len(users))  # [steps, sessions]
        items = np.full(shape, -1, np.int64)
        directions = rng.choice((-1, 1), len(users))
        for step in range(len(items)):
            # sessions longer than step: a prefix
            active = int(np.searchsorted(-lengths, -step, side="left"))
            before = items[step - 1, :active] if step else None
            items[step, :active] = self._next_items(
                users[:active], before, directions[:active]
            )
        starts_s = start_s + rng.random(len(users)) * BLOCK * SESSION_EVERY_S
        times_s = starts_s + np.cumsum(rng.exponential(PAUSE_S, items.shape), axis=0)
        made = items >= 0
        events = np.empty(int(made.sum()), _EVENT)
        events["user"] = np.broadcast_to(users, items.shape)[made]
        events["item"] = items[made]
        events["time_s"] = times_s[made]
        return events

    def _next_items(self, users: Ints, before: Ints | None, directions: Ints) -> Ints:
        """One step of many sessions."""
        items = self._items.popular(self._users.liked_themes(users))
        chance = self._rng.random(len(users))
        if before is not None:
            related = self._items.related(before, directions)
            items = np.where(chance < RELATED, related, items)
        past = self._users.remembered(users)
        returns = (chance >= RELATED) & (chance < RELATED + RETURNING) & (past >= 0)
        items = np.where(returns, past, items)
        self._users.remember(users, items)
        return items


class _Items:
    """A ring of slots for each theme, a rank for each slot, an item in each slot."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        themes = len(THEMES)
        slots = ITEMS_PER_THEME
        self.names: list[str] = []
        self._made = [0] * themes  # items of each theme so far
        self._place_of = np.empty((0, 2), np.int64)  # [items, 2] theme and slot
        # [themes, slots]: the slot of each rank, the rank of each slot, the item in it
        self._by_rank = np.stack([rng.permutation(slots) for _ in range(themes)])
        self._rank_of = np.argsort(self._by_rank, axis=1)
        self._items = np.empty((themes, slots), np.int64)
        for theme in range(themes):
            for slot in range(slots):
                self._put_new_item(theme, slot)
        weights = 1 / np.arange(1, slots + 1) ** ITEM_ZIPF
        self._up_to_rank = np.cumsum(weights / weights.sum())

    def popular(self, themes: Ints) -> Ints:
        """An item of each theme, drawn by popularity."""
        chances = self._rng.random(len(themes))
        ranks = np.searchsorted(self._up_to_rank, chances)
        ranks = ranks.clip(max=ITEMS_PER_THEME - 1)
        items: Ints = self._items[themes, self._by_rank[themes, ranks]]
        return items

    def related(self, items: Ints, directions: Ints) -> Ints:
        """A neighbour of each item in one direction: of two, the one with the better
        rank.
        """
        themes, slots = self._place_of[items].T
        distance = self._rng.integers(1, MAX_DISTANCE + 1, (2, len(items)))
        one, other = (slots + directions * distance) % self._items.shape[1]
        better = self._rank_of[themes, one] <= self._rank_of[themes, other]
        found: Ints = self._items[themes, np.where(better, one, other)]
        return found

    def drift(self, thousands: float) -> None:
        """Let that many thousands of sessions pass: items rise, new ones replace old
        ones.
        """
        themes, slots = self._items.shape
        for _ in range(self._rng.poisson(RISING_ITEMS * thousands)):
            self._raise(int(self._rng.integers(themes)), int(self._rng.integers(slots)))
        for _ in range(self._rng.poisson(NEW_ITEMS * thousands)):
            theme = int(self._rng.integers(themes))
            rank = int(self._rng.integers(slots // 2, slots))
            self._put_new_item(theme, int(self._by_rank[theme, rank]))
            self._raise(theme, rank)

    def _raise(self, theme: int, rank: int) -> None:
        """Move an item to the top of its theme, or close to it; those that it passes
        fall by one rank.
        """
        to = min(rank, int(self._rng.geometric(0.3)) - 1)
        slots = self._by_rank[theme]
        slots[to : rank + 1] = np.roll(slots[to : rank + 1], 1)
        self._rank_of[theme, slots[to : rank + 1]] = np.arange(to, rank + 1)

    def _put_new_item(self, theme: int, slot: int) -> None:
        item = len(self.names)
        self._made[theme] += 1
        self.names.append(f"{THEMES[theme]}-{self._made[theme]}")
        self._place_of = grown(self._place_of, item + 1)
        self._place_of[item] = theme, slot
        self._items[theme, slot] = item


class _Users:
    """Who comes, what they like, and what they had."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._count = 0
        self._tastes = np.empty((0, TASTES), np.int64)  # [users, TASTES] themes
        self._past = np.empty((0, REMEMBERED), np.int64)  # rings of the last items
        self._had = np.empty(0, np.int64)  # [users] items in all
        weights = 1 / np.arange(1, len(THEMES) + 1) ** THEME_ZIPF
        self._theme_shares = weights / weights.sum()
        self._add(FIRST_USERS)

    def visitors(self, sessions: int) -> Ints:
        """Users who come now, each once, new ones among them. The tastes of some have
        changed.
        """
        rng = self._rng
        new = int(rng.binomial(sessions, NEW_USERS))
        regulars = int(rng.binomial(sessions - new, REGULARS))
        often = USERS_PER_REGULAR * rng.integers(
            0, (self._count - 1) // USERS_PER_REGULAR + 1, regulars
        )
        others = rng.integers(0, self._count, sessions - new - regulars)
        users = np.concatenate(
            [np.unique(np.concatenate([often, others])), self._add(new)]
        )
        changed = users[rng.random(len(users)) < NEW_TASTE]
        which = rng.integers(0, TASTES, len(changed))
        self._tastes[changed, which] = self._draw_themes((len(changed),))
        return rng.permutation(users)

    def _add(self, new: int) -> Ints:
        users = np.arange(self._count, self._count + new)
        self._count += new
        self._tastes = grown(self._tastes, self._count)
        self._past = grown(self._past, self._count)
        self._had = grown(self._had, self._count)
        self._tastes[users] = self._draw_themes((new, TASTES))
        self._had[users] = 0
        return users

    def _draw_themes(self, shape: tuple[int, ...]) -> Ints:
        return self._rng.choice(len(self._theme_shares), shape, p=self._theme_shares)

    def liked_themes(self, users: Ints) -> Ints:
        """One of each user's themes; the first one more often than the next."""
        which = TASTES * self._rng.random(len(users)) ** 2
        return self._tastes[users, which.astype(np.int64)]

    def remembered(self, users: Ints) -> Ints:
        """An item that each user had before, more often a recent one; -1 for users who
        had none.
        """
        known = np.minimum(self._had[users], REMEMBERED)
        back = 1 + (known * self._rng.random(len(users)) ** 2).astype(np.int64)
        past = self._past[users, (self._had[users] - back) % REMEMBERED]
        return np.where(known > 0, past, -1)

    def remember(self, users: Ints, items: Ints) -> None:
        """Each of these users, none of them twice, has had an item."""
        self._past[users, self._had[users] % REMEMBERED] = items
        self._had[users] += 1
