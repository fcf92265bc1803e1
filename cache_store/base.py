"""What trainers of one model share, and what a store of it can do.

Shared are: a row for every item id, how often each item occurred in the stream, how often each was resampled, and the
cache. A trainer keeps a replica of all this. It adds what its own micro-batches contribute, and tails what others add:

    receive -> (train) -> contribute

Neither waits for a network. Everything a trainer has of the shared state at any moment is

    its replica (a prefix of the log that all trainers write) + its own contributions that are not in it yet.

A contribution belongs to the events of some offsets of some partitions. The store knows for each partition up to which
offset it has contributions (`next`), and takes each only once, whoever sends it and how often.

Rows: the store gives every item id a row, the same for all trainers. A trainer's tables have rows of their own, so that
it never waits for the store to name a new item; contributions carry those, what is received carries the store's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Counts = NDArray[np.int64]


class Span(NamedTuple):
    """Events of one partition: from the first offset up to, not including, the last."""

    partition: str
    start: int
    stop: int


class Increments(NamedTuple):
    """So much is added to each of these rows; rows are distinct once they are in the log."""

    rows: Rows
    counts: Counts


NOTHING = Increments(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one micro-batch adds to the shared state. Item rows are the trainer's own.

    Args:
        spans: where its events come from; one for each partition.
        sources: [B] for each event the index of its span.
        offsets: [B] of each event; a list will do, and is made an array only where that is needed.
        items: [B] item row of each event.
        drawn: how often items were resampled.
        cache: the cache that was drawn after it; None if none was.
        counted: events of each item, for several contributions that were added up: `items` is then empty, and `sources`
            and `offsets` are those of its rows, each with the first offset of its span. What it adds of a span cannot
            be told apart any more.
    """

    spans: tuple[Span, ...]
    sources: NDArray[np.int32]
    offsets: NDArray[np.int64] | Sequence[int]
    items: Rows
    drawn: Increments = NOTHING
    cache: Rows | None = None
    counted: Increments | None = None

    def after(self, following: Mapping[str, int]) -> Contribution | None:
        """What of it is new where a store has everything before these offsets; None if nothing is.

        Counts of items are cut event by event. What was resampled cannot be told apart by event, so that of a batch
        that is new in part is left out: nothing is ever counted twice. The same goes for a span of contributions that
        were added up, as a whole.
        """
        first = [following.get(span.partition, 0) for span in self.spans]
        if all(span.start >= f for span, f in zip(self.spans, first, strict=True)):
            return self
        offsets = np.asarray(self.offsets, np.int64)
        new = offsets >= np.array(first, np.int64)[self.sources]
        if not new.any():
            return None
        left = np.unique(self.sources[new])
        place = np.full(len(self.spans), -1, np.int32)
        place[left] = np.arange(len(left), dtype=np.int32)
        counted = Increments(self.counted.rows[new], self.counted.counts[new]) if self.counted is not None else None
        return Contribution(
            spans=tuple(self.spans[k]._replace(start=max(self.spans[k].start, first[k])) for k in left),
            sources=place[self.sources[new]],
            offsets=offsets[new],
            items=self.items[new] if counted is None else self.items,
            drawn=self.drawn if new.all() else NOTHING,
            cache=self.cache,
            counted=counted,
        )


class Delta(NamedTuple):
    """What another trainer has added. Rows are the store's."""

    items: Increments
    drawn: Increments


@dataclass(frozen=True, slots=True)
class Totals:
    """All of the shared state at once, by the store's rows, and our own contributions that it does not hold.

    Args:
        counts: [N] events of each item.
        drawn: [N] how often each item was resampled.
        pending: our contributions that are not in these totals.
    """

    counts: Counts
    drawn: Counts
    pending: tuple[Contribution, ...]


@dataclass(slots=True)
class Received:
    """What has come since the last time.

    Args:
        ids: ids of items that the store has named since, in the order of their rows.
        reset: replaces everything that was received before; `ids` then begin with row 0.
        deltas: what others added, after `reset`.
        cache: the newest cache, by the store's rows; None if there is no newer one.
        live: whether the store is in touch; if not, a trainer goes on with what it has and draws its own caches.
        naming: for `named`.
    """

    ids: list[str] = field(default_factory=list)
    reset: Totals | None = None
    deltas: list[Delta] = field(default_factory=list)
    cache: Rows | None = None
    live: bool = True
    naming: int = 0


@dataclass(slots=True)
class StoreStatus:
    """What an operator wants to know of a store; all counters are of this process."""

    kind: str = "memory"
    live: bool = True
    trouble: str | None = None
    """What is wrong now, in a sentence; None if nothing is."""
    round_trip_s: float = 0.0
    staleness_s: float = 0.0
    """Seconds since the replica was last known to hold everything that is in the store."""
    backlog_contributions: int = 0
    backlog_events: int = 0
    log_length: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    exchanges: int = 0
    exchange_cpu_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)
    seeded: int = 0
    joined: int = 0
    snapshots: int = 0
    refused_events: int = 0
    """Events whose contribution was left out: another trainer owned them by then."""
    again_events: int = 0
    """Events that were trained and not counted: the store had a contribution of them."""


class CacheStore(Protocol):
    """One trainer's access to what all trainers of a model share.

    `receive`, `contribute` and `fresh` are called by the training thread and never wait; `untold` and `refused` never
    wait either; `claim`, `release` and `flush` may be called by any thread and wait for a bounded time.
    """

    def claim(self, partitions: Mapping[str, int | None], timeout_s: float = 5.0) -> bool:
        """These partitions are ours now; whoever had them before is refused from here on.

        Args:
            partitions: with the offset after the last record of each, as far as it is known: where the store has
                contributions beyond that, the partition has begun anew, and so does the store.
            timeout_s: how long to wait. Without an answer it is done later; contributions wait for it.
        """
        ...

    def release(self, partitions: Sequence[str]) -> None:
        """These partitions are others' now."""
        ...

    def fresh(self, spans: Sequence[Span], sources: NDArray[np.int32], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[B] which of these events the store has no contribution of."""
        ...

    def seen(self, partition: str) -> int:
        """Events of this partition before this offset are not fresh."""
        ...

    def untold(self, partition: str) -> int | None:
        """The first offset of this partition whose contribution is not known to be in the store; None if all are."""
        ...

    def refused(self, partition: str) -> int | None:
        """The first offset whose contribution was refused since this was last asked; None if none was.

        The partition was others' by then: when it is ours again, it must be read from there, or nobody counts it.
        """
        ...

    def receive(self) -> Received:
        """What has come since the last call.

        Raises:
            Fenced: another trainer has taken over one of our partitions.
        """
        ...

    def named(self, naming: int, first: int, own: Rows) -> None:
        """Which rows of ours are those of the store from `first` on, so that it need not be asked for each.

        Args:
            naming: of what was received; if that is outdated, nothing happens.
            first: the store's row of the first.
            own: [n] our rows.
        """
        ...

    def contribute(self, contribution: Contribution, ids: Sequence[str]) -> None:
        """Add this, as soon as it can be done.

        Args:
            contribution: of one micro-batch, with fresh events only.
            ids: item ids by the trainer's rows; it may grow, and is read later.
        """
        ...

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything contributed so far is in the store; False if it is not in time."""
        ...

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any], Received]:
        """What a restart needs: arrays and plain values. What is received must be taken in with it, at once."""
        ...

    def load_state(
        self, arrays: Mapping[str, NDArray[Any]], values: dict[str, Any], ids: Sequence[str], own: Rows
    ) -> None:
        """Take over what `state` answered, before `start`.

        Args:
            arrays: from `state`.
            values: from `state`.
            ids: item ids by the trainer's rows.
            own: [N] the trainer's row for each of the store's, as far as it had received them.
        """
        ...

    def start(self) -> None:
        """Join, and begin to exchange.

        Raises:
            StoreRefused: the server will not let us in, or what it holds is not ours.
            StoreUnavailable: it does not answer, and there is no earlier state to go on with.
        """
        ...

    def status(self) -> StoreStatus:
        """How it is."""
        ...

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what can be sent, and let go. May be called twice."""
        ...
