"""Between a learner and the store that trainers of a model share: rows are translated, contributions made and taken in.

The learner counts and draws as if it were alone. What others count and draw is added to the same counters between two
micro-batches, and the cache that it trains with is the newest that any trainer has drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.base import CacheStore, Contribution, Delta, Increments, Received, Span, StoreStatus, Totals
from streamer.cache_store.errors import StoreError
from streamer.cache_store.memory import MemoryServer
from streamer.cache_store.naming import agreed
from streamer.cache_store.shared import SharedStore
from streamer.cache_store.view import SharedSettings
from streamer.errors import SharingError
from streamer.ingest.batcher import MicroBatch, Origin
from streamer.learner import Learned, Learner
from streamer.model.batch import Rows
from streamer.model.growing import grown
from streamer.sources.base import Partition, Positions

logger = logging.getLogger(__name__)

FLUSH_S = 5.0
PRIVATE = SharedSettings(soft_log_length=16, inline_every=16)
"""How a trainer takes part in a store that is shared with nobody."""


class Part(NamedTuple):
    """Events of a micro-batch that are learned together."""

    batch: MicroBatch
    counted: bool
    """Whether the store has no contribution of them yet."""


def private_store() -> CacheStore:
    """A store that is shared with nobody."""
    return SharedStore(MemoryServer(), PRIVATE)


class Sharing:
    """One learner's part in what trainers share. Used by the training thread, but for what is an `Owner`'s.

    Args:
        learner: whose counters and cache are shared.
        store: where; closed with this.
        ends: the offset after the last record of each partition, as far as it is known.
    """

    def __init__(self, learner: Learner, store: CacheStore | None = None, ends: Callable[[], Positions] = dict) -> None:
        self._learner, self._store = learner, store or private_store()
        self._private = store is None
        self.ends = ends
        self._own = np.empty(0, np.int64)  # the learner's row of each of the store's
        self._named = 0
        self._agreed = 0  # below it the store's rows are the learner's
        self._cache: Rows | None = None
        self._told_again: set[str] = set()
        self._again_events = 0

    def start(self) -> None:
        """Join, and take in what is there.

        Raises:
            SharingError: the store cannot be used.
        """
        with _clear():
            self._store.start()
        self.receive()

    # along the line ---------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Take in what others have added; never waits.

        Raises:
            SharingError: another trainer has taken over one of our partitions.
        """
        with _clear():
            self._take_in(self._store.receive())

    def parts(self, batch: MicroBatch) -> list[Part]:
        """The batch, cut where the store has contributions of some of its events: after a crash they come again."""
        if not batch.origins:
            return [Part(batch, True)]
        spans, sources = _where(batch)
        if all(span.start >= self._store.seen(span.partition) for span in spans):
            return [Part(batch, True)]
        fresh = self._fresh(batch, spans, sources)
        again = ~fresh
        self._again_events += int(again.sum())
        self._note_again(spans[k].partition for k in np.unique(sources[again]).tolist())
        parts = [Part(_chosen(batch, again), False), Part(_chosen(batch, fresh), True)]
        return [part for part in parts if len(part.batch)]

    def _fresh(self, batch: MicroBatch, spans: Sequence[Span], sources: NDArray[np.int32]) -> NDArray[np.bool_]:
        anew = self._begun_anew({origin.partition for origin in batch.origins})
        if anew:
            self._store.claim(anew, FLUSH_S)
        return self._store.fresh(spans, sources, np.array(batch.offsets))

    def _note_again(self, partitions: Iterable[str]) -> None:
        """Say once what is not counted: after a crash that is right, with another input of the same name it is not."""
        for partition in set(partitions) - self._told_again:
            self._told_again.add(partition)
            seen = f"{self._store.seen(partition):,}"
            logger.info("the store has the events of %s up to offset %s: trained again, not counted", partition, seen)

    def _begun_anew(self, partitions: Iterable[Partition]) -> dict[str, int | None]:
        """Partitions that end before what the store has of them: they were deleted and made again."""
        ends = self.ends()
        return {str(p): ends[p] for p in partitions if p in ends and self._store.seen(str(p)) > ends[p]}

    def contribute(self, part: Part, learned: Learned) -> None:
        """Add what a part of a batch has counted and drawn; never waits."""
        if not part.counted or not part.batch.origins:
            return
        spans, sources = _where(part.batch)
        drawn = Increments(learned.drawn[0], np.rint(learned.drawn[1]).astype(np.int64))
        caches = self._learner.trainer.method.extra == "cache" and not self._private  # else nobody asks for it
        cache = self._learner.cache if caches else None
        contribution = Contribution(spans, sources, part.batch.offsets, learned.items, drawn, cache)
        with _clear():
            self._store.contribute(contribution, self._learner.items.ids)

    # what comes from others -------------------------------------------------------------------------------------------

    def _take_in(self, received: Received) -> None:
        """1. names; 2. totals, if they come anew; 3. what was added since; 4. the newest cache."""
        learner = self._learner
        # 1.
        if received.reset is not None:
            self._named = 0
        self._name(received)
        # 2.
        if received.reset is not None:
            self._begin_with(received.reset)
        # 3.
        for delta in received.deltas:
            self._add(delta)
        # 4.
        if received.cache is not None:
            self._cache = self._ours(received.cache)
        if received.live and self._cache is not None and learner.trainer.method.extra == "cache":
            learner.cache = self._cache

    def _name(self, received: Received) -> None:
        if not received.ids:
            return
        first, rows = self._named, self._learner.items.rows(received.ids)
        self._named += len(rows)
        self._own = grown(self._own, self._named)
        self._own[first : self._named] = rows
        self._agreed = agreed(self._own[: self._named], min(first, self._agreed))
        self._store.named(received.naming, first, rows)
        self._learner.trainer.model.grow(len(self._learner.users), len(self._learner.items))

    def _begin_with(self, totals: Totals) -> None:
        learner, rows = self._learner, self._own[: len(totals.counts)]
        learner.exact.replace(rows, totals.counts.astype(np.float64))
        learner.occurrence.replace(rows, totals.drawn.astype(np.float64))
        if not learner.prior.total and len(rows):
            learner.prior.add(rows, totals.counts.astype(np.float64))
        for contribution in totals.pending:
            learner.count(contribution.items)
            learner.occurrence.add(*contribution.drawn)
            if contribution.counted is not None:
                learner.exact.add(contribution.counted.rows, contribution.counted.counts.astype(np.float64))

    def _add(self, delta: Delta) -> None:
        learner = self._learner
        rows, counts = self._ours(delta.items.rows), delta.items.counts.astype(np.float64)
        learner.exact.add(rows, counts)
        learner.prior.add(rows, counts)
        learner.occurrence.add(self._ours(delta.drawn.rows), delta.drawn.counts)

    def _ours(self, rows: Rows) -> Rows:
        """The learner's rows of the store's, to be read only."""
        return rows if int(rows.max(initial=-1)) < self._agreed else self._own[rows]

    # partitions come and go: on the reading thread --------------------------------------------------------------------

    def claim(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """These are ours now. Waits for the store, a while; without an answer it is done later.

        Returns:
            Where partitions must be read from at the latest of which contributions of ours were refused.
        """
        named = {str(p): p for p in partitions}
        self._store.claim(dict.fromkeys(named), FLUSH_S)
        refused = {name: self._store.refused(name) for name in named}
        return {named[n]: max(at, self._store.seen(n)) for n, at in refused.items() if at is not None}

    def acknowledged(self, positions: Positions) -> dict[Partition, int]:
        """How far the store has everything that came before these positions; never waits."""
        untold = {p: self._store.untold(str(p)) for p in positions}
        return {p: at if (first := untold[p]) is None else min(first, at) for p, at in positions.items()}

    def flush(self) -> None:
        """Wait, a while, until everything contributed is in the store; say so if it is not."""
        if not self._store.flush(FLUSH_S):
            status = self._store.status()
            why = status.trouble or f"it did not take them within {FLUSH_S:.0f} s"
            logger.warning("%s events are not in the store yet: %s", f"{status.backlog_events:,}", why)

    def release(self, partitions: Iterable[Partition]) -> None:
        """These are others' now."""
        gone = [str(p) for p in partitions]
        self._told_again.difference_update(gone)
        self._store.release(gone)

    # the recovery unit, and the end -----------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """What a restart needs. Call it before the learner is copied: it takes in what has come."""
        arrays, values, received = self._store.state()
        self._take_in(received)
        return arrays | {"own": self._own[: self._named].copy()}, values

    def load_state(self, arrays: Mapping[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """Take over what `state` answered, before `start`; the learner is restored already."""
        own = np.asarray(arrays["own"])
        self._own, self._named, self._agreed = own.copy(), len(own), agreed(own)
        self._store.load_state(arrays, values, self._learner.items.ids, own)

    def status(self) -> StoreStatus:
        """How the store is."""
        return replace(self._store.status(), again_events=self._again_events)

    def close(self) -> None:
        """Let go of the store."""
        self._store.close(FLUSH_S)


@contextmanager
def _clear() -> Iterator[None]:
    """Errors of the store become errors of Streamer."""
    try:
        yield
    except StoreError as error:
        raise SharingError(str(error)) from error


def _where(batch: MicroBatch) -> tuple[tuple[Span, ...], NDArray[np.int32]]:
    """Spans of a batch's events, one for each partition, and [B] the index of each event's span."""
    names: dict[Partition, int] = {}
    spans: list[Span] = []
    sources = np.zeros(len(batch), np.int32)
    for partition, start, stop in batch.origins:
        k = names.setdefault(partition, len(names))
        sources[start:stop] = k
        first, last = batch.offsets[start], batch.offsets[stop - 1]
        known = spans[k] if k < len(spans) else Span(str(partition), first, last + 1)
        spans[k : k + 1] = [Span(known.partition, min(known.start, first), max(known.stop, last + 1))]
    return tuple(spans), sources


def _chosen(batch: MicroBatch, chosen: NDArray[np.bool_]) -> MicroBatch:
    """Some events of a batch."""
    at = np.flatnonzero(chosen).tolist()

    def some(column: Any) -> Any:
        return None if column is None else [column[k] for k in at]

    names = ("users", "items", "timestamps_s", "user_features", "item_features", "offsets")
    columns = {name: some(getattr(batch, name)) for name in names}
    return MicroBatch(**columns, origins=_origins(batch.origins, chosen))


def _origins(origins: list[Origin], chosen: NDArray[np.bool_]) -> list[Origin]:
    """Where the chosen events come from."""
    found: list[Origin] = []
    begin = 0
    for origin in origins:
        count = int(chosen[origin.start : origin.stop].sum())
        if count:
            found.append(Origin(origin.partition, begin, begin + count))
            begin += count
    return found
