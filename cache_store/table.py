"""A trainer's copy of all entries: a column for each, by the trainer's own item rows.

What the trainer counts and draws is added to its columns, what others have sent
replaces numbers in theirs. The sum over all columns is what the trainer works with.
"""

from __future__ import annotations

import logging
import threading
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
from streamer.cache_store.names import Names, compiled, hash_ids, with_size

logger = logging.getLogger(__name__)

LEAST_ROWS = 1 << 15
WHOLE_AFTER = 3
"""An entry is sent whole again when its changes since have so many times its rows, or
`LEAST_ROWS` if it has fewer.
"""
NAMES_AT_ONCE = 8192

Arrays = Mapping[str, NDArray[Any]]


class Piece(NamedTuple):
    """Some rows of a change that has arrived."""

    name: str
    to: Version  # NOTHING if the entry is gone
    is_last: bool
    rows: Rows  # where the items were when the change came; -1 if they had no row
    hashes: Hashes
    values: Values
    ids: dict[int, str]  # of items without a row, by name


@dataclass(slots=True)
class Entry:
    """A column of the table."""

    values: Values
    changed: NDArray[np.int32]
    """The tick of the table in which each row was changed last."""
    version: Version = NOTHING
    since: Version = NOTHING
    """The server has had this version: what was changed after `since_tick` it lacks."""
    since_tick: int = 0
    packed_tick: int = 0
    retired: list[tuple[int, Hashes]] = field(default_factory=list)
    """Names of items that were retired, and when; they count zero."""
    is_partial: bool = False
    """Whether a change is applied in part."""
    changed_rows: int = 0
    """That were sent since the last whole."""
    whole_rows: int = 0


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
        self.ids_of: Callable[[Rows], Arrays] = lambda rows: {}
        """The bytes of the ids of rows (`utf8`), and the `length` of each; called by
        both threads, of rows that have a name with the lock held.
        """
        self._tick = 1
        self.incarnation = 0
        """Of our own entry; 0 until the server has said which there are."""
        self._unsent: list[Rows] = []
        self._not_shared: set[int] = set()

    def version(self, name: str) -> Version:
        """The version of our copy of an entry."""
        entry = self.entries.get(name)
        return entry.version if entry is not None else NOTHING

    def totals(self, kind: str, rows: Rows) -> NDArray[np.int64]:
        """The sum of all entries whose names begin with `kind`, for these rows."""
        found = np.zeros(len(rows), np.int64)
        for name, entry in self.entries.items():
            if name.startswith(kind):
                found += _at(entry.values, rows)
        return found

    # ---------------------------------------------------------- by the training thread

    def name_rows(self, rows: Rows) -> None:
        """Give rows the names of their items, if they have none yet.

        A name that another item has already is not given: that item is not shared.
        """
        unnamed = np.unique(rows[self.names.of(rows) == 0])
        if not len(unnamed):
            return
        ids = self.ids_of(unnamed)
        hashes = hash_ids(ids["utf8"], ids["length"])
        is_shared = ~np.isin(hashes, np.array(list(self._not_shared), np.uint64))
        with self.lock:
            rows = unnamed[is_shared]
            is_shared[is_shared] = self.names.add(rows, hashes[is_shared])
            self._unsent.append(unnamed[is_shared])
        self._log_collisions(hashes[~is_shared].tolist())

    def _log_collisions(self, hashes: list[int]) -> None:
        for h in set(hashes) - self._not_shared:
            self._not_shared.add(h)
            logger.warning(
                "Two items have the same 64-bit name %016x: one of them is not shared",
                h,
            )

    def record(
        self,
        additions: Iterable[tuple[str, Rows, NDArray[np.int64] | None]],
        versions: Mapping[str, Version],
    ) -> None:
        """Add to entries what was counted or drawn (one each, if no amounts are given),
        and note up to which version that is all.
        """
        with self.lock:
            for name, rows, amounts in additions:
                entry = self._entry(name, rows)
                if amounts is None:
                    amounts = np.ones(len(rows), np.int64)
                _add(entry.values, entry.changed, rows, amounts, self._tick)
            for name, version in versions.items():
                entry = self._entry(name)
                entry.version = max(entry.version, version)

    def next_draw(self) -> Version:
        """The version of our own entry after the next step."""
        return self.incarnation, self.version(self.own)[1] + 1

    def apply(self, piece: Piece, rows: Rows, values: Values) -> NDArray[np.int64]:
        """Replace the numbers of rows by those of a newer version, which the entry has
        with the last piece of the change; returns how much each number has grown.
        """
        with self.lock:
            entry = self._entry(piece.name, rows)
            grown = values.astype(np.int64) - entry.values[rows]
            entry.values[rows] = values
            entry.is_partial = not piece.is_last
            if piece.is_last:
                entry.version = piece.to
                self._server_has(entry, piece.to, self._tick)
                self._tick += 1
        return grown

    def _entry(self, name: str, rows: Rows | None = None) -> Entry:
        """The entry, with room for rows; the lock is held."""
        entry = self.entries.get(name)
        if entry is None:
            entry = Entry(np.zeros(0, dtype_of(name)), np.zeros(0, np.int32))
            self.entries[name] = entry
        if rows is not None:
            size = int(rows.max(initial=-1)) + 1
            entry.values = with_size(entry.values, size)
            entry.changed = with_size(entry.changed, len(entry.values))
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
            self._unsent = [np.flatnonzero(self.names.of_row)]

    def unsent_names(self) -> tuple[Hashes, list[bytes]] | None:
        """Names that the server is to have before anything that uses them, and the id
        of each.
        """
        with self.lock:
            if not self._unsent:
                return None
            if len(self._unsent) > 1:
                self._unsent = [np.concatenate(self._unsent)]
            rows = self._unsent[0][:NAMES_AT_ONCE]
            rows = rows[self.names.of_row[rows] != 0]
            ids = self.ids_of(rows)
            hashes = self.names.of_row[rows]
        utf8 = ids["utf8"].tobytes()
        found = []
        start = 0
        for length in ids["length"].tolist():
            found.append(utf8[start : start + length])
            start += length
        return hashes, found

    def names_sent(self, refused: Hashes) -> None:
        """The server has what `unsent_names` returned, but for names that belong to
        other items there.
        """
        with self.lock:
            rest = self._unsent[0][NAMES_AT_ONCE:]
            self._unsent[:1] = [rest] if len(rest) else []
            rows = self.names.rows_of(refused)
            self.names.remove(rows[rows >= 0])
        self._log_collisions(refused.tolist())

    def rows_of(self, hashes: Hashes) -> Rows:
        """Where these items are now; -1 if they have no row."""
        with self.lock:
            return self.names.rows_of(hashes)

    def lacking_in(self, whole: Change, rows: Rows) -> Rows:
        """Rows whose numbers are not zero, and which a whole of the entry lacks."""
        with self.lock:
            entry = self.entries.get(whole.name)
            if entry is None:
                return np.empty(0, np.int64)
            is_left = entry.values != 0
        is_left[rows[(rows >= 0) & (rows < len(is_left))]] = False
        return np.flatnonzero(is_left)

    def pack(self, name: str, top: Version) -> Change | None:
        """What a server lacks that has version `top` of an entry; None if nothing.

        It is a whole if the server is behind what we know of it, and when the changes
        since the last whole outweigh that.
        """
        with self.lock:
            entry = self.entries[name]
            if entry.version <= top or entry.is_partial:
                return None
            whole_rows = max(entry.whole_rows, LEAST_ROWS)
            is_due = entry.changed_rows > WHOLE_AFTER * whole_rows
            is_behind = top == NOTHING or top < entry.since
            change = self._pack_changed(name, entry)
            if not is_due and not is_behind:
                entry.changed_rows += len(change.hashes)
                return change
            others = entry.values.copy()
            others[np.flatnonzero(entry.changed > entry.since_tick)] = 0
            of_row = with_size(self.names.of_row, len(others)).copy()
        rows = np.flatnonzero(others)
        hashes = of_row[rows]
        rows = rows[hashes != 0]
        hashes = np.concatenate([change.hashes, hashes[hashes != 0]])
        values = np.concatenate([change.values, others[rows]])
        entry.changed_rows = 0
        entry.whole_rows = len(hashes)
        changed = len(change.hashes)
        return Change(name, change.since, change.to, hashes, values, changed)

    def _pack_changed(self, name: str, entry: Entry) -> Change:
        """All that was changed after `since`; the lock is held."""
        rows = np.flatnonzero(entry.changed > entry.since_tick)
        entry.packed_tick = self._tick
        self._tick += 1
        hashes = self.names.of(rows)
        rows = rows[hashes != 0]
        hashes = hashes[hashes != 0]
        values = entry.values[rows]
        if entry.retired:
            retired = np.concatenate([names for _, names in entry.retired])
            gone = np.setdiff1d(retired, hashes)
            hashes = np.concatenate([hashes, gone])
            values = np.concatenate([values, np.zeros(len(gone), values.dtype)])
        return Change(name, entry.since, entry.version, hashes, values)

    def acknowledge(self, change: Change) -> None:
        """The server has what was packed last of an entry."""
        with self.lock:
            entry = self.entries[change.name]
            if change.to >= entry.since:
                self._server_has(entry, change.to, entry.packed_tick)

    def _server_has(self, entry: Entry, version: Version, tick: int) -> None:
        """The server has had all that was changed before a tick; the lock is held."""
        entry.since = version
        entry.since_tick = tick
        entry.retired = [one for one in entry.retired if one[0] > tick]

    # --------------------------------------- a part of a learner that is kept by rows

    def take(self, rows: Rows) -> dict[str, NDArray[Any]]:
        """A copy of what these rows hold, by entry."""
        entries = self.entries.items()
        return {name: _at(entry.values, rows) for name, entry in entries}

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
        """The learner retires items: they count zero in our copy of every entry."""
        with self.lock:
            hashes = self.names.of(rows)
            for entry in self.entries.values():
                inside = np.flatnonzero(rows < len(entry.values))
                counted = inside[entry.values[rows[inside]] != 0]
                entry.values[rows[counted]] = 0
                if len(counted):
                    entry.retired.append((self._tick, hashes[counted]))
            self.names.remove(rows)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        columns = 0
        for entry in self.entries.values():
            columns += entry.values.nbytes + entry.changed.nbytes
        return columns + self.names.nbytes


def _at(values: Values, rows: Rows) -> Values:
    """The numbers of rows, 0 beyond the end."""
    return with_size(values, int(rows.max(initial=-1)) + 1)[rows]


@compiled
def _add(
    values: Values,
    changed: NDArray[np.int32],
    rows: Rows,
    amounts: NDArray[np.int64],
    tick: int,
) -> None:
    for i in range(len(rows)):
        values[rows[i]] += amounts[i]
        changed[rows[i]] = tick
