"""The trainer's side of a store: a replica, an outbox, and the exchange with a server.

An exchange is

    join (if we are not in) -> claim -> pull -> push -> pull -> snapshot (if it is due)

With a server in memory it happens inside `contribute`; with one behind a network, every so often, on a thread of its
own. The training thread only ever takes a lock that is never held while the network is waited for.

How old is what a trainer sees? Its own contributions are in its view at once. Those of others, and the cache, are
exchanged every `every_s`: while the server answers, a view lacks at most what was contributed in the last
2 x `every_s` and two round trips.

Who refreshes the cache? Every trainer, with every exchange: it sends the cache that it drew last from its own view of
the occurrence vector, and the last one sent is the cache of all.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_store.adding import Adder
from cache_store.base import (
    Contribution,
    Delta,
    Increments,
    Received,
    Rows,
    Span,
    StoreStatus,
    Totals,
)
from cache_store.codec import Entry, Malformed, fingerprint, pack_entry, pack_rows, unpack_entry, unpack_rows
from cache_store.errors import Fenced, StoreError, StoreUnavailable
from cache_store.outbox import Outbox, Waiting, counted, joined, without
from cache_store.replica import Position, Replica
from cache_store.server import SOFT_LOG_LENGTH, Claim, Pulled, Push, Pushed, Seed, Server, Stamped, Tip, Wanted

logger = logging.getLogger(__name__)

ENTRIES_AT_ONCE = 128
IDS_AT_ONCE = 10_000
MOST_DELTAS = 4096
"""If a trainer takes in nothing for so long, it gets the totals instead."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 2.0
SAY_AGAIN_S = 30.0
BEAT_S = 2.0
NO_ROWS: Rows = np.empty(0, np.int64)
ROUNDS = 8
"""How often an exchange begins again, if the server is not where we left it."""


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """How a trainer takes part.

    Args:
        every_s: seconds between exchanges.
        live_s: a server that has not answered for so long is out of touch.
        soft_log_length: entries of the log after which it is trimmed.
        most_waiting: contributions that wait one by one before they are added up.
        keep_s: how long contributions are kept that have arrived, for a server that loses them.
        inline_every: contributions between exchanges with a server in memory; more than one is for a server that is
            shared with nobody.
    """

    every_s: float = 0.1
    live_s: float = 2.0
    soft_log_length: int = SOFT_LOG_LENGTH
    most_waiting: int = 256
    keep_s: float = 30.0
    inline_every: int = 1


class _Lost(Exception):  # noqa: N818
    """The server is not where we left it: join again. Never leaves this module."""


class SharedStore:
    """A `CacheStore` over a server. See `cache_store.base` for what each method promises.

    Args:
        server: where the shared state is; closed with this.
        settings: how to take part.
        trainer: our name, for a person; made unique.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        server: Server,
        settings: SharedSettings | None = None,
        trainer: str = "trainer",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self.settings, self._clock = server, settings or SharedSettings(), clock
        self.trainer = f"{trainer}-{secrets.token_hex(4)}"
        self._lock = threading.RLock()
        self._exchanging = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._replica: Replica | None = None
        self._outbox = Outbox(self.settings.most_waiting, self.settings.keep_s)
        self._shared_ids: list[str] = []  # by the store's rows
        self._names = ""  # their fingerprint
        self._rows = np.full(0, -1, np.int64)  # the store's row of each of ours
        self._naming = 0  # grows when the store's rows of items may be others than before
        self._told: list[tuple[int, Rows]] = []  # a row of the store, and which of ours are that one and the next
        self._own_ids: Sequence[str] = ()
        self._adder = Adder()
        self._owned: dict[str, int | None] = {}
        self._claims: dict[str, Claim] = {}
        self._unclaimed: dict[str, Wanted] = {}
        self._seen: dict[str, int] = {}
        self._given_up: dict[str, int] = {}  # from where on contributions were refused
        self._inbox = Received()
        self._reset = False
        self._cache_chain = ""
        self._joined = False
        self._fenced: Fenced | None = None
        self._status = StoreStatus(kind=server.kind)
        self._caught_up_at = self._said_at = self._beat_at = -np.inf
        self._pause_s = FIRST_PAUSE_S
        self._wanted = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    # what the trainer calls -------------------------------------------------------------------------------------------

    def start(self) -> None:
        try:
            self.exchange()
        except StoreUnavailable as error:
            if self._replica is None:
                raise
            self._in_trouble(error)
        if not self._server.inline:
            self._thread = threading.Thread(target=self._run, name="store", daemon=True)
            self._thread.start()

    def claim(self, partitions: Mapping[str, int | None], timeout_s: float = 5.0) -> bool:
        with self._lock:
            for name, end in partitions.items():
                self._owned[name] = end
                self._unclaimed[name] = Wanted(self._epoch(name), end, anew=True)
                if end is not None and self._outbox.reach(name) > end:
                    self._reset = True
                if end is not None:
                    self._outbox.forget_beyond(name, end)
                self._seen[name] = self._outbox.reach(name)  # what waits will be counted
        self._poke()
        return self._wait_for(lambda: not self._unclaimed.keys() & partitions.keys(), timeout_s)

    def release(self, partitions: Sequence[str]) -> None:
        with self._lock:
            for name in partitions:
                self._owned.pop(name, None)
                self._seen.pop(name, None)
                self._unclaimed.pop(name, None)

    def fresh(self, spans: Sequence[Span], sources: NDArray[np.int32], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        with self._lock:
            first = np.array([self._seen.get(span.partition, 0) for span in spans], np.int64)
        return offsets >= first[sources]

    def seen(self, partition: str) -> int:
        with self._lock:
            return self._seen.get(partition, 0)

    def untold(self, partition: str) -> int | None:
        with self._lock:
            return self._outbox.first(partition)

    def refused(self, partition: str) -> int | None:
        with self._lock:
            return self._given_up.pop(partition, None)

    def receive(self) -> Received:
        with self._lock:
            if self._fenced is not None:
                raise self._fenced
            return self._taken()

    def _taken(self) -> Received:
        received, self._inbox = self._inbox, Received()
        received.live, received.naming = self._is_live(), self._naming
        if self._reset and self._replica is not None:
            self._reset = False
            self._replica.grow(len(self._shared_ids))
            pending = tuple(w.contribution for w in self._outbox.waiting)
            received.reset = Totals(self._replica.counts.copy(), self._replica.drawn.copy(), pending)
            received.ids, received.deltas = list(self._shared_ids), []
        return received

    def named(self, naming: int, first: int, own: Rows) -> None:
        with self._lock:
            if naming == self._naming:
                self._told.append((first, own))

    def contribute(self, contribution: Contribution, ids: Sequence[str]) -> None:
        with self._lock:
            self._own_ids = ids
            self._outbox.add(contribution)
            for span in contribution.spans:
                self._seen[span.partition] = max(self._seen.get(span.partition, 0), span.stop)
        if self._server.inline and len(self._outbox.waiting) >= self.settings.inline_every:
            self._poke()

    def flush(self, timeout_s: float) -> bool:
        self._poke()
        with self._lock:
            upto = self._outbox.last
        return self._wait_for(lambda: all(w.number > upto for w in self._outbox.waiting), timeout_s)

    def status(self) -> StoreStatus:
        with self._lock:
            waiting = self._outbox.waiting
            return replace(
                self._status,
                live=self._is_live(),
                staleness_s=max(0.0, self._clock() - self._caught_up_at) if self._replica is not None else 0.0,
                backlog_contributions=len(waiting),
                backlog_events=self._outbox.events,
                errors=dict(self._status.errors),
            )

    def close(self, timeout_s: float = 5.0) -> None:
        if self._closing:
            return
        if self._thread is not None and self._fenced is None:
            self.flush(timeout_s if self._is_live() else 0.0)
        self._closing = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        self._server.close()

    # the recovery unit ------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any], Received]:
        if self._server.inline:
            self._poke()  # so that nothing waits
        with self._lock:
            received = self._taken()
            replica = self._replica or Replica(Position.beginning(""))
            arrays: dict[str, NDArray[Any]] = {"counts": replica.counts.copy(), "drawn": replica.drawn.copy()}
            waiting = [_listed(k, w.contribution, arrays) for k, w in enumerate(self._outbox.waiting)]
            epochs = {name: claim.epoch for name, claim in self._claims.items()}
            values = {"replica": replica.values(), "waiting": waiting, "epochs": epochs}
            return arrays, values | {"refused": dict(self._given_up)}, received

    def load_state(
        self, arrays: Mapping[str, NDArray[Any]], values: dict[str, Any], ids: Sequence[str], own: Rows
    ) -> None:
        replica = Replica.of(values["replica"], arrays["counts"], arrays["drawn"])
        if not replica.position.generation:
            return
        self._replica, self._own_ids = replica, ids
        self._shared_ids = [ids[row] for row in own.tolist()]
        self._names = fingerprint(self._shared_ids)
        self._rows = np.full(len(ids), -1, np.int64)
        self._rows[own] = np.arange(len(own))
        for k, spans in enumerate(values["waiting"]):
            self._outbox.add(_contribution(k, spans, arrays))
        self._claims = {name: Claim(epoch, None) for name, epoch in values["epochs"].items()}
        self._given_up = dict(values.get("refused", {}))

    # the exchange -----------------------------------------------------------------------------------------------------

    def exchange(self) -> None:
        """One round with the server; may be called at any time, by any thread.

        1. join, if we are not in;
        2. claim what is ours;
        3. pull what others have added, and see that nothing is lost;
        4. push what waits, and pull it back;
        5. write a snapshot, if it is due.

        Raises:
            StoreError: the server cannot be used now, or not at all.
        """
        with self._exchanging, self._accounted():
            for _ in range(ROUNDS):
                try:
                    return self._round()
                except _Lost as lost:
                    logger.info("joining the store again: %s", lost)
                    self._joined = False
            raise StoreUnavailable("broken", "the store is not where we left it, again and again")

    def _round(self) -> None:
        try:
            self._steps()
        except Exception:
            self._rows[self._rows >= len(self._shared_ids)] = -1  # were given, and may be lost by the next time
            raise

    def _steps(self) -> None:
        if not self._joined:
            self._join()
        self._claim()
        self._pull_all()
        if self._outbox.waiting:
            self._push_all()
            self._pull_all()
            self._drop_known()
        self._snapshot_if_due()
        self._beat()

    @contextmanager
    def _accounted(self) -> Iterator[None]:
        started, cpu = self._clock(), time.thread_time()
        try:
            yield
            with self._changed:
                if self._status.trouble is not None:
                    logger.warning("the store answers again; %s contributions waited", len(self._outbox.waiting))
                self._status.trouble, self._pause_s = None, FIRST_PAUSE_S
                self._status.exchanges += 1
                self._status.round_trip_s = self._clock() - started
                self._changed.notify_all()
        finally:
            self._status.exchange_cpu_s += time.thread_time() - cpu

    # 1.

    def _join(self) -> None:
        """Go on where we were, if the log still has it; else take over what is there; seed what is empty."""
        position = self._replica.position if self._replica is not None else Position.beginning("")
        tip = self._server.pull(position, 0, self._cache_chain).tip
        if tip is None:
            self._seed(instead_of="")
        elif self._replica is None:
            self._load()
        elif tip.generation != position.generation:
            self._seed(instead_of="")
        self._pull_all()
        with self._lock:
            for name in self._owned:
                self._unclaimed.setdefault(name, Wanted(self._epoch(name), self._end(name), anew=False))
            self._joined = True
            self._status.joined += 1

    def _seed(self, instead_of: str) -> None:
        """Give the server what we have, or take what it has, if that is more."""
        if not self._offer(instead_of):
            self._load()

    def _offer(self, instead_of: str) -> bool:
        """Seed the server with what we have; False if it is not wanted."""
        generation = secrets.token_hex(8)
        ours = self._replica or Replica(Position.beginning(generation))
        origin = self._replica.position if self._replica is not None else None
        seed = Replica.of(ours.values() | {"position": list(Position.beginning(generation))}, ours.counts, ours.drawn)
        epochs = {name: claim.epoch for name, claim in self._claims.items()}
        offer = Seed(generation, seed.pack(), self._shared_ids, seed.next, epochs, origin, instead_of)
        if not self._server.seed(offer):
            return False
        with self._lock:
            self._replica = seed
            self._forget_rows()
            self._status.seeded += 1
            for waiting in self._outbox.waiting:
                waiting.sent = waiting.known = False
        if origin is not None and not self._server.inline:
            logger.warning("the store was empty or had lost something: seeded it with %s events", f"{seed.events:,}")
        return True

    def _forget_rows(self) -> None:
        """Rows that the server has given since are not in the seed, and it may give them to others."""
        ids, given = self._shared_ids, np.flatnonzero(self._rows >= 0)
        pairs = zip(given.tolist(), self._rows[given].tolist(), strict=True)
        lost = [own for own, row in pairs if row >= len(ids) or ids[row] != self._own_ids[own]]
        self._rows[lost] = -1

    def _load(self) -> None:
        """Take over what the server has, and send again what it lacks of ours."""
        packed = self._server.snapshot()
        if packed is None:
            raise StoreUnavailable("broken", "the store has no snapshot; `streamer store reset` begins anew")
        try:
            replica = Replica.unpack(packed)
        except Malformed as error:
            raise StoreUnavailable("broken", f"the snapshot in the store cannot be read: {error}") from error
        tip = self._server.pull(replica.position, 0, "").tip
        if tip is None or tip.generation != replica.position.generation or tip.items < replica.size:
            raise _Lost("it has begun a new generation")
        ids = self._ids_after(0, tip)
        with self._lock:
            self._replica, self._shared_ids, self._names = replica, ids, fingerprint(ids)
            self._rows = np.full(0, -1, np.int64)
            self._naming, self._told = self._naming + 1, []
            self._inbox, self._reset = Received(), True
            self._cache_chain = ""
            for name in self._owned:
                self._begin_anew(name)
            self._outbox.recall(replica.next)

    # 2.

    def _claim(self) -> None:
        with self._lock:
            wanted = dict(self._unclaimed)
        if not wanted:
            return
        claims = self._server.claim(self._generation, self.trainer, wanted)
        if claims is None:
            raise _Lost("it has begun a new generation")
        with self._changed:
            for name, claim in claims.items():
                if self._unclaimed.get(name) is wanted[name]:
                    self._claimed(name, claim)
            self._changed.notify_all()

    def _claimed(self, name: str, claim: Claim) -> None:
        if not claim.ours:
            raise self._taken_over(name)
        self._claims[name] = claim
        self._seen[name] = max(self._seen.get(name, 0), claim.next or 0)
        self._begin_anew(name)
        del self._unclaimed[name]

    def _begin_anew(self, name: str) -> None:
        """Where a partition ends before what the store had of it, the server forgets that; so does the replica."""
        end = self._end(name)
        if end is not None and self._replica_now.next.get(name, 0) > end:
            del self._replica_now.next[name]

    def _end(self, name: str) -> int | None:
        """The offset beyond which nothing can be contributed of a partition of ours but by us; None if not known."""
        end = self._owned[name]
        return None if end is None else max(end, self._seen.get(name, 0))

    def _epoch(self, partition: str) -> int:
        claim = self._claims.get(partition)
        return claim.epoch if claim is not None else 0

    # 3.

    def _pull_all(self) -> None:
        """Up to the end of the log."""
        while not self._pull_some():
            pass
        with self._lock:
            self._caught_up_at = self._clock()

    def _pull_some(self) -> bool:
        """Take in some entries; True at the end of the log."""
        pulled = self._server.pull(self._replica_now.position, ENTRIES_AT_ONCE, self._cache_chain)
        if pulled.tip is None:
            raise _Lost("it is empty")
        if pulled.tip.generation != self._generation:
            raise _Lost("it has begun a new generation")
        self._check_chain(pulled)
        ids = self._ids_after(len(self._shared_ids), pulled.tip)
        names = fingerprint(ids, self._names)
        if names != pulled.tip.names:
            self._load()
            raise _Lost("it has lost items, and named others since")
        entries = [(stamped, self._entry(stamped)) for stamped in pulled.entries]
        self._status.received_bytes += sum(len(s.packed) for s in pulled.entries) + len(pulled.cache or b"")
        with self._lock:
            self._shared_ids += ids
            self._names = names
            self._inbox.ids += ids
            for stamped, entry in entries:
                self._take_in(stamped, entry)
            if pulled.cache is not None:
                self._inbox.cache = unpack_rows(pulled.cache)
                self._cache_chain = pulled.cache_chain
            self._status.log_length = pulled.tip.length
            return self._replica_now.position.number >= pulled.tip.number

    def _check_chain(self, pulled: Pulled) -> None:
        """See that nothing is missing between what we have and what comes.

        Raises:
            _Lost: we were too slow and the log was trimmed, or the server has lost what we have.
        """
        assert pulled.tip is not None
        _, number, chain, _ = self._replica_now.position
        tip, first = pulled.tip, pulled.entries[0] if pulled.entries else None
        ahead = tip.number < number or (tip.number == number and tip.chain != chain)
        ahead |= tip.items < len(self._shared_ids)
        if first is not None and first.position.number <= number + 1:
            ahead |= first.before != chain
        if ahead:
            self._seed(instead_of=tip.generation)
            raise _Lost("it had lost what we still have")
        if tip.number > number and (first is None or first.position.number > number + 1):
            self._load()
            raise _Lost("we were too slow, the log was trimmed")

    def _entry(self, stamped: Stamped) -> Entry:
        try:
            return unpack_entry(stamped.packed)
        except Malformed as error:
            place = f"entry {stamped.position.entry} of the store's log"
            raise StoreUnavailable(
                "broken", f"{place} cannot be read: {error}; do all trainers have the same version?"
            ) from error

    def _ids_after(self, known: int, tip: Tip) -> list[str]:
        found: list[str] = []
        while (first := known + len(found)) < tip.items:
            part = self._server.ids(tip.generation, first, min(tip.items - first, IDS_AT_ONCE))
            if not part:
                raise _Lost("it has begun a new generation" if part is None else "it has lost items")
            found += part
        return found

    def _take_in(self, stamped: Stamped, entry: Entry) -> None:
        self._replica_now.apply(entry, stamped.position)
        if entry.trainer == self.trainer:
            self._outbox.included(entry.last, self._clock())
            return
        if not self._reset:
            self._inbox.deltas.append(Delta(entry.events, entry.items, entry.drawn))
        if len(self._inbox.deltas) > MOST_DELTAS:
            self._inbox.deltas, self._reset = [], True

    # 4.

    def _push_all(self) -> None:
        """What was sent before and is not answered goes first, as it was; then all the rest in one entry."""
        upto = self._outbox.last  # what comes meanwhile goes with the next exchange
        while parcel := self._parcel(upto):
            if not self._pushed(parcel, self._server.push(self._packed(parcel))):
                return

    def _parcel(self, upto: int) -> list[Waiting]:
        with self._lock:
            doubtful = [w for w in self._outbox.waiting if w.sent and not w.known]
            unsent = [w for w in self._outbox.waiting if not w.sent and w.number <= upto]
            parcel = doubtful[:1] or unsent
            for waiting in parcel:
                waiting.sent = True
            return parcel

    def _packed(self, parcel: list[Waiting]) -> Push:
        contributions = [w.contribution for w in parcel]
        counts = [counted(c) for c in contributions]
        cache = next((c.cache for c in reversed(contributions) if c.cache is not None), NO_ROWS)
        self._name([*(c.rows for c in counts), *(c.drawn.rows for c in contributions), cache])
        items, drawn = (self._translated(part) for part in (counts, [c.drawn for c in contributions]))
        cache = self._rows[cache]
        spans = joined([span for c in contributions for span in c.spans])
        entry = Entry(self.trainer, parcel[-1].number, int(items.counts.sum()), spans, items, drawn)
        with self._lock:
            epochs = [(span, self._epoch(span.partition)) for span in spans]
        named = max(int(rows.max(initial=-1)) + 1 for rows in (items.rows, drawn.rows, cache))
        packed_cache = pack_rows(cache) if len(cache) else None
        push = Push(self._generation, secrets.token_hex(8), pack_entry(entry), epochs, packed_cache, named)
        self._status.sent_bytes += len(push.packed) + len(packed_cache or b"")
        return push

    def _translated(self, parts: list[Increments]) -> Increments:
        """All of them added up, with the store's rows."""
        total = self._adder.summed(parts)
        return Increments(self._rows[total.rows], total.counts)

    def _name(self, parts: Sequence[Rows]) -> None:
        """Have rows of the store given to those of our items that have none."""
        with self._lock:
            told, self._told = self._told, []
        if len(self._own_ids) > len(self._rows):
            more = np.full(max(len(self._own_ids), 2 * len(self._rows)) - len(self._rows), -1, np.int64)
            self._rows = np.concatenate([self._rows, more])
        for first, own in told:
            self._rows[own] = np.arange(first, first + len(own))
        unknown = sorted({row for rows in parts for row in rows[self._rows[rows] < 0].tolist()})
        for start in range(0, len(unknown), IDS_AT_ONCE):
            part = unknown[start : start + IDS_AT_ONCE]
            given = self._server.assign(self._generation, [self._own_ids[row] for row in part])
            if given is None:
                raise _Lost("it has begun a new generation")
            self._rows[part] = given

    def _pushed(self, parcel: list[Waiting], pushed: Pushed) -> bool:
        """See what became of it; True if there may be more to push."""
        numbers = [w.number for w in parcel]
        self._status.log_length = pushed.length or self._status.log_length
        if pushed.outcome in ("added", "known"):
            with self._lock:
                for waiting in parcel:
                    waiting.known = True
            return True
        if pushed.outcome == "overlap":
            self._cut(numbers, lambda c: c.after(pushed.next))
            return True
        if pushed.outcome == "fenced":
            return self._refused(numbers, pushed.partition)
        if pushed.outcome == "full":
            with self._lock:
                for waiting in parcel:
                    waiting.sent = False
            return False
        raise _Lost("it is empty" if pushed.outcome == "empty" else "it has begun a new generation")

    def _cut(self, numbers: list[int], to: Callable[[Contribution], Contribution | None]) -> None:
        """Leave out what is not to be counted; our view counted it, so it is made anew."""
        with self._lock:
            self._outbox.change(numbers, to)
            self._reset = True

    def _refused(self, numbers: list[int], partition: str) -> bool:
        with self._lock:
            if partition not in self._owned or partition in self._unclaimed:
                before, first = self._outbox.events, self._outbox.first(partition)
                if first is not None:
                    self._given_up[partition] = min(first, self._given_up.get(partition, first))
                self._cut(numbers, lambda c: without(c, partition))
                refused = before - self._outbox.events
                self._status.refused_events += refused
                logger.warning("%s events of %s are not counted: it is others' now", refused, partition)
                return True
            raise self._taken_over(partition)

    def _taken_over(self, partition: str) -> Fenced:
        self._fenced = Fenced(
            f"another trainer has taken over {partition}: this process must have been out of touch for long. "
            "It stops, so that nothing is counted twice; start it again to rejoin"
        )
        return self._fenced

    def _drop_known(self) -> None:
        """What the server has, and did not come in the log, were others' contributions of the same events."""
        with self._lock:
            known = [w.number for w in self._outbox.waiting if w.known]
            if known:
                self._cut(known, lambda _: None)

    # 5.

    def _snapshot_if_due(self) -> None:
        replica = self._replica_now
        due = self._status.log_length >= self.settings.soft_log_length
        if due and self._server.may_snapshot(self.trainer):
            if self._server.save_snapshot(self.trainer, replica.position, replica.pack()):
                self._status.snapshots += 1
            self._status.log_length = 0

    def _beat(self) -> None:
        if self._clock() - self._beat_at >= BEAT_S:
            self._beat_at = self._clock()
            self._server.beat(self.trainer, ", ".join(sorted(self._owned)))

    # the thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._wanted.wait(self.settings.every_s)
            self._wanted.clear()
            try:
                self.exchange()
            except StoreError as error:
                self._in_trouble(error)
                if self._fenced is not None:
                    return
                self._wait_out()
            except Exception as error:
                logger.exception("the exchange with the store has failed; it is tried again")
                self._in_trouble(StoreUnavailable("broken", f"the exchange with the store has failed: {error!r}"))
                self._joined = False
                self._wait_out()

    def _wait_out(self) -> None:
        deadline = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
        while not self._closing and self._clock() < deadline:
            time.sleep(min(0.05, self._pause_s))

    def _in_trouble(self, error: StoreError) -> None:
        """Say it once in a while, and count it."""
        reason = error.reason if isinstance(error, StoreUnavailable) else type(error).__name__.lower()
        with self._changed:
            self._status.errors[reason] = self._status.errors.get(reason, 0) + 1
            again = self._status.trouble is not None and self._clock() - self._said_at < SAY_AGAIN_S
            self._status.trouble = str(error)
            self._changed.notify_all()
        if not again:
            self._said_at = self._clock()
            logger.warning("training goes on with the last view: %s", error)

    def _poke(self) -> None:
        """Exchange, now or soon; what goes wrong is told by `receive` and `status`."""
        if not self._server.inline:
            self._wanted.set()
        elif self._joined:
            try:
                self.exchange()
            except StoreError as error:
                self._in_trouble(error)

    def _wait_for(self, done: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not done():
                left_s = deadline - time.monotonic()
                gone = self._closing or self._fenced is not None or not self._is_live()
                if left_s <= 0 or gone or self._server.inline:
                    return False
                self._changed.wait(min(left_s, 0.05))
            return True

    def _is_live(self) -> bool:
        if self._server.inline:
            return True
        return self._clock() - self._caught_up_at < max(self.settings.live_s, 5 * self.settings.every_s)

    @property
    def _replica_now(self) -> Replica:
        assert self._replica is not None, "not joined"
        return self._replica

    @property
    def _generation(self) -> str:
        return self._replica_now.position.generation


def _listed(k: int, contribution: Contribution, arrays: dict[str, NDArray[Any]]) -> list[list[Any]]:
    """Put a contribution's arrays beside the others'; answers its spans."""
    parts: dict[str, NDArray[Any]] = {
        "sources": contribution.sources,
        "offsets": contribution.offsets,
        "items": contribution.items,
    }
    parts |= {"rows": contribution.drawn.rows, "counts": contribution.drawn.counts}
    if contribution.counted is not None:
        parts |= {"counted.rows": contribution.counted.rows, "counted.counts": contribution.counted.counts}
    arrays |= {f"waiting.{k}.{name}": array for name, array in parts.items()}
    return [list(span) for span in contribution.spans]


def _contribution(k: int, spans: list[list[Any]], arrays: Mapping[str, NDArray[Any]]) -> Contribution:
    """What `_listed` was given; caches are not kept."""
    part = {name.removeprefix(f"waiting.{k}."): a for name, a in arrays.items() if name.startswith(f"waiting.{k}.")}
    added_up = Increments(part["counted.rows"], part["counted.counts"]) if "counted.rows" in part else None
    drawn = Increments(part["rows"], part["counts"])
    where = tuple(Span(name, start, stop) for name, start, stop in spans)
    return Contribution(where, part["sources"], part["offsets"], part["items"], drawn, None, added_up)
