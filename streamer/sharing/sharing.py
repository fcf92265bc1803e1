"""Between a learner and the store that trainers of a model share: rows are translated, counts are sent and applied.

The learner counts and draws as if it were alone. What others count and draw is added to the same counters between two
micro-batches, and the cache that it trains with is the newest that any trainer has drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.contribution import Contribution, Increments, Span, merged_spans
from streamer.cache_store.errors import StoreError
from streamer.cache_store.state import Received, StoreStatus
from streamer.cache_store.store import CacheStore
from streamer.errors import SharingError
from streamer.ingest.batcher import MicroBatch, Origin
from streamer.ingest.ingest import SingleTrainer
from streamer.learner import Learned, Learner
from streamer.model.batch import Rows
from streamer.model.growing import grown
from streamer.sources.base import Partition, Positions

logger = logging.getLogger(__name__)

FLUSH_S = 5.0
COLUMNS = ("users", "items", "timestamps_s", "user_features", "item_features", "offsets")


class LearnPart(NamedTuple):
    """Events of a micro-batch that are learned together."""

    batch: MicroBatch
    counted: bool
    """Whether they are to be counted; False if the store has counted them before."""


class Sharing(SingleTrainer):
    """What a trainer does that shares nothing; and the interface of `StoreSharing`. For the training thread."""

    def start(self) -> None:
        """Join the other trainers.

        Raises:
            SharingError: the store cannot be used.
        """

    def receive(self) -> None:
        """Apply what others have added; never waits.

        Raises:
            SharingError: another trainer has claimed one of our partitions.
        """

    def parts(self, batch: MicroBatch, ends: Callable[[], Positions]) -> list[LearnPart]:
        """The batch, cut in two where the store has counted some of its events: after a crash they come again.

        `ends` returns the offset after the last record of each partition, as far as it is known.
        """
        return [LearnPart(batch, True)]

    def contribute(self, part: LearnPart, learned: Learned) -> None:
        """Send what a part of a batch has counted and drawn; never waits."""

    def save(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and values that a restart needs. Call it before the learner is copied: it applies what has come."""
        return {}, {}

    def restore(self, arrays: Mapping[str, NDArray[Any]], values: dict[str, Any], positions: Positions) -> None:
        """Continue from what `save` returned, before `start`; the learner is restored already, up to the positions.

        Without values, the trainer shared nothing when it was saved.
        """

    def status(self) -> StoreStatus:
        """The state of the store, for an operator."""
        return StoreStatus()

    def close(self) -> None:
        """Send what can be sent, and disconnect."""


class StoreSharing(Sharing):
    """One learner's part in what trainers share through a store, which is closed with this."""

    def __init__(self, learner: Learner, store: CacheStore) -> None:
        self._learner, self._store = learner, store
        self._own = np.empty(0, np.int64)  # the learner's row of each of the store's
        self._mapped = 0  # how many rows of the store are in it
        self._cache: Rows | None = None
        self._duplicate_events = 0
        self._logged_duplicates: set[str] = set()

    def start(self) -> None:
        with _as_sharing_error():
            self._store.start()
        self.receive()

    # along the line ---------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        with _as_sharing_error():
            self._apply(self._store.receive())

    def parts(self, batch: MicroBatch, ends: Callable[[], Positions]) -> list[LearnPart]:
        spans, sources = _spans(batch)
        if all(span.start >= self._store.counted_until(span.partition) for span in spans):
            return [LearnPart(batch, True)]
        self._claim_recreated(spans, ends())
        counted_until = np.array([self._store.counted_until(span.partition) for span in spans])
        new = np.array(batch.offsets) >= counted_until[sources]
        self._note_duplicates([spans[k].partition for k in sources[~new].tolist()])
        parts = [LearnPart(_selected(batch, ~new), False), LearnPart(_selected(batch, new), True)]
        return [part for part in parts if len(part.batch)]

    def _claim_recreated(self, spans: Iterable[Span], ends: Positions) -> None:
        """Claim partitions again that end before what the store has counted: they were deleted and recreated."""
        known, recreated = {str(partition): end for partition, end in ends.items()}, {}
        for name in (span.partition for span in spans):
            if name in known and self._store.counted_until(name) > known[name]:
                recreated[name] = known[name]
        if recreated:
            self._store.claim(recreated, FLUSH_S)

    def _note_duplicates(self, partitions: list[str]) -> None:
        """Log once what is not counted: after a crash that is right, with another input of the same name it is not."""
        self._duplicate_events += len(partitions)
        for name in set(partitions) - self._logged_duplicates:
            self._logged_duplicates.add(name)
            offset = f"{self._store.counted_until(name):,}"
            logger.info("The store has counted %s up to offset %s: these events are trained, not counted", name, offset)

    def contribute(self, part: LearnPart, learned: Learned) -> None:
        if not part.counted or not part.batch.origins:
            return
        spans, sources = _spans(part.batch)
        drawn = Increments(learned.drawn[0], np.rint(learned.drawn[1]).astype(np.int64))
        cache = self._learner.cache if self._learner.trainer.method.extra == "cache" else None
        contribution = Contribution(spans, sources, part.batch.offsets, learned.items, drawn, cache)
        self._store.contribute(contribution, self._learner.items.ids)

    # from others ------------------------------------------------------------------------------------------------------

    def _apply(self, received: Received) -> None:
        learner, reset = self._learner, received.reset
        # 1. rows of the items
        if reset is not None:
            self._mapped = 0
        if received.ids:
            self._map(received)
        # 2. totals, if they replace everything
        if reset is not None:
            rows, counts = self._own[: len(reset.counts)], reset.counts.astype(np.float64)
            learner.changes.mark("items", learner.rows("items"))
            learner.exact.replace(rows, counts)
            learner.occurrence.replace(rows, reset.drawn.astype(np.float64))
            if not learner.ageing.total:
                learner.ageing.add(rows, counts)
            for pending in reset.pending:
                learner.exact.add(pending.items, pending.item_counts.counts.astype(np.float64))
                learner.occurrence.add(*pending.drawn)
        # 3. what was added since
        for delta in received.deltas:
            rows, counts = self._own[delta.items.rows], delta.items.counts.astype(np.float64)
            learner.changes.mark("items", np.concatenate([rows, self._own[delta.drawn.rows]]))
            learner.exact.add(rows, counts)
            learner.ageing.add(rows, counts)
            learner.occurrence.add(self._own[delta.drawn.rows], delta.drawn.counts)
        # 4. the newest cache
        if received.cache is not None:
            self._cache = self._own[received.cache]
        if received.live and self._cache is not None and learner.trainer.method.extra == "cache":
            learner.cache = self._cache

    def _map(self, received: Received) -> None:
        first, rows = self._mapped, self._learner.items.rows(received.ids)
        self._mapped += len(rows)
        self._own = grown(self._own, self._mapped)
        self._own[first : self._mapped] = rows
        self._store.map_rows(received.row_version, first, rows)
        self._learner.trainer.model.grow(len(self._learner.users), len(self._learner.items))

    # the owner of partitions, on the reading thread -------------------------------------------------------------------

    def claim(self, partitions: Iterable[Partition]) -> Positions:
        names = {str(p): p for p in partitions}
        self._store.claim(dict.fromkeys(names), FLUSH_S)
        refused = {name: self._store.pop_refused(name) for name in names}
        return {names[n]: max(at, self._store.counted_until(n)) for n, at in refused.items() if at is not None}

    def acknowledged(self, positions: Positions) -> Positions:
        first = {p: self._store.first_unacknowledged(str(p)) for p in positions}
        return {p: at if (waits := first[p]) is None else min(waits, at) for p, at in positions.items()}

    def flush(self) -> None:
        if not self._store.flush(FLUSH_S):
            status = self._store.status()
            why = status.problem or f"it did not accept them within {FLUSH_S:.0f} s"
            logger.warning("%s events are not in the store yet: %s", f"{status.backlog_events:,}", why)

    def release(self, partitions: Iterable[Partition]) -> None:
        names = [str(p) for p in partitions]
        self._logged_duplicates.difference_update(names)
        self._store.release(names)

    # checkpoints, and the end -----------------------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        arrays, values, received = self._store.save()
        self._apply(received)
        return arrays | {"own": self._own[: self._mapped].copy()}, values

    def restore(self, arrays: Mapping[str, NDArray[Any]], values: dict[str, Any], positions: Positions) -> None:
        learner, every = self._learner, np.arange(len(self._learner.items))
        if values:
            own = np.array(arrays["own"])
            self._store.restore(arrays, values, learner.items.ids, own)
        else:  # it shared nothing so far: what it has counted seeds an empty store
            own, next_offsets = every, {str(partition): offset for partition, offset in positions.items()}
            counts = np.rint(learner.exact.counts(every)).astype(np.int64)
            drawn = np.rint(learner.occurrence.values(every)).astype(np.int64)
            self._store.begin_with(counts, drawn, next_offsets, learner.items.ids)
        self._own, self._mapped = own, len(own)

    def status(self) -> StoreStatus:
        return replace(self._store.status(), duplicate_events=self._duplicate_events)

    def close(self) -> None:
        self._store.close(FLUSH_S)


@contextmanager
def _as_sharing_error() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise SharingError(str(error)) from error


def _spans(batch: MicroBatch) -> tuple[tuple[Span, ...], NDArray[np.int32]]:
    """Spans of a batch's events, one for each partition, and [B] the index of each event's span."""
    spans = merged_spans(Span(str(p), batch.offsets[a], batch.offsets[b - 1] + 1) for p, a, b in batch.origins)
    index = {span.partition: k for k, span in enumerate(spans)}
    sources = np.array([index[str(origin.partition)] for origin in batch.origins], np.int32)
    return spans, np.repeat(sources, [stop - start for _, start, stop in batch.origins])


def _selected(batch: MicroBatch, chosen: NDArray[np.bool_]) -> MicroBatch:
    """Some events of a batch."""
    at, before = np.flatnonzero(chosen).tolist(), np.concatenate([[0], np.cumsum(chosen)]).tolist()
    columns = {name: getattr(batch, name) for name in COLUMNS}
    some: dict[str, Any] = {name: column and [column[k] for k in at] for name, column in columns.items()}
    origins = [Origin(p, before[a], before[b]) for p, a, b in batch.origins if before[b] > before[a]]
    return MicroBatch(**some, origins=origins)
