"""Between a learner and the store that trainers of a model share.

The learner counts and draws as if it were alone. What others count and draw is added to
the same counters between two micro-batches, and the cache that it trains with is the
newest that any trainer has drawn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.change import BEFORE, COUNTS, Hashes, Version, counts_of
from streamer.cache_store.errors import StoreError
from streamer.cache_store.store import CacheStore, StoreStatus
from streamer.cache_store.table import Piece
from streamer.errors import SharingError
from streamer.ingest.batcher import MicroBatch
from streamer.ingest.ingest import Owner
from streamer.learner import Learned, OnlineLearner
from streamer.model.batch import Rows
from streamer.sources.base import Partition, Positions

logger = logging.getLogger(__name__)

FLUSH_S = 5.0
CLAIM_S = 30.0
"""How long a partition that we know nothing of waits for the store to respond."""
ENTRIES_S = 4
"""How many exchanges it waits for counts that somebody must have, as it was read."""

Additions = list[tuple[str, Rows, NDArray[np.int64]]]


class LearnPart(NamedTuple):
    """Events of a micro-batch that are learned together."""

    batch: MicroBatch
    counted: bool
    """Whether they are to be counted; False if others have counted them before."""


class Sharing(Owner):
    """What a trainer does that shares nothing; and the interface of `StoreSharing`. For
    the training thread.
    """

    def start(self) -> None:
        """Join the other trainers.

        Raises:
            SharingError: the store cannot be used.
        """

    def receive(self) -> None:
        """Apply some of what others have added; never waits."""

    def parts(self, batch: MicroBatch) -> list[LearnPart]:
        """The batch, cut in two where some of its events are counted already: after a
        crash they come again.
        """
        return [LearnPart(batch, True)]

    def contribute(self, part: LearnPart, learned: Learned) -> None:
        """Note what a part of a batch has counted and drawn."""

    def advance(self, batch: MicroBatch) -> None:
        """A batch is trained: what was contributed is shared, up to its positions."""

    def before_save(self) -> None:
        """Bring what is saved into one state, with the other ranks of a group; all call
        it, whether or not each can save then.
        """

    def save(self) -> dict[str, Any]:
        """Values that a restart needs, besides what is kept by rows of the learner."""
        return {}

    def restore(self, values: dict[str, Any], positions: Positions) -> None:
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
    this. The store's table is one of the parts that the learner keeps by item rows.
    """

    def __init__(self, learner: OnlineLearner, store: CacheStore) -> None:
        self._learner = learner
        self._store = store
        self._shared = store.shared
        self._table = store.table
        self._table.ids_of = learner.state.items.take
        # the table comes first: a retired row loses its name before its id
        by_kind = learner.state.by_kind
        by_kind["items"] = {"shared": store.table, **by_kind["items"]}
        self._names: dict[Partition, str] = {}
        self._starts: dict[str, int] = {}
        self._trained: dict[Partition, int] = {}
        """Before these offsets others have trained; we read from earlier ones to count."""
        self._trained_by_others = 0  # events of this batch
        self._additions: Additions = []
        self._cache: Rows | None = None
        self._duplicate_events = 0
        self._logged_duplicates: set[Partition] = set()

    def start(self) -> None:
        self._table.name_rows(self._learner.state.items.used)
        with as_sharing_error():
            self._store.start()
        while self._shared.waiting_rows:
            self._apply_all(self._shared.take())

    # along the line -------------------------------------------------------------------

    def receive(self) -> None:
        self._apply_all(self._shared.take())
        self._use_cache(self._shared.take_cache(), self._store.is_live)

    def _apply_all(self, pieces: list[Piece]) -> None:
        if pieces:
            # what others have seen, they saw after our last step
            self._learner.state.clock.tick(np.empty(0, np.int64))
        for piece in pieces:
            self._apply(piece)

    def _use_cache(self, cache: Hashes | None, is_live: bool) -> None:
        """Train with the newest cache, which may be this one."""
        state = self._learner.state
        if cache is not None:
            self._cache = self._table.names.rows_of(cache)
        has_cache = state.trainer.method.extra == "cache"
        if is_live and has_cache and self._cache is not None:
            state.cache = self._cache[state.items.is_used(self._cache)]

    def _apply(self, piece: Piece) -> None:
        """Put some numbers of others in the place of older ones."""
        state = self._learner.state
        rows = self._adopt(piece)
        values = piece.values
        if (rows < 0).any():
            values = values[rows >= 0]
            rows = rows[rows >= 0]
        state.changes.mark("items", rows)
        grown = self._table.apply(piece, rows, values)
        if not piece.name.startswith(COUNTS):
            state.occurrence.add(rows, grown)
            return
        counts = grown.astype(np.float64)
        if not (counts > 0).all():
            # an item that its owner had retired is counted from zero again
            is_less = counts < 0
            state.item_counts.add(rows[is_less], counts[is_less])
            rows = rows[counts > 0]
            counts = counts[counts > 0]
        state.mark_seen("items", rows)
        state.item_counts.add(rows, counts)
        if state.decayed_popularity.half_life_events is not None:
            state.decayed_popularity.add(rows, counts)
        state.remove_cold_items(rows)

    def _adopt(self, piece: Piece) -> Rows:
        """The rows of a piece; items that others count get one, -1 has what stays
        unknown.
        """
        rows = self._table.names.verified(piece.rows, piece.hashes)
        if not piece.ids:
            return rows
        new = []
        ids = []
        for place in np.flatnonzero(rows < 0).tolist():
            raw = piece.ids.get(int(piece.hashes[place]))
            if raw is not None:
                new.append(place)
                ids.append(raw)
        rows[new] = self._learner.state.rows_of("items", ids)
        self._table.name_rows(rows[new])
        return rows

    def parts(self, batch: MicroBatch) -> list[LearnPart]:
        trained = self._are_before(batch, self._trained)
        counted = self._are_counted(batch)
        if not trained.any() and not counted.any():
            return [LearnPart(batch, True)]
        self._trained_by_others += int(trained.sum())
        self._count(batch.only(np.flatnonzero(trained & ~counted).tolist()))
        self._note_duplicates(batch, counted & ~trained)
        parts = []
        for part_is_counted in (True, False):
            events = np.flatnonzero(~trained & (counted == part_is_counted))
            if len(events):
                some = batch.only(events.tolist())
                parts.append(LearnPart(some, not part_is_counted))
        return parts

    def _are_before(
        self, batch: MicroBatch, ends: Mapping[Partition, int]
    ) -> NDArray[np.bool_]:
        """[B] whether each event is before the offset that is given for its partition."""
        found = np.zeros(len(batch), np.bool_)
        for partition, start, stop in batch.origins:
            end = ends.get(partition, 0)
            if batch.offsets[start] < end:
                found[start:stop] = np.array(batch.offsets[start:stop]) < end
        return found

    def _are_counted(self, batch: MicroBatch) -> NDArray[np.bool_]:
        """[B] whether somebody has counted each event."""
        partitions = {origin.partition for origin in batch.origins}
        ends = {p: self._table.version(self._name(p))[0] for p in partitions}
        return self._are_before(batch, ends)

    def _note_duplicates(self, batch: MicroBatch, events: NDArray[np.bool_]) -> None:
        """Note which events are trained and not counted."""
        self._duplicate_events += int(events.sum())
        for partition, start, stop in batch.origins:
            if events[start:stop].any() and partition not in self._logged_duplicates:
                # after a crash that is right, with another input of the same name not
                self._logged_duplicates.add(partition)
                logger.info(
                    "%s is counted up to offset %s: events before it are trained, not counted",
                    partition,
                    f"{self._table.version(self._name(partition))[0]:,}",
                )

    def _count(self, batch: MicroBatch) -> None:
        """Count events that others have trained, and whose counts we do not have."""
        state = self._learner.state
        rows = state.rows_of("items", batch.items)
        state.mark_seen("items", rows)
        state.item_counts.observe(rows)
        state.decayed_popularity.observe(rows)
        state.remove_cold_items(rows)
        self._add_batch(batch, rows)

    def _name(self, partition: Partition) -> str:
        return self._names.get(partition) or counts_of(str(partition))

    def contribute(self, part: LearnPart, learned: Learned) -> None:
        if not part.counted or not len(learned.items):
            return
        self._add_batch(part.batch, learned.items)
        self._add_drawn(learned)

    def _add_batch(self, batch: MicroBatch, items: Rows) -> None:
        for partition, start, stop in batch.origins:
            self._add_counted(self._name(partition), items[start:stop])

    def _add_counted(self, name: str, rows: Rows) -> None:
        self._additions.append((name, rows, np.ones(len(rows), np.int64)))

    def _add_drawn(self, learned: Learned) -> None:
        rows, counts = learned.drawn
        if len(rows):
            amounts = np.rint(counts).astype(np.int64)
            self._additions.append((self._table.own, rows, amounts))

    def advance(self, batch: MicroBatch) -> None:
        batch.trained_by_others = self._trained_by_others
        self._trained_by_others = 0
        positions = {self._name(p): at for p, at in batch.positions.items()}
        self._record(positions)

    def _record(self, positions: Mapping[str, int]) -> None:
        """Put what was contributed into our entries; all that the partitions have
        before these positions is in it.
        """
        state = self._learner.state
        versions: dict[str, Version] = {n: (int(at), 0) for n, at in positions.items()}
        for name, rows, _ in self._additions:
            state.changes.mark("items", rows)
            if name == self._table.own:
                versions[name] = self._table.next_draw()
            else:
                self._table.name_rows(rows)
                self._store.counted_events += len(rows)
        self._table.record(self._additions, versions)
        self._additions = []
        if state.trainer.method.extra == "cache":
            self._shared.drawn_cache = state.cache

    # the owner of partitions, on the reading thread -------------------------------------

    def claim(self, starts: Positions) -> Positions:
        self._note_names(starts)
        has_answered = self._wait_for_counts(starts)
        allowed = {}
        for partition, at in starts.items():
            name = self._names[partition]
            known = self._shared.newest(name)[0]
            is_new = has_answered and not known and not self._shared.is_behind(name)
            allowed[partition] = at if is_new else min(at, known)
            self._trained[partition] = int(at)
            # what nobody has counted before the start, nobody is going to acknowledge
            self._starts[name] = 0 if known else int(allowed[partition])
        return allowed

    def _wait_for_counts(self, starts: Positions) -> bool:
        """Wait until we know the counts of partitions that were read before; returns
        whether the server has answered.
        """
        names = [self._names[p] for p, at in starts.items() if at > 0]
        began = time.monotonic()
        has_answered = False
        while True:
            has_answered |= self._store.try_exchange()
            if all(self._shared.newest(name)[0] for name in names):
                return has_answered
            # a server that was just emptied gets its entries back from other trainers
            patience_s = ENTRIES_S * self._store.every_s if has_answered else CLAIM_S
            if time.monotonic() - began >= patience_s:
                return has_answered
            time.sleep(self._store.every_s / 4)

    def _note_names(self, starts: Positions) -> None:
        for partition, at in starts.items():
            name = _counts_name(partition, at)
            self._names[partition] = name
            self._shared.owned.add(name)
            self._logged_duplicates.discard(partition)

    def release(self, partitions: Iterable[Partition]) -> None:
        self._shared.owned -= {self._name(partition) for partition in partitions}

    def acknowledged(self, positions: Positions) -> Positions:
        found = {}
        for partition, at in positions.items():
            name = self._name(partition)
            top = self._shared.top(name)
            if self._table.version(name) > top:
                at = min(at, max(top[0], self._starts.get(name, 0)))
            found[partition] = at
        return found

    def flush(self) -> None:
        if not self._store.flush(FLUSH_S):
            status = self._store.status()
            why = status.problem or f"it did not accept them within {FLUSH_S:.0f} s"
            logger.warning(
                "%s events are not in the store yet: %s",
                f"{status.backlog_events:,}",
                why,
            )

    # checkpoints, and the end -----------------------------------------------------------

    def before_save(self) -> None:
        self._apply_all(self._shared.take(0))

    def save(self) -> dict[str, Any]:
        return {"entries": self._table.save()}

    def restore(self, values: dict[str, Any], positions: Positions) -> None:
        if values:
            self._table.restore(values["entries"])
            return
        self._table.restore([])
        state = self._learner.state
        rows = state.items.used
        counts = np.rint(state.item_counts.counts(rows)).astype(np.int64)
        drawn = np.rint(state.occurrence.values(rows)).astype(np.int64)
        before = f"{BEFORE}{self._store.trainer}"
        own = self._table.own
        versions: dict[str, Version] = {before: (1, 0), own: self._table.next_draw()}
        for partition, at in positions.items():
            versions[_counts_name(partition, at)] = (int(at), 0)
        self._table.record([(before, rows, counts), (own, rows, drawn)], versions)

    def status(self) -> StoreStatus:
        return replace(self._store.status(), duplicate_events=self._duplicate_events)

    def close(self) -> None:
        self._store.close(FLUSH_S)


def _counts_name(partition: Partition, at: int) -> str:
    return counts_of(str(partition), getattr(at, "topic_id", ""))


@contextmanager
def as_sharing_error() -> Iterator[None]:
    """Turn errors of the store into one that ends a run."""
    try:
        yield
    except StoreError as error:
        raise SharingError(str(error)) from error
