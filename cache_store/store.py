"""One trainer's access to what all trainers of a model share.

Shared are: a row for every item id, how often each item occurred in the stream, how
often each was resampled, and the cache. A trainer keeps a replica of all this. It adds
what its own micro-batches contribute, and reads what others add:

    receive -> (train) -> contribute

Neither waits for a network: a thread of its own exchanges both with the server, every
`every_s`. What a trainer sees is

    its replica (the log up to a position) + its own contributions that are not in it
    yet,

so it lacks at most what others contributed in the last 2 x `every_s` and two round
trips, while the server responds.

A contribution belongs to the events of some offsets of some partitions. The store knows
for each partition up to which offset it has contributions, and adds each only once,
whoever sends it and how often.

Every trainer sends the cache that it drew last with every exchange; the last one sent
is the cache of all.

The store gives every item id a row, the same for all trainers. A trainer's tables have
rows of their own, so that it never waits for the store when a new item comes:
contributions carry those, and what is received carries the store's.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.contribution import Contribution, Counts, Rows
from streamer.cache_store.errors import StoreError, StoreUnavailable
from streamer.cache_store.exchange import Exchange
from streamer.cache_store.replica import LogPosition, StoreReplica
from streamer.cache_store.server import StoreServer
from streamer.cache_store.state import (
    Received,
    StoreSettings,
    StoreStatus,
    TrainerState,
)

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 2.0
LOG_AGAIN_S = 30.0


class CacheStore:
    """A trainer's part of the shared state, and its exchange with a server.

    `receive`, `contribute`, `counted_until`, `first_unacknowledged`, `pop_refused` and
    `release` never wait; `claim` and `flush` wait for a bounded time. All of them may
    be called by any thread. The server is closed, too.
    """

    def __init__(
        self,
        server: StoreServer,
        settings: StoreSettings | None = None,
        trainer: str = "trainer",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self.state = TrainerState(
            settings or StoreSettings(), trainer, server.kind, clock
        )
        self._exchange = Exchange(server, self.state)
        self._exchanging = threading.Lock()
        self._logged_at = -np.inf
        self._pause_s = FIRST_PAUSE_S
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Join, and begin to exchange.

        Raises:
            StoreRefused: the server refuses us, or holds something that no trainer
                wrote.
            StoreUnavailable: it does not respond, and there is no earlier state to
                continue with.
        """
        try:
            self.exchange()
        except StoreUnavailable as error:
            if not self.state.generation:
                raise
            self._note_error(error)
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    # partitions -------------------------------------------------------------------------------------------------------

    def claim(
        self, partitions: Mapping[str, int | None], timeout_s: float = 5.0
    ) -> bool:
        """Claim partitions that are ours now: whoever had them before is refused from
        here on.

        Args:
            partitions: with the offset after the last record of each, as far as it is
                known: where the store has contributions beyond that, the partition was
                deleted and created again, and is counted from its start.
            timeout_s: how long to wait. Without an answer it is done later;
                contributions wait for it.
        """
        state = self.state
        outbox = self.state.outbox
        with state.lock:
            for name, end in partitions.items():
                if end is not None:
                    state.reset_due |= outbox.end_offset(name) > end
                    outbox.drop_beyond(name, end)
                state.partitions.assign(
                    name, end, counted=outbox.end_offset(name)
                )  # what waits will be counted
        self._wanted.set()
        return self._wait_for(
            lambda: not state.partitions.unclaimed.keys() & partitions.keys(), timeout_s
        )

    def release(self, partitions: Sequence[str]) -> None:
        """Give up partitions that are not ours any more."""
        with self.state.lock:
            for name in partitions:
                self.state.partitions.release(name)

    def counted_until(self, partition: str) -> int:
        """The offset before which all events of this partition are counted, or wait to
        be.
        """
        with self.state.lock:
            return self.state.partitions.counted.get(partition, 0)

    def first_unacknowledged(self, partition: str) -> int | None:
        """The first offset of this partition whose contribution is not known to be in
        the store; None if all are.
        """
        with self.state.lock:
            return self.state.outbox.first_offset(partition)

    def pop_refused(self, partition: str) -> int | None:
        """The first offset whose contribution was refused since the last call; None if
        none was.

        Another trainer owned the partition by then: when it is ours again, it must be
        read from there, or nobody counts these events.
        """
        with self.state.lock:
            return self.state.partitions.refused.pop(partition, None)

    # counts -----------------------------------------------------------------------------------------------------------

    def receive(self) -> Received:
        """What has come since the last call.

        Raises:
            Fenced: another trainer has claimed one of our partitions.
        """
        with self.state.lock:
            if self.state.fenced is not None:
                raise self.state.fenced
            return self.state.take_received()

    def map_rows(self, version: int, first: int, own: Rows) -> None:
        """Note which rows of ours are those of the store from `first` on, so that the
        server need not be asked.

        Nothing happens if `version`, the `row_version` of what was received, is
        outdated.
        """
        with self.state.lock:
            self.state.row_map.map(version, first, own)

    def contribute(self, contribution: Contribution, ids: Sequence[str]) -> None:
        """Send what one micro-batch contributes with the next exchange; it has no
        events before `counted_until`.

        `ids` are item ids by the trainer's rows; the list may grow, and is read later.
        """
        state = self.state
        with state.lock:
            state.row_map.own_ids = ids
            state.contribute(contribution)

    def retire(self, items: Rows, ids: Sequence[str], *, force: bool = False) -> None:
        """Retire items by the trainer's rows with the next exchange, for all trainers;
        `ids` as in `contribute`.

        An item that we contribute to before that stays. So does one that others have
        had events of, unless `force`. What of it stays comes as `Received.corrected`.
        """
        with self.state.lock:
            self.state.row_map.own_ids = ids
            self.state.retire(items, force=force)

    def used_items(self) -> Rows:
        """The trainer's rows of items that have a row of the store, or are on their way
        there.
        """
        with self.state.lock:
            return self.state.used_items()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything contributed so far is in the store; False if it is not
        in time.
        """
        outbox = self.state.outbox
        self._wanted.set()
        with self.state.lock:
            upto = outbox.last_number
        return self._wait_for(
            lambda: all(w.number > upto for w in outbox.waiting), timeout_s
        )

    def status(self) -> StoreStatus:
        """The current state, for an operator."""
        state = self.state
        with state.lock:
            return replace(
                state.status,
                live=state.live,
                staleness_s=max(0.0, state.clock() - state.caught_up_at)
                if state.generation
                else 0.0,
                backlog_contributions=len(state.outbox.waiting),
                backlog_events=state.outbox.events,
                errors=dict(state.status.errors),
            )

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what can be sent, and disconnect. May be called twice."""
        if self._closing.is_set():
            return
        state = self.state
        if self._thread is not None and state.fenced is None:
            self.flush(timeout_s if state.live else 0.0)
        self._closing.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        ended = self._thread is None or not self._thread.is_alive()
        if (
            ended
            and state.live
            and state.fenced is None
            and state.status.problem is None
        ):
            with suppress(
                Exception
            ):  # without a heartbeat, it counts as gone a little later
                self._server.leave(state.trainer)
        self._server.close()

    # checkpoints ------------------------------------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any], Received]:
        """Arrays and plain values that a restart needs, and what has come; the caller
        must apply that at once.
        """
        with self.state.lock:
            received = self.state.take_received()
            return *self.state.save(), received

    def restore(
        self,
        arrays: Mapping[str, NDArray[Any]],
        values: dict[str, Any],
        ids: Sequence[str],
        own: Rows,
    ) -> None:
        """Continue from what `save` returned, before `start`.

        `ids` are item ids by the trainer's rows, and `own` [N] the trainer's row for
        each of the store's, as far as it had received them.
        """
        self.state.restore(arrays, values, ids, own)

    def begin_with(
        self,
        counts: Counts,
        drawn: Counts,
        next_offsets: Mapping[str, int],
        ids: Sequence[str],
    ) -> None:
        """Continue from counts of a trainer that shared nothing so far, before `start`:
        they seed an empty server.
        """
        beginning = LogPosition.beginning(secrets.token_hex(8))
        self.state.replica = StoreReplica(
            beginning, counts, drawn, next_offsets, int(counts.sum())
        )
        self.state.row_map.restore(ids, np.arange(len(counts)))

    # the exchange -----------------------------------------------------------------------------------------------------

    def exchange(self) -> None:
        """Exchange with the server once; may be called at any time, by any thread.

        Raises:
            StoreError: the server cannot be used now, or not at all.
        """
        with self._exchanging:
            self._exchange.run()
            self._pause_s = FIRST_PAUSE_S

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wanted.wait(self.state.settings.every_s)
            self._wanted.clear()
            try:
                self.exchange()
                continue
            except StoreError as error:
                self._note_error(error)
            except Exception as error:
                logger.exception(
                    "The exchange with the store failed unexpectedly; it will be retried"
                )
                self._note_error(
                    StoreUnavailable(
                        "broken", f"the exchange with the store failed: {error!r}"
                    )
                )
                self._exchange.joined = False
            if self.state.fenced is not None:
                return
            self._closing.wait(self._pause_s)
            self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)

    def _note_error(self, error: StoreError) -> None:
        """Count an error, and log it once in a while."""
        state = self.state
        status = self.state.status
        with state.changed:
            status.errors[error.reason] = status.errors.get(error.reason, 0) + 1
            logged = (
                status.problem is not None
                and state.clock() - self._logged_at < LOG_AGAIN_S
            )
            status.problem = str(error)
            state.changed.notify_all()
        if not logged and state.fenced is None:
            self._logged_at = state.clock()
            logger.warning("Training continues without the store: %s", error)

    def _wait_for(self, done: Callable[[], bool], timeout_s: float) -> bool:
        state = self.state
        deadline = time.monotonic() + timeout_s
        with state.changed:
            while not done():
                left_s = deadline - time.monotonic()
                if (
                    left_s <= 0
                    or self._closing.is_set()
                    or state.fenced is not None
                    or not state.live
                ):
                    return False
                state.changed.wait(min(left_s, 0.05))
            return True
