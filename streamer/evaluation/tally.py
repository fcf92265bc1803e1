"""From ranks to figures: HR, NDCG and MRR at several k, over the whole stream and over
a window of its last events.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows

METRICS = ("hr", "ndcg", "mrr")
MISS = np.iinfo(np.int64).max
"""The rank of an item that is in no list, however long."""

Doubles = NDArray[np.float64]


class Ranks(NamedTuple):
    """The ranks of n events' items in the lists made before the events; `MISS` if an
    item is not in its list.

    Args:
        among_all: [n] in the list of all items.
        among_new: [n] in the list without what the user had; `MISS` if the item is
            among those.
    """

    among_all: Rows
    among_new: Rows

    @classmethod
    def missed(cls, events: int) -> Ranks:
        """All missed, to be filled in."""
        among_all = np.full(events, MISS)
        return cls(among_all, among_all.copy())


class Figure(NamedTuple):
    """A figure over all events so far, and over those of the window; None without any
    event. The standard errors take events for independent.
    """

    events: int = 0
    overall: float | None = None
    error: float | None = None
    """Standard error of `overall`."""
    recent_events: int = 0
    recent: float | None = None
    recent_error: float | None = None
    """Standard error of `recent`."""

    @property
    def hits(self) -> int:
        """The sum of the figure over all events: of hit rates, the hits."""
        return round((self.overall or 0.0) * self.events)


class _Batch(NamedTuple):
    """What the ranked events of a batch add up to."""

    ranked: int
    events: Rows  # [slices]
    sums: Mapping[str, Doubles]  # of each recommender [slices, metrics, ks, 2]


class Tally:
    """Figures of several recommenders that rank the same events.

    The window holds the last batches that have at least `window` ranked events
    together. A slice's windowed figure is over its events among those.

    Args:
        k: length of the lists of the main figure.
        window: events of the window.
        ks: further lengths of lists.
        slices: names of the slices.
        among_new: those of them that look at lists without what the user had.
    """

    def __init__(
        self,
        k: int = 10,
        window: int = 5000,
        *,
        ks: Sequence[int] = (),
        slices: Sequence[str] = ("all",),
        among_new: Sequence[str] = (),
    ) -> None:
        self.k = k
        self.ks = tuple(sorted({k, *ks}))
        self.slices = tuple(slices)
        self._window = window
        self._among_new = np.isin(self.slices, among_new)
        self._events = np.zeros(len(self.slices), np.int64)
        self._sums: dict[str, Doubles] = {}  # over all events
        self._batches: deque[_Batch] = deque()  # of the window

    def add(self, ranks: Mapping[str, Ranks], members: NDArray[np.bool_]) -> None:
        """Count n events.

        Args:
            ranks: what each recommender found.
            members: [n, slices] which slices each event belongs to.
        """
        sums = {name: self._summed(found, members) for name, found in ranks.items()}
        batch = _Batch(len(members), members.sum(0), sums)
        self._events = self._events + batch.events
        for name, added in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + added
        self._batches.append(batch)
        ranked = sum(earlier.ranked for earlier in self._batches)
        while ranked - self._batches[0].ranked >= self._window:
            ranked -= self._batches.popleft().ranked

    def _summed(self, ranks: Ranks, members: NDArray[np.bool_]) -> Doubles:
        """[slices, metrics, ks, 2] sums of what the events add, and of its squares."""
        shape = (len(self.slices), len(METRICS), len(self.ks), 2)
        sums = np.empty(shape)
        lists = (
            (~self._among_new, ranks.among_all),
            (self._among_new, ranks.among_new),
        )
        for chosen, found in lists:
            weights = members[:, chosen].astype(np.float64)
            gains = values(found, self.ks)
            moments = np.stack([gains, gains**2], axis=-1)
            sums[chosen] = np.tensordot(weights, moments, axes=(0, 0))
        return sums

    def figure(
        self,
        name: str,
        slice_: str = "all",
        metric: str = "hr",
        k: int | None = None,
    ) -> Figure:
        """One figure of a recommender."""
        place = self.slices.index(slice_)
        which = METRICS.index(metric)
        at = (place, which, self.ks.index(k or self.k))
        if name not in self._sums:
            return Figure()
        events = int(self._events[place])
        recent_events = int(sum(batch.events[place] for batch in self._batches))
        recent = sum(batch.sums[name][at] for batch in self._batches)
        return Figure(
            events,
            *_mean_and_error(self._sums[name][at], events),
            recent_events,
            *_mean_and_error(np.asarray(recent), recent_events),
        )

    def events(self, slice_: str = "all") -> int:
        """Ranked events of a slice so far."""
        return int(self._events[self.slices.index(slice_)])


def _mean_and_error(sums: Doubles, events: int) -> tuple[float | None, float | None]:
    """The mean and its standard error, from sums of values and of their squares."""
    if not events:
        return None, None
    mean, mean_square = (sums / events).tolist()
    variance = max(mean_square - mean**2, 0.0)
    return mean, math.sqrt(variance / events)


def values(ranks: Rows, ks: Sequence[int]) -> Doubles:
    """[n, metrics, ks] what each event adds to each figure; there is one right item an
    event.

    Examples:
        >>> values(np.array([3, MISS]), (2, 5)).round(2).tolist()
        [[[0.0, 1.0], [0.0, 0.5], [0.0, 0.33]], [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]
    """
    hits = np.ones(len(ranks))
    discounted = 1.0 / np.log2(1.0 + ranks)
    reciprocal = 1.0 / ranks
    gains = np.stack([hits, discounted, reciprocal], axis=1)  # [n, metrics]
    inside = ranks[:, None] <= np.asarray(ks)  # [n, ks]
    return gains[:, :, None] * inside[:, None, :]
