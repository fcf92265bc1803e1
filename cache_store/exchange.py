"""One trainer's exchange with a server: what each of them lacks goes to the other."""

from __future__ import annotations

import logging
import secrets
import threading
import time

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
)
from streamer.cache_store.server import Answer, Request, StoreServer
from streamer.cache_store.table import Piece, Table

logger = logging.getLogger(__name__)

MAX_ROUNDS = 4
"""Questions and answers of one exchange."""
PIECE_ROWS = 8192
NEW_ROWS = 2048
"""That are applied between two steps; fewer if some of the items are new here."""
MAX_WAITING_ROWS = 1_000_000
"""While more wait for the training thread, entries of which some wait are not read."""


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
        self.drawn_cache: Rows | None = None
        """The cache that we drew last; sent with the next exchange."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self._newest_cache: Hashes | None = None
        self._cache_version = NOTHING
        self._tops: dict[str, Version] = {}
        self._beat = 0
        self._acknowledged = 0
        self._is_replaced = False
        self._collisions: set[int] = set()
        self._lock = threading.Lock()
        self._pieces: list[Piece] = []

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
            is_known = self._acknowledged > 0
            changes: list[Change] = []
            if is_known:
                changes = self._pack(with_draws)
                self._send_names()
            self._note(self._ask(changes), changes)
            has_arrived = all(self.top(one.name) >= one.to for one in changes)
            is_sent |= has_arrived and is_known
            if is_sent and (self.is_caught_up or self.waiting_rows):
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
        with self._lock:
            waiting = [piece.to for piece in self._pieces if piece.name == name]
            return max([*waiting, self.table.version(name)])

    @property
    def is_caught_up(self) -> bool:
        """Whether we have read all that the server has."""
        return not any(map(self.is_behind, list(self._tops)))

    def is_behind(self, name: str) -> bool:
        """Whether the server has a version of an entry that we have not read."""
        return name != self.table.own and self.newest(name) < self.top(name)

    @property
    def waiting_rows(self) -> int:
        """Rows that have come and are not applied."""
        with self._lock:
            return sum(max(1, len(piece.rows)) for piece in self._pieces)

    # sending --------------------------------------------------------------------------

    def _pack(self, with_draws: bool) -> list[Change]:
        found = []
        may_send_draws = with_draws and not self._is_replaced
        for name in list(self.table.entries):
            is_own = name == self.table.own
            if name.startswith(COUNTS) or (is_own and may_send_draws):
                found += self.table.pack(name, self.top(name))
        rows = self.drawn_cache
        self.drawn_cache = None
        if rows is not None:
            number = 1 + max(self._cache_version, self.top(CACHE))[0]
            hashes, slots = np.unique(self.table.names.of(rows), return_counts=True)
            values = slots.astype(dtype_of(CACHE))[hashes != 0]
            items = hashes[hashes != 0]
            found.append(Change(CACHE, NOTHING, (number, 0), items, values))
        return found

    def _send_names(self) -> None:
        while self.table.unsent:
            hashes, ids = self.table.unsent[0]
            utf8 = ids["utf8"].tobytes()
            raw = []
            start = 0
            for length in ids["length"].tolist():
                raw.append(utf8[start : start + length])
                start += length
            for h in set(self.server.name(hashes, raw)) - self._collisions:
                self._collisions.add(h)
                logger.warning(
                    "Two items have the same 64-bit name %016x: they count as one", h
                )
            self.table.unsent.popleft()

    def _ask(self, changes: list[Change]) -> Answer:
        is_full = self.waiting_rows > MAX_WAITING_ROWS
        with self._lock:
            waiting = {piece.name for piece in self._pieces}
        reading = {}
        for name in self._tops.keys() - {self.table.own}:
            # draws may begin again with zeros, so what has come of them is applied first
            must_wait = is_full or name.startswith(DRAWN)
            if name in self.owned or name not in waiting or not must_wait:
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
        for name in sorted(answer.changes):
            self.received_bytes += sum(one.nbytes for one in answer.changes[name])
            version = self.newest(name)
            fitting = []
            for change in answer.changes[name]:
                if change.fits(version):
                    fitting.append(change)
                    version = change.to
            if fitting:
                self._note_changes(name, fitting)
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

    def _note_changes(self, name: str, changes: list[Change]) -> None:
        last = changes[-1]
        is_from_nothing = changes[0].since == NOTHING
        if name == CACHE:
            self._cache_version = last.to
            self._newest_cache = np.repeat(last.hashes, last.values)
        elif name.startswith(DRAWN) and is_from_nothing:
            # the trainer was started again: what it lost counts no more
            self._queue(name, last.to, [self.table.zeros(name), *changes])
        else:
            self._queue(name, last.to, changes)

    def _drop_gone(self) -> None:
        """Draws of trainers that the server has forgotten count no more."""
        for name in self.table.entries.keys() - self._tops.keys() - {self.table.own}:
            if name.startswith(DRAWN):
                self._queue(name, NOTHING, [self.table.zeros(name)])

    # on the way to the training thread ------------------------------------------------

    def _queue(self, name: str, to: Version, changes: list[Change]) -> None:
        """Cut changes into pieces. If the server does not know the id of an item that
        is new here, nothing is queued: it is read again with the next exchange.
        """
        pieces = []
        for change in changes:
            rows = self.table.rows_of(change.hashes)
            ids = self._new_ids(change, rows)
            if ids is None:
                return
            size = NEW_ROWS if ids else PIECE_ROWS
            for start in range(0, max(1, len(rows)), size):
                some = slice(start, start + size)
                hashes = change.hashes[some]
                new = {h: ids[h] for h in hashes.tolist() if h in ids} if ids else {}
                values = change.values[some]
                pieces.append(Piece(name, to, False, rows[some], hashes, values, new))
        pieces[-1] = pieces[-1]._replace(is_last=True)
        with self._lock:
            self._pieces += pieces

    def _new_ids(self, change: Change, rows: Rows) -> dict[int, str] | None:
        """The ids of items that are counted and new here; None if one is not known."""
        if not change.name.startswith(COUNTS):
            return {}
        new = change.hashes[(rows < 0) & (change.values != 0)]
        found = {}
        ids = self.server.ids(new) if len(new) else []
        for h, raw in zip(new.tolist(), ids, strict=True):
            if raw is None:
                return None
            found[h] = raw
        return found

    def take_cache(self) -> Hashes | None:
        """The newest cache that anybody drew, if it was not taken yet."""
        cache = self._newest_cache
        self._newest_cache = None
        return cache

    def take(self, max_rows: int | None = None) -> list[Piece]:
        """The next pieces to apply, of about `PIECE_ROWS`, and all of entries that we
        add to. With `max_rows` 0, those of entries that are applied in part.
        """
        max_rows = PIECE_ROWS if max_rows is None else max_rows
        urgent = set(self.owned)
        if max_rows == 0:
            urgent |= {n for n, entry in self.table.entries.items() if entry.is_partial}
        found: list[Piece] = []
        left: list[Piece] = []
        rows = 0
        with self._lock:
            for piece in self._pieces:
                if rows >= max_rows and piece.name not in urgent:
                    left.append(piece)
                elif piece.to > self.table.version(piece.name) or piece.to == NOTHING:
                    rows += PIECE_ROWS if piece.ids else len(piece.rows)
                    found.append(piece)
            self._pieces = left
        return found
