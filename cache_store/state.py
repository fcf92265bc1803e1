"""What one trainer has of the shared state, between its training thread and its
exchange with a server.

    replica (the log up to a position) + the trainer's own contributions that are not in
    it yet

and what of that the training thread has not received yet.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.codec import StoreDelta
from streamer.cache_store.contribution import (
    NO_ROWS,
    Contribution,
    Counts,
    Rows,
    summed,
)
from streamer.cache_store.errors import Fenced
from streamer.cache_store.outbox import Outbox, Waiting
from streamer.cache_store.replica import LogPosition, StoreReplica
from streamer.cache_store.row_map import RowMap
from streamer.cache_store.server import SOFT_LOG_LENGTH, Claim, ClaimRequest

logger = logging.getLogger(__name__)

MAX_INBOX_ROWS = 1_000_000
MAX_INBOX_ROWS_PER_ITEM = 4
"""When more rows of others wait than both allow, the training thread gets totals
instead of deltas.
"""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How a trainer takes part."""

    every_s: float = 1.0  # between exchanges
    live_s: float = 2.0  # a server that has not responded for longer, and for five exchanges, is not live
    soft_log_length: int = (
        SOFT_LOG_LENGTH  # entries of the log after which it is trimmed
    )
    max_waiting: int = 256  # contributions that wait one by one before they are merged
    keep_s: float = 30.0  # how long acknowledged contributions are kept, for a server that loses them
    retired_rows: int = 1024  # that the store may have, and as many as rows with an item, before they are removed


@dataclass(slots=True)
class StoreStatus:
    """What an operator wants to know of a store; all counters are of this process."""

    kind: str = "none"
    live: bool = True
    problem: str | None = None  # what is wrong now, in a sentence; None if nothing is
    round_trip_s: float = 0.0
    staleness_s: float = (
        0.0  # since the replica was last known to hold everything that is in the store
    )
    backlog_contributions: int = 0
    backlog_events: int = 0
    log_length: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    exchanges: int = 0
    exchange_cpu_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)
    seeds: int = 0
    joins: int = 0
    snapshots: int = 0
    refused_events: int = 0  # whose contribution was dropped because another trainer owned the partition by then
    duplicate_events: int = (
        0  # that were trained and not counted because the store had counted them before
    )
    retired_events: int = (
        0  # of ours that were dropped because their item had been retired by then
    )


@dataclass(frozen=True, slots=True)
class Totals:
    """All of the shared state, by the store's rows, and our own contributions that it
    does not hold.

    Rows that are retired count nothing.
    """

    counts: Counts  # [N] events of each item
    drawn: Counts  # [N] how often each item was resampled
    pending: tuple[Contribution, ...]


class Corrected(NamedTuple):
    """What is counted of items that we retired, and that others or we ourselves had
    events of before all knew.
    """

    items: Rows  # our rows
    counts: Counts
    drawn: Counts


@dataclass(slots=True)
class Received:
    """What has come since the last time. A trainer whose server is not live continues
    and draws its own caches.
    """

    retired: list[int] = field(
        default_factory=list
    )  # our rows of items that were retired; they go before `ids` come
    retired_rows: list[int] = field(
        default_factory=list
    )  # the store's rows of all items that were retired
    ids: list[str | None] = field(
        default_factory=list
    )  # of items that have got a row since, in the order of their
    # rows; None for one that was retired already
    reset: Totals | None = (
        None  # replaces everything that was received before; `ids` then begin with row 0
    )
    deltas: list[StoreDelta] = field(
        default_factory=list
    )  # what others added, after `reset`
    corrected: Corrected | None = None  # items whose counts are these, after `deltas`
    cache: Rows | None = None  # by the store's rows; None if there is no newer one
    live: bool = True  # whether the server responds
    row_version: int = 0  # for `CacheStore.map_rows`


class Partitions:
    """Which partitions are ours, in which epoch, and which of their events are counted."""

    def __init__(self) -> None:
        self.owned: dict[str, int | None] = {}
        """Ours, with the offset after the last record when they were assigned, as far
        as it was known.
        """
        self.epochs: dict[str, int] = {}
        """In which we claimed each partition last, also those that are not ours any
        more.
        """
        self.unclaimed: dict[str, ClaimRequest] = {}
        """Ours, but the server does not know yet."""
        self.counted: dict[str, int] = {}
        """Events before these offsets are counted: in the store, or in our outbox."""
        self.refused: dict[str, int] = {}
        """The first offset whose contribution was refused."""

    def assign(self, name: str, end: int | None, counted: int) -> None:
        """Note that a partition is ours now, and that its events before `counted` are
        counted.
        """
        self.owned[name] = end
        self.counted[name] = counted
        self.unclaimed[name] = ClaimRequest(
            self.epochs.get(name, 0), end, assigned=True
        )

    def claim_again(self) -> None:
        """Claim all of ours from a server that may have forgotten us."""
        for name in self.owned:
            request = ClaimRequest(
                self.epochs.get(name, 0), self.end(name), assigned=False
            )
            self.unclaimed.setdefault(name, request)

    def claimed(self, name: str, claim: Claim) -> None:
        """Note that the server knows that a partition is ours."""
        self.epochs[name] = claim.epoch
        self.count(name, claim.next or 0)
        del self.unclaimed[name]

    def release(self, name: str) -> None:
        """Note that a partition is not ours any more."""
        for known in (self.owned, self.counted, self.unclaimed):
            known.pop(name, None)

    def count(self, name: str, upto: int) -> None:
        """Note that events before this offset are counted."""
        self.counted[name] = max(self.counted.get(name, 0), upto)

    def end(self, name: str) -> int | None:
        """The offset beyond which only we can have contributed to a partition of ours;
        None if not known.
        """
        end = self.owned[name]
        return None if end is None else max(end, self.counted.get(name, 0))

    def is_claimed(self, name: str) -> bool:
        """Whether it is ours, and the server knows."""
        return name in self.owned and name not in self.unclaimed


class TrainerState:
    """Replica, outbox and inbox of a trainer. Whoever uses them holds `lock`, never
    while the network is waited for.

    Only the exchange changes the replica's position and offsets, and reads those
    without the lock. Our name, `trainer`, is for a person and is made unique; `kind` is
    that of the server.
    """

    def __init__(
        self,
        settings: StoreSettings,
        trainer: str,
        kind: str,
        clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.trainer = f"{trainer}-{secrets.token_hex(4)}"
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.replica = StoreReplica(LogPosition.beginning(""))
        self.outbox = Outbox(settings.max_waiting, settings.keep_s)
        self.row_map = RowMap()
        self.partitions = Partitions()
        self.retiring: dict[int, bool] = {}
        """Our rows of items to be retired, and whether they are also if others have had
        events of them since.
        """
        self._to_correct: set[int] = set()
        self.inbox = Received()
        self._inbox_rows = 0
        self.reset_due = False
        """Whether the training thread is to receive totals instead of deltas."""
        self.fenced: Fenced | None = None
        self.status = StoreStatus(kind=kind)
        self.caught_up_at = -np.inf

    @property
    def generation(self) -> str:
        """Of the replica; empty if there is none yet."""
        return self.replica.position.generation

    @property
    def live(self) -> bool:
        """Whether the server responds."""
        return self.clock() - self.caught_up_at < max(
            self.settings.live_s, 5 * self.settings.every_s
        )

    # to the training thread -------------------------------------------------------------------------------------------

    def take_received(self) -> Received:
        """Empty the inbox."""
        received = self.inbox
        self.inbox = Received()
        self._inbox_rows = 0
        received.live = self.live
        received.row_version = self.row_map.version
        if self._to_correct and not self.reset_due:
            received.corrected = self._corrected(received.ids)
        self._to_correct = set()
        if self.reset_due and self.generation:
            self.reset_due = False
            pending = tuple(w.contribution for w in self.outbox.waiting)
            received.reset = Totals(
                self.replica.counts.copy(), self.replica.drawn.copy(), pending
            )
            received.ids = list(self.row_map.ids)
            received.deltas = []
        return received

    def _corrected(self, new_ids: list[str | None]) -> Corrected:
        """What is counted of items now: in the replica, and in what waits. `new_ids`
        are those of the last rows.
        """
        items = np.array(sorted(self._to_correct), np.int64)
        row_map = self.row_map
        rows = row_map.rows_of(items)
        first = len(row_map.ids) - len(new_ids)
        for k in np.flatnonzero(
            rows < 0
        ).tolist():  # the training thread gets its row now
            raw = row_map.own_ids[int(items[k])]
            rows[k] = first + new_ids.index(raw) if raw in new_ids else -1
        pending = [w.contribution for w in self.outbox.waiting]
        totals = []
        for stored, added in (
            (self.replica.counts, summed([c.item_counts for c in pending])),
            (self.replica.drawn, summed([c.drawn for c in pending])),
        ):
            total = np.zeros(len(items), np.int64)
            pulled = (rows >= 0) & (
                rows < len(stored)
            )  # a row that was assigned just now counts nothing yet
            total[pulled] = stored[rows[pulled]]
            found = np.isin(items, added.rows)
            total[found] += added.counts[np.searchsorted(added.rows, items[found])]
            totals.append(total)
        return Corrected(items, *totals)

    def used_items(self) -> Rows:
        """Our rows of items that have a row of the store, or are on their way there."""
        known = np.array(
            [*self.retiring, *self._to_correct, *self.inbox.retired], np.int64
        )
        return np.unique(
            np.concatenate([known, self.row_map.mapped(), self.outbox.items()])
        )

    # from the training thread -----------------------------------------------------------------------------------------

    def contribute(self, contribution: Contribution) -> None:
        """Let a contribution wait. An item of it that was to be retired stays; one that
        others retired is left out.
        """
        if self.inbox.retired:
            gone = np.array(self.inbox.retired, np.int64)
            before = contribution.events
            contribution = contribution.without_items(gone)
            self.status.retired_events += before - contribution.events
        if self.retiring:
            self._keep(contribution.items)
            self._keep(contribution.drawn.rows)
        self.outbox.add(contribution)
        for span in contribution.spans:
            self.partitions.count(span.partition, span.stop)

    def retire(self, items: Rows, *, force: bool) -> None:
        """Retire items by our rows with the next exchange; unless `force`, not if
        others have had events of them.
        """
        chosen = set(items.tolist()).difference(self.inbox.retired)
        self._to_correct -= chosen
        self.retiring |= dict.fromkeys(sorted(chosen), force)

    def _keep(self, items: Rows, *, others: bool = False) -> None:
        """Do not retire those of some of our rows that were to be."""
        kept = [
            item
            for item in set(items.tolist()) & self.retiring.keys()
            if not (others and self.retiring[item])
        ]
        for item in kept:
            del self.retiring[item]
        self._to_correct.update(kept)

    # from the server --------------------------------------------------------------------------------------------------

    def load(self, replica: StoreReplica, ids: list[str]) -> None:
        """Replace our state by the server's; what that lacks of ours is sent again.

        If it has all events that we know of, items that we have counted and it does not
        know are retired. Those that we were about to retire because they are old come
        again.
        """
        replica.grow(len(ids))
        self.inbox = Received(retired=self.inbox.retired)
        self.reset_due = True
        self._note_retired(self._missing(replica, ids))
        self.retiring = {item: force for item, force in self.retiring.items() if force}
        self.inbox.retired_rows = []
        self.replica = replica
        self.row_map.reset(ids, np.flatnonzero(replica.retired))
        for name in self.partitions.owned:
            self._drop_recreated(name)
        self.outbox.requeue(replica.next_offsets)

    def _missing(self, replica: StoreReplica, ids: list[str]) -> Rows:
        """Rows of items that were retired between our state and the server's, which has
        all events of ours.
        """
        for partition, offset in self.replica.next_offsets.items():
            if replica.next_offsets.get(partition, 0) < offset:
                return NO_ROWS
        known = {
            raw
            for raw, retired in zip(ids, replica.retired.tolist(), strict=True)
            if not retired
        }
        counted = np.flatnonzero(self.replica.counts[: len(self.row_map.ids)])
        return np.array(
            [row for row in counted.tolist() if self.row_map.ids[row] not in known],
            np.int64,
        )

    def claimed(self, partition: str, claim: Claim) -> None:
        """Note that the server knows that a partition is ours."""
        self.partitions.claimed(partition, claim)
        self._drop_recreated(partition)

    def _drop_recreated(self, partition: str) -> None:
        """Forget how far a partition is counted if it ends before: it was recreated,
        and the server forgets it too.
        """
        end = self.partitions.end(partition)
        if end is not None and self.replica.next_offsets.get(partition, 0) > end:
            del self.replica.next_offsets[partition]

    def add_ids(self, ids: list[str], fingerprint: str) -> None:
        """Append ids that were pulled; `fingerprint` is that of all."""
        self.row_map.extend(ids, fingerprint)
        self.replica.grow(len(self.row_map.ids))
        self.inbox.ids += ids

    def apply(self, delta: StoreDelta, position: LogPosition) -> None:
        """Add the entry that follows in the log."""
        ours = delta.trainer == self.trainer
        delta = self.replica.apply(delta, position)
        if ours:
            self.outbox.acknowledge(delta.last, self.clock())
        elif self.retiring:
            items = np.array(list(self.retiring), np.int64)
            self._keep(
                items[np.isin(self.row_map.rows_of(items), delta.items.rows)],
                others=True,
            )
        if len(delta.retired):
            self._note_retired(delta.retired)
        if ours:
            return
        if not self.reset_due:
            self.inbox.deltas.append(delta)
            self._inbox_rows += len(delta.items.rows) + len(delta.drawn.rows)
        if self._inbox_rows > max(
            MAX_INBOX_ROWS, MAX_INBOX_ROWS_PER_ITEM * len(self.row_map.ids)
        ):
            self.inbox.deltas = []
            self.reset_due = True
            self._inbox_rows = 0

    def _note_retired(self, rows: Rows) -> None:
        """Items of these rows of the store are retired: what waits of them is dropped."""
        own = self.row_map.retire(rows)
        self.status.retired_events += self.outbox.drop_items(own)
        for item in own.tolist():
            self.retiring.pop(item, None)
        self._to_correct.difference_update(own.tolist())
        self.inbox.retired += own.tolist()
        self.inbox.retired_rows += rows.tolist()
        first = len(self.row_map.ids) - len(self.inbox.ids)
        for row in rows[rows >= first].tolist():
            self.inbox.ids[row - first] = None

    def cut(
        self,
        waiting: Iterable[Waiting],
        to: Callable[[Contribution], Contribution | None],
    ) -> None:
        """Replace or drop contributions. The training thread has counted what is
        dropped, so it gets totals.
        """
        self.outbox.change([w.number for w in waiting], to)
        self.reset_due = True

    def drop_refused(self, waiting: Iterable[Waiting], partition: str) -> None:
        """Drop the events of a partition that another trainer owns by now."""
        before = self.outbox.events
        first = self.outbox.first_offset(partition)
        if first is not None:
            self.partitions.refused[partition] = min(
                first, self.partitions.refused.get(partition, first)
            )
        self.cut(waiting, lambda c: c.without(partition))
        dropped = before - self.outbox.events
        self.status.refused_events += dropped
        logger.warning(
            "Dropped %s uncounted events of %s: another trainer owns the partition now",
            dropped,
            partition,
        )

    def fence(self, partition: str) -> Fenced:
        """Note that another trainer has claimed what is ours: this one must stop."""
        self.fenced = Fenced(
            f"another trainer has claimed {partition}: this process was disconnected for too long, or the other one "
            "reads the same input. This one stops, so that nothing is counted twice; start it again to rejoin"
        )
        return self.fenced

    # checkpoints ------------------------------------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything that a restart needs: arrays and plain values."""
        arrays: dict[str, NDArray[Any]] = {
            "replica": np.frombuffer(self.replica.pack(), np.uint8)
        }
        pending = [w.contribution for w in self.outbox.waiting]
        for k, contribution in enumerate(pending):
            arrays |= {
                f"waiting.{k}.{name}": array
                for name, array in contribution.arrays().items()
            }
        arrays["retiring"] = np.array(list(self.retiring.items()), np.int64).reshape(
            -1, 2
        )
        values = {
            "epochs": dict(self.partitions.epochs),
            "refused": dict(self.partitions.refused),
        }
        waiting = [[list(span) for span in c.spans] for c in pending]
        return arrays, values | {
            "waiting": waiting,
            "fingerprint": self.row_map.fingerprint,
        }

    def restore(
        self,
        arrays: Mapping[str, NDArray[Any]],
        values: dict[str, Any],
        own_ids: Sequence[str],
        own: Rows,
    ) -> None:
        """Continue from what `save` returned; see `CacheStore.restore`."""
        replica = StoreReplica.unpack(arrays["replica"].tobytes())
        if not replica.position.generation:
            return
        replica.grow(len(own))
        self.replica = replica
        self.row_map.restore(own_ids, own, values.get("fingerprint", ""))
        self.retiring = {
            item: bool(force)
            for item, force in arrays.get("retiring", np.empty((0, 2))).tolist()
        }
        for k, spans in enumerate(values["waiting"]):
            prefix = f"waiting.{k}."
            ours = {
                name.removeprefix(prefix): a
                for name, a in arrays.items()
                if name.startswith(prefix)
            }
            self.outbox.add(Contribution.from_arrays(spans, ours))
        self.partitions.epochs = dict(values["epochs"])
        self.partitions.refused = dict(values["refused"])
