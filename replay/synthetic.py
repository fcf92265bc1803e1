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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamer.errors import SettingsError
from streamer.model.setting import Settings, setting
from streamer.replay.events import Events

Ints = NDArray[np.int64]

THEMES = (
    *(
        "jazz",
        "tea",
        "chess",
        "bread",
        "birds",
        "maps",
        "robots",
        "roses",
        "cinema",
        "boats",
        "poetry",
        "running",
    ),
    *(
        "coffee",
        "stars",
        "trains",
        "cheese",
        "dogs",
        "opera",
        "cycling",
        "history",
        "pottery",
        "surfing",
        "cats",
    ),
    *(
        "blues",
        "gardens",
        "physics",
        "pasta",
        "castles",
        "hiking",
        "fonts",
        "clocks",
        "spices",
        "comics",
        "knitting",
    ),
    *("rivers", "judo", "radio", "honey", "islands", "puzzles"),
)
USERS_PER_REGULAR = 10
REMEMBERED = 20
"""Items of a user that a session can return to."""
_EVENT = np.dtype([("user", np.int64), ("item", np.int64), ("time_s", np.float64)])


@dataclass(frozen=True, kw_only=True)
class SyntheticSettings(Settings):
    """What the stream is like."""

    seed: int = setting(0, "Determines the whole stream.", at_least=0)
    themes: int = setting(40, "Groups of related items.", at_least=1)
    items_per_theme: int = setting(150, "Items of a theme at any one time.", at_least=2)
    zipf: float = setting(
        1.2,
        "How steeply the popularity of items falls with their rank in a theme.",
        at_least=0,
    )
    theme_zipf: float = setting(
        1.0, "How steeply that of the themes falls.", at_least=0
    )
    users: int = setting(4000, "Users at the beginning.", at_least=1)
    new_users: float = setting(
        0.05, "Share of sessions that a new user begins.", at_least=0, at_most=1
    )
    regulars: float = setting(
        0.4,
        "Share of the other sessions of regulars, a tenth of all.",
        at_least=0,
        at_most=1,
    )
    tastes: int = setting(
        3, "Themes that a user likes, the first one best.", at_least=1
    )
    new_taste: float = setting(
        0.05,
        "Chance that one of them is new when a session begins.",
        at_least=0,
        at_most=1,
    )
    session_events: float = setting(8.0, "Mean length of a session.", at_least=1)
    related: float = setting(
        0.6, "Chance that an item is related to the one before.", at_least=0, at_most=1
    )
    returning: float = setting(
        0.15, "Chance that it is one that the user had before.", at_least=0, at_most=1
    )
    reach: int = setting(
        5, "How far related items are apart in the ring, at most.", at_least=1
    )
    rising_items: float = setting(
        10.0,
        "Items that rise to the top of their theme, in 1,000 sessions.",
        at_least=0,
    )
    new_items: float = setting(
        40.0, "Items that replace an old one, in 1,000 sessions.", at_least=0
    )
    start_s: float = setting(
        1_700_000_000.0, "Time of the first event, in seconds since the epoch."
    )
    session_every_s: float = setting(
        2.0, "Seconds between the beginnings of sessions.", at_least=0
    )
    pause_s: float = setting(
        30.0, "Mean seconds between the events of a session.", at_least=0
    )
    block: int = setting(256, "Sessions that are made at once.", at_least=1)

    def problems(self) -> list[str]:
        found = super().problems()
        if self.items_per_theme <= self.reach:
            found.append(
                f"items-per-theme is {self.items_per_theme}: it must be above reach, which is {self.reach}"
            )
        if self.related + self.returning > 1:
            found.append(
                "related and returning are chances of the same step: together at most 1"
            )
        return found


class SyntheticStream:
    """An endless stream, made while it is read.

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
        self._items = _Items(settings, self._rng)
        self._users = _Users(settings, self._rng)

    def __iter__(self) -> Iterator[Events]:
        """Events in the order of their times, a block of sessions at a time."""
        waiting = np.empty(0, _EVENT)
        now_s = self.settings.start_s
        names = self._items.names
        while True:
            waiting = np.concatenate([waiting, self._block(now_s)])
            waiting = waiting[np.argsort(waiting["time_s"], kind="stable")]
            now_s += self.settings.block * self.settings.session_every_s
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
        s = self.settings
        rng = self._rng
        self._items.drift(s.block / 1000)
        users = self._users.visitors(s.block)
        lengths = -np.sort(-(1 + rng.poisson(s.session_events - 1, len(users))))
        items = np.full(
            (int(lengths[0]), len(users)), -1, np.int64
        )  # [steps, sessions]
        directions = rng.choice((-1, 1), len(users))
        for step in range(len(items)):
            active = int(
                np.searchsorted(-lengths, -step, side="left")
            )  # sessions longer than step: a prefix
            before = items[step - 1, :active] if step else None
            items[step, :active] = self._next_items(
                users[:active], before, directions[:active]
            )
        starts_s = start_s + rng.random(len(users)) * s.block * s.session_every_s
        times_s = starts_s + np.cumsum(rng.exponential(s.pause_s, items.shape), axis=0)
        made = items >= 0
        events = np.empty(int(made.sum()), _EVENT)
        events["user"] = np.broadcast_to(users, items.shape)[made]
        events["item"] = items[made]
        events["time_s"] = times_s[made]
        return events

    def _next_items(self, users: Ints, before: Ints | None, directions: Ints) -> Ints:
        """One step of many sessions."""
        s = self.settings
        rng = self._rng
        items = self._items.popular(self._users.liked_themes(users))
        chance = rng.random(len(users))
        if before is not None:
            items = np.where(
                chance < s.related, self._items.related(before, directions), items
            )
        past = self._users.remembered(users)
        returns = (
            (chance >= s.related) & (chance < s.related + s.returning) & (past >= 0)
        )
        items = np.where(returns, past, items)
        self._users.remember(users, items)
        return items


class _Items:
    """A ring of slots for each theme, a rank for each slot, an item in each slot."""

    def __init__(self, settings: SyntheticSettings, rng: np.random.Generator) -> None:
        self._settings = settings
        self._rng = rng
        themes = settings.themes
        slots = settings.items_per_theme
        self.names: list[str] = []
        self._made = [0] * themes  # items of each theme so far
        self._place_of = np.empty((0, 2), np.int64)  # [items, 2] theme and slot
        self._by_rank = np.stack(
            [rng.permutation(slots) for _ in range(themes)]
        )  # [themes, slots] slot of each rank
        self._rank_of = np.argsort(
            self._by_rank, axis=1
        )  # [themes, slots] rank of each slot
        self._items = np.empty(
            (themes, slots), np.int64
        )  # [themes, slots] item in each slot
        for theme in range(themes):
            for slot in range(slots):
                self._put_new_item(theme, slot)
        weights = 1 / np.arange(1, slots + 1) ** settings.zipf
        self._up_to_rank = np.cumsum(weights / weights.sum())

    def popular(self, themes: Ints) -> Ints:
        """An item of each theme, drawn by popularity."""
        ranks = np.searchsorted(self._up_to_rank, self._rng.random(len(themes))).clip(
            max=len(self._up_to_rank) - 1
        )
        items: Ints = self._items[themes, self._by_rank[themes, ranks]]
        return items

    def related(self, items: Ints, directions: Ints) -> Ints:
        """A neighbour of each item in one direction: of two, the one with the better
        rank.
        """
        themes, slots = self._place_of[items].T
        distance = self._rng.integers(1, self._settings.reach + 1, (2, len(items)))
        one, other = (slots + directions * distance) % self._items.shape[1]
        better = self._rank_of[themes, one] <= self._rank_of[themes, other]
        found: Ints = self._items[themes, np.where(better, one, other)]
        return found

    def drift(self, thousands: float) -> None:
        """Let that many thousands of sessions pass: items rise, new ones replace old
        ones.
        """
        themes, slots = self._items.shape
        for _ in range(self._rng.poisson(self._settings.rising_items * thousands)):
            self._raise(int(self._rng.integers(themes)), int(self._rng.integers(slots)))
        for _ in range(self._rng.poisson(self._settings.new_items * thousands)):
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
        again = theme // len(
            THEMES
        )  # when all names of themes are taken: tea2, tea3 and so on
        self.names.append(
            f"{THEMES[theme % len(THEMES)]}{again + 1 if again else ''}-{self._made[theme]}"
        )
        self._place_of = _grown(self._place_of, item + 1)
        self._place_of[item] = theme, slot
        self._items[theme, slot] = item


class _Users:
    """Who comes, what they like, and what they had."""

    def __init__(self, settings: SyntheticSettings, rng: np.random.Generator) -> None:
        self._settings = settings
        self._rng = rng
        self._count = 0
        self._tastes = np.empty(
            (0, settings.tastes), np.int64
        )  # [users, tastes] themes
        self._past = np.empty(
            (0, REMEMBERED), np.int64
        )  # [users, REMEMBERED] a ring of the last items
        self._had = np.empty(0, np.int64)  # [users] items in all
        weights = 1 / np.arange(1, settings.themes + 1) ** settings.theme_zipf
        self._theme_shares = weights / weights.sum()
        self._add(settings.users)

    def visitors(self, sessions: int) -> Ints:
        """Users who come now, each once, new ones among them. The tastes of some have
        changed.
        """
        s = self._settings
        rng = self._rng
        new = int(rng.binomial(sessions, s.new_users))
        regulars = int(rng.binomial(sessions - new, s.regulars))
        often = USERS_PER_REGULAR * rng.integers(
            0, (self._count - 1) // USERS_PER_REGULAR + 1, regulars
        )
        others = rng.integers(0, self._count, sessions - new - regulars)
        users = np.concatenate(
            [np.unique(np.concatenate([often, others])), self._add(new)]
        )
        changed = users[rng.random(len(users)) < s.new_taste]
        which = rng.integers(0, s.tastes, len(changed))
        self._tastes[changed, which] = self._draw_themes((len(changed),))
        return rng.permutation(users)

    def _add(self, new: int) -> Ints:
        users = np.arange(self._count, self._count + new)
        self._count += new
        self._tastes = _grown(self._tastes, self._count)
        self._past = _grown(self._past, self._count)
        self._had = _grown(self._had, self._count)
        self._tastes[users] = self._draw_themes((new, self._settings.tastes))
        self._had[users] = 0
        return users

    def _draw_themes(self, shape: tuple[int, ...]) -> Ints:
        return self._rng.choice(len(self._theme_shares), shape, p=self._theme_shares)

    def liked_themes(self, users: Ints) -> Ints:
        """One of each user's themes; the first one more often than the next."""
        which = (self._settings.tastes * self._rng.random(len(users)) ** 2).astype(
            np.int64
        )
        return self._tastes[users, which]

    def remembered(self, users: Ints) -> Ints:
        """An item that each user had before, more often a recent one; -1 for users who
        had none.
        """
        known = np.minimum(self._had[users], REMEMBERED)
        back = 1 + (known * self._rng.random(len(users)) ** 2).astype(np.int64)
        return np.where(
            known > 0, self._past[users, (self._had[users] - back) % REMEMBERED], -1
        )

    def remember(self, users: Ints, items: Ints) -> None:
        """Each of these users, none of them twice, has had an item."""
        self._past[users, self._had[users] % REMEMBERED] = items
        self._had[users] += 1


def _grown(array: Ints, size: int) -> Ints:
    """The array with room for `size` rows at least."""
    if size <= len(array):
        return array
    larger = np.zeros((max(size, 2 * len(array)), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
