"""A stream that nobody lived, but that behaves like one: long-tailed, with tastes, sessions and drift.

Items belong to themes. Within a theme they stand in a ring, where neighbours are related, and have a rank, after
which their popularity falls as Zipf's law says. A person likes a few themes. In a session a person looks at one item
after another, and each next one is

- related to the one before (the better ranked of two that follow in the ring; a session goes one way), or
- one that the person had before, rather a recent one, or
- a new start: a popular item of a theme that the person likes.

Meanwhile new people come, new items take the place of old ones and begin near the top, others rise out of the tail,
and tastes change. So what is popular for long says little about what comes next; a person's last items say much.

Sessions are made in blocks, one step of all of them at a time, so that numpy does the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamer.errors import SettingsError
from streamer.replay.events import Events

Ints = NDArray[np.int64]

THEMES = (
    *("jazz", "tea", "chess", "bread", "birds", "maps", "robots", "roses", "cinema", "boats", "poetry", "running"),
    *("coffee", "stars", "trains", "cheese", "dogs", "opera", "cycling", "history", "pottery", "surfing", "cats"),
    *("blues", "gardens", "physics", "pasta", "castles", "hiking", "fonts", "clocks", "spices", "comics", "knitting"),
    *("rivers", "judo", "radio", "honey", "islands", "puzzles"),
)
REGULAR = 10
"""One person in so many is a regular."""


@dataclass(frozen=True, slots=True)
class SyntheticSettings:
    """What the stream is like.

    Args:
        seed: determines everything.
        themes: groups of related items.
        items_per_theme: items of a theme at any one time.
        zipf: how steeply the popularity of items falls with their rank within a theme.
        theme_zipf: how steeply that of the themes falls.
        users: people at the beginning.
        new_users: share of sessions that somebody new begins.
        regulars: share of the other sessions that belong to the regulars, a tenth of all people.
        tastes: themes that a person likes, the first one best.
        new_taste: chance that one of them has changed when a session begins.
        session_events: mean length of a session.
        related: chance that the next item is related to the one before.
        returning: chance that it is one that the person had before.
        reach: how far related items are apart in the ring, at most.
        rising_items: items that rise to the top of their theme, in 1,000 sessions.
        new_items: items that appear, in 1,000 sessions, each in place of an old one.
        start_s: time of the first event, in seconds since the epoch.
        session_every_s: seconds between the beginnings of sessions.
        pause_s: mean seconds between the events of a session.
        block: sessions that are made at once.
    """

    seed: int = 0
    themes: int = 40
    items_per_theme: int = 150
    zipf: float = 1.2
    theme_zipf: float = 1.0
    users: int = 4000
    new_users: float = 0.05
    regulars: float = 0.4
    tastes: int = 3
    new_taste: float = 0.05
    session_events: float = 8.0
    related: float = 0.6
    returning: float = 0.15
    reach: int = 5
    rising_items: float = 10.0
    new_items: float = 40.0
    start_s: float = 1_700_000_000.0
    session_every_s: float = 2.0
    pause_s: float = 30.0
    block: int = 256

    def problems(self) -> list[str]:
        """What is wrong with these settings; empty if nothing is."""
        shares = ("new_users", "regulars", "new_taste", "related", "returning")
        found = [f"{n} is {getattr(self, n)}: it must be from 0 to 1" for n in shares if not 0 <= getattr(self, n) <= 1]
        least = {"themes": 1, "users": 1, "tastes": 1, "session_events": 1, "reach": 1, "block": 1}
        least |= {"items_per_theme": self.reach + 1, "zipf": 0, "theme_zipf": 0, "rising_items": 0, "new_items": 0}
        least |= {"session_every_s": 0, "pause_s": 0, "seed": 0}
        small = {name: minimum for name, minimum in least.items() if getattr(self, name) < minimum}
        found += [f"{name} is {getattr(self, name)}: it must be at least {m}" for name, m in small.items()]
        if self.related + self.returning > 1:
            found.append("related and returning are chances of the same step: together at most 1")
        return found


class SyntheticStream:
    """An endless stream; iterating makes it on the way.

    Args:
        settings: what it is like.

    Raises:
        SettingsError: with every problem at once.

    Examples:
        >>> events = next(iter(SyntheticStream()))
        >>> len(events.users) == len(events.items) > 0
        True
    """

    def __init__(self, settings: SyntheticSettings | None = None) -> None:
        self.settings = settings = settings or SyntheticSettings()
        if problems := settings.problems():
            raise SettingsError(problems)
        self._rng = np.random.default_rng(settings.seed)
        self._catalogue = _Catalogue(settings, self._rng)
        self._people = _People(settings, self._rng)

    def __iter__(self) -> Iterator[Events]:
        """Events in the order of their times, a block of sessions at a time."""
        waiting = _Columns.empty()
        now_s = self.settings.start_s
        while True:
            block = self._block(now_s)
            now_s += self.settings.block * self.settings.session_every_s
            ready, waiting = waiting.joined(block).split_at(now_s)
            if len(ready.users):
                yield self._named(ready)

    def _named(self, columns: _Columns) -> Events:
        items = self._catalogue.names
        return Events(
            [f"user-{number}" for number in columns.users.tolist()],
            [items[number] for number in columns.items.tolist()],
            np.round(columns.times_s, 3).tolist(),
        )

    def _block(self, start_s: float) -> _Columns:
        """Some sessions, of different people, that begin within a block's time."""
        s, rng = self.settings, self._rng
        self._catalogue.drift(s.block / 1000)
        users = self._people.visitors(s.block)
        lengths = -np.sort(-(1 + rng.poisson(s.session_events - 1, len(users))))
        steps = int(lengths[0])
        items = np.full((steps, len(users)), -1, np.int64)
        ways = rng.choice((-1, 1), len(users))
        for step in range(steps):
            active = int(np.searchsorted(-lengths, -step, side="left"))  # those longer than step: a prefix
            before = items[step - 1, :active] if step else None
            items[step, :active] = self._next_items(users[:active], before, ways[:active])
        starts_s = start_s + rng.random(len(users)) * s.block * s.session_every_s
        times_s = starts_s + np.cumsum(rng.exponential(s.pause_s, items.shape), axis=0)
        made = items >= 0
        return _Columns(np.broadcast_to(users, items.shape)[made], items[made], times_s[made])

    def _next_items(self, users: Ints, before: Ints | None, ways: Ints) -> Ints:
        """One step of many sessions, each of which goes one way around the ring."""
        s, rng = self.settings, self._rng
        items = self._catalogue.popular(self._people.liked_theme(users))
        chance = rng.random(len(users))
        if before is not None:
            items = np.where(chance < s.related, self._catalogue.related(before, ways), items)
        past = self._people.had_before(users)
        returns = (chance >= s.related) & (chance < s.related + s.returning) & (past >= 0)
        items = np.where(returns, past, items)
        self._people.remember(users, items)
        return items


@dataclass(slots=True)
class _Columns:
    users: Ints
    items: Ints
    times_s: NDArray[np.float64]

    @classmethod
    def empty(cls) -> _Columns:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))

    def joined(self, other: _Columns) -> _Columns:
        """Both, in the order of their times."""
        times_s = np.concatenate([self.times_s, other.times_s])
        order = np.argsort(times_s, kind="stable")
        users, items = np.concatenate([self.users, other.users]), np.concatenate([self.items, other.items])
        return _Columns(users[order], items[order], times_s[order])

    def split_at(self, time_s: float) -> tuple[_Columns, _Columns]:
        """What lies before a time, and the rest."""
        n = int(np.searchsorted(self.times_s, time_s))
        return (
            _Columns(self.users[:n], self.items[:n], self.times_s[:n]),
            _Columns(self.users[n:], self.items[n:], self.times_s[n:]),
        )


class _Catalogue:
    """Items: a ring of slots for each theme, a rank for each slot, an item in each slot."""

    def __init__(self, settings: SyntheticSettings, rng: np.random.Generator) -> None:
        self._settings, self._rng = settings, rng
        themes, slots = settings.themes, settings.items_per_theme
        self.names: list[str] = []
        self._made = [0] * themes  # items of each theme so far
        self._place_of = np.empty((0, 2), np.int64)  # [items, 2] theme and slot
        self._by_rank = np.stack([rng.permutation(slots) for _ in range(themes)])  # [themes, slots] slot of each rank
        self._rank_of = np.argsort(self._by_rank, axis=1)  # [themes, slots] rank of each slot
        self._items = np.empty((themes, slots), np.int64)  # [themes, slots] item in each slot
        for theme in range(themes):
            for slot in range(slots):
                self._put_new_item(theme, slot)
        weights = 1 / np.arange(1, slots + 1) ** settings.zipf
        self._up_to_rank = np.cumsum(weights / weights.sum())

    def popular(self, themes: Ints) -> Ints:
        """An item of each theme, after its popularity."""
        ranks = np.searchsorted(self._up_to_rank, self._rng.random(len(themes))).clip(max=len(self._up_to_rank) - 1)
        items: Ints = self._items[themes, self._by_rank[themes, ranks]]
        return items

    def related(self, items: Ints, ways: Ints) -> Ints:
        """A neighbour of each item on one side: of two, the one with the better rank."""
        themes, slots = self._place_of[items].T
        distance = self._rng.integers(1, self._settings.reach + 1, (2, len(items)))
        one, other = (slots + ways * distance) % self._items.shape[1]
        better = self._rank_of[themes, one] <= self._rank_of[themes, other]
        found: Ints = self._items[themes, np.where(better, one, other)]
        return found

    def drift(self, thousands: float) -> None:
        """Let so many thousands of sessions pass: items rise, new ones replace old ones."""
        slots = self._items.shape[1]
        for _ in range(self._rng.poisson(self._settings.rising_items * thousands)):
            self._raise(*self._anywhere(0, slots))
        for _ in range(self._rng.poisson(self._settings.new_items * thousands)):
            theme, rank = self._anywhere(slots // 2, slots)
            self._put_new_item(theme, int(self._by_rank[theme, rank]))
            self._raise(theme, rank)

    def _anywhere(self, lowest: int, highest: int) -> tuple[int, int]:
        return int(self._rng.integers(self._settings.themes)), int(self._rng.integers(lowest, highest))

    def _raise(self, theme: int, rank: int) -> None:
        """Move an item to the top of its theme, or close to it; those that it passes fall by one."""
        to = min(rank, int(self._rng.geometric(0.3)) - 1)
        line = self._by_rank[theme]
        line[to : rank + 1] = np.roll(line[to : rank + 1], 1)
        self._rank_of[theme, line[to : rank + 1]] = np.arange(to, rank + 1)

    def _put_new_item(self, theme: int, slot: int) -> None:
        item = len(self.names)
        self._made[theme] += 1
        self.names.append(f"{_theme_name(theme)}-{self._made[theme]}")
        self._place_of = _grown(self._place_of, item + 1)
        self._place_of[item] = theme, slot
        self._items[theme, slot] = item


class _People:
    """Who comes, what they like, and what they had."""

    PAST = 20

    def __init__(self, settings: SyntheticSettings, rng: np.random.Generator) -> None:
        self._settings, self._rng = settings, rng
        self._count = 0
        self._tastes = np.empty((0, settings.tastes), np.int64)
        self._past = np.empty((0, self.PAST), np.int64)  # a ring of the last items
        self._had = np.empty(0, np.int64)  # how many items in all
        weights = 1 / np.arange(1, settings.themes + 1) ** settings.theme_zipf
        self._theme_shares = weights / weights.sum()
        self._welcome(settings.users)

    def visitors(self, sessions: int) -> Ints:
        """People who come now, each once; somebody new among them."""
        s, rng = self._settings, self._rng
        new = int(rng.binomial(sessions, s.new_users))
        regulars = int(rng.binomial(sessions - new, s.regulars))
        often = REGULAR * rng.integers(0, (self._count - 1) // REGULAR + 1, regulars)
        others = rng.integers(0, self._count, sessions - new - regulars)
        users = np.concatenate([np.unique(np.concatenate([often, others])), self._welcome(new)])
        self._change_tastes(users[rng.random(len(users)) < s.new_taste])
        return rng.permutation(users)

    def _welcome(self, new: int) -> Ints:
        users = np.arange(self._count, self._count + new)
        self._count += new
        self._tastes = _grown(self._tastes, self._count)
        self._past, self._had = _grown(self._past, self._count), _grown(self._had, self._count)
        self._tastes[users] = self._themes((new, self._settings.tastes))
        self._had[users] = 0
        return users

    def _themes(self, shape: tuple[int, ...]) -> Ints:
        return self._rng.choice(len(self._theme_shares), shape, p=self._theme_shares)

    def _change_tastes(self, users: Ints) -> None:
        which = self._rng.integers(0, self._settings.tastes, len(users))
        self._tastes[users, which] = self._themes((len(users),))

    def liked_theme(self, users: Ints) -> Ints:
        """One of each person's themes; the first one more often than the next."""
        which = (self._settings.tastes * self._rng.random(len(users)) ** 2).astype(np.int64)
        return self._tastes[users, which]

    def had_before(self, users: Ints) -> Ints:
        """Something that each person had before, rather recently; -1 for those who had nothing."""
        known = np.minimum(self._had[users], self.PAST)
        back = 1 + (known * self._rng.random(len(users)) ** 2).astype(np.int64)
        return np.where(known > 0, self._past[users, (self._had[users] - back) % self.PAST], -1)

    def remember(self, users: Ints, items: Ints) -> None:
        """The people have had these; nobody is in it twice."""
        self._past[users, self._had[users] % self.PAST] = items
        self._had[users] += 1


def _theme_name(theme: int) -> str:
    """`tea`; when all names are taken, `tea2`, `tea3` and so on."""
    again = theme // len(THEMES)
    return THEMES[theme % len(THEMES)] + (str(again + 1) if again else "")


def _grown(array: Ints, size: int) -> Ints:
    """The array with room for `size` rows at least."""
    if size <= len(array):
        return array
    larger = np.zeros((max(size, 2 * len(array)), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
