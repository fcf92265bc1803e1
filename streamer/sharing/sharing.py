"""Between a learner and the store that trainers of a model share: rows are translated,
counts are sent and applied.

The learner counts and draws as if it were alone. What others count and draw is added to
the same counters between two micro-batches, and the cache that it trains with is the
newest that any trainer has drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.contribution import (
    Contribution,
    Increments,
    OffsetSpan,
    merged_spans,
)
from streamer.cache_store.errors import StoreError
from streamer.cache_store.state import Received, StoreStatus
from streamer.cache_store.store import CacheStore
from streamer.errors import SharingError
from streamer.ingest.batcher import MicroBatch
from streamer.ingest.ingest import SingleTrainer
from streamer.learner import Learned, Learner
from streamer.model.batch import Rows
from streamer.model.rows.growing import grown
from streamer.sources.base import Partition, Positions
from streamer.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

FLUSH_S = 5.0
FIRST_NUMBERS = 4096
"""Ids that have a number before those that nothing refers to any more are given back;
later twice those that stay.
"""


class LearnPart(NamedTuple):
    """Events of a micro-batch that are learned together."""

    batch: MicroBatch
    counted: bool
    """Whether they are to be counted; False if the store has counted them before."""


class Sharing(SingleTrainer):
    """What a trainer does that shares nothing; and the interface of `StoreSharing`. For
    the training thread.
    """

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

    def parts(
        self, batch: MicroBatch, ends: Callable[[], Positions]
    ) -> list[LearnPart]:
        """The batch, cut in two where the store has counted some of its events: after a
        crash they come again.

        `ends` returns the offset after the last record of each partition, as far as it
        is known.
        """
        return [LearnPart(batch, True)]

    def contribute(self, part: LearnPart, learned: Learned) -> None:
        """Send what a part of a batch has counted and drawn; never waits."""

    def before_save(self) -> None:
        """Agree with the other ranks of a group on what is saved; all call it, whether
        or not each can save then.
        """

    def save(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and values that a restart needs. Call it before the learner is copied:
        it applies what has come.
        """
        return {}, {}

    def restore(
        self,
        arrays: Mapping[str, NDArray[Any]],
        values: dict[str, Any],
        positions: Positions,
    ) -> None:
        """Continue from what `save` returned, before `start`; the learner is restored
        already, up to the positions.

        Without values, the trainer shared nothing when it was saved.
        """

    def status(self) -> StoreStatus:
        """The state of the store, for an operator."""
        return StoreStatus()

    def close(self) -> None:
        """Send what can be sent, and disconnect."""


class StoreSharing(Sharing):
    """One learner's part in what trainers share through a store, which is closed with
    this.

    The learner's rows are those of other items after some were retired. Towards the
    store every id therefore has a number, which is used again when nothing refers to it
    any more. What the learner retires is retired in the store, and what others have
    retired there is retired here.
    """

    def __init__(self, learner: Learner, store: CacheStore) -> None:
        self._learner = learner
        self._store = store
        self._numbers = Vocabulary()
        self._row_of = np.empty(
            0, np.int64
        )  # the learner's row of each number, -1 if it has none
        self._number_of = np.empty(
            0, np.int64
        )  # the number of each of the learner's rows, -1 if it has none
        self._own = np.empty(0, np.int64)  # the number of each of the store's rows
        self._mapped = 0  # how many rows of the store are in it
        self._most_numbers = FIRST_NUMBERS
        learner.eviction.on_retire.append(self._retire)
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

    def parts(
        self, batch: MicroBatch, ends: Callable[[], Positions]
    ) -> list[LearnPart]:
        spans, sources = _spans(batch)
        if all(
            span.start >= self._store.counted_until(span.partition) for span in spans
        ):
            return [LearnPart(batch, True)]
        self._claim_recreated(spans, ends())
        counted_until = np.array(
            [self._store.counted_until(span.partition) for span in spans]
        )
        new = np.array(batch.offsets) >= counted_until[sources]
        self._note_duplicates([spans[k].partition for k in sources[~new].tolist()])
        at = np.flatnonzero(new).tolist(), np.flatnonzero(~new).tolist()
        parts = [
            LearnPart(batch.only(at[1]), False),
            LearnPart(batch.only(at[0]), True),
        ]
        return [part for part in parts if len(part.batch)]

    def _claim_recreated(self, spans: Iterable[OffsetSpan], ends: Positions) -> None:
        """Claim partitions again that end before what the store has counted: they were
        deleted and recreated.
        """
        known = {str(partition): end for partition, end in ends.items()}
        recreated = {}
        for name in (span.partition for span in spans):
            if name in known and self._store.counted_until(name) > known[name]:
                recreated[name] = known[name]
        if recreated:
            self._store.claim(recreated, FLUSH_S)

    def _note_duplicates(self, partitions: list[str]) -> None:
        """Log once what is not counted: after a crash that is right, with another input
        of the same name it is not.
        """
        self._duplicate_events += len(partitions)
        for name in set(partitions) - self._logged_duplicates:
            self._logged_duplicates.add(name)
            offset = f"{self._counted_until(name):,}"
            logger.info(
                "The store has counted %s up to offset %s: these events are trained, not counted",
                name,
                offset,
            )

    def _counted_until(self, partition: str) -> int:
        return self._store.counted_until(partition)

    def contribute(self, part: LearnPart, learned: Learned) -> None:
        if not part.counted or not part.batch.origins:
            return
        spans, sources = _spans(part.batch)
        self._contribute(spans, sources, part.batch.offsets, learned)

    def _contribute(
        self,
        spans: tuple[OffsetSpan, ...],
        sources: NDArray[np.int32],
        offsets: Sequence[int],
        learned: Learned,
    ) -> None:
        numbers = self._numbers_of
        drawn = Increments(
            numbers(learned.drawn[0]), np.rint(learned.drawn[1]).astype(np.int64)
        )
        cache = (
            numbers(self._learner.state.cache)
            if self._learner.state.trainer.method.extra == "cache"
            else None
        )
        contribution = Contribution(
            spans, sources, offsets, numbers(learned.items), drawn, cache
        )
        self._store.contribute(contribution, self._numbers.by_row)

    def _numbers_of(self, rows: Rows) -> Rows:
        """Of rows that have an item."""
        self._number_of = grown(self._number_of, self._learner.state.items.size, -1)
        new = np.unique(rows[self._number_of[rows] < 0])
        if len(new):
            self._note(
                [self._learner.state.items.id_of(row) for row in new.tolist()], new
            )
        return self._number_of[rows]

    def _note(self, ids: Sequence[str], rows: Rows) -> Rows:
        """Items have these rows now; returns their numbers."""
        numbers = self._numbers.rows(ids)
        self._row_of = grown(self._row_of, self._numbers.size, -1)
        self._number_of = grown(self._number_of, self._learner.state.items.size, -1)
        self._row_of[numbers] = rows
        self._number_of[rows] = numbers
        return numbers

    def _retire(self, kind: str, rows: Rows, reason: str) -> None:
        """The learner retires rows: so does the store, of those that it knows."""
        if kind == "items":
            rows = rows[rows < len(self._number_of)]
            numbers = self._number_of[rows]
            numbers = numbers[numbers >= 0]
            self._row_of[numbers] = -1
            self._number_of[rows] = -1
            self._store.retire(numbers, self._numbers.by_row, force=reason == "deleted")

    def _follow(self, numbers: Rows) -> None:
        """Others have retired items: so does the learner, of those that it has."""
        rows, _ = self._rows_of(numbers)
        self._row_of[numbers] = -1
        self._number_of[rows] = -1
        self._learner.eviction.retire("items", rows, "shared")
        self._give_back_numbers()

    def _give_back_numbers(self) -> None:
        if len(self._numbers) > self._most_numbers:
            used = np.union1d(
                self._store.used_items(), self._number_of[self._number_of >= 0]
            )
            self._numbers.forget(np.setdiff1d(self._numbers.used, used))
            self._most_numbers = max(2 * len(self._numbers), FIRST_NUMBERS)

    def _adopt(self, numbers: Rows) -> Rows:
        """The learner's rows of items; those that have none get one."""
        new = numbers[self._row_of[numbers] < 0]
        if len(new):
            ids = [self._numbers.id_of(number) for number in new.tolist()]
            self._note(ids, self._learner.state.rows_of("items", ids))
        self._learner.state.mark_seen("items", self._row_of[numbers])
        return self._row_of[numbers]

    def _rows_of(self, numbers: Rows) -> tuple[Rows, NDArray[np.bool_]]:
        """The learner's rows of those that have one, and which these are."""
        rows = (
            np.where(numbers >= 0, self._row_of[numbers], -1)
            if len(self._row_of)
            else np.full(len(numbers), -1)
        )
        kept = self._learner.state.items.is_used(rows)
        return rows[kept], kept

    # from others ------------------------------------------------------------------------------------------------------

    def _apply(self, received: Received) -> None:
        learner = self._learner
        reset = received.reset
        learner.state.clock.tick(
            np.empty(0, np.int64)
        )  # what others have seen, they saw after our last step
        # 1. items that were retired, and rows of the others
        if received.retired:
            self._follow(np.unique(received.retired))
        if reset is not None:
            self._mapped = 0
        if received.ids:
            self._map(received)
        self._own[received.retired_rows] = -1
        # 2. totals, if they replace everything
        if reset is not None:
            rows, kept = self._rows_of(self._own[: len(reset.counts)])
            counts = reset.counts[kept].astype(np.float64)
            learner.state.changes.mark("items", np.arange(learner.state.items.size))
            learner.state.item_counts.replace(rows, counts)
            learner.state.occurrence.replace(rows, reset.drawn[kept].astype(np.float64))
            if not learner.state.decayed_popularity.total:
                learner.state.decayed_popularity.add(rows, counts)
            for pending in reset.pending:
                self._adopt(np.union1d(pending.items, pending.drawn.rows))
                self._add(
                    learner.state.item_counts.add,
                    pending.items,
                    pending.item_counts.counts.astype(np.float64),
                )
                self._add(learner.state.occurrence.add, *pending.drawn)
        # 3. what was added since
        for delta in received.deltas:
            items = self._own[delta.items.rows]
            counts = delta.items.counts.astype(np.float64)
            rows, kept = self._rows_of(items)
            learner.state.mark_seen("items", rows)
            learner.state.item_counts.add(rows, counts[kept])
            learner.state.decayed_popularity.add(rows, counts[kept])
            self._add(
                learner.state.occurrence.add,
                self._own[delta.drawn.rows],
                delta.drawn.counts,
            )
        # 4. what we had retired, and is to stay
        if received.corrected is not None:
            rows = self._adopt(received.corrected.items)
            learner.state.item_counts.forget(rows)
            learner.state.item_counts.add(
                rows, received.corrected.counts.astype(np.float64)
            )
            learner.state.occurrence.forget(rows)
            learner.state.occurrence.add(rows, received.corrected.drawn)
        # 5. the newest cache
        if received.cache is not None:
            self._cache = self._own[received.cache]
        if (
            received.live
            and self._cache is not None
            and learner.state.trainer.method.extra == "cache"
        ):
            learner.state.cache = self._rows_of(self._cache)[0]

    def _add(
        self,
        add: Callable[[Rows, NDArray[Any]], None],
        numbers: Rows,
        counts: NDArray[Any],
    ) -> None:
        """Add counts of numbers to those of the learner's rows."""
        rows, kept = self._rows_of(numbers)
        self._learner.state.changes.mark("items", rows)
        add(rows, counts[kept])

    def _map(self, received: Received) -> None:
        first = self._mapped
        ids = [raw for raw in received.ids if raw is not None]
        rows = self._learner.state.rows_of("items", ids)
        self._learner.state.mark_seen("items", rows)
        numbers = np.full(len(received.ids), -1)
        numbers[[raw is not None for raw in received.ids]] = self._note(ids, rows)
        self._mapped += len(numbers)
        self._own = grown(self._own, self._mapped)
        self._own[first : self._mapped] = numbers
        self._store.map_rows(received.row_version, first, numbers)

    # the owner of partitions, on the reading thread -------------------------------------------------------------------

    def claim(self, partitions: Iterable[Partition]) -> Positions:
        names = {str(p): p for p in partitions}
        self._store.claim(dict.fromkeys(names), FLUSH_S)
        refused = {name: self._store.pop_refused(name) for name in names}
        return {
            names[n]: max(at, self._store.counted_until(n))
            for n, at in refused.items()
            if at is not None
        }

    def acknowledged(self, positions: Positions) -> Positions:
        first = {p: self._store.first_unacknowledged(str(p)) for p in positions}
        return {
            p: at if (waits := first[p]) is None else min(waits, at)
            for p, at in positions.items()
        }

    def flush(self) -> None:
        if not self._store.flush(FLUSH_S):
            status = self._store.status()
            why = status.problem or f"it did not accept them within {FLUSH_S:.0f} s"
            logger.warning(
                "%s events are not in the store yet: %s",
                f"{status.backlog_events:,}",
                why,
            )

    def release(self, partitions: Iterable[Partition]) -> None:
        names = [str(p) for p in partitions]
        self._logged_duplicates.difference_update(names)
        self._store.release(names)

    # checkpoints, and the end -----------------------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        arrays, values, received = self._store.save()
        self._apply(received)
        return arrays | self._numbering(), values

    def _numbering(self) -> dict[str, NDArray[Any]]:
        """The numbers of all ids."""
        ids = {
            f"numbers.{name}": array for name, array in self._numbers.state().items()
        }
        return ids | {"own": self._own[: self._mapped].copy()}

    def restore(
        self,
        arrays: Mapping[str, NDArray[Any]],
        values: dict[str, Any],
        positions: Positions,
    ) -> None:
        learner = self._learner
        if values:
            prefix = "numbers."
            own = np.array(arrays["own"])
            self._numbers.load_state(
                {
                    n.removeprefix(prefix): a
                    for n, a in arrays.items()
                    if n.startswith(prefix)
                }
            )
            self._store.restore(arrays, values, self._numbers.by_row, own)
        else:  # it shared nothing so far: what it has counted seeds an empty store
            rows = learner.state.items.used
            next_offsets = {
                str(partition): offset for partition, offset in positions.items()
            }
            own = self._numbers.rows(learner.state.items.ids)
            counts = np.rint(learner.state.item_counts.counts(rows)).astype(np.int64)
            drawn = np.rint(learner.state.occurrence.values(rows)).astype(np.int64)
            self._store.begin_with(counts, drawn, next_offsets, self._numbers.by_row)
        self._row_of = np.full(self._numbers.size, -1)
        self._number_of = np.full(learner.state.items.size, -1)
        self._row_of[self._numbers.used] = learner.state.items.known(self._numbers.ids)
        self._number_of[self._row_of[self._row_of >= 0]] = np.flatnonzero(
            self._row_of >= 0
        )
        self._own = own
        self._mapped = len(own)

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


def _spans(batch: MicroBatch) -> tuple[tuple[OffsetSpan, ...], NDArray[np.int32]]:
    """Spans of a batch's events, one for each partition, and [B] the index of each
    event's span.
    """
    spans = merged_spans(
        OffsetSpan(str(p), batch.offsets[a], batch.offsets[b - 1] + 1)
        for p, a, b in batch.origins
    )
    index = {span.partition: k for k, span in enumerate(spans)}
    sources = np.array(
        [index[str(origin.partition)] for origin in batch.origins], np.int32
    )
    return spans, np.repeat(sources, [stop - start for _, start, stop in batch.origins])
