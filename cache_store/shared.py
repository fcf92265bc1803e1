"""A `CacheStore` over a server: a trainer's view of the shared state, and its exchange with the server.

With a server in memory the exchange happens inside `contribute`; with one behind a network, every so often, on a thread
of its own. The training thread only ever takes a lock that is never held while the network is waited for.

How old is what a trainer sees? Its own contributions are in its view at once. Those of others, and the cache, are
exchanged every `every_s`: while the server answers, a view lacks at most what was contributed in the last
2 x `every_s` and two round trips.

Who refreshes the cache? Every trainer, with every exchange: it sends the cache that it drew last from its own view of
the occurrence vector, and the last one sent is the cache of all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.base import Contribution, Received, Rows, Span, StoreStatus
from streamer.cache_store.errors import StoreError, StoreUnavailable
from streamer.cache_store.exchange import Exchange
from streamer.cache_store.server import Server
from streamer.cache_store.view import SharedSettings, View

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 2.0
SAY_AGAIN_S = 30.0


class SharedStore:
    """A `CacheStore` over a server. See `streamer.cache_store.base` for what each method promises.

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
        self._server = server
        self.view = View(settings or SharedSettings(), trainer, server.kind, server.inline, clock)
        self._exchange = Exchange(server, self.view)
        self._exchanging = threading.Lock()
        self._said_at = -np.inf
        self._pause_s = FIRST_PAUSE_S
        self._wanted = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    # what the trainer calls -------------------------------------------------------------------------------------------

    def start(self) -> None:
        try:
            self.exchange()
        except StoreUnavailable as error:
            if self.view.replica is None:
                raise
            self._in_trouble(error)
        if not self._server.inline:
            self._thread = threading.Thread(target=self._run, name="store", daemon=True)
            self._thread.start()

    def claim(self, partitions: Mapping[str, int | None], timeout_s: float = 5.0) -> bool:
        view, outbox = self.view, self.view.outbox
        with view.lock:
            for name, end in partitions.items():
                if end is not None:
                    view.make_anew |= outbox.reach(name) > end
                    outbox.forget_beyond(name, end)
                view.partitions.want(name, end, seen=outbox.reach(name))  # what waits will be counted
        self._poke()
        return self._wait_for(lambda: not view.partitions.unclaimed.keys() & partitions.keys(), timeout_s)

    def release(self, partitions: Sequence[str]) -> None:
        with self.view.lock:
            for name in partitions:
                self.view.partitions.release(name)

    def fresh(self, spans: Sequence[Span], sources: NDArray[np.int32], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        first = np.array([self.seen(span.partition) for span in spans], np.int64)
        return offsets >= first[sources]

    def seen(self, partition: str) -> int:
        with self.view.lock:
            return self.view.partitions.seen.get(partition, 0)

    def untold(self, partition: str) -> int | None:
        with self.view.lock:
            return self.view.outbox.first(partition)

    def refused(self, partition: str) -> int | None:
        with self.view.lock:
            return self.view.partitions.given_up.pop(partition, None)

    def receive(self) -> Received:
        with self.view.lock:
            if self.view.fenced is not None:
                raise self.view.fenced
            return self.view.taken()

    def named(self, naming: int, first: int, own: Rows) -> None:
        with self.view.lock:
            self.view.naming.tell(naming, first, own)

    def contribute(self, contribution: Contribution, ids: Sequence[str]) -> None:
        view = self.view
        with view.lock:
            view.naming.own_ids = ids
            view.outbox.add(contribution)
            for span in contribution.spans:
                view.partitions.see(span.partition, span.stop)
        if self._server.inline and len(view.outbox.waiting) >= view.settings.inline_every:
            self._poke()

    def flush(self, timeout_s: float) -> bool:
        self._poke()
        with self.view.lock:
            upto = self.view.outbox.last
        return self._wait_for(lambda: all(w.number > upto for w in self.view.outbox.waiting), timeout_s)

    def status(self) -> StoreStatus:
        view = self.view
        with view.lock:
            return replace(
                view.status,
                live=view.live,
                staleness_s=max(0.0, view.clock() - view.caught_up_at) if view.replica is not None else 0.0,
                backlog_contributions=len(view.outbox.waiting),
                backlog_events=view.outbox.events,
                errors=dict(view.status.errors),
            )

    def close(self, timeout_s: float = 5.0) -> None:
        if self._closing:
            return
        if self._thread is not None and self.view.fenced is None:
            self.flush(timeout_s if self.view.live else 0.0)
        self._closing = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        ended = self._thread is None or not self._thread.is_alive()
        if ended and self.view.live and self.view.fenced is None and self.view.status.trouble is None:
            with suppress(Exception):  # not seen any more, it counts as gone a little later
                self._server.leave(self.view.trainer)
        self._server.close()

    # the recovery unit ------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any], Received]:
        if self._server.inline:
            self._poke()  # so that nothing waits
        with self.view.lock:
            received = self.view.taken()
            return *self.view.state(), received

    def load_state(
        self, arrays: Mapping[str, NDArray[Any]], values: dict[str, Any], ids: Sequence[str], own: Rows
    ) -> None:
        self.view.load_state(arrays, values, ids, own)

    # the exchange -----------------------------------------------------------------------------------------------------

    def exchange(self) -> None:
        """One exchange with the server; may be called at any time, by any thread.

        Raises:
            StoreError: the server cannot be used now, or not at all.
        """
        with self._exchanging:
            self._exchange.run()
            self._pause_s = FIRST_PAUSE_S

    def _run(self) -> None:
        while not self._closing:
            self._wanted.wait(self.view.settings.every_s)
            self._wanted.clear()
            try:
                self.exchange()
            except StoreError as error:
                self._in_trouble(error)
                if self.view.fenced is not None:
                    return
                self._wait_out()
            except Exception as error:
                logger.exception("the exchange with the store has failed; it is tried again")
                self._in_trouble(StoreUnavailable("broken", f"the exchange with the store has failed: {error!r}"))
                self._exchange.is_in = False
                self._wait_out()

    def _wait_out(self) -> None:
        deadline = self.view.clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
        while not self._closing and self.view.clock() < deadline:
            time.sleep(min(0.05, self._pause_s))

    def _in_trouble(self, error: StoreError) -> None:
        """Say it once in a while, and count it."""
        view, status = self.view, self.view.status
        with view.changed:
            status.errors[error.reason] = status.errors.get(error.reason, 0) + 1
            again = status.trouble is not None and view.clock() - self._said_at < SAY_AGAIN_S
            status.trouble = str(error)
            view.changed.notify_all()
        if not again and view.fenced is None:
            self._said_at = view.clock()
            logger.warning("training goes on with the last view: %s", error)

    def _poke(self) -> None:
        """Exchange, now or soon; what goes wrong is told by `receive` and `status`."""
        if not self._server.inline:
            self._wanted.set()
        elif self._exchange.is_in:
            try:
                self.exchange()
            except StoreError as error:
                self._in_trouble(error)

    def _wait_for(self, done: Callable[[], bool], timeout_s: float) -> bool:
        view, deadline = self.view, time.monotonic() + timeout_s
        with view.changed:
            while not done():
                left_s = deadline - time.monotonic()
                gone = self._closing or view.fenced is not None or not view.live
                if left_s <= 0 or gone or self._server.inline:
                    return False
                view.changed.wait(min(left_s, 0.05))
            return True
