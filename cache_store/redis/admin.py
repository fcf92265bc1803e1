"""What an operator does with the shared state of a model in Redis: look at it, remove
it. Nothing here takes part in the exchange between trainers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.change import CACHE, COUNTS, NOTHING, Version
from streamer.cache_store.redis.connection import without_passwords
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer

ACTIVE_S = 10.0
"""A trainer with a younger heartbeat is active; it sends one with every exchange."""


class Heartbeat(NamedTuple):
    """The last sign of life of a trainer."""

    trainer: str
    at_s: float  # seconds since the epoch, by the server's clock
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What there is of a model besides its items."""

    entries: Mapping[str, Version]
    names: int  # of items, those of retired items included
    trainers: Sequence[Heartbeat]
    now_s: float  # by the server's clock

    @property
    def active(self) -> list[Heartbeat]:
        """Trainers that are active."""
        return [one for one in self.trainers if self.now_s - one.at_s <= ACTIVE_S]


@dataclass(frozen=True, slots=True)
class Contents:
    """The sums of all entries."""

    ids: Sequence[str]  # of all items that are counted or drawn
    counts: NDArray[np.int64]  # [N] events of each item
    drawn: NDArray[np.int64]  # [N] how often each item was resampled
    cache: NDArray[np.int64]  # by place in `ids`


class StoreAdmin:
    """One model in Redis, from outside; a wrong URL is a `StoreRefused`."""

    def __init__(self, url: str, keys: Keys, timeout_s: float = 10.0) -> None:
        self._server = RedisServer(url, keys, timeout_s)
        self.url = without_passwords(url)
        self.keys = keys

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def models(self) -> list[str]:
        """Names of all models of the namespace."""
        found = self._server.call("smembers", self.keys.models)
        return sorted(name.decode(errors="replace") for name in found)

    def exists(self) -> bool:
        """Whether any key of the model exists."""
        return bool(self._server.scan(self.keys.pattern))

    def summary(self) -> ModelSummary | None:
        """What there is of the model; None if there is nothing.

        Raises:
            StoreRefused: another version or program wrote it.
        """
        self._server.check_format()
        tops = self._server.tops()
        tops.pop(CACHE, None)
        if not tops:
            return None
        trainers = []
        beats = self._server.call("hgetall", self.keys.trainers)
        for trainer, value in sorted(beats.items()):
            at_s, _, *owned = value.decode().split()
            trainers.append(Heartbeat(trainer.decode(), float(at_s), tuple(owned)))
        names = self._server.call("hlen", self.keys.ids)
        return ModelSummary(tops, names, trainers, self._server.now_s())

    def contents(self, entries: Mapping[str, Version]) -> Contents:
        """What all entries add up to.

        Raises:
            StoreRefused: no trainer writes what is there.
        """
        counts: Counter[int] = Counter()
        drawn: Counter[int] = Counter()
        for name in entries:
            totals = counts if name.startswith(COUNTS) else drawn
            totals.update(self._entry(name))
        hashes = sorted(counts.keys() | drawn.keys())
        ids = self._server.ids(np.array(hashes, np.uint64))
        cache: list[int] = []
        for item, slots in self._entry(CACHE).items():
            if item in counts or item in drawn:
                cache += [bisect_left(hashes, item)] * slots
        return Contents(
            [raw or f"(no name) {h:016x}" for h, raw in zip(hashes, ids, strict=True)],
            np.array([counts[h] for h in hashes], np.int64),
            np.array([drawn[h] for h in hashes], np.int64),
            np.array(cache, np.int64),
        )

    def _entry(self, name: str) -> dict[int, int]:
        """All of an entry: a whole, and the changes after it."""
        found: dict[int, int] = {}
        for change in self._server.changes_after({name: NOTHING}):
            values = change.values.tolist()
            found |= dict(zip(change.hashes.tolist(), values, strict=True))
        return found

    def memory(self) -> dict[str, int]:
        """Bytes of the model's keys, by what follows the tag."""
        found = {}
        for key in sorted(self._server.scan(self.keys.pattern)):
            size = self._server.call("memory_usage", key) or 0
            found[key.decode().removeprefix(f"{self.keys.tag}:")] = size
        return found

    def reset(self) -> int:
        """Remove every key of the model, whatever it holds; returns how many there
        were.
        """
        keys = self._server.scan(self.keys.pattern)
        removed = int(self._server.call("unlink", *keys)) if keys else 0
        self._server.call("srem", self.keys.models, self.keys.model)
        return removed
