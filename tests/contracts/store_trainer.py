"""A trainer without a model, for tests of stores: it reads a stream, counts it, and believes what it receives.

Everything that it counts is kept by item id in plain counters, the slow and obvious way.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from streamer.cache_store.codec import unpack_delta
from streamer.cache_store.contribution import Contribution, Increments, OffsetSpan
from streamer.cache_store.replica import LogPosition, StoreReplica
from streamer.cache_store.server import StoreServer
from streamer.cache_store.state import Received
from streamer.cache_store.store import CacheStore

ITEMS = 7


class Backend(Protocol):
    """Where the shared state of one model is: what the tests may do to it, besides what trainers may."""

    def connect(self, hard_log_length: int = 4096) -> StoreServer:
        """One more trainer's way to it."""
        ...

    def wipe(self) -> None:
        """Lose everything."""
        ...

    def copy(self) -> Any:
        """Everything, as it is now."""
        ...

    def age(self) -> None:
        """Have been seeded long ago: nobody may seed it again."""
        ...

    def resume(self) -> None:
        """Have been paused long ago."""
        ...

    def trainers(self) -> set[str]:
        """Who has sent a heartbeat and not left."""
        ...

    def restore(self, copied: Any) -> None:
        """Be as it was, as after a failover to a replica that lags behind."""
        ...


def item_at(partition: str, offset: int) -> str:
    """The item of an event: each partition begins with other items than the rest."""
    return f"item-{(offset * offset + 3 * offset + sum(partition.encode())) % ITEMS}"


def events_before(following: Mapping[str, int]) -> Counter[str]:
    """Events of each item, of all events before these offsets."""
    return Counter(item_at(name, offset) for name, stop in following.items() for offset in range(stop))


@dataclass
class Checkpoint:
    """What survives a crash."""

    arrays: dict[str, Any]
    values: dict[str, Any]
    ids: list[str]
    own: list[int]
    positions: dict[str, int]
    counts: Counter[str]
    drawn: Counter[str]


@dataclass
class Trainer:
    """One trainer. `positions` are the next offsets to read of the partitions that it has."""

    store: CacheStore
    name: str = "trainer"
    ids: list[str] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    drawn: Counter[str] = field(default_factory=Counter)
    cache: list[str] | None = None
    batches: int = 0
    resets: int = 0
    _rows: dict[str, int] = field(default_factory=dict)

    @classmethod
    def resumed(cls, store: CacheStore, name: str, saved: Checkpoint) -> Trainer:
        """A new process with the state of an old one."""
        saved = copy.deepcopy(saved)
        own = np.array(saved.own, np.int64)
        store.restore(saved.arrays, saved.values, saved.ids, own)
        return cls(store, name, saved.ids, saved.own, saved.positions, saved.counts, saved.drawn)

    def retire(self, *ids: str, force: bool = False) -> None:
        """Retire items; those that it does not know are passed over."""
        known = [raw for raw in ids if raw in self.ids]
        for raw in known:
            self.counts.pop(raw, None), self.drawn.pop(raw, None)
        self.store.retire(self.rows(known), self.ids, force=force)

    def checkpoint(self) -> Checkpoint:
        arrays, values, received = self.store.save()
        self.apply(received)
        return copy.deepcopy(Checkpoint(arrays, values, self.ids, self.own, self.positions, +self.counts, +self.drawn))

    def claim(self, partition: str, position: int = 0, end: int | None = None, timeout_s: float = 5.0) -> bool:
        """Read a partition from here on."""
        self.positions[partition] = position
        return self.store.claim({partition: end}, timeout_s)

    def release(self, partition: str) -> None:
        del self.positions[partition]
        self.store.release([partition])

    def train(self, batch: Mapping[str, int], cache: Sequence[str] | None = None, signed: bool = True) -> str | None:
        """Read events of each partition; returns the item that only this batch has drawn, if it counts.

        What the store has already is trained without being counted again. A batch that is not signed draws known items.
        """
        starts = {name: self.positions[name] for name, count in batch.items() if count}
        spans = [OffsetSpan(name, start, start + batch[name]) for name, start in starts.items()]
        sources = np.concatenate([np.full(s.stop - s.start, k, np.int32) for k, s in enumerate(spans)])
        offsets = np.concatenate([np.arange(s.start, s.stop, dtype=np.int64) for s in spans])
        self.positions |= {span.partition: span.stop for span in spans}
        counted_until = np.array([self.store.counted_until(span.partition) for span in spans], np.int64)
        new = offsets >= counted_until[sources]
        if not new.any():
            return None
        self.batches += signed
        only = f"{self.store.state.trainer}:{self.batches}" if signed else None
        self._contribute(spans, sources[new], offsets[new], cache, only)
        return only

    def _contribute(
        self,
        spans: list[OffsetSpan],
        sources: np.ndarray,
        offsets: np.ndarray,
        cache: Sequence[str] | None,
        only: str | None,
    ) -> None:
        left = sorted(set(sources.tolist()))
        kept = tuple(OffsetSpan(spans[k].partition, int(offsets[sources == k].min()), spans[k].stop) for k in left)
        ids = [item_at(spans[k].partition, int(at)) for k, at in zip(sources, offsets, strict=True)]
        drawn = Counter({ids[0]: 2} | ({only: 1} if only else {}))
        contribution = Contribution(
            spans=kept,
            sources=np.searchsorted(left, sources).astype(np.int32),
            offsets=offsets,
            items=self.rows(ids),
            drawn=Increments(self.rows(drawn), np.array(list(drawn.values()), np.int64)),
            cache=None if cache is None else self.rows(cache),
        )
        self.counts.update(ids)
        self.drawn.update(drawn)
        self.store.contribute(contribution, self.ids)

    def rows(self, ids: Iterable[str]) -> np.ndarray:
        """Our own rows; new ids get the next."""
        return np.array([self._row(raw) for raw in ids], np.int64)

    def _row(self, raw: str) -> int:
        if len(self._rows) < len(self.ids):
            self._rows = {known: row for row, known in enumerate(self.ids)}
        if raw not in self._rows:
            self._rows[raw] = len(self.ids)
            self.ids.append(raw)
        return self._rows[raw]

    def receive(self) -> Received:
        """Apply what has come."""
        received = self.store.receive()
        self.apply(received)
        return received

    def apply(self, received: Received) -> None:
        for raw in {self.ids[own] for own in received.retired}:
            self.counts.pop(raw, None), self.drawn.pop(raw, None)
        if received.reset is not None:
            self.resets += 1
            self.own, self.counts, self.drawn = [], Counter(), Counter()
        first = len(self.own)
        self.own += [self._row(raw) if raw is not None else -1 for raw in received.ids]
        for row in received.retired_rows:
            self.own[row] = -1
        self.store.map_rows(received.row_version, first, np.array(self.own[first:], np.int64))
        if received.reset is not None:
            every = np.arange(len(received.reset.counts))
            self._add(Increments(every, received.reset.counts), Increments(every, received.reset.drawn), self.own)
            for contribution in received.reset.pending:
                self._add(contribution.item_counts, contribution.drawn, range(len(self.ids)))
        for delta in received.deltas:
            self._add(delta.items, delta.drawn, self.own)
        if received.corrected is not None:
            for own, count, drawn in zip(*received.corrected, strict=True):
                self.counts[self.ids[own]], self.drawn[self.ids[own]] = int(count), int(drawn)
        if received.cache is not None:
            self.cache = [self.ids[self.own[row]] for row in received.cache.tolist() if self.own[row] >= 0]

    def _add(self, items: Increments, drawn: Increments, own: Sequence[int]) -> None:
        for increments, counter in ((items, self.counts), (drawn, self.drawn)):
            for row, count in zip(increments.rows.tolist(), increments.counts.tolist(), strict=True):
                if own[row] >= 0:
                    counter[self.ids[own[row]]] += count

    def view(self) -> tuple[Counter[str], Counter[str]]:
        """Events and draws of each item, as it believes them to be; those that it is about to retire are left out."""
        return self._kept(self.counts), self._kept(self.drawn)

    def _kept(self, counter: Counter[str]) -> Counter[str]:
        retiring = {self.ids[own] for own in self.store.state.retiring}
        return Counter({raw: count for raw, count in counter.items() if count and raw not in retiring})

    def should_view(self) -> tuple[Counter[str], Counter[str]]:
        """What it must believe after it applied everything: the replica, and its contributions that are not in it."""
        replica, names = self.store.state.replica, self.store.state.row_map.ids
        counts, drawn = by_id(replica.counts, names), by_id(replica.drawn, names)
        for waiting in self.store.state.outbox.waiting:
            for into, more in ((counts, waiting.contribution.item_counts), (drawn, waiting.contribution.drawn)):
                for row, count in zip(more.rows.tolist(), more.counts.tolist(), strict=True):
                    into[self.ids[row]] += count
        return self._kept(counts), self._kept(drawn)


@dataclass
class Stored:
    """What a server holds: its snapshot and everything in its log, added up."""

    counts: Counter[str]
    drawn: Counter[str]
    following: dict[str, int]
    ids: list[str]
    position: LogPosition
    log: list[tuple[str, int]]
    """The trainer and the number of each entry."""
    retired: set[int]
    """Rows that have no item any more."""

    @property
    def live(self) -> list[str]:
        """The ids of all items that are not retired."""
        return [raw for row, raw in enumerate(self.ids) if row not in self.retired]


def stored(server: StoreServer) -> Stored | None:
    """Read everything; None if there is nothing."""
    pulled = server.pull(LogPosition.beginning(""), 0, "")
    packed = server.snapshot()
    if pulled.head is None or packed is None:
        return None
    replica, log = StoreReplica.unpack(packed), []
    slow = {row: [c, d] for row, (c, d) in enumerate(zip(replica.counts.tolist(), replica.drawn.tolist(), strict=True))}
    retired = set(np.flatnonzero(replica.retired).tolist())
    for entry in server.pull(replica.position, 10_000, "").entries:
        delta = unpack_delta(entry.packed, pulled.head.items)
        assert entry.position.number == replica.position.number + 1
        assert entry.previous_chain == replica.position.chain
        replica.apply(delta, entry.position)
        for column, part in enumerate((delta.items, delta.drawn)):
            for row, count in zip(part.rows.tolist(), part.counts.tolist(), strict=True):
                slow.setdefault(row, [0, 0])[column] += count if row not in retired else 0
        retired |= set(delta.retired.tolist())
        slow |= {row: [0, 0] for row in delta.retired.tolist()}
        log.append((delta.trainer, entry.position.number))
    ids = list(server.ids(pulled.head.generation, 0, pulled.head.items) or [])
    for row in range(replica.size):
        assert [replica.counts[row], replica.drawn[row]] == slow.get(row, [0, 0])
    assert set(np.flatnonzero(replica.retired).tolist()) == retired
    counts, drawn = by_id(replica.counts, ids), by_id(replica.drawn, ids)
    return Stored(counts, drawn, dict(replica.next_offsets), ids, replica.position, log, retired)


def by_id(counts: np.ndarray, ids: Sequence[str]) -> Counter[str]:
    """Counts that are not zero, by item id."""
    return Counter({ids[row]: int(counts[row]) for row in np.flatnonzero(counts).tolist()})
