"""G-Tower: the gap between two events of an item, kept in hash arrays of fixed size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Doubles, Floats, Ints, Rows
from streamer.model.jit import inlined, mixed, njit_allocating, njit_borrowing
from streamer.model.rows.by_rows import Arrays, Columns

_STALE = 4.0
"""An item that has been away for this many of its gaps is estimated by its absence:
e^-4 = 2% of gaps are longer.
"""

_CLOCKS = ("event", "batch")
_MAX_HITS = 1 << 30
"""Where a slot's counter stops; far beyond 1 / alpha it tells nothing more."""


class HashArrays(NamedTuple):
    """H arrays of slots one after the other, and the seed of each one's hash function."""

    last: Rows  # [H * slots] tick of the last hit
    gap: Doubles  # [H * slots] average gap, in ticks
    hits: Ints  # [H * slots]
    seeds: NDArray[np.uint64]  # [H]


class HashPopularity(Columns):
    """Streaming frequency estimation (Yi et al., RecSys 2019): popularity = 1 / average
    gap between an item's events.

    Each of H independent hashes sends an item to a slot of its own array. A slot keeps
    when it was last hit and a moving average of the gaps. An item that shares a slot
    makes the gap too short, never too long; the largest of the H estimates is therefore
    the best. Memory does not grow with the number of items.

    Args:
        hashes: H.
        slots: size of each array; collisions are rare while it is several times the
            number of frequent items.
        alpha: weight of the newest gap. A slot's first 1 / alpha gaps are averaged
            equally, so that the start value is forgotten at once.
        clock: `event` ticks at every event; `batch` ticks once a micro-batch as in the
            paper, and so cannot tell an item seen four times a batch from one seen
            once.
        seed: chooses the hash functions.

    Examples:
        >>> popularity = HashPopularity()
        >>> popularity.observe(np.array([0, 1, 0, 2] * 100))
        >>> np.exp(popularity.log_pop(np.array([0, 1]))).round(2)
        array([0.5 , 0.25], dtype=float32)
    """

    def __init__(
        self,
        hashes: int = 5,
        slots: int = 1 << 18,
        alpha: float = 0.02,
        clock: str = "event",
        seed: int = 0,
    ) -> None:
        self.alpha = alpha
        self.clock = clock
        self.slots = slots
        rng = np.random.default_rng(seed)
        self._seeds = rng.integers(1, 2**63, hashes, dtype=np.uint64)
        super().__init__(
            {},
            last=np.zeros(hashes * slots, np.int64),
            gap=np.zeros(hashes * slots),
            hits=np.zeros(hashes * slots, np.int32),
        )
        self.clear()

    def clear(self) -> None:
        for column in self.columns.values():
            column[:] = 0
        self.size = len(self._seeds) * self.slots
        self._ticks = 0
        self._events = 0

    @property
    def _arrays(self) -> HashArrays:
        return HashArrays(**self.columns, seeds=self._seeds)

    def observe(self, items: Rows) -> None:
        """Take in a micro-batch of events, in order."""
        if self.clock == "event":
            _hit(self._arrays, items, self._ticks, 1, self.alpha)
            self._ticks += len(items)
        elif len(items):
            _hit(
                self._arrays,
                np.unique(items),
                self._ticks,
                0,
                self.alpha,
            )
            self._ticks += 1
        self._events += len(items)

    def log_pop(self, rows: Rows) -> Floats:
        """log of each item's share of the events; an item never seen counts as seen
        once.
        """
        gaps = _gaps(self._arrays, rows, self._ticks)
        events_per_tick = max(self._events / max(self._ticks, 1), 1.0)
        log_gaps = np.log(np.maximum(gaps * events_per_tick, 1.0))
        return (-log_gaps).astype(np.float32)

    def forget(self, rows: Rows) -> None:
        """Retire items. Slots are shared, so nothing is cleared; a slot that is no
        longer hit fades by itself.
        """

    def slots_of(self, items: Rows) -> Rows:
        """[n * H] the slots of items, numbered through all arrays: the rows of this
        part.
        """
        found = np.empty((len(items), len(self._seeds)), np.int64)
        _slots(self._arrays, items, found)
        return found.ravel()

    def rows(self) -> Rows:
        """Slots that were hit: most are empty while there are few items."""
        return np.flatnonzero(self.columns["hits"])

    def dense(self) -> Arrays:
        return {
            "shape": np.array([len(self._seeds), self.slots]),
            "seeds": self._seeds.view(np.int64).copy(),
            "clock": np.array([self._ticks, self._events, _CLOCKS.index(self.clock)]),
        }

    def load_dense(self, arrays: Arrays) -> None:
        """Take over what `dense` returned.

        Raises:
            ValueError: the arrays have another shape, or the clock ticks otherwise.
        """
        ticks, events, clock = arrays["clock"].tolist()
        shape = tuple(arrays["shape"].tolist())
        own = (len(self._seeds), self.slots)
        if shape != own or _CLOCKS[clock] != self.clock:
            raise ValueError(
                f"hash arrays of {shape} with the {_CLOCKS[clock]} clock do not fit {own} with the {self.clock} clock"
            )
        self._seeds = arrays["seeds"].copy().view(np.uint64)
        self._ticks = ticks
        self._events = events


@inlined
def _slot(arrays: HashArrays, h: int, item: int) -> np.int64:
    """Of an item in array h: by splitmix64 of the item, keyed by the seed."""
    slots = len(arrays.hits) // len(arrays.seeds)
    place = mixed(np.uint64(item) + arrays.seeds[h]) % np.uint64(slots)
    return np.int64(h * slots) + np.int64(place)


@njit_borrowing
def _slots(arrays: HashArrays, items: Rows, found: Rows) -> None:
    for i in range(len(items)):
        for h in range(len(arrays.seeds)):
            found[i, h] = _slot(arrays, h, items[i])


@njit_borrowing
def _hit(
    arrays: HashArrays,
    items: Rows,
    tick: int,
    step: int,
    alpha: float,
) -> None:
    """Take in events; the clock goes on by `step` at each."""
    for i in range(len(items)):
        tick += step
        now = tick + 1 - step
        for h in range(len(arrays.seeds)):
            s = _slot(arrays, h, items[i])
            arrays.hits[s] = min(arrays.hits[s] + 1, _MAX_HITS)
            rate = max(alpha, 1.0 / arrays.hits[s])
            newest = now - arrays.last[s]
            arrays.gap[s] += rate * (newest - arrays.gap[s])
            arrays.last[s] = now


@njit_allocating
def _gaps(arrays: HashArrays, rows: Rows, tick: int) -> Doubles:
    """The largest of each item's estimates: those that share a slot are too short."""
    out = np.zeros(len(rows))
    for i in range(len(rows)):
        for h in range(len(arrays.seeds)):
            s = _slot(arrays, h, rows[i])
            estimate = float(tick)
            if arrays.hits[s]:
                estimate = arrays.gap[s]
            away = tick - arrays.last[s]
            if away > _STALE * estimate:
                estimate = float(away)
            out[i] = max(out[i], estimate)
    return out
