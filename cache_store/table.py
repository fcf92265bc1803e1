"""A trainer's copy of all entries: a column for each, by the trainer's own item rows.

What the trainer counts and draws is added to its columns, what others have sent
replaces numbers in theirs. The sum over all columns is what the trainer works with.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.change import (
    NOTHING,
    Change,
    Hashes,
    Rows,
    Values,
    Version,
    dtype_of,
)
from streamer.cache_store.names import Names, at_rows, compiled, hash_ids, with_size

CHANGES_PER_ROW = 3
LEAST_ROWS = 1 << 15
"""All of an entry is sent again when the changes since have this many times its rows, or
`LEAST_ROWS` if it has fewer.
"""

Arrays = Mapping[str, NDArray[Any]]


class Piece(NamedTuple):
    """Some rows of what has arrived of an entry."""

    name: str
    to: Version  # that the entry has with the last piece; NOTHING if it is gone then
    is_last: bool
    rows: Rows  # where the items were when the piece came; -1 if they had no row
    hashes: Hashes
    values: Values
    ids: dict[int, str]  # of items without a row, by name


@dataclass(slots=True)
class Entry:
    """A column of the table."""

    values: Values
    is_changed: NDArray[np.bool_]
    """Which rows have changed since the server had them."""
    version: Version = NOTHING
    since: Version = NOTHING
    """The server has had this version."""
    packed: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows that were sent, and that the server has not acknowledged."""
    sent_rows: int = 0
    """Since all of it was sent."""
    is_partial: bool = False
    """Whether some pieces are applied and others are not."""


class Table:
    """Entries by the rows of one trainer.

    One lock guards it: the thread that trains changes it, the thread that exchanges
    reads it; neither holds the lock for longer than a copy of a column takes.

    Args:
        own: the name of the trainer's draws, which nobody else writes.
    """

    def __init__(self, own: str) -> None:
        self.own = own
        self.lock = threading.Lock()
        self.entries: dict[str, Entry] = {}
        self.names = Names()
        self.unsent: deque[tuple[Hashes, Arrays]] = deque()
        """Names that the server is to have before anything that uses them, and ids."""
        self.ids_of: Callable[[Rows], Arrays] = lambda rows: {}
        """The bytes of the ids of rows (`utf8`), and the `length` of each; called by
        both threads, of rows that have a name with the lock held.
        """
        self.incarnation = 0
        """Of our own entry; 0 until the server has said which there are."""

    def version(self, name: str) -> Version:
        """The version of our copy of an entry."""
        entry = self.entries.get(name)
        return entry.version if entry is not None else NOTHING

    # ---------------------------------------------------------- by the training thread

    def name_rows(self, rows: Rows) -> None:
        """Give rows the names of their items, if they have none yet. One whose name
        another row has stays without, and is not shared.
        """
        unnamed = rows[self.names.of(rows) == 0]
        if len(unnamed):
            unnamed = np.unique(unnamed)
            ids = self.ids_of(unnamed)
            hashes = hash_ids(ids["utf8"], ids["length"])
            with self.lock:
                self.names.add(unnamed, hashes)
            self.unsent.append((hashes, ids))

    def record(
        self,
        additions: Iterable[tuple[str, Rows, NDArray[np.int64]]],
        versions: Mapping[str, Version],
    ) -> None:
        """Add to entries what was counted or drawn, and note up to which version that
        is all.
        """
        with self.lock:
            for name, rows, amounts in additions:
                entry = self._entry(name, rows)
                _add(entry.values, entry.is_changed, rows, amounts)
            for name, version in versions.items():
                entry = self._entry(name)
                entry.version = max(entry.version, version)

    def next_draw(self) -> Version:
        """The version of our own entry after the next step."""
        return self.incarnation, self.version(self.own)[1] + 1

    def apply(self, piece: Piece, rows: Rows, values: Values) -> NDArray[np.int64]:
        """Replace the numbers of rows by those of a newer version; returns how much
        each number has grown.
        """
        with self.lock:
            entry = self._entry(piece.name, rows)
            grown = values.astype(np.int64) - entry.values[rows]
            entry.values[rows] = values
            entry.is_partial = not piece.is_last
            if piece.is_last:
                entry.version = piece.to
                entry.is_changed[:] = False
                self._server_has(entry, piece.to)
            if piece.is_last and piece.to == NOTHING:
                del self.entries[piece.name]
        return grown

    def _entry(self, name: str, rows: Rows | None = None) -> Entry:
        """The entry, with room for rows; the lock is held."""
        entry = self.entries.get(name)
        if entry is None:
            entry = Entry(np.zeros(0, dtype_of(name)), np.zeros(0, np.bool_))
            self.entries[name] = entry
        if rows is not None:
            size = int(rows.max(initial=-1)) + 1
            entry.values = with_size(entry.values, size)
            entry.is_changed = with_size(entry.is_changed, len(entry.values))
        return entry

    # ---------------------------------------------------------- by the exchange thread

    def begin_draws(self, incarnation: int) -> None:
        """Begin our own entry anew: we were started again, and what was drawn after our
        checkpoint is lost.
        """
        with self.lock:
            self.incarnation = incarnation
            if self.own in self.entries:
                entry = self.entries[self.own]
                entry.version = (incarnation, entry.version[1])
                entry.since = entry.version  # the server has an earlier one

    def send_names_again(self) -> None:
        """The server has lost names."""
        with self.lock:
            rows = np.flatnonzero(self.names.of_row)
            self.unsent.append((self.names.of_row[rows], self.ids_of(rows)))

    def rows_of(self, hashes: Hashes) -> Rows:
        """Where these items are now; -1 if they have no row."""
        with self.lock:
            return self.names.rows_of(hashes)

    def pack(self, name: str, top: Version) -> list[Change]:
        """What a server lacks that has version `top` of an entry, in order.

        That is everything if the server is behind what we know of it. When the changes
        since outweigh the entry, all that has *not* changed comes before what has: who
        is up to date need not read it, and the server can forget what was before it.
        """
        with self.lock:
            entry = self.entries[name]
            if entry.version <= top or entry.is_partial:
                return []
            entry.is_changed[entry.packed] = True
            entry.packed = np.flatnonzero(entry.is_changed)
            entry.is_changed[entry.packed] = False
            is_behind = top == NOTHING or top < entry.since
            largest = CHANGES_PER_ROW * max(len(entry.values), LEAST_ROWS)
            is_due = entry.sent_rows > largest and entry.since > NOTHING
            rest = np.empty(0, np.int64)
            if is_behind or is_due:
                is_left = entry.values != 0
                is_left[entry.packed] = False
                rest = np.flatnonzero(is_left)
                entry.sent_rows = 0
            if is_behind:
                rows = np.concatenate([rest, entry.packed])
                return [self._change(name, NOTHING, entry.version, rows)]
            entry.sent_rows += len(entry.packed)
            change = self._change(name, entry.since, entry.version, entry.packed)
            if is_due:
                return [self._change(name, NOTHING, entry.since, rest), change]
            return [change]

    def _change(self, name: str, since: Version, to: Version, rows: Rows) -> Change:
        hashes = self.names.of(rows)
        values = self.entries[name].values[rows]
        if not hashes.all():
            values = values[hashes != 0]
            hashes = hashes[hashes != 0]
        return Change(name, since, to, hashes, values)

    def zeros(self, name: str) -> Change:
        """Zero for every item of our copy of an entry."""
        with self.lock:
            rows = np.empty(0, np.int64)
            if name in self.entries:
                rows = np.flatnonzero(self.entries[name].values)
            hashes = self.names.of(rows)
        hashes = hashes[hashes != 0]
        zeros = np.zeros(len(hashes), dtype_of(name))
        return Change(name, NOTHING, NOTHING, hashes, zeros)

    def acknowledge(self, change: Change) -> None:
        """The server has what was packed last of an entry."""
        with self.lock:
            entry = self.entries[change.name]
            if change.to > entry.since:
                self._server_has(entry, change.to)

    def _server_has(self, entry: Entry, version: Version) -> None:
        """The server has had this version; the lock is held."""
        entry.since = version
        entry.packed = np.empty(0, np.int64)

    # --------------------------------------- a part of a learner that is kept by rows

    def take(self, rows: Rows) -> dict[str, NDArray[Any]]:
        """A copy of what these rows hold, by entry."""
        entries = self.entries.items()
        return {name: at_rows(entry.values, rows) for name, entry in entries}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        """Make rows hold what `take` returned; `restore` adds the versions."""
        for name, values in arrays.items():
            self._entry(name, rows).values[rows] = values

    def dense(self) -> dict[str, NDArray[Any]]:
        """What belongs to no row: nothing."""
        return {}

    def load_dense(self, arrays: Arrays) -> None:
        """Take over what `dense` returned."""

    def save(self) -> list[list[Any]]:
        """Name and version of each entry."""
        return [[name, *entry.version] for name, entry in self.entries.items()]

    def restore(self, versions: Iterable[Iterable[Any]]) -> None:
        """Have these versions of entries, whose rows were put; and no others."""
        kept = {}
        for name, major, minor in versions:
            entry = kept[name] = self._entry(name)
            entry.version = (int(major), int(minor))
            entry.since = entry.version
        self.entries = kept

    def forget(self, rows: Rows) -> None:
        """The learner retires items: they count zero in our copy of every entry. Others
        keep what they have of them.
        """
        with self.lock:
            for entry in self.entries.values():
                entry.values[rows[rows < len(entry.values)]] = 0
            self.names.remove(rows)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        columns = 0
        for entry in self.entries.values():
            columns += entry.values.nbytes + entry.is_changed.nbytes
        return columns + self.names.nbytes


@compiled
def _add(
    values: Values,
    is_changed: NDArray[np.bool_],
    rows: Rows,
    amounts: NDArray[np.int64],
) -> None:
    for i in range(len(rows)):
        values[rows[i]] += amounts[i]
        is_changed[rows[i]] = True
