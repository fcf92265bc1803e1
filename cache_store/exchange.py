"""The exchange of a trainer with a server:

    join (if we have not) -> claim -> push what waits, and pull what has come -> compact
    or snapshot (if it is due)

Usually that is a single round trip: the server adds what we push, if it has lost
nothing of what we have, and returns what others have added. Otherwise it adds nothing,
and a pull shows what has happened: it was emptied, it has lost entries, it has started
another generation, or we were too slow.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from streamer.cache_store.codec import (
    MalformedEntry,
    StoreDelta,
    fingerprint,
    pack_delta,
    pack_rows,
    unpack_delta,
    unpack_rows,
)
from streamer.cache_store.contribution import (
    NO_ROWS,
    Counts,
    Increments,
    Rows,
    merged_spans,
    summed,
)
from streamer.cache_store.errors import StoreUnavailable
from streamer.cache_store.outbox import Waiting
from streamer.cache_store.replica import LogPosition, StoreReplica
from streamer.cache_store.server import (
    ENTRIES_AT_ONCE,
    IDS_AT_ONCE,
    Cursor,
    LogEntry,
    LogHead,
    Pulled,
    Push,
    PushOutcome,
    PushResult,
    Seed,
    StoreServer,
    ids_between,
)
from streamer.cache_store.state import TrainerState

logger = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
MAX_JOINS = 8
"""How often an exchange joins again because the server lacks what we left there."""
MAX_DIVERGED = 4
"""How often an exchange pushes again after it pulled what it lacked; the last two times
it retires nothing.
"""
NEW_GENERATION = "it has started a new generation"


class _Rejoin(Exception):  # noqa: N818
    """The server lacks what we left there: join again. Never leaves this module."""


class Exchange:
    """Keeps a trainer's state and a server in step. Not for several threads at once."""

    def __init__(self, server: StoreServer, state: TrainerState) -> None:
        self._server = server
        self._state = state
        self.joined = False
        self._cache_chain = ""
        self._last_push: dict[str, StoreDelta] = {}  # by its chain
        self._to_retire: list[
            int
        ] = []  # our rows of items that this exchange is to retire
        self._caught_up = False  # whether the replica held all of the log when the server last responded
        self._heartbeat_at = -np.inf

    def run(self) -> None:
        """Exchange once; join again and start over if the server lacks what we left
        there.

        Raises:
            StoreError: the server cannot be used now, or not at all.
        """
        with self._measured():
            for _ in range(MAX_JOINS):
                try:
                    return self._run_once()
                except _Rejoin as reason:
                    logger.info("Joining the store again: %s", reason)
                    self.joined = False
            raise StoreUnavailable(
                "broken",
                f"the store has changed {MAX_JOINS} times during one exchange: it is damaged, or another program writes"
                " to it; `streamer store reset` removes the model",
            )

    def _run_once(self) -> None:
        try:
            # 1. join
            if not self.joined:
                self._join()
            # 2. claim our partitions
            self._claim()
            # 3. push what waits; that pulls, too
            self._push_all()
            # 4. pull what others have added
            if not self._caught_up:
                self._pull_all()
            self._drop_duplicates()
            # 5. remove retired rows, or write a snapshot
            self._compact_if_due()
            self._snapshot_if_due()
            self._heartbeat()
        except Exception:
            with self._state.lock:
                self._state.row_map.forget_unconfirmed()
            raise

    @contextmanager
    def _measured(self) -> Iterator[None]:
        state = self._state
        status = self._state.status
        started = state.clock()
        cpu = time.thread_time()
        with state.lock:
            waited = state.outbox.events if status.problem is not None else 0
        try:
            yield
            with state.changed:
                if status.problem is not None:
                    logger.warning(
                        "The store responds again; %s events had waited for it",
                        f"{waited:,}",
                    )
                status.problem = None
                status.exchanges += 1
                status.round_trip_s = state.clock() - started
                state.changed.notify_all()
        finally:
            status.exchange_cpu_s += time.thread_time() - cpu

    # 1. join ----------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Continue from our replica if it is of this generation; else load the server's
        state, or seed the server.
        """
        state = self._state
        head = self._server.pull(state.replica.position, 0, self._cache_chain).head
        if head is not None and not state.generation:
            self._load()
        elif head is None or head.generation != state.generation:
            self._seed()
        self._pull_all()
        with state.lock:
            state.partitions.claim_again()
            self.joined = True
            state.status.joins += 1

    def _seed(self, replaces: str = "", head: str = "") -> None:
        """Seed the server with our state, without retired rows; load the server's state
        if that is to stay.

        With `head`, the server has all that we have, and only if that is the chain of
        its newest entry.
        """
        state = self._state
        beginning = LogPosition.beginning(secrets.token_hex(8))
        replica = state.replica
        origin = replica.position if state.generation else None
        next_offsets = replica.next_offsets
        epochs = state.partitions.epochs
        with state.lock:
            compact = replica.without_retired(beginning)
            ids = [raw for raw in state.row_map.ids if raw is not None]
            packed = compact.pack()
        state_of = (
            beginning.generation,
            packed,
            ids,
            next_offsets,
            epochs,
            origin,
            replaces,
            replica.events,
        )
        if not self._server.seed(Seed(*state_of, head)):
            self._load()
            return
        with state.lock:
            if replica.retired.any():
                state.load(compact, ids)
                state.status.seeds += 1
                return
            replica.position = beginning
            state.row_map.forget_unconfirmed()
            state.status.seeds += 1
            for waiting in state.outbox.waiting:
                waiting.attempts = 0
                waiting.accepted = False
        if origin is not None:
            logger.warning(
                "The store was empty or had lost entries: seeded it with %s events",
                f"{replica.events:,}",
            )

    def _load(self) -> None:
        """Load the server's state; what it lacks of ours is sent again."""
        packed = self._server.snapshot()
        if packed is None:
            raise StoreUnavailable(
                "broken",
                "the store has no snapshot; `streamer store reset` removes the model",
            )
        try:
            replica = StoreReplica.unpack(packed)
        except MalformedEntry as error:
            raise StoreUnavailable(
                "broken", f"the snapshot in the store cannot be read: {error}"
            ) from error
        head = self._server.pull(replica.position, 0, "").head
        if (
            head is None
            or head.generation != replica.position.generation
            or head.items < replica.size
        ):
            raise _Rejoin(NEW_GENERATION)
        ids = self._ids_from(0, head)
        with self._state.lock:
            self._state.load(replica, ids)
            self._cache_chain = ""

    # 2. claim ---------------------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        state = self._state
        unclaimed = self._state.partitions.unclaimed
        with state.lock:
            requests = dict(unclaimed)
        if not requests:
            return
        claims = self._server.claim(state.generation, state.trainer, requests)
        if claims is None:
            raise _Rejoin(NEW_GENERATION)
        with state.changed:
            for name, claim in claims.items():
                if unclaimed.get(name) is not requests[name]:
                    continue  # it was released or assigned again meanwhile
                if not claim.ours:
                    raise state.fence(name)
                state.claimed(name, claim)
            state.changed.notify_all()

    # 3. push ----------------------------------------------------------------------------------------------------------

    def _push_all(self) -> None:
        """Push what was sent before and did not come back, one by one as it was; then
        all the rest in one entry.
        """
        state = self._state
        diverged = 0
        self._caught_up = False
        with state.lock:
            upto = (
                state.outbox.last_number
            )  # what comes meanwhile goes with the next exchange
            for waiting in state.outbox.waiting:
                waiting.accepted = (
                    False  # the server may have lost it since an earlier exchange
                )
            self._to_retire = list(state.retiring)[:IDS_AT_ONCE]
        while (chosen := self._next_to_send(upto)) or self._to_retire:
            try:
                push = self._packed(chosen)
            except Exception:
                self._not_sent(chosen)
                raise
            result = self._server.push(push)
            diverged += result.outcome is PushOutcome.DIVERGED
            if 2 * diverged >= MAX_DIVERGED:
                self._to_retire = []
            if not self._handle(result, chosen) or diverged == MAX_DIVERGED:
                return

    def _next_to_send(self, upto: int) -> list[Waiting]:
        with self._state.lock:
            self._to_retire = [
                item for item in self._to_retire if item in self._state.retiring
            ]
            waiting = self._state.outbox.waiting
            doubtful = [w for w in waiting if w.attempts and not w.accepted]
            chosen = doubtful[:1] or [
                w for w in waiting if not w.attempts and w.number <= upto
            ]
            for one in chosen:
                one.attempts += 1
            return chosen

    def _not_sent(self, waiting: list[Waiting]) -> None:
        """Note that nothing of it has arrived this time; an earlier time it may have."""
        with self._state.lock:
            for one in waiting:
                one.attempts -= 1

    def _packed(self, waiting: list[Waiting]) -> Push:
        """One entry for several contributions: they are added up, and our rows become
        the store's.

        With the last of them go the items that are to be retired, once all that we
        contributed to them is in the log.
        """
        state = self._state
        row_map = self._state.row_map
        retire = [] if waiting and waiting[0].attempts > 1 else self._to_retire
        self._assign_missing(waiting, retire)
        with state.lock:
            contributions = [w.contribution for w in waiting]
            items = summed([c.item_counts for c in contributions])
            drawn = summed([c.drawn for c in contributions])
            cache = next(
                (c.cache for c in reversed(contributions) if c.cache is not None),
                NO_ROWS,
            )
            cache = row_map.rows_of(cache)
            cache = cache[cache >= 0]
            retiring = np.array(
                [item for item in retire if item in state.retiring], np.int64
            )
            retired = np.unique(row_map.rows_of(retiring))
            retired_ids = [row_map.own_ids[item] for item in retiring.tolist()]
            items, drawn = (
                _ascending(row_map.rows_of(part.rows), part.counts)
                for part in (items, drawn)
            )
        spans = merged_spans(span for c in contributions for span in c.spans)
        last = waiting[-1].number if waiting else 0
        delta = StoreDelta(
            state.trainer, last, int(items.counts.sum()), spans, items, drawn, retired
        )
        with state.lock:
            epochs = [
                (span, state.partitions.epochs.get(span.partition, 0)) for span in spans
            ]
            known = (
                len(state.row_map.ids),
                state.row_map.fingerprint,
                self._cache_chain,
            )
        cursor = Cursor(state.replica.position, *known, ENTRIES_AT_ONCE)
        size = 1 + max(
            int(r.max(initial=-1)) for r in (items.rows, drawn.rows, cache, retired)
        )
        packed = pack_delta(delta)
        packed_cache = pack_rows(cache) if len(cache) else None
        push = Push(
            state.generation,
            cursor,
            secrets.token_hex(8),
            packed,
            epochs,
            packed_cache,
            size,
            retired_ids,
        )
        self._last_push = {push.chain: delta}
        state.status.sent_bytes += len(packed) + len(packed_cache or b"")
        return push

    def _assign_missing(self, waiting: list[Waiting], retire: Sequence[int]) -> None:
        """Have the server assign the store's rows of ours that have none yet."""
        state = self._state
        row_map = self._state.row_map
        if not self._without_row(waiting, retire):
            return
        self._pull_all()  # only a server that has lost nothing assigns rows that will last
        unknown = self._without_row(
            waiting, retire
        )  # of what others have retired nothing waits any more
        for start in range(0, len(unknown), IDS_AT_ONCE):
            some = unknown[start : start + IDS_AT_ONCE]
            assigned = self._server.assign(
                state.generation, [row_map.own_ids[row] for row in some]
            )
            if assigned is None:
                raise _Rejoin(NEW_GENERATION)
            with state.lock:
                row_map.assign(some, assigned)

    def _without_row(self, waiting: list[Waiting], retire: Sequence[int]) -> list[int]:
        """Our rows of items that have no row of the store yet."""
        state = self._state
        with state.lock:
            parts = [
                part
                for w in waiting
                for part in (w.contribution.items, w.contribution.drawn.rows)
            ]
            parts += [
                w.contribution.cache
                for w in waiting[-1:]
                if w.contribution.cache is not None
            ]
            parts.append(
                np.array([item for item in retire if item in state.retiring], np.int64)
            )
            own = np.unique(np.concatenate(parts))
            found: list[int] = own[state.row_map.rows_of(own) < 0].tolist()
            return found

    def _handle(self, result: PushResult, waiting: list[Waiting]) -> bool:
        """Act on the outcome of a push; returns whether there may be more to push."""
        state = self._state
        partition = result.partition
        self._caught_up = False
        state.status.log_length = result.length or state.status.log_length
        match result.outcome:
            case PushOutcome.ADDED | PushOutcome.DUPLICATE:
                with state.lock:
                    for one in waiting:
                        one.accepted = True
                if result.pulled is not None:
                    self._apply(result.pulled)
            case PushOutcome.OVERLAP:
                with state.lock:
                    state.cut(
                        waiting, lambda contribution: contribution.since(result.next)
                    )
            case PushOutcome.FENCED:
                with state.lock:
                    if state.partitions.is_claimed(partition):
                        raise state.fence(partition)
                    state.drop_refused(waiting, partition)
            case PushOutcome.LOG_FULL:
                self._not_sent(waiting)
                return False
            case PushOutcome.DIVERGED:
                self._not_sent(waiting)
                self._pull_all()
            case PushOutcome.EMPTY:
                raise _Rejoin("it is empty")
            case PushOutcome.WRONG_GENERATION:
                raise _Rejoin(NEW_GENERATION)
        return True

    def _drop_duplicates(self) -> None:
        """Drop what the server has accepted without adding it to its log: others have
        contributed the same events.
        """
        with self._state.lock:
            duplicates = [w for w in self._state.outbox.waiting if w.accepted]
            if duplicates:
                self._state.cut(duplicates, lambda _: None)

    # 4. pull ----------------------------------------------------------------------------------------------------------

    def _pull_all(self) -> None:
        """Pull up to the head of the log."""
        self._caught_up = False
        while not self._caught_up:
            pulled = self._server.pull(
                self._state.replica.position, ENTRIES_AT_ONCE, self._cache_chain
            )
            if pulled.head is None:
                raise _Rejoin("it is empty")
            if pulled.head.generation != self._state.generation:
                raise _Rejoin(NEW_GENERATION)
            self._apply(pulled)

    def _apply(self, pulled: Pulled) -> None:
        """Add the entries that follow on ours, new item ids and the newest cache."""
        state = self._state
        head = pulled.head
        assert head is not None
        self._check_chain(pulled, head)
        ids = self._ids_from(len(state.row_map.ids), head)
        new_fingerprint = fingerprint(ids, state.row_map.fingerprint)
        if new_fingerprint != head.fingerprint:
            self._load()
            raise _Rejoin("it has lost items, and given their rows to others")
        items = len(state.row_map.ids) + len(ids)
        deltas = [
            (self._delta(entry, items), entry.position) for entry in pulled.entries
        ]
        cache = None
        try:
            cache = (
                unpack_rows(pulled.cache, items) if pulled.cache is not None else None
            )
        except MalformedEntry as error:  # the next that a trainer sends takes its place
            logger.warning(
                "Ignored the cache in the store, which cannot be read: %s", error
            )
        received = sum(len(entry.packed) for entry in pulled.entries)
        if pulled.cache is not None and pulled.cache_chain not in self._last_push:
            received += len(pulled.cache)
        with state.lock:
            state.status.received_bytes += received
            state.add_ids(ids, new_fingerprint)
            for delta, position in deltas:
                state.apply(delta, position)
            if pulled.cache is not None:
                state.inbox.cache = cache
                self._cache_chain = pulled.cache_chain
            state.status.log_length = head.length
            self._caught_up = state.replica.position.number >= head.number
            if self._caught_up:
                state.caught_up_at = state.clock()

    def _check_chain(self, pulled: Pulled, head: LogHead) -> None:
        """Raise `_Rejoin` if something is missing between what we have and what was
        pulled: the server has lost what we have, and was seeded; or the log was
        trimmed, and we have loaded."""
        _, number, chain, _ = self._state.replica.position
        first = pulled.entries[0] if pulled.entries else None
        lost = head.number < number or (head.number == number and head.chain != chain)
        lost |= head.items < len(self._state.row_map.ids)
        if first is not None and first.position.number <= number + 1:
            lost |= first.previous_chain != chain
        if lost:
            self._seed(replaces=head.generation)
            raise _Rejoin("it had lost what we still have")
        if head.number > number and (
            first is None or first.position.number > number + 1
        ):
            self._load()
            raise _Rejoin("the log was trimmed before we read it")

    def _delta(self, entry: LogEntry, items: int) -> StoreDelta:
        try:
            return self._last_push.get(entry.position.chain) or unpack_delta(
                entry.packed, items
            )
        except MalformedEntry as error:
            place = f"entry {entry.position.stream_id} of the store's log"
            advice = "do all trainers have the same version? `streamer store reset` removes the model"
            raise StoreUnavailable(
                "broken", f"{place} cannot be read: {error}; {advice}"
            ) from error

    def _ids_from(self, first: int, head: LogHead) -> list[str]:
        ids = ids_between(self._server, head.generation, first, head.items)
        if ids is None:
            raise _Rejoin("it has lost items, or started a new generation")
        return ids

    # 5. snapshot ------------------------------------------------------------------------------------------------------

    def _compact_if_due(self) -> None:
        """Begin a generation without the retired rows, when they are more than those
        that have an item.

        Meanwhile nothing is added to the log, so that nothing is lost: what waits in
        the trainers is sent afterwards.
        """
        state = self._state
        retired = int(self._state.replica.retired.sum())
        if retired <= max(state.settings.retired_rows, state.replica.size // 2):
            return
        if self._server.pause(state.trainer):
            self._pull_all()
            self._seed(state.generation, state.replica.position.chain)
            raise _Rejoin("its retired rows are removed")

    def _snapshot_if_due(self) -> None:
        state = self._state
        replica = self._state.replica
        due = state.status.log_length >= state.settings.soft_log_length
        if due and self._server.may_snapshot(state.trainer):
            with state.lock:
                packed = replica.pack()
            state.status.snapshots += self._server.save_snapshot(
                state.trainer, replica.position, packed
            )
            state.status.log_length = 0

    def _heartbeat(self) -> None:
        if self._state.clock() - self._heartbeat_at >= HEARTBEAT_S:
            self._heartbeat_at = self._state.clock()
            self._server.heartbeat(
                self._state.trainer, ", ".join(sorted(self._state.partitions.owned))
            )


def _ascending(rows: Rows, counts: Counts) -> Increments:
    order = np.argsort(
        rows, kind="stable"
    )  # quick where they ascend already, as most do
    return Increments(rows[order], counts[order])
