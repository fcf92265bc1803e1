"""The exchange of a trainer with a server:

    join (if we are not in) -> claim -> push what waits, and pull what has come -> snapshot (if it is due)

Usually that is a single round trip: the server adds what is pushed, if it has lost nothing of what we have, and answers
with what others have added. Otherwise it adds nothing, and a pull tells what has happened: it was emptied, it has lost
something, it was given up for another generation, or we were too slow.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from streamer.cache_store.adding import Adder
from streamer.cache_store.base import Contribution, Increments, Rows
from streamer.cache_store.codec import Entry, Malformed, fingerprint, pack_entry, pack_rows, unpack_entry, unpack_rows
from streamer.cache_store.errors import StoreUnavailable
from streamer.cache_store.outbox import Waiting, counted, joined
from streamer.cache_store.replica import Position, Replica
from streamer.cache_store.server import (
    ENTRIES_AT_ONCE,
    IDS_AT_ONCE,
    Pulled,
    Push,
    Pushed,
    Seed,
    Server,
    Stamped,
    Stand,
    Tip,
)
from streamer.cache_store.view import View

logger = logging.getLogger(__name__)

BEAT_S = 2.0
NO_ROWS: Rows = np.empty(0, np.int64)
ROUNDS = 8
"""How often an exchange begins again, if the server is not where we left it."""
PUSHES = 4
"""How often a push is tried in an exchange, if we lacked something that the server has."""


class _Lost(Exception):  # noqa: N818
    """The server is not where we left it: join again. Never leaves this module."""


class Exchange:
    """Keeps a trainer's view and a server in step. Not for several threads at once.

    Args:
        server: where the shared state is.
        view: the trainer's part of it.
    """

    def __init__(self, server: Server, view: View) -> None:
        self._server, self._view = server, view
        self.is_in = False
        """Whether we have joined."""
        self._adder = Adder()
        self._cache_chain = ""
        self._sent: tuple[str, Entry] | None = None  # what was pushed last, by its chain
        self._at_end = False  # whether the replica held all of the log when the server last answered
        self._beat_at = -np.inf

    def run(self) -> None:
        """One exchange.

        1. join, if we are not in;
        2. claim what is ours;
        3. push what waits, and see that nothing is lost;
        4. pull what others have added;
        5. write a snapshot, if it is due.

        Raises:
            StoreError: the server cannot be used now, or not at all.
        """
        with self._accounted():
            for _ in range(ROUNDS):
                try:
                    return self._round()
                except _Lost as lost:
                    logger.info("joining the store again: %s", lost)
                    self.is_in = False
            raise StoreUnavailable(
                "broken",
                "the store is not where we left it, again and again: it is damaged, or something else writes to it; "
                "`streamer store reset` begins anew",
            )

    def _round(self) -> None:
        try:
            self._steps()
        except Exception:
            self._view.naming.forget_unsure()
            raise

    def _steps(self) -> None:
        if not self.is_in:
            self._join()
        self._claim()
        self._at_end = False
        self._push_all()
        if not self._at_end:
            self._pull_all()
        self._drop_known()
        self._snapshot_if_due()
        self._beat()

    @contextmanager
    def _accounted(self) -> Iterator[None]:
        view, status = self._view, self._view.status
        started, cpu = view.clock(), time.thread_time()
        with view.lock:
            waited = view.outbox.events if status.trouble is not None else 0
        try:
            yield
            with view.changed:
                if status.trouble is not None:
                    logger.warning("the store answers again; %s events had waited for it", f"{waited:,}")
                status.trouble = None
                status.exchanges += 1
                status.round_trip_s = view.clock() - started
                view.changed.notify_all()
        finally:
            status.exchange_cpu_s += time.thread_time() - cpu

    # 1. join ----------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Go on where we were, if the log still has it; else take over what is there; seed what is empty."""
        view = self._view
        position = view.replica.position if view.replica is not None else Position.beginning("")
        tip = self._server.pull(position, 0, self._cache_chain).tip
        if tip is None:
            self._seed(instead_of="")
        elif view.replica is None:
            self._load()
        elif tip.generation != position.generation:
            self._seed(instead_of="")
        self._pull_all()
        with view.lock:
            view.partitions.want_again()
            self.is_in = True
            view.status.joined += 1

    def _seed(self, instead_of: str) -> None:
        """Give the server what we have, or take what it has, if that is more."""
        if not self._offer(instead_of):
            self._load()

    def _offer(self, instead_of: str) -> bool:
        """Seed the server with what we have; False if it is not wanted."""
        view, generation = self._view, secrets.token_hex(8)
        ours = view.replica or Replica(Position.beginning(generation))
        origin = view.replica.position if view.replica is not None else None
        seed = Replica.of(ours.values() | {"position": list(Position.beginning(generation))}, *ours.arrays())
        epochs = view.partitions.epochs
        offer = Seed(generation, seed.pack(), view.naming.ids, seed.next, epochs, origin, instead_of, seed.events)
        if not self._server.seed(offer):
            return False
        with view.lock:
            view.replica = seed
            view.naming.forget_others()
            view.status.seeded += 1
            for waiting in view.outbox.waiting:
                waiting.times, waiting.known = 0, False
        if origin is not None and not self._server.inline:
            logger.warning("the store was empty or had lost something: seeded it with %s events", f"{seed.events:,}")
        return True

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
        with self._view.lock:
            self._view.take_over(replica, ids)
            self._cache_chain = ""

    # 2. claim ---------------------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        view, unclaimed = self._view, self._view.partitions.unclaimed
        with view.lock:
            wanted = dict(unclaimed)
        if not wanted:
            return
        claims = self._server.claim(view.generation, view.trainer, wanted)
        if claims is None:
            raise _Lost("it has begun a new generation")
        with view.changed:
            for name, claim in claims.items():
                if unclaimed.get(name) is not wanted[name]:
                    continue
                if not claim.ours:
                    raise view.taken_over(name)
                view.claimed(name, claim)
            view.changed.notify_all()

    # 3. push ----------------------------------------------------------------------------------------------------------

    def _push_all(self) -> None:
        """What was sent before and did not come back goes first, as it was; then all the rest in one entry."""
        upto, tries = self._view.outbox.last, PUSHES  # what comes meanwhile goes with the next exchange
        with self._view.lock:
            for waiting in self._view.outbox.waiting:
                waiting.known = False  # the server may have lost since what it had in an earlier exchange
        while parcel := self._parcel(upto):
            try:
                push = self._packed(parcel)
            except Exception:
                self._held_back(parcel)
                raise
            pushed = self._server.push(push)
            if pushed.outcome == "astray":
                tries -= 1
            if not self._pushed(parcel, pushed) or not tries:
                return

    def _parcel(self, upto: int) -> list[Waiting]:
        with self._view.lock:
            waiting = self._view.outbox.waiting
            doubtful = [w for w in waiting if w.sent and not w.known]
            unsent = [w for w in waiting if not w.sent and w.number <= upto]
            parcel = doubtful[:1] or unsent
            for one in parcel:
                one.times += 1
            return parcel

    def _held_back(self, parcel: list[Waiting]) -> None:
        """This time nothing of it has arrived; an earlier time it may have."""
        with self._view.lock:
            for waiting in parcel:
                waiting.times -= 1

    def _packed(self, parcel: list[Waiting]) -> Push:
        """One entry for several contributions: our rows become the store's, and are added up."""
        view, contributions = self._view, [w.contribution for w in parcel]
        counts, draws = [counted(c) for c in contributions], [c.drawn for c in contributions]
        cache = next((c.cache for c in reversed(contributions) if c.cache is not None), NO_ROWS)
        *rows, cache = self._named([*(part.rows for part in (*counts, *draws)), cache])
        named = [Increments(r, part.counts) for r, part in zip(rows, (*counts, *draws), strict=True)]
        items, drawn = self._adder.summed(named[: len(counts)]), self._adder.summed(named[len(counts) :])
        spans = joined([span for c in contributions for span in c.spans])
        entry = Entry(view.trainer, parcel[-1].number, int(items.counts.sum()), spans, items, drawn)
        with view.lock:
            epochs = [(span, view.partitions.epoch(span.partition)) for span in spans]
        needed = max(int(rows.max(initial=-1)) + 1 for rows in (items.rows, drawn.rows, cache))
        packed_cache = pack_rows(cache) if len(cache) else None
        push = Push(view.generation, secrets.token_hex(8), pack_entry(entry), epochs, packed_cache, needed, self._stand)
        self._sent = (push.chain, entry)
        view.status.sent_bytes += len(push.packed) + len(packed_cache or b"")
        return push

    @property
    def _stand(self) -> Stand:
        naming, position = self._view.naming, self._view.joined.position
        return Stand(position, len(naming.ids), naming.fingerprint, self._cache_chain, ENTRIES_AT_ONCE)

    def _named(self, parts: Sequence[Rows]) -> list[Rows]:
        """The store's rows of ours; those of our items that have none are given some."""
        naming = self._view.naming
        with self._view.lock:
            naming.take_in_told()
        found = [naming.rows_of(rows) for rows in parts]
        if all(rows.min(initial=0) >= 0 for rows in found):
            return found
        self._pull_all()  # only a server that has lost nothing gives rows that will last
        unnamed = {own for rows, of in zip(parts, found, strict=True) for own in rows[of < 0].tolist()}
        self._name(sorted(unnamed))
        return [naming.rows_of(rows) for rows in parts]

    def _name(self, unnamed: list[int]) -> None:
        naming = self._view.naming
        for start in range(0, len(unnamed), IDS_AT_ONCE):
            part = unnamed[start : start + IDS_AT_ONCE]
            given = self._server.assign(self._view.generation, [naming.own_ids[row] for row in part])
            if given is None:
                raise _Lost("it has begun a new generation")
            naming.give(part, given)

    def _pushed(self, parcel: list[Waiting], pushed: Pushed) -> bool:
        """See what became of it; True if there may be more to push."""
        view, outcome = self._view, pushed.outcome
        self._at_end = False
        view.status.log_length = pushed.length or view.status.log_length
        if outcome in ("added", "known"):
            with view.lock:
                for waiting in parcel:
                    waiting.known = True
            if pushed.pulled is not None:
                self._take_in(pushed.pulled)
            return True
        if outcome == "overlap":
            return self._cut(parcel, lambda c: c.after(pushed.next))
        if outcome == "fenced":
            return self._refused(parcel, pushed.partition)
        if outcome in ("full", "astray"):
            self._held_back(parcel)
            if outcome == "astray":
                self._pull_all()
            return outcome == "astray"
        raise _Lost("it is empty" if outcome == "empty" else "it has begun a new generation")

    def _cut(self, parcel: list[Waiting], to: Callable[[Contribution], Contribution | None]) -> bool:
        """Leave out what is not to be counted."""
        with self._view.lock:
            self._view.cut([w.number for w in parcel], to)
        return True

    def _refused(self, parcel: list[Waiting], partition: str) -> bool:
        with self._view.lock:
            if self._view.partitions.is_settled(partition):
                raise self._view.taken_over(partition)
            self._view.give_up([w.number for w in parcel], partition)
        return True

    def _drop_known(self) -> None:
        """What the server has, and did not come in the log, were others' contributions of the same events."""
        with self._view.lock:
            known = [w for w in self._view.outbox.waiting if w.known]
            if known:
                self._cut(known, lambda _: None)

    # 4. pull ----------------------------------------------------------------------------------------------------------

    def _pull_all(self) -> None:
        """Up to the end of the log."""
        self._at_end = False
        while not self._at_end:
            pulled = self._server.pull(self._view.joined.position, ENTRIES_AT_ONCE, self._cache_chain)
            if pulled.tip is None:
                raise _Lost("it is empty")
            if pulled.tip.generation != self._view.generation:
                raise _Lost("it has begun a new generation")
            self._take_in(pulled)

    def _take_in(self, pulled: Pulled) -> None:
        """Entries that follow on ours, and the newest cache."""
        view, tip = self._view, pulled.tip
        assert tip is not None
        self._check_chain(pulled, tip)
        ids = self._ids_after(len(view.naming.ids), tip)
        names = fingerprint(ids, view.naming.fingerprint)
        if names != tip.names:
            self._load()
            raise _Lost("it has lost items, and named others since")
        entries = [(self._entry(stamped), stamped.position) for stamped in pulled.entries]
        cache = self._unpacked_cache(pulled)
        others = pulled.cache if pulled.cache is not None and not self._is_ours(pulled.cache_chain) else b""
        view.status.received_bytes += sum(len(s.packed) for s in pulled.entries) + len(others)
        with view.lock:
            view.add_names(ids, names)
            for entry, position in entries:
                view.add(entry, position)
            if pulled.cache is not None:
                view.inbox.cache = cache
                self._cache_chain = pulled.cache_chain
            view.status.log_length = tip.length
            self._at_end = view.joined.position.number >= tip.number
            if self._at_end:
                view.caught_up_at = view.clock()

    def _check_chain(self, pulled: Pulled, tip: Tip) -> None:
        """See that nothing is missing between what we have and what comes.

        Raises:
            _Lost: we were too slow and the log was trimmed, or the server has lost what we have.
        """
        _, number, chain, _ = self._view.joined.position
        first = pulled.entries[0] if pulled.entries else None
        ahead = tip.number < number or (tip.number == number and tip.chain != chain)
        ahead |= tip.items < len(self._view.naming.ids)
        if first is not None and first.position.number <= number + 1:
            ahead |= first.before != chain
        if ahead:
            self._seed(instead_of=tip.generation)
            raise _Lost("it had lost what we still have")
        if tip.number > number and (first is None or first.position.number > number + 1):
            self._load()
            raise _Lost("we were too slow, the log was trimmed")

    def _entry(self, stamped: Stamped) -> Entry:
        if self._sent is not None and self._is_ours(stamped.position.chain):
            return self._sent[1]
        try:
            return unpack_entry(stamped.packed)
        except Malformed as error:
            place = f"entry {stamped.position.entry} of the store's log"
            raise StoreUnavailable(
                "broken", f"{place} cannot be read: {error}; do all trainers have the same version?"
            ) from error

    def _unpacked_cache(self, pulled: Pulled) -> Rows | None:
        """One that cannot be read is none: the next that a trainer sends takes its place."""
        try:
            return None if pulled.cache is None else unpack_rows(pulled.cache)
        except Malformed as error:
            logger.warning("the cache in the store cannot be read, and is left out: %s", error)
            return None

    def _is_ours(self, chain: str) -> bool:
        """Whether this is the entry that we pushed last."""
        return self._sent is not None and self._sent[0] == chain

    def _ids_after(self, known: int, tip: Tip) -> list[str]:
        found: list[str] = []
        while (first := known + len(found)) < tip.items:
            part = self._server.ids(tip.generation, first, min(tip.items - first, IDS_AT_ONCE))
            if not part:
                raise _Lost("it has begun a new generation" if part is None else "it has lost items")
            found += part
        return found

    # 5. snapshot ------------------------------------------------------------------------------------------------------

    def _snapshot_if_due(self) -> None:
        view, replica = self._view, self._view.joined
        due = view.status.log_length >= view.settings.soft_log_length
        if due and self._server.may_snapshot(view.trainer):
            if self._server.save_snapshot(view.trainer, replica.position, replica.pack()):
                view.status.snapshots += 1
            view.status.log_length = 0

    def _beat(self) -> None:
        if self._view.clock() - self._beat_at >= BEAT_S:
            self._beat_at = self._view.clock()
            self._server.beat(self._view.trainer, ", ".join(sorted(self._view.partitions.owned)))
