"""From ranks to figures: HR, NDCG and MRR at several k, over the whole stream and over
a window of its last events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamer.evaluation.slices import among_new
from streamer.model.batch import Rows

METRICS = ("hr", "ndcg", "mrr")
MISS = np.iinfo(np.int64).max
"""The rank of an item that is in no list, however long."""

Doubles = NDArray[np.float64]


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


class Tally:
    """Sums of figures by slice, of all events and of the last ones.

    The window is of the stream: it holds the last batches that have at least this many
    events together, and a slice's windowed figure is over those events of the slice
    that are among them.

    Args:
        slices: names of the slices.
        ks: lengths of the lists.
        window: events of the window.
    """

    def __init__(self, slices: Sequence[str], ks: Sequence[int], window: int) -> None:
        self.slices = tuple(slices)
        self.ks = tuple(ks)
        self.window = window
        self._among_new = np.array([among_new(s) for s in self.slices])
        shape = (len(self.slices), len(METRICS), len(self.ks))
        self._sums = np.zeros(shape)
        self._recent_sums = np.zeros(shape)
        self._events = np.zeros(len(slices), np.int64)
        self._recent_events = np.zeros(len(slices), np.int64)
        self._batches: deque[tuple[int, NDArray[np.int64], Doubles]] = deque()
        self._batched = 0

    def add(self, ranks: Rows, new_ranks: Rows, members: NDArray[np.bool_]) -> None:
        """Count some events.

        Args:
            ranks: [n] rank of each event's item in the list of all items.
            new_ranks: [n] its rank in the list without the items that the user had.
            members: [n, slices] which slices an event belongs to.
        """
        sums = np.empty_like(self._sums)
        for chosen, theirs in ((~self._among_new, ranks), (self._among_new, new_ranks)):
            sums[chosen] = np.tensordot(
                members[:, chosen].astype(np.float64),
                values(theirs, self.ks),
                axes=(0, 0),
            )
        events = members.sum(0)
        self._sums += sums
        self._events += events
        self._slide(len(ranks), events, sums)

    def _slide(self, count: int, events: NDArray[np.int64], sums: Doubles) -> None:
        """Move the window over a batch."""
        self._batches.append((count, events, sums))
        self._batched += count
        while self._batched - self._batches[0][0] >= self.window:
            self._batched -= self._batches.popleft()[0]
        self._recent_events = sum(
            (e for _, e, _ in self._batches), np.zeros_like(self._events)
        )
        self._recent_sums = sum(
            (s for _, _, s in self._batches), np.zeros_like(self._sums)
        )

    def events(self, slice_: str) -> int:
        """Events of a slice so far."""
        return int(self._events[self.slices.index(slice_)])

    def recent_events(self, slice_: str) -> int:
        """Events of a slice in the window."""
        return int(self._recent_events[self.slices.index(slice_)])

    def overall(self, slice_: str, metric: str, k: int) -> float | None:
        """Over all events of a slice; None before the first."""
        return self._figure(self._sums, self._events, slice_, metric, k)

    def recent(self, slice_: str, metric: str, k: int) -> float | None:
        """Over the window; None if the slice has no event there."""
        return self._figure(self._recent_sums, self._recent_events, slice_, metric, k)

    def _figure(
        self, sums: Doubles, events: NDArray[np.int64], slice_: str, metric: str, k: int
    ) -> float | None:
        s = self.slices.index(slice_)
        if not events[s]:
            return None
        return float(sums[s, METRICS.index(metric), self.ks.index(k)] / events[s])


class Figure:
    """One figure of a tally, as a property of the stream that changes.

    Args:
        tally: where it is counted.
        slice_: over which events.
        metric: which figure.
        k: length of the list.
    """

    def __init__(self, tally: Tally, slice_: str, metric: str, k: int) -> None:
        self._tally = tally
        self._slice = slice_
        self._which = (slice_, metric, k)

    @property
    def events(self) -> int:
        """Events so far."""
        return self._tally.events(self._slice)

    @property
    def overall(self) -> float | None:
        """Over all events; None before the first."""
        return self._tally.overall(*self._which)

    @property
    def recent(self) -> float | None:
        """Over the last events; None before the first."""
        return self._tally.recent(*self._which)

    @property
    def hits(self) -> int:
        """The sum of the figure over all events: of hit rates, the hits."""
        return round((self.overall or 0.0) * self.events)
