"""G-Tower: the gap between two events of an item, kept in hash arrays of fixed size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Doubles, Floats, Ints, Rows
from streamer.model.jit import inlined, mixed, njit_allocating, njit_borrowing
from streamer.model.rows.by_rows import Arrays, ByRows

_STALE = 4.0
"""An item that has been away for this many of its gaps is estimated by its absence:
e^-4 = 2% of gaps are longer.
"""

_CLOCKS = ("event", "batch")
_MAX_HITS = 1 << 30
"""Where a slot's counter stops; far beyond 1 / alpha it tells nothing more."""


class HashArrays(NamedTuple):
    """H arrays of slots, and the seed of each one's hash function."""

    seeds: NDArray[np.uint64]  # [H]
    last: Rows  # [H, slots] tick of the last hit
    gap: Doubles  # [H, slots] average gap, in ticks
    hits: Ints  # [H, slots]


class HashPopularity(ByRows):
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

    Raises:
        ValueError: an argument is out of range; the message lists every problem.

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
        if problems := _problems(hashes, slots, alpha, clock):
            raise ValueError("; ".join(problems))
        self.alpha = alpha
        self.clock = clock
        self.slots = slots
        shape = (hashes, slots)
        self._arrays = HashArrays(
            np.random.default_rng(seed).integers(1, 2**63, hashes, dtype=np.uint64),
            np.zeros(shape, np.int64),
            np.zeros(shape),
            np.zeros(shape, np.int32),
        )
        self._ticks = 0
        self._events = 0

    def observe(self, items: Rows) -> None:
        """Take in a micro-batch of events, in order."""
        if self.clock == "event":
            _hit(self._arrays, items, self._ticks, 1, self.alpha)
            self._ticks += len(items)
        elif len(items):
            _hit(self._arrays, np.unique(items), self._ticks, 0, self.alpha)
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

    def collision_share(self) -> float:
        """How likely a new item meets a used slot in all of its hashes."""
        return float(np.prod((self._arrays.hits > 0).mean(axis=1)))

    def forget(self, rows: Rows) -> None:
        """Retire items. Slots are shared, so nothing is cleared; a slot that is no
        longer hit fades by itself.
        """

    def slots_of(self, items: Rows) -> Rows:
        """[n * H] the slots of items, numbered through all arrays: the rows of this
        part.
        """
        found = np.empty((len(items), len(self._arrays.seeds)), np.int64)
        _slots(items, self._arrays.seeds, self.slots, found)
        return found.ravel()

    def rows(self) -> Rows:
        """Slots that were hit: most are empty while there are few items."""
        return np.flatnonzero(self._arrays.hits)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._by_slot().values())

    def take(self, rows: Rows) -> Arrays:
        return {name: array.ravel()[rows] for name, array in self._by_slot().items()}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        for name, array in self._by_slot().items():
            array.ravel()[rows] = arrays[name]

    def dense(self) -> Arrays:
        return {
            "shape": np.array(self._arrays.hits.shape),
            "seeds": self._arrays.seeds.view(np.int64).copy(),
            "clock": np.array([self._ticks, self._events, _CLOCKS.index(self.clock)]),
        }

    def load_dense(self, arrays: Arrays) -> None:
        ticks, events, clock = arrays["clock"].tolist()
        if _CLOCKS[clock] != self.clock:
            raise ValueError(
                f"gaps of the {_CLOCKS[clock]} clock do not fit the {self.clock} clock"
            )
        seeds = arrays["seeds"].copy().view(np.uint64)
        self._arrays = self._arrays._replace(seeds=seeds)
        self._ticks = ticks
        self._events = events

    def clear(self) -> None:
        for array in self._by_slot().values():
            array[:] = 0
        self._ticks = self._events = 0

    def load_state(self, state: Arrays) -> None:
        """Take over what `state` returned.

        Raises:
            ValueError: its arrays have another shape, or its clock ticks otherwise.
        """
        shape = tuple(state["shape"].tolist())
        own = self._arrays.hits.shape
        if shape != own:
            raise ValueError(
                f"hash arrays of {shape} do not fit {own}: hashes or slots differ"
            )
        super().load_state(state)

    def _by_slot(self) -> Arrays:
        arrays = self._arrays
        return {"last": arrays.last, "gap": arrays.gap, "hits": arrays.hits}


def _problems(hashes: int, slots: int, alpha: float, clock: str) -> list[str]:
    found = []
    if hashes < 1 or slots < 1:
        found.append(
            f"there are {hashes} hashes of {slots} slots: choose at least one of each"
        )
    if not 0 <= alpha <= 1:
        found.append(f"alpha is {alpha}: choose a number from 0 to 1")
    if clock not in _CLOCKS:
        found.append(f"no clock {clock!r}; there are {' and '.join(_CLOCKS)}")
    return found


@inlined
def _slot(item: int, seed: np.uint64, slots: int) -> np.int64:
    """By splitmix64 of the item, keyed by the seed."""
    return np.int64(mixed(np.uint64(item) + seed) % np.uint64(slots))


@njit_borrowing
def _slots(items: Rows, seeds: NDArray[np.uint64], slots: int, found: Rows) -> None:
    for i in range(len(items)):
        for h in range(len(seeds)):
            found[i, h] = h * slots + _slot(items[i], seeds[h], slots)


@njit_borrowing
def _hit(arrays: HashArrays, items: Rows, tick: int, step: int, alpha: float) -> None:
    """Take in events; the clock goes on by `step` at each."""
    slots = arrays.last.shape[1]
    for i in range(len(items)):
        tick += step
        now = tick + 1 - step
        for h in range(len(arrays.seeds)):
            s = _slot(items[i], arrays.seeds[h], slots)
            arrays.hits[h, s] = min(arrays.hits[h, s] + 1, _MAX_HITS)
            rate = max(alpha, 1.0 / arrays.hits[h, s])
            newest = now - arrays.last[h, s]
            arrays.gap[h, s] += rate * (newest - arrays.gap[h, s])
            arrays.last[h, s] = now


@njit_allocating
def _gaps(arrays: HashArrays, rows: Rows, tick: int) -> Doubles:
    """The largest of each item's estimates: those that share a slot are too short."""
    slots = arrays.last.shape[1]
    out = np.zeros(len(rows))
    for i in range(len(rows)):
        for h in range(len(arrays.seeds)):
            s = _slot(rows[i], arrays.seeds[h], slots)
            estimate = arrays.gap[h, s] if arrays.hits[h, s] else float(tick)
            away = tick - arrays.last[h, s]
            if away > _STALE * estimate:
                estimate = float(away)
            out[i] = max(out[i], estimate)
    return out
