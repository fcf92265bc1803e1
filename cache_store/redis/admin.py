"""What an operator does with the shared state of a model in Redis: look at it, remove
it. Nothing here takes part in the exchange between trainers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.change import CACHE, COUNTS, DRAWN, Version
from streamer.cache_store.redis.server import RedisServer

ACTIVE_S = 10.0
"""A trainer with a younger heartbeat is active; it sends one with every exchange."""


class Heartbeat(NamedTuple):
    """The last sign of life of a trainer."""

    trainer: str
    age_s: float
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What there is of a model besides its items."""

    entries: Mapping[str, Version]
    names: int  # of items, those of retired items included
    trainers: Sequence[Heartbeat]

    @property
    def active(self) -> list[Heartbeat]:
        """Trainers that are active."""
        return [one for one in self.trainers if one.age_s <= ACTIVE_S]


@dataclass(frozen=True, slots=True)
class Contents:
    """The sums of all entries."""

    ids: Sequence[str]  # of all items that are counted or drawn
    counts: NDArray[np.int64]  # [N] events of each item
    drawn: NDArray[np.int64]  # [N] how often each item was resampled
    slots: NDArray[np.int64]  # [N] how often each item is in the cache


class StoreAdmin(RedisServer):
    """One model in Redis, from outside; a wrong URL is a `StoreRefused`."""

    def models(self) -> list[str]:
        """Names of all models of the namespace."""
        found = self.call("smembers", self.keys.models)
        return sorted(name.decode(errors="replace") for name in found)

    def summary(self) -> ModelSummary | None:
        """What there is of the model; None if there is nothing.

        Raises:
            StoreRefused: another version or program wrote it.
        """
        self.check_format()
        tops = self.tops()
        tops.pop(CACHE, None)
        if not tops:
            return None
        now_s = self.now_s()
        trainers = []
        beats = self.call("hgetall", self.keys.trainers)
        for trainer, value in sorted(beats.items()):
            at_s, _, *owned = value.decode().split()
            age_s = now_s - float(at_s)
            trainers.append(Heartbeat(trainer.decode(), age_s, tuple(owned)))
        return ModelSummary(tops, self.call("hlen", self.keys.ids), trainers)

    def contents(self, entries: Mapping[str, Version]) -> Contents:
        """What all entries add up to.

        Raises:
            StoreRefused: no trainer writes what is there.
        """
        totals: dict[str, Counter[int]] = {COUNTS: Counter(), DRAWN: Counter()}
        for name in entries:
            kind = COUNTS if name.startswith(COUNTS) else DRAWN
            totals[kind].update(self._entry(name))
        hashes = sorted(totals[COUNTS].keys() | totals[DRAWN].keys())
        ids = []
        for h, raw in zip(hashes, self.ids(np.array(hashes, np.uint64)), strict=True):
            ids.append(raw or f"(no name) {h:016x}")
        columns = []
        for found in (totals[COUNTS], totals[DRAWN], self._entry(CACHE)):
            columns.append(np.array([found[h] for h in hashes], np.int64))
        return Contents(ids, *columns)

    def _entry(self, name: str) -> Counter[int]:
        """All of an entry: its changes one after the other."""
        found: Counter[int] = Counter()
        for change in self.changes_of(name):
            values = change.values.tolist()
            for h, value in zip(change.hashes.tolist(), values, strict=True):
                found[h] = value
        return found

    def all_keys(self) -> list[bytes]:
        """Every key of the model."""
        client = self.connected()
        found: list[bytes] = self.translated(
            lambda: list(client.scan_iter(match=self.keys.pattern, count=1000))
        )
        return found

    def memory(self) -> dict[str, int]:
        """Bytes of the model's keys, by what follows the tag."""
        found = {}
        for key in sorted(self.all_keys()):
            size = self.call("memory_usage", key) or 0
            found[key.decode().removeprefix(self.keys.changes(""))] = size
        return found

    def reset(self) -> int:
        """Remove every key of the model, whatever it holds; returns how many there
        were.
        """
        keys = self.all_keys()
        removed = int(self.call("unlink", *keys)) if keys else 0
        self.call("srem", self.keys.models, self.keys.model)
        return removed
