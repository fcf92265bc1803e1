"""A server in memory: the embedded default, and the twin of Redis that tests use.

One that several trainers of a process share behaves as Redis does, without a network; `tests/contracts` holds both to
the same contract. A single trainer's one costs next to nothing, and is saved in the trainer's checkpoint.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from streamer.cache_store.base import Span
from streamer.cache_store.codec import fingerprint
from streamer.cache_store.replica import Position
from streamer.cache_store.server import (
    HARD_LOG_LENGTH,
    RESEED_S,
    Claim,
    Pulled,
    Push,
    Pushed,
    Seed,
    Stamped,
    Stand,
    Tip,
    Wanted,
)


class MemoryServer:
    """Shared state of one model, in this process.

    Args:
        hard_log_length: entries of the log beyond which nothing is added until it is trimmed.
        clock: monotonic seconds.
    """

    kind = "memory"
    inline = True

    def __init__(self, hard_log_length: int = HARD_LOG_LENGTH, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._hard, self._clock = hard_log_length, clock
        self._position: Position | None = None  # of the tip
        self._log: deque[Stamped] = deque()
        self._rows: dict[str, int] = {}
        self._ids: list[str] = []
        self._names = ""
        self._next: dict[str, int] = {}
        self._epochs: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        self._cache: tuple[str, bytes] | None = None
        self._snapshot: tuple[Position, bytes] | None = None
        self._origin: tuple[Position | None, int, float] = (None, 0, 0.0)
        self._trainers: dict[str, str] = {}

    def assign(self, generation: str, ids: Sequence[str]) -> list[int] | None:
        with self._lock:
            if not self._is(generation):
                return None
            for raw in ids:
                if raw not in self._rows:
                    self._rows[raw] = len(self._ids)
                    self._ids.append(raw)
                    self._names = fingerprint([raw], self._names)
            return [self._rows[raw] for raw in ids]

    def ids(self, generation: str, first: int, count: int) -> list[str] | None:
        with self._lock:
            return self._ids[first : first + count] if self._is(generation) else None

    def claim(self, generation: str, trainer: str, wanted: Mapping[str, Wanted]) -> dict[str, Claim] | None:
        with self._lock:
            if not self._is(generation):
                return None
            return {name: self._claimed(name, trainer, one) for name, one in wanted.items()}

    def _claimed(self, name: str, trainer: str, wanted: Wanted) -> Claim:
        epoch = self._epochs.get(name, 0)
        if not wanted.anew and epoch > wanted.epoch and self._owners.get(name) != trainer:
            return Claim(epoch, self._next.get(name), ours=False)
        now_ms = int(1000 * time.time()) if wanted.anew else 0
        self._epochs[name], self._owners[name] = max(epoch + 1, wanted.epoch + 1, now_ms), trainer
        if wanted.end is not None and self._next.get(name, 0) > wanted.end:
            del self._next[name]  # the partition has begun anew
        return Claim(self._epochs[name], self._next.get(name))

    def push(self, push: Push) -> Pushed:
        with self._lock:
            if self._position is None:
                return Pushed("empty")
            if not self._is(push.generation) or len(self._ids) < push.items:
                return Pushed("elsewhere")
            if push.stand is not None and not self._goes_on(push.stand):
                return Pushed("astray")
            refused = self._refused(push.spans)
            if refused is not None:
                return refused
            if len(self._log) >= self._hard:
                return Pushed("full", length=len(self._log))
            self._append(push)
            stand = push.stand
            pulled = self._pulled(stand.position, stand.most, stand.cache_chain) if stand is not None else None
            return Pushed("added", length=len(self._log), pulled=pulled)

    def _goes_on(self, stand: Stand) -> bool:
        """Whether log and items go on from there."""
        assert self._position is not None
        following = next(iter(self._after(stand.position.number, 1)), None)
        chain = following.before if following is not None else self._position.chain
        if chain != stand.position.chain or len(self._ids) < stand.items:
            return False
        return fingerprint(self._ids[stand.items :], stand.names) == self._names

    def _refused(self, spans: Sequence[tuple[Span, int]]) -> Pushed | None:
        """Why this cannot be added; None if it can."""
        for span, epoch in spans:
            if self._epochs.get(span.partition, 0) > epoch:
                return Pushed("fenced", partition=span.partition)
        known = [span.stop <= self._next.get(span.partition, -1) for span, _ in spans]
        if spans and all(known):
            return Pushed("known", length=len(self._log))
        if any(span.start < self._next.get(span.partition, -1) for span, _ in spans):
            return Pushed("overlap", next={s.partition: self._next.get(s.partition, 0) for s, _ in spans})
        return None

    def _append(self, push: Push) -> None:
        assert self._position is not None
        before, number = self._position.chain, self._position.number + 1
        self._position = Position(push.generation, number, push.chain, f"{number}-0")
        self._log.append(Stamped(self._position, before, push.packed))
        self._next |= {span.partition: span.stop for span, _ in push.spans}
        if push.cache is not None:
            self._cache = (push.chain, push.cache)

    def pull(self, after: Position, count: int, cache_chain: str) -> Pulled:
        with self._lock:
            if self._position is None:
                return Pulled(None, [])
            return self._pulled(after, count, cache_chain)

    def _pulled(self, after: Position, count: int, cache_chain: str) -> Pulled:
        assert self._position is not None
        tip = Tip(*self._position[:3], len(self._ids), len(self._log), self._names)
        entries = self._after(after.number, count) if self._is(after.generation) else []
        if self._cache is None or self._cache[0] == cache_chain:
            return Pulled(tip, entries)
        return Pulled(tip, entries, self._cache[1], self._cache[0])

    def _after(self, number: int, count: int) -> list[Stamped]:
        first = self._log[0].position.number if self._log else 0
        start = max(0, number + 1 - first)
        return list(islice(self._log, start, start + count))

    def snapshot(self) -> bytes | None:
        with self._lock:
            return self._snapshot[1] if self._snapshot is not None else None

    def save_snapshot(self, trainer: str, position: Position, packed: bytes) -> bool:
        with self._lock:
            if not self._is(position.generation) or self._snapshot is None:
                return False
            if all(stamped.position != position for stamped in self._log):
                return False
            self._snapshot = (position, packed)
            while self._log and self._log[0].position.number <= position.number:
                self._log.popleft()
            return True

    def may_snapshot(self, trainer: str) -> bool:
        return True

    def seed(self, seed: Seed) -> bool:
        with self._lock:
            if not self._may_seed(seed):
                return False
            self._position = Position.beginning(seed.generation)
            self._log.clear()
            self._ids, self._rows = list(seed.ids), {raw: row for row, raw in enumerate(seed.ids)}
            self._names = fingerprint(seed.ids)
            self._next, self._epochs = dict(seed.next), dict(seed.epochs)
            self._owners = {}
            self._snapshot, self._cache = (self._position, seed.snapshot), None
            self._origin = (seed.origin, seed.events, self._clock())
            return True

    def _may_seed(self, seed: Seed) -> bool:
        if self._position is None or self._position.generation == seed.instead_of:
            return True
        theirs, events, seeded_at = self._origin
        if seed.origin is None or self._clock() - seeded_at > RESEED_S:
            return False
        if theirs is None or events < seed.events:
            return True
        return theirs.generation == seed.origin.generation and theirs.number < seed.origin.number

    def beat(self, trainer: str, about: str) -> None:
        with self._lock:
            self._trainers[trainer] = about

    def leave(self, trainer: str) -> None:
        with self._lock:
            self._trainers.pop(trainer, None)

    def wipe(self) -> None:
        """Lose everything, as a server does that is restarted empty."""
        fresh = MemoryServer(self._hard, self._clock)
        with self._lock:
            self.__dict__ |= {name: value for name, value in fresh.__dict__.items() if name != "_lock"}

    def close(self) -> None:
        """Nothing to let go of."""

    def _is(self, generation: str) -> bool:
        return self._position is not None and self._position.generation == generation
