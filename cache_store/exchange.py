"""One trainer's exchange with a server: what each of them lacks goes to the other."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter, deque

import numpy as np

from streamer.cache_store.change import (
    CACHE,
    COUNTS,
    DRAWN,
    NOTHING,
    Change,
    Hashes,
    Rows,
    Version,
    dtype_of,
    whole,
)
from streamer.cache_store.server import Answer, Request, StoreServer
from streamer.cache_store.table import Piece, Table

logger = logging.getLogger(__name__)

MAX_ROUNDS = 4
"""Questions and answers of one exchange."""
PIECE_ROWS = 8192
"""That are applied between two steps."""
MAX_WAITING_ROWS = 4_000_000
"""Rows of others that may wait for the training thread; no more are read then."""


class Exchange:
    """What a trainer knows of its server, and what has come from it.

    `run` is for one thread at a time, the rest for any.

    Args:
        server: where others are met.
        trainer: its name, the same after a restart.
    """

    def __init__(self, server: StoreServer, trainer: str) -> None:
        self.server = server
        self.process = f"{trainer}:{secrets.token_hex(2)}"
        self.table = Table(f"{DRAWN}{trainer}")
        self.owned: set[str] = set()
        """Names of the partitions' counts that we add to now."""
        self.drawn_cache: Hashes | None = None
        """The cache that we drew last; sent with the next exchange."""
        self._newest_cache: Hashes | None = None
        self.waiting_rows = 0
        """Rows that have come and are not applied."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.wholes = 0
        self._tops: dict[str, Version] = {}
        self._beat = 0
        self._acknowledged = 0
        self._cache_version = NOTHING
        self._is_replaced = False
        self._lock = threading.Lock()
        self._pieces: deque[Piece] = deque()
        self._waiting: Counter[str] = Counter()  # pieces of each entry
        self._queued: dict[str, Version] = {}
        self._is_begun = False  # the change whose pieces come next

    def run(self, with_draws: bool = True) -> bool:
        """Exchange once; returns whether the server has all that we had counted.

        1. pack what the server lacks, by what it had the last time; nothing, if we do
           not know what it has;
        2. send the names of new items, which it must have before;
        3. send and receive;
        4. again, if the server or we still lack something.

        Raises:
            StoreError: the server cannot be used now, or not at all.
        """
        is_sent = False
        for _ in range(MAX_ROUNDS):
            # 1.
            is_known = self._acknowledged > 0
            changes = self._pack(with_draws) if is_known else []
            # 2.
            if is_known and self._send_names():
                continue
            # 3.
            self._note(self._ask(changes), changes)
            # 4.
            has_arrived = all(self.top(one.name) >= one.to for one in changes)
            is_sent |= has_arrived and is_known
            if is_sent and (self.is_caught_up or self._is_full):
                break
        return is_sent

    # what is where --------------------------------------------------------------------

    def top(self, name: str) -> Version:
        """The version of an entry that the server had last."""
        return self._tops.get(name, NOTHING)

    def newest(self, name: str) -> Version:
        """The version of our copy of an entry when all that waits is applied."""
        if name == CACHE:
            return self._cache_version
        return max(self._queued.get(name, NOTHING), self.table.version(name))

    @property
    def is_caught_up(self) -> bool:
        """Whether we have read all that the server has."""
        return not any(map(self.is_behind, list(self._tops)))

    def is_behind(self, name: str) -> bool:
        """Whether the server has a version of an entry that we have not read."""
        return name != self.table.own and self.newest(name) < self.top(name)

    # sending --------------------------------------------------------------------------

    def _pack(self, with_draws: bool) -> list[Change]:
        found = []
        may_send_draws = with_draws and not self._is_replaced
        for name in list(self.table.entries):
            is_own = name == self.table.own
            if name.startswith(COUNTS) or (is_own and may_send_draws):
                change = self.table.pack(name, self.top(name))
                if change is not None:
                    found.append(change)
                    self.wholes += change.since > self.top(name)
        cache = self.drawn_cache
        self.drawn_cache = None
        if cache is not None:
            number = 1 + max(self._cache_version, self.top(CACHE))[0]
            items, slots = np.unique(cache, return_counts=True)
            values = slots.astype(dtype_of(CACHE))
            found.append(whole(CACHE, (number, 0), items, values))
        return found

    def _send_names(self) -> bool:
        """Returns whether the server has refused any."""
        is_refused = False
        while (names := self.table.unsent_names()) is not None:
            refused = self.server.name(*names)
            self.table.names_sent(refused)
            is_refused |= len(refused) > 0
        return is_refused

    @property
    def _is_full(self) -> bool:
        return self.waiting_rows > MAX_WAITING_ROWS

    def _ask(self, changes: list[Change]) -> Answer:
        reading = {}
        for name in self._tops:
            if name != self.table.own and not self._is_full:
                reading[name] = self.newest(name)
        self._beat += 1
        self.sent_bytes += sum(change.nbytes for change in changes)
        return self.server.exchange(
            Request(
                self.process,
                self._beat,
                self._acknowledged,
                sorted(self.owned),
                changes,
                reading,
            )
        )

    # receiving ------------------------------------------------------------------------

    def _note(self, answer: Answer, changes: list[Change]) -> None:
        """See what the server has, and queue what is new."""
        self._tops = dict(answer.tops)
        has_lost = answer.beat < self._acknowledged
        self._acknowledged = 0 if has_lost else self._beat
        if has_lost:
            self.table.send_names_again()
        self._introduce()
        for change in changes:
            if change.name != CACHE and self.top(change.name) >= change.to:
                self.table.acknowledge(change)
        # counts before draws: only items that are counted get a row
        for change in sorted(answer.changes, key=lambda change: change.name):
            self.received_bytes += change.nbytes
            if change.fits(self.newest(change.name)):
                self._receive(change)
        self._drop_gone()

    def _introduce(self) -> None:
        """Our own entry on the server is of an earlier start of ours: the first time,
        ours takes its place. Later, one with a larger incarnation is of a later start,
        which takes ours.
        """
        incarnation = self.top(self.table.own)[0]
        if not self.table.incarnation:
            now_us = time.time_ns() // 1000
            self.table.begin_draws(max(now_us, incarnation + 1))
        elif incarnation > self.table.incarnation and not self._is_replaced:
            self._is_replaced = True
            logger.warning(
                "Another trainer %s was started: what this one draws is not shared",
                self.table.own.removeprefix(DRAWN),
            )

    def _receive(self, change: Change) -> None:
        if change.name == CACHE:
            self._cache_version = change.to
            self._newest_cache = np.repeat(change.hashes, change.values)
            return
        change = change.after(self.newest(change.name))
        rows = self.table.rows_of(change.hashes)
        ids = self._new_ids(change, rows)
        if ids is None or (change.is_whole and self._waiting[change.name]):
            return  # it is read again with the next exchange
        if change.is_whole:
            self.wholes += 1
            change, rows = self._with_zeros(change, rows)
        self._queue(change, rows, ids)

    def _new_ids(self, change: Change, rows: Rows) -> dict[int, str] | None:
        """The ids of items that are counted and new here; None if the server does not
        know one.
        """
        if not change.name.startswith(COUNTS):
            return {}
        new = change.hashes[(rows < 0) & (change.values != 0)]
        ids = self.server.ids(new) if len(new) else []
        found = {}
        for h, raw in zip(new.tolist(), ids, strict=True):
            if raw is None:
                return None
            found[h] = raw
        return found

    def _with_zeros(self, change: Change, rows: Rows) -> tuple[Change, Rows]:
        """A whole, with zeros for what it lacks."""
        gone = self.table.lacking_in(change, rows)
        hashes = np.concatenate([change.hashes, self.table.names.of(gone)])
        zeros = np.zeros(len(gone), change.values.dtype)
        values = np.concatenate([change.values, zeros])
        found = whole(change.name, change.to, hashes, values)
        return found, np.concatenate([rows, gone])

    def _drop_gone(self) -> None:
        """Draws of trainers that the server has forgotten count no more."""
        for name in list(self.table.entries):
            is_gone = name.startswith(DRAWN) and name not in self._tops
            if not is_gone or name == self.table.own or self._waiting[name]:
                continue
            if self.table.version(name) > NOTHING:
                nothing = np.empty(0, np.uint64)
                empty = whole(name, NOTHING, nothing, nothing.astype(dtype_of(name)))
                self._queue(*self._with_zeros(empty, nothing.astype(np.int64)), {})

    # on the way to the training thread ------------------------------------------------

    def _queue(self, change: Change, rows: Rows, ids: dict[int, str]) -> None:
        """Cut a change into pieces."""
        pieces = []
        for start in range(0, max(1, len(rows)), PIECE_ROWS):
            some = slice(start, start + PIECE_ROWS)
            hashes = change.hashes[some]
            is_last = start + PIECE_ROWS >= len(rows)
            known = {h: ids[h] for h in hashes.tolist() if h in ids} if ids else {}
            values = change.values[some]
            pieces.append(
                Piece(
                    change.name, change.to, is_last, rows[some], hashes, values, known
                )
            )
        with self._lock:
            self._pieces += pieces
            self._waiting[change.name] += len(pieces)
            self._queued[change.name] = change.to
            self.waiting_rows += len(rows)

    def take_cache(self) -> Hashes | None:
        """The newest cache that anybody drew, if it was not taken yet."""
        cache = self._newest_cache
        self._newest_cache = None
        return cache

    def take(self, max_rows: int | None = None) -> list[Piece]:
        """The next pieces to apply, of about `PIECE_ROWS`; with `max_rows` 0, the rest
        of the change that was begun. A change of an entry that we add to is not
        divided.
        """
        max_rows = PIECE_ROWS if max_rows is None else max_rows
        found: list[Piece] = []
        rows = 0
        with self._lock:
            while self._pieces:
                piece = self._pieces[0]
                is_urgent = max_rows == 0 or piece.name in self.owned
                if rows >= max_rows and not (self._is_begun and is_urgent):
                    break
                self._pieces.popleft()
                self._is_begun = not piece.is_last
                self._waiting[piece.name] -= 1
                self.waiting_rows -= len(piece.rows)
                if piece.to > self.table.version(piece.name) or piece.to == NOTHING:
                    rows += len(piece.rows)
                    found.append(piece)
        return found
