"""What a server of shared state does: it keeps the newest version of every entry."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streamer.cache_store.change import NOTHING, Change, Hashes, Version


@dataclass(frozen=True, slots=True)
class Request:
    """What a trainer has for others, and what it wants of them."""

    process: str  # of the trainer
    beat: int = 1  # the number of the exchange
    acknowledged: int = 0  # the number of the last one that the server has answered
    owned: Sequence[str] = ()  # counts that it adds to
    changes: Sequence[Change] = ()
    reading: Mapping[str, Version] = field(default_factory=dict)  # what it has


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server has, after it took in what was sent."""

    beat: int  # of the exchange before; a smaller one if the server has lost something
    tops: Mapping[str, Version]  # of all entries
    changes: Mapping[str, Sequence[Change]]  # by entry, after what was read


class StoreServer(Protocol):
    """The shared state of one model.

    Every method raises `StoreUnavailable` if it cannot be done now, `StoreRefused` if
    it never can. Whatever is done twice, or never answered, does no harm.
    """

    kind: str

    def name(self, hashes: Hashes, ids: Sequence[bytes]) -> list[int]:
        """Keep the id of each name; returns the names that have another one."""

    def ids(self, hashes: Hashes) -> list[str | None]:
        """The id of each name, None if it is not known."""

    def exchange(self, request: Request) -> Answer:
        """Take in changes that fit, and return what is newer than what the trainer has.

        A change since `NOTHING` takes the place of all before it. Nothing is taken in,
        and the beat becomes 0, if the server has lost something since it answered
        last: names of items may be missing.
        """

    def leave(self, process: str) -> None:
        """Note that a process is not active any more."""

    def close(self) -> None:
        """Close connections."""


class MemoryServer(StoreServer):
    """The shared state of a model for trainers of one process, which all use the same
    one: what Redis does, without Redis.
    """

    kind = "memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Lose everything."""
        self.changes: dict[str, list[Change]] = {}
        self._ids: dict[int, str] = {}
        self._beats: dict[str, int] = {}

    @property
    def tops(self) -> dict[str, Version]:
        """The version of every entry."""
        return {name: changes[-1].to for name, changes in self.changes.items()}

    def name(self, hashes: Hashes, ids: Sequence[bytes]) -> list[int]:
        others = []
        with self._lock:
            for h, raw in zip(hashes.tolist(), ids, strict=True):
                if self._ids.setdefault(h, raw.decode()) != raw.decode():
                    others.append(h)
        return others

    def ids(self, hashes: Hashes) -> list[str | None]:
        with self._lock:
            return [self._ids.get(h) for h in hashes.tolist()]

    def exchange(self, request: Request) -> Answer:
        with self._lock:
            beat = self._beats.get(request.process, 0)
            has_lost = beat < request.acknowledged
            self._beats[request.process] = 0 if has_lost else request.beat
            for change in request.changes:
                if not has_lost:
                    self._take_in(change)
            found = {}
            for name, version in request.reading.items():
                kept = self.changes.get(name, ())
                found[name] = [change for change in kept if change.to > version]
            return Answer(beat, self.tops, found)

    def _take_in(self, change: Change) -> None:
        kept = self.changes.get(change.name, [])
        top = kept[-1].to if kept else NOTHING
        if change.replaces(top):
            self.changes[change.name] = [change]
        elif change.fits(top):
            kept.append(change)

    def leave(self, process: str) -> None:
        self._beats.pop(process, None)

    def close(self) -> None:
        """Nothing is open."""
