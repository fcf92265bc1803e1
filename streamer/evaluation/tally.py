"""From ranks to figures: HR, NDCG and MRR at several k, over the whole stream and over
a window of its last events.
"""

from __future__ import annotations

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
        return cls(np.full(events, MISS), np.full(events, MISS))


class Figure(NamedTuple):
    """A figure over all events so far, and over those of the window; None without any
    event.
    """

    events: int
    overall: float | None
    recent_events: int
    recent: float | None

    @property
    def hits(self) -> int:
        """The sum of the figure over all events: of hit rates, the hits."""
        return round((self.overall or 0.0) * self.events)


class _Sums(NamedTuple):
    """What some events add up to."""

    ranked: int
    events: Rows  # [slices]
    by_name: Mapping[str, Doubles]  # of each recommender [slices, metrics, ks]


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
        nothing = np.zeros(len(self.slices), np.int64)
        self._all = _Sums(0, nothing, {})
        self._recent = _Sums(0, nothing, {})
        self._batches: deque[_Sums] = deque()

    def add(self, ranks: Mapping[str, Ranks], members: NDArray[np.bool_]) -> None:
        """Count n events.

        Args:
            ranks: what each recommender found.
            members: [n, slices] which slices each event belongs to.
        """
        sums = {name: self._sums(found, members) for name, found in ranks.items()}
        batch = _Sums(len(members), members.sum(0), sums)
        self._all = _added([self._all, batch])
        self._batches.append(batch)
        ranked = sum(earlier.ranked for earlier in self._batches)
        while ranked - self._batches[0].ranked >= self._window:
            ranked -= self._batches.popleft().ranked
        self._recent = _added(self._batches)

    def _sums(self, ranks: Ranks, members: NDArray[np.bool_]) -> Doubles:
        sums = np.empty((len(self.slices), len(METRICS), len(self.ks)))
        lists = (
            (~self._among_new, ranks.among_all),
            (self._among_new, ranks.among_new),
        )
        for chosen, found in lists:
            weights = members[:, chosen].astype(np.float64)
            sums[chosen] = np.tensordot(weights, values(found, self.ks), axes=(0, 0))
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
        column = (METRICS.index(metric), self.ks.index(k or self.k))

        def mean(sums: _Sums) -> float | None:
            if name not in sums.by_name or not sums.events[place]:
                return None
            return float(sums.by_name[name][place, *column] / sums.events[place])

        events = int(self._all.events[place])
        recent_events = int(self._recent.events[place])
        return Figure(events, mean(self._all), recent_events, mean(self._recent))

    def events(self, slice_: str = "all") -> int:
        """Ranked events of a slice so far."""
        return int(self._all.events[self.slices.index(slice_)])


def _added(parts: Sequence[_Sums] | deque[_Sums]) -> _Sums:
    """All parts together."""
    by_name = {
        name: sum((part.by_name[name] for part in parts if part.by_name), np.zeros(1))
        for name in parts[-1].by_name
    }
    events = sum((part.events for part in parts), np.zeros(1, np.int64))
    return _Sums(sum(part.ranked for part in parts), events, by_name)


def values(ranks: Rows, ks: Sequence[int]) -> Doubles:
    """[n, metrics, ks] what each event adds to each figure; there is one right item an
    event.

    Examples:
        >>> values(np.array([3, MISS]), (2, 5)).round(2).tolist()
        [[[0.0, 1.0], [0.0, 0.5], [0.0, 0.33]], [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]
    """
    gains = np.stack(
        [np.ones(len(ranks)), 1.0 / np.log2(1.0 + ranks), 1.0 / ranks], axis=1
    )  # [n, metrics]
    inside = ranks[:, None] <= np.asarray(ks)  # [n, ks]
    return gains[:, :, None] * inside[:, None, :]
