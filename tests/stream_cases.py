"""Streams for the laws of ranking, and the slow, obvious keeping of what each event could know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from streamer.evaluation.baselines import RECENT, Baseline, BaselineRunner
from streamer.evaluation.tally import MISS, Ranks
from streamer.model.batch import Batch
from streamer.model.rows.retired import RetiredItems
from streamer.model.rows.seen_items import UserItems
from streamer.replay.evaluation.delay import PendingEvents


def in_order_of_appearance(raw: list[int]) -> np.ndarray:
    """Rows as a vocabulary gives them."""
    rows: dict[int, int] = {}
    return np.array([rows.setdefault(x, len(rows)) for x in raw], np.int64)


@st.composite
def streams(draw: st.DrawFn, longest: int = 120) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Users, items, and where batches end."""
    length = draw(st.integers(1, longest))
    users = draw(st.lists(st.integers(0, 5), min_size=length, max_size=length))
    items = draw(st.lists(st.integers(0, 30), min_size=length, max_size=length))
    ends = sorted(draw(st.sets(st.integers(1, length))) | {length})
    return in_order_of_appearance(users), in_order_of_appearance(items), ends


@dataclass
class Moment:
    """What the slow version knows when an event is ranked."""

    user: int
    item: int
    seen: set[int]
    last: list[int]
    ages: list[float]
    learned: list[tuple[int, list[int], list[float]]]
    """Each event that is learned from: its item, its user's last ten before it, and how long before."""

    @property
    def counts(self) -> Counter[int]:
        return Counter(item for item, _, _ in self.learned)


def moments(users: np.ndarray, items: np.ndarray, delay: int = 0, times: np.ndarray | None = None) -> Iterator[Moment]:
    """The stream event by event; without times, all at one."""
    had: dict[int, dict[int, float]] = {}  # each user's items and when, the latest last
    events: list[tuple[int, list[int], list[float]]] = []
    when = [0] * len(users) if times is None else times.tolist()
    for t, (user, item, time) in enumerate(zip(users.tolist(), items.tolist(), when, strict=True)):
        theirs = had.setdefault(user, {})
        last = list(theirs)[: -RECENT - 1 : -1]
        ages = [max(time - theirs[i], 0.0) for i in last]
        yield Moment(user, item, set(theirs), last, ages, events[: max(0, t - delay)])
        theirs.pop(item, None)
        theirs[item] = time
        events.append((item, last, ages))


def walked(
    baseline: Baseline,
    users: np.ndarray,
    items: np.ndarray,
    ends: list[int],
    delay: int = 0,
    times: np.ndarray | None = None,
) -> Ranks:
    """All events through a baseline, batch by batch."""
    runner = BaselineRunner([baseline], RetiredItems(), lambda: 0.0, beside=False)
    known, waiting, found = UserItems(), PendingEvents(), []
    when = np.zeros(len(users), np.int64) if times is None else times
    for start, end in zip([0, *ends], ends, strict=False):
        batch = Batch(users[start:end], items[start:end], times_s=when[start:end])
        chosen = np.arange(len(batch))
        seen = known.before(batch.users, batch.items, chosen)
        known.observe(batch.users, batch.items)
        stretch = runner.stretch(batch, chosen, seen)
        if delay:
            stretch = waiting.delayed(stretch, np.maximum(np.arange(start, end) - delay, 0))
        found.append(baseline.walk(stretch))
    return Ranks(*(np.concatenate(column) for column in zip(*found, strict=True)))


def rank_in(listed: list[int], item: int) -> int:
    """From 1; a miss if it is not there."""
    return listed.index(item) + 1 if item in listed else MISS


def assert_ranked(ranks: Ranks, t: int, moment: Moment, scores: Mapping[int, Any], share: float = 0) -> None:
    """Event t is ranked by these scores, among all items and among those that its user did not have.

    Items whose scores differ by at most this share of them may stand in any order.
    """
    for found, left_out in ((ranks.among_all[t], set()), (ranks.among_new[t], moment.seen)):
        if moment.item not in scores or moment.item in left_out:
            assert found == MISS
            continue
        own = scores[moment.item]
        others = [s for item, s in scores.items() if item != moment.item and item not in left_out]
        assert sum(s > own * (1 + share) for s in others) < found <= 1 + sum(s >= own * (1 - share) for s in others)
