"""A trainer without a model, on the shared state: it counts, draws and retires items of streams that are known
beforehand."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, Protocol

import numpy as np

from streamer.cache_store.change import COUNTS, DRAWN, NOTHING, Version, counts_of
from streamer.cache_store.server import MemoryServer, Request, StoreServer
from streamer.cache_store.store import CacheStore
from streamer.cache_store.table import Piece, Table

ITEMS = 11


class Backend(Protocol):
    """A server that can be lost."""

    def connect(self) -> StoreServer: ...
    def wipe(self) -> None: ...
    def copy(self) -> Any: ...
    def restore(self, copied: Any) -> None: ...


def item(name: str, offset: int) -> str:
    """The item of an event; the same for whoever reads it."""
    return f"item-{(offset * offset + 3 * offset + sum(name.encode())) % ITEMS}"


def counts_before(name: str, offset: int) -> Counter[str]:
    return Counter(item(name, k) for k in range(offset))


class Trainer:
    """Rows are given in the order in which items come; retired rows are not used again."""

    def __init__(self, store: CacheStore, saved: dict[str, Any] | None = None) -> None:
        self.store, self.shared, self.table = store, store.shared, store.table
        self.table.ids_of = self._ids_of
        self.ids: list[str | None] = []
        self.rows: dict[str, int] = {}
        self.counts: Counter[int] = Counter()
        self.drawn: Counter[int] = Counter()
        self.positions: dict[str, int] = {}
        self.retired: set[str] = set()
        if saved is not None:
            self.ids, self.positions = list(saved["ids"]), dict(saved["positions"])
            self.rows = {raw: row for row, raw in enumerate(self.ids) if raw is not None}
            self.counts, self.drawn = Counter(saved["counts"]), Counter(saved["drawn"])
            self.retired = set(saved["retired"])
            self.table.put(np.arange(len(self.ids)), saved["rows"])
            self.table.restore(saved["entries"])
            self.table.name_rows(np.array([*self.rows.values()], np.int64))

    def save(self) -> dict[str, Any]:
        self.receive(0)
        return {
            "ids": list(self.ids),
            "positions": dict(self.positions),
            "counts": dict(self.counts),
            "drawn": dict(self.drawn),
            "retired": set(self.retired),
            "rows": self.table.take(np.arange(len(self.ids))),
            "entries": self.table.save(),
        }

    def _row(self, raw: str) -> int:
        if raw not in self.rows:
            self.rows[raw] = len(self.ids)
            self.ids.append(raw)
        return self.rows[raw]

    def _ids_of(self, rows: np.ndarray) -> dict[str, Any]:
        raws = [str(self.ids[row]).encode() for row in rows]
        utf8 = np.frombuffer(b"".join(raws), np.uint8)
        return {"utf8": utf8, "length": np.array([len(raw) for raw in raws], np.int32)}

    def claim(self, name: str, start: int) -> int:
        """As `StoreSharing.claim`, but for the time that passes."""
        self.shared.owned.add(name)
        has_answered = self.store.try_exchange()
        known = self.shared.newest(name)[0]
        is_new = has_answered and not known and not self.shared.is_behind(name)
        self.positions[name] = start if is_new else min(start, known)
        return self.positions[name]

    def train(self, sizes: dict[str, int], draws: int = 0) -> int:
        """Train the next events of entries; returns how many were counted."""
        self.receive(3)
        additions: list[Any] = []
        versions: dict[str, Version] = {}
        for name, size in sizes.items():
            start = self.positions[name]
            until, _ = self.table.version(name)
            rows = [self._row(item(name, k)) for k in range(start, start + size) if k >= until]
            self.counts.update(rows)
            additions.append((name, np.array(rows, np.int64), np.ones(len(rows), np.int64)))
            self.positions[name] = start + size
            versions[name] = (start + size, 0)
        if draws and self.ids:
            row = next((r for r, raw in enumerate(self.ids) if raw is not None), None)
            if row is not None:
                self.drawn[row] += draws
                additions.append((self.table.own, np.array([row]), np.array([draws])))
                versions[self.table.own] = self.table.next_draw()
        for _, named, _ in additions:
            self.table.name_rows(named)
        self.table.record(additions, versions)
        counted = sum(len(rows) for name, rows, _ in additions if name.startswith(COUNTS))
        self.store.counted_events += counted
        return counted

    def retire(self, raw: str) -> None:
        if raw in self.rows:
            row = self.rows.pop(raw)
            self.table.forget(np.array([row]))
            self.ids[row] = None
            self.retired.add(raw)
            self.counts.pop(row, None), self.drawn.pop(row, None)

    def receive(self, max_rows: int = 1000) -> None:
        for piece in self.shared.take(max_rows):
            self._apply(piece)

    def _apply(self, piece: Piece) -> None:
        rows = self.table.names.verified(piece.rows, piece.hashes).copy()
        for k in np.flatnonzero(rows < 0).tolist():
            raw = piece.ids.get(int(piece.hashes[k]))
            if raw is not None:
                rows[k] = self._row(raw)
                self.table.name_rows(rows[k : k + 1])
        values, rows = piece.values[rows >= 0], rows[rows >= 0]
        grown = self.table.apply(piece, rows, values)
        totals = self.counts if piece.name.startswith(COUNTS) else self.drawn
        for row, more in zip(rows.tolist(), grown.tolist(), strict=True):
            totals[row] += more

    def entry(self, name: str) -> Counter[str]:
        """What our copy of an entry has."""
        column = self.table.entries[name].values
        return Counter({raw: int(column[r]) for raw, r in self.rows.items() if r < len(column) and column[r]})

    def check(self) -> None:
        """The totals are the sums of the columns."""
        rows = np.arange(len(self.ids))
        for kind, totals in ((COUNTS, self.counts), (DRAWN, self.drawn)):
            assert column_totals(self.table, kind, rows).tolist() == [totals[row] for row in rows.tolist()]

    def view(self) -> tuple[Counter[str], Counter[str]]:
        """Counts and draws by item."""
        return tuple(  # type: ignore[return-value]
            Counter({raw: totals[row] for raw, row in self.rows.items() if totals[row]})
            for totals in (self.counts, self.drawn)
        )


def dump(server: MemoryServer) -> dict[str, Any]:
    """A copy of everything, for `load`."""
    return copy.deepcopy({name: value for name, value in vars(server).items() if name != "_lock"})


def load(server: MemoryServer, dumped: dict[str, Any]) -> None:
    """Make a server as it was when it was dumped."""
    vars(server).update(copy.deepcopy(dumped))


def column_totals(table: Table, kind: str, rows: np.ndarray) -> np.ndarray:
    """The sum of all entries whose names begin with `kind`, for these rows."""
    found = np.zeros(len(rows), np.int64)
    for name, values in table.take(rows).items():
        found += values if name.startswith(kind) else 0
    return found


def stored(server: StoreServer, name: str) -> Counter[str]:
    """What the server has of an entry, put together as a reader does that has nothing."""
    found: dict[int, int] = {}
    at = NOTHING
    for change in server.exchange(Request("reader", reading={name: at})).changes.get(name, ()):
        assert change.fits(at), "a change is missing"
        found |= dict(zip(change.hashes.tolist(), change.values.tolist(), strict=True))
        at = change.to
    ids = server.ids(np.array(list(found), np.uint64))
    assert None not in [raw for raw, count in zip(ids, found.values(), strict=True) if count]
    return Counter({str(raw): count for raw, count in zip(ids, found.values(), strict=True) if count})


__all__ = [
    "ITEMS",
    "Backend",
    "Trainer",
    "column_totals",
    "counts_before",
    "counts_of",
    "dump",
    "item",
    "load",
    "stored",
]
