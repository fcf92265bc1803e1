"""One trainer's access to what all trainers of a model share.

The trainer counts and draws into its `table`, and takes what others have; neither waits
for a network. A thread of its own exchanges both with a server every `every_s`.
Whatever gets lost is noticed by the versions, and sent or read again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from streamer.cache_store.errors import StoreError, StoreUnavailable
from streamer.cache_store.exchange import Exchange
from streamer.cache_store.server import StoreServer

logger = logging.getLogger(__name__)

PAUSE_S = 0.5
"""After a failure."""
LOG_AGAIN_S = 30.0
DRAWS_EVERY = 30
"""Draws are sent with every thirtieth exchange: only how the cache is drawn depends on them,
and most items that are drawn at all are drawn again and again.
"""
LIVE_S = 2.0
"""A server that has not responded for longer, and for five exchanges, is not live."""


@dataclass(slots=True)
class StoreStatus:
    """What an operator wants to know of a store; all counters are of this process."""

    kind: str = "none"
    live: bool = True
    problem: str | None = None  # what is wrong now, in a sentence; None if nothing is
    round_trip_s: float = 0.0
    staleness_s: float = 0.0  # since all that others have was last here
    backlog_events: int = 0  # that we have counted and the store has not
    sent_bytes: int = 0
    received_bytes: int = 0
    exchanges: int = 0
    exchange_cpu_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)
    duplicate_events: int = 0  # trained and not counted: the store had counted them


class CacheStore:
    """A trainer's copy of the shared state, and its exchange with a server, which is
    closed with it.

    Args:
        server: where others are met.
        trainer: its name, the same after a restart.
        every_s: time between exchanges.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        server: StoreServer,
        trainer: str = "trainer",
        every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trainer = trainer
        self.every_s = every_s
        self.shared = Exchange(server, trainer)
        self.table = self.shared.table
        self.counted_events = 0
        self._sent_events = 0
        self._clock = clock
        self._status = StoreStatus(server.kind)
        self._answered_at = clock()
        self._caught_up_at = clock()
        self._logged_at = -np.inf
        self._exchanging = threading.Lock()
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._done = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read what there is, and begin to exchange.

        Raises:
            StoreRefused: the server refuses us, or holds something that no trainer
                wrote.
            StoreUnavailable: it does not respond, and there is no earlier state to
                continue with.
        """
        try:
            self.exchange()
        except StoreUnavailable as error:
            if not self.table.entries:
                raise
            self._note_error(error)
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._closing.is_set():
            self._wanted.wait(self.every_s)
            self._wanted.clear()
            number += 1
            try:
                has_answered = self.try_exchange(number % DRAWS_EVERY == 0)
            except Exception as error:
                logger.exception("The exchange with the store failed, will retry")
                self._note_error(StoreUnavailable("broken", repr(error)))
                has_answered = False
            if not has_answered:
                self._closing.wait(PAUSE_S)
        if self._status.problem is None:
            self.try_exchange()  # what was drawn last

    def try_exchange(self, with_draws: bool = True) -> bool:
        """Exchange now; returns whether the server has answered."""
        try:
            self.exchange(with_draws)
        except StoreError as error:
            self._note_error(error)
            return False
        return True

    def exchange(self, with_draws: bool = True) -> None:
        """Exchange with the server once; may be called at any time, by any thread.

        Raises:
            StoreError: the server cannot be used now, or not at all.
        """
        status = self._status
        with self._exchanging:
            started = self._clock()
            cpu_s = time.thread_time()
            counted = self.counted_events
            try:
                if self.shared.run(with_draws):
                    self._sent_events = counted
            finally:
                status.exchange_cpu_s += time.thread_time() - cpu_s
                with self._done:
                    self._done.notify_all()
            if status.problem is not None:
                logger.warning("The store responds again.")
            status.problem = None
            status.exchanges += 1
            self._answered_at = self._clock()
            status.round_trip_s = self._answered_at - started
            if self.shared.is_caught_up:
                self._caught_up_at = self._answered_at

    def _note_error(self, error: StoreError) -> None:
        """Count an error, and log it once in a while."""
        status = self._status
        status.errors[error.reason] = status.errors.get(error.reason, 0) + 1
        is_new = status.problem is None
        status.problem = str(error)
        if is_new or self._clock() - self._logged_at > LOG_AGAIN_S:
            self._logged_at = self._clock()
            logger.warning("Training continues without the store: %s", error)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything counted so far is in the store; False if it is not in
        time, or the server does not respond.
        """
        wanted = self.counted_events
        deadline = time.monotonic() + timeout_s
        with self._done:
            while self._sent_events < wanted:
                self._wanted.set()
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._closing.is_set() or not self.is_live:
                    return False
                self._done.wait(min(left_s, 0.05))
        return True

    @property
    def is_live(self) -> bool:
        """Whether the server responds."""
        allowed_s = max(LIVE_S, 5 * self.every_s)
        is_late = self._clock() - self._answered_at > allowed_s
        return self._status.problem is None or not is_late

    def status(self) -> StoreStatus:
        """The current state."""
        shared = self.shared
        has_all = self._status.exchanges > 0 and shared.is_caught_up
        is_behind = not has_all or shared.waiting_rows > 0
        is_stale = self._thread is not None and is_behind
        return replace(
            self._status,
            live=self.is_live,
            staleness_s=self._clock() - self._caught_up_at if is_stale else 0.0,
            backlog_events=self.counted_events - self._sent_events,
            sent_bytes=shared.sent_bytes,
            received_bytes=shared.received_bytes,
            errors=dict(self._status.errors),
        )

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what can be sent, and disconnect. May be called twice."""
        if self._closing.is_set():
            return
        if self._thread is not None:
            self.flush(timeout_s)
        self._closing.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        has_ended = self._thread is None or not self._thread.is_alive()
        server = self.shared.server
        if has_ended and self._status.problem is None:
            with suppress(Exception):  # it counts as gone a little later
                server.leave(self.shared.process)
        server.close()
