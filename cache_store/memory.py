"""A server in the memory of this process: the twin of Redis, for tests and for several
trainers in one program.

`tests/contracts` holds both to the same contract.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from streamer.cache_store.codec import fingerprint
from streamer.cache_store.contribution import OffsetSpan
from streamer.cache_store.replica import LogPosition
from streamer.cache_store.server import (
    HARD_LOG_LENGTH,
    PAUSE_S,
    RESEED_S,
    Claim,
    ClaimRequest,
    Cursor,
    LogEntry,
    LogHead,
    Pulled,
    Push,
    PushOutcome,
    PushResult,
    Seed,
)


class MemoryServer:
    """Shared state of one model, in this process."""

    kind = "memory"

    def __init__(
        self,
        hard_log_length: int = HARD_LOG_LENGTH,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self._hard = hard_log_length
        self._clock = clock
        self._trainers: dict[str, str] = {}
        self._position: LogPosition | None = (
            None  # of the newest entry; None if there is no state
        )
        self._clear()

    def _clear(self) -> None:
        self._log: deque[LogEntry] = deque()
        self._rows: dict[str, int] = {}
        self._ids: list[str] = []
        self._fingerprint = ""
        self._next: dict[str, int] = {}
        self._epochs: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        self._cache: tuple[str, bytes] | None = None
        self._snapshot: bytes | None = None
        self._origin: tuple[LogPosition | None, int, float] = (None, 0, 0.0)
        self._paused = ("", -PAUSE_S)  # by whom, and when
        self._replaced: frozenset[str] = (
            frozenset()
        )  # generations that a better seed has replaced

    def assign(self, generation: str, ids: Sequence[str]) -> list[int] | None:
        with self._lock:
            if not self._is(generation):
                return None
            new = [raw for raw in dict.fromkeys(ids) if raw not in self._rows]
            self._rows |= {raw: len(self._ids) + k for k, raw in enumerate(new)}
            self._ids += new
            self._fingerprint = fingerprint(new, self._fingerprint)
            return [self._rows[raw] for raw in ids]

    def ids(self, generation: str, first: int, count: int) -> list[str] | None:
        with self._lock:
            return self._ids[first : first + count] if self._is(generation) else None

    def claim(
        self, generation: str, trainer: str, requests: Mapping[str, ClaimRequest]
    ) -> dict[str, Claim] | None:
        with self._lock:
            if not self._is(generation):
                return None
            return {
                name: self._claim(name, trainer, request)
                for name, request in requests.items()
            }

    def _claim(self, name: str, trainer: str, request: ClaimRequest) -> Claim:
        epoch = self._epochs.get(name, 0)
        if (
            not request.assigned
            and epoch > request.epoch
            and self._owners.get(name) != trainer
        ):
            return Claim(epoch, self._next.get(name), ours=False)
        now_ms = int(1000 * time.time()) if request.assigned else 0
        self._epochs[name] = max(epoch + 1, request.epoch + 1, now_ms)
        self._owners[name] = trainer
        if request.end is not None and self._next.get(name, 0) > request.end:
            del self._next[name]
        return Claim(self._epochs[name], self._next.get(name))

    def push(self, push: Push) -> PushResult:
        with self._lock:
            if self._position is None:
                return PushResult(PushOutcome.EMPTY)
            if not self._is(push.generation) or len(self._ids) < push.items:
                return PushResult(PushOutcome.WRONG_GENERATION)
            behind = (
                push.retired and push.cursor.position.number < self._position.number
            )
            if behind or not self._continues(push.cursor):
                return PushResult(PushOutcome.DIVERGED)
            refused = self._refused(push.spans)
            if refused is not None:
                return refused
            if (
                len(self._log) >= self._hard
                or self._clock() - self._paused[1] < PAUSE_S
            ):
                return PushResult(PushOutcome.LOG_FULL, length=len(self._log))
            number = self._position.number + 1
            previous = self._position
            self._position = LogPosition(
                push.generation, number, push.chain, f"{number}-0"
            )
            self._log.append(LogEntry(self._position, previous.chain, push.packed))
            self._next |= {span.partition: span.stop for span, _ in push.spans}
            for raw in push.retired:
                self._rows.pop(raw, None)
            if push.cache is not None:
                self._cache = (push.chain, push.cache)
            pulled = self._pulled(
                push.cursor.position, push.cursor.max_entries, push.cursor.cache_chain
            )
            return PushResult(PushOutcome.ADDED, length=len(self._log), pulled=pulled)

    def _continues(self, cursor: Cursor) -> bool:
        """Whether log and items continue from what the cursor has."""
        assert self._position is not None
        following = next(iter(self._after(cursor.position.number, 1)), None)
        chain = (
            following.previous_chain if following is not None else self._position.chain
        )
        if chain != cursor.position.chain or len(self._ids) < cursor.items:
            return False
        return (
            fingerprint(self._ids[cursor.items :], cursor.fingerprint)
            == self._fingerprint
        )

    def _refused(self, spans: Sequence[tuple[OffsetSpan, int]]) -> PushResult | None:
        for span, epoch in spans:
            if self._epochs.get(span.partition, 0) > epoch:
                return PushResult(PushOutcome.FENCED, partition=span.partition)
        if spans and all(
            span.stop <= self._next.get(span.partition, -1) for span, _ in spans
        ):
            return PushResult(PushOutcome.DUPLICATE, length=len(self._log))
        if any(span.start < self._next.get(span.partition, -1) for span, _ in spans):
            return PushResult(
                PushOutcome.OVERLAP,
                next={s.partition: self._next.get(s.partition, 0) for s, _ in spans},
            )
        return None

    def pull(self, after: LogPosition, count: int, cache_chain: str) -> Pulled:
        with self._lock:
            return (
                self._pulled(after, count, cache_chain)
                if self._position is not None
                else Pulled(None, [])
            )

    def _pulled(self, after: LogPosition, count: int, cache_chain: str) -> Pulled:
        assert self._position is not None
        head = LogHead(
            *self._position[:3], len(self._ids), len(self._log), self._fingerprint
        )
        entries = self._after(after.number, count) if self._is(after.generation) else []
        if self._cache is None or self._cache[0] == cache_chain:
            return Pulled(head, entries)
        return Pulled(head, entries, self._cache[1], self._cache[0])

    def _after(self, number: int, count: int) -> list[LogEntry]:
        first = self._log[0].position.number if self._log else 0
        start = max(0, number + 1 - first)
        return list(islice(self._log, start, start + count))

    def snapshot(self) -> bytes | None:
        with self._lock:
            return self._snapshot

    def save_snapshot(self, trainer: str, position: LogPosition, packed: bytes) -> bool:
        with self._lock:
            if all(entry.position != position for entry in self._log):
                return False
            self._snapshot = packed
            while self._log and self._log[0].position.number <= position.number:
                self._log.popleft()
            return True

    def may_snapshot(self, trainer: str) -> bool:
        return True

    def pause(self, trainer: str) -> bool:
        with self._lock:
            by, at_s = self._paused
            if by != trainer and self._clock() - at_s < PAUSE_S:
                return False
            self._paused = (trainer, self._clock())
            return True

    def seed(self, seed: Seed) -> bool:
        with self._lock:
            if not self._may_seed(seed):
                return False
            kept = (
                (self._epochs, self._owners) if seed.head else (dict(seed.epochs), {})
            )
            replaced = self._replaced
            if (
                self._position is not None
                and self._position.generation != seed.replaces
            ):
                replaced = replaced | {self._position.generation}
            self._clear()
            self._replaced = replaced
            self._position = LogPosition.beginning(seed.generation)
            self._snapshot = seed.snapshot
            self._ids = list(seed.ids)
            self._rows = {raw: row for row, raw in enumerate(seed.ids)}
            self._fingerprint = fingerprint(seed.ids)
            self._next, (self._epochs, self._owners) = dict(seed.next), kept
            self._origin = (seed.origin, seed.events, self._clock())
            return True

    def _may_seed(self, seed: Seed) -> bool:
        if seed.head:
            return self._position is not None and (seed.replaces, seed.head) == (
                self._position.generation,
                self._position.chain,
            )
        if self._position is None or self._position.generation == seed.replaces:
            return True
        theirs, events, seeded_at = self._origin
        if seed.origin is None or self._clock() - seeded_at > RESEED_S:
            return False
        if (
            seed.origin.generation in self._replaced
        ):  # those who contributed to it contribute again
            return False
        if theirs is None or events < seed.events:
            return True
        return (
            theirs.generation == seed.origin.generation
            and theirs.number < seed.origin.number
        )

    def heartbeat(self, trainer: str, partitions: str) -> None:
        with self._lock:
            self._trainers[trainer] = partitions

    def leave(self, trainer: str) -> None:
        with self._lock:
            self._trainers.pop(trainer, None)

    def wipe(self) -> None:
        """Lose everything, as a server does that restarts empty."""
        with self._lock:
            self._position = None
            self._trainers = {}
            self._clear()

    def close(self) -> None:
        """Nothing to close."""

    def _is(self, generation: str) -> bool:
        return self._position is not None and self._position.generation == generation
