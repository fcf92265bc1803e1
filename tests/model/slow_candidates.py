"""Candidates and their features, the slow, obvious way: lists and dictionaries, a candidate at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from streamer.model.ranking import windows
from streamer.model.ranking.co_occurrence import MAX_PAIR_DISTANCE
from streamer.model.ranking.features import FEATURES

DAY_S = 86_400


def shared_ranks(times_s: list[int]) -> list[int]:
    """Recency ranks; items of one second share the rank of the first."""
    ranks: list[int] = []
    for k, time_s in enumerate(times_s):
        ranks.append(ranks[-1] if k and time_s == times_s[k - 1] else k)
    return ranks


class SlowCoOccurrence:
    """A dictionary an item: neighbour -> [weight, timed weight]; another: neighbour -> how often it came next."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.lists: dict[int, dict[int, list[np.float32]]] = {}
        self.followers: dict[int, dict[int, float]] = {}
        self.totals: Counter[int] = Counter()
        self.timed_totals: Counter[int] = Counter()

    def observe(self, item: int, time_s: int, recent: list[tuple[int, int]], event_weight: float = 1.0) -> None:
        """An event, and its user's recent items with their times."""
        if not event_weight:
            return
        ranks = shared_ranks([when for _, when in recent])
        last = recent[0][0] if recent else None
        if last is not None:
            fading = self.followers.setdefault(last, {})
            self.followers[last] = {neighbour: times * 0.99 for neighbour, times in fading.items()}
        for (other, when), rank in list(zip(recent, ranks, strict=True))[:MAX_PAIR_DISTANCE]:
            if other != item:
                weight = np.float32(event_weight) / np.float32(rank + 1)
                timed = np.float32(weight * math.exp(-max(time_s - when, 0) / (0.3 * DAY_S)))
                for mine, theirs in ((other, item), (item, other)):
                    self._add(mine, theirs, weight, timed)
                    came_next = event_weight * (mine == last and theirs == item)
                    followers = self.followers.setdefault(mine, {})
                    followers[theirs] = followers.get(theirs, 0.0) + came_next
                    for gone in set(followers) - set(self.of(mine)):
                        del followers[gone]

    def _add(self, item: int, other: int, weight: np.float32, timed: np.float32) -> None:
        self.totals[item] += float(weight)
        self.timed_totals[item] += float(timed)
        mine = self.lists.setdefault(item, {})
        if other in mine:
            mine[other] = [mine[other][0] + weight, mine[other][1] + timed]
        elif len(mine) < self.length:
            mine[other] = [weight, timed]
        elif mine:
            lightest = min(mine, key=lambda neighbour: mine[neighbour][0])  # the first of several
            self.lists[item] = {
                other if key == lightest else key: [weight, timed] if key == lightest else value
                for key, value in mine.items()
            }

    def of(self, item: int) -> dict[int, list[np.float32]]:
        return self.lists.get(item, {})

    def forget(self, gone: set[int]) -> None:
        self.lists = {i: {j: w for j, w in mine.items() if j not in gone} for i, mine in self.lists.items()}
        self.followers = {i: {j: n for j, n in mine.items() if j not in gone} for i, mine in self.followers.items()}
        for item in gone:
            for kept in (self.lists, self.totals, self.timed_totals, self.followers):
                kept.pop(item, None)


class Recent(NamedTuple):
    """An item of a user's history."""

    item: int
    time_s: int
    count: int


class Event(NamedTuple):
    """What came."""

    user: int
    item: int
    time_s: int
    weight: float = 1.0


class SlowCandidateFeatures:
    """All events in a list; everything is counted anew for each candidate."""

    def __init__(self, neighbours: int, history: int) -> None:
        self.pairs = SlowCoOccurrence(neighbours)
        self.length = history
        self.histories: dict[int, list[Recent]] = {}
        self.events: list[tuple[Event, bool]] = []
        """Each with whether its item was in the user's history."""

    def history(self, user: int) -> list[Recent]:
        return self.histories.get(user, [])

    def observe(self, event: Event) -> None:
        before = self.history(event.user)
        count = next((r.count for r in before if r.item == event.item), 0)
        self.pairs.observe(event.item, event.time_s, [(r.item, r.time_s) for r in before], event.weight)
        self.events.append((event, count > 0))
        others = [r for r in before if r.item != event.item]
        newest = Recent(event.item, event.time_s, min(count + 1, 255))
        self.histories[event.user] = [newest, *others][: self.length]

    def popular(self) -> list[int]:
        found: list[int] = []
        for window, most in (
            (windows.LONG_WINDOW, windows.POPULAR_IN_LONG_WINDOW),
            (windows.SHORT_WINDOW, windows.POPULAR_IN_SHORT_WINDOW),
        ):
            counts = Counter()
            for event, _ in self.events[-window:]:
                counts[event.item] += event.weight
            found += sorted(counts, key=lambda item: (-counts[item], item))[:most]
        return list(dict.fromkeys(found))

    def candidates(self, user: int, popular: list[int], extra: Iterable[int] = ()) -> set[int]:
        recent = [r.item for r in self.history(user)]
        near = {j for item in recent for j in self.pairs.of(item)}
        return {*recent, *near, *popular, *(item for item in extra if item >= 0)}

    def features(self, user: int, time_s: int, candidates: set[int]) -> dict[int, dict[str, float]]:
        """Those of each candidate, by name; the towers' is zero."""
        near = {item: self._nearness(user, time_s, item) for item in candidates}
        most, max_timed = (max([1e-30, *(n[name] for n in near.values())]) for name in ("near", "timed"))
        found = {}
        last = next((r.item for r in self.history(user)), -1)
        followers = self.pairs.followers.get(last, {})
        for item in candidates:
            x = dict.fromkeys(FEATURES, 0.0) | self._counted(item, time_s)
            came_next = followers.get(item, 0.0)
            share = came_next / (1 + sum(followers.values()))
            x |= {"next log": math.log(1 + came_next), "next share": share**0.5}
            n = near[item]
            if n["support"]:
                x |= {"near log": log30(n["near"]), "near root": n["near"] ** 0.5, "near share": n["near"] / most}
                x |= {"near timed log": log30(n["timed"]), "near timed root": n["timed"] ** 0.5}
                x |= {"near timed share": n["timed"] / max_timed, "near most": log30(n["most"])}
                x |= {f"near {group}": log30(n[group]) for group in ("last", "2 to 3", "4 to 10", "11 to 30")}
                x |= {"near support": math.log(1 + n["support"]), "is near": 1.0}
            recent = self.history(user)
            ranks = shared_ranks([r.time_s for r in recent])
            for mine, rank in zip(recent, ranks, strict=True):
                if mine.item == item:
                    again = sum(repeated for event, repeated in self.events if event.item == item)
                    events = sum(event.item == item for event, _ in self.events)
                    x |= {"is recent": 1.0, "recent rank": 1 / (rank + 1), "recent events": x["events log"]}
                    x |= {"recent gap": math.exp(-max(time_s - mine.time_s, 0) / (0.3 * DAY_S))}
                    x |= {"recent times": math.log(mine.count), "recent hours": log_hours(time_s - mine.time_s)}
                    x |= {"recent again": (again + 0.5) / (events + 1)}
                    times = sum(r.count for r in recent)
                    x |= {"recent is last": float(rank == 0), "recent distinct": math.log(len(recent))}
                    x |= {"recent repeats": 1 - len(recent) / times}
                    x |= {"recent last was repeat": float(recent[0].count > 1)}
            found[item] = x
        return found

    def _counted(self, item: int, time_s: int) -> dict[str, float]:
        mine = [(event.item == item) * event.weight for event, _ in self.events]
        x = {
            "events long window": math.log(1 + sum(mine[-windows.LONG_WINDOW :])),
            "events short window": math.log(1 + sum(mine[-windows.SHORT_WINDOW :])),
            "events log": math.log(1 + sum(event.item == item for event, _ in self.events)),
        }
        times_s = [event.time_s for event, _ in self.events if event.item == item]
        x["hours since last"] = log_hours(time_s - times_s[-1]) if times_s else 3.0
        x["hours since first"] = log_hours(time_s - times_s[0]) if times_s else 3.0
        return x

    def _nearness(self, user: int, time_s: int, item: int) -> dict[str, float]:
        sums = dict.fromkeys(("near", "timed", "last", "2 to 3", "4 to 10", "11 to 30", "most", "support"), 0.0)
        recent = self.history(user)
        for mine, rank in zip(recent, shared_ranks([r.time_s for r in recent]), strict=True):
            if item not in self.pairs.of(mine.item):
                continue
            weight, timed = map(float, self.pairs.of(mine.item)[item])
            weight /= math.sqrt(max(self.pairs.totals[mine.item], 1.0))
            timed /= math.sqrt(max(self.pairs.timed_totals[mine.item], 1e-3))
            group = "last" if rank < 1 else "2 to 3" if rank < 3 else "4 to 10" if rank < 10 else "11 to 30"
            sums["near"] += weight / (rank + 1)
            sums["timed"] += timed / (rank + 1) * math.exp(-max(time_s - mine.time_s, 0) / (0.3 * DAY_S))
            sums[group] += weight
            sums["most"] = max(sums["most"], weight / (rank + 1))
            sums["support"] += 1
        return sums


def log30(nearness: float) -> float:
    return math.log(1 + 30 * nearness)


def log_hours(seconds: float) -> float:
    return 0.2 * math.log(1 + max(seconds, 0) / 3600)
