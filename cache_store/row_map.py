"""Which row of the store each of a trainer's items has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamer.cache_store.codec import fingerprint
from streamer.cache_store.contribution import NO_ROWS, Rows

UNKNOWN = -1


class RowMap:
    """The store's item ids by row, and the store's row of each of the trainer's own
    rows.

    A row that the server has assigned counts as unconfirmed until its id comes back in
    a pull: a server that loses data in between may assign the row to another item. Not
    for several threads at once.

    Examples:
        >>> row_map = RowMap()
        >>> row_map.own_ids = ["tea", "cup"]
        >>> row_map.assign([1], [0])
        >>> row_map.rows_of(np.array([1, 0]))
        array([ 0, -1])
    """

    def __init__(self) -> None:
        self.ids: list[str | None] = []
        """By the store's rows, as far as they have been pulled; None where the item is
        retired.
        """
        self.fingerprint = ""
        """Of those ids, as they were before any was retired."""
        self.own_ids: Sequence[str] = ()
        """By the trainer's rows; grows while it trains."""
        self.version = 0
        """Rises when items may have other rows of the store than before."""
        self._rows = np.full(0, UNKNOWN, np.int64)  # the store's row of each of ours
        self._unconfirmed: list[int] = []  # our rows

    def restore(
        self, own_ids: Sequence[str], own: Rows, ids_fingerprint: str = ""
    ) -> None:
        """Continue from a checkpoint in which `own` were our rows of the store's, -1
        where the item was retired.
        """
        self.own_ids = own_ids
        self.reset(
            [own_ids[row] if row >= 0 else "" for row in own.tolist()],
            np.flatnonzero(own < 0),
        )
        self.fingerprint = ids_fingerprint or self.fingerprint
        self.map(self.version, 0, own)

    def reset(self, ids: list[str], retired: Rows = NO_ROWS) -> None:
        """Take over the ids of a server, of which some rows are retired, and forget all
        rows.
        """
        self.ids = list(ids)
        self.fingerprint = fingerprint(ids)
        for row in retired.tolist():
            self.ids[row] = None
        self._rows = np.full(0, UNKNOWN, np.int64)
        self._unconfirmed = []
        self.version += 1

    def extend(self, ids: list[str], new_fingerprint: str) -> None:
        """Append ids that were pulled. Rows that they do not confirm are still
        unconfirmed, or forgotten.
        """
        self.ids += ids
        self.fingerprint = new_fingerprint
        doubtful = self._unconfirmed
        self._unconfirmed = []
        for own in doubtful:
            row = self._rows[own]
            if row >= len(self.ids):
                self._unconfirmed.append(own)
            elif self.ids[row] != self.own_ids[own]:
                self._rows[own] = UNKNOWN

    def map(self, version: int, first: int, own: Rows) -> None:
        """Note that our rows `own` are the store's from `first` on; nothing happens if
        the version is outdated.

        Rows that are retired by now are passed over.
        """
        if version == self.version:
            self._grow(int(own.max(initial=-1)) + 1)
            kept = np.array(
                [raw is not None for raw in self.ids[first : first + len(own)]],
                np.bool_,
            )
            self._rows[own[kept]] = first + np.flatnonzero(kept)

    def retire(self, rows: Rows) -> Rows:
        """Note that the items of these rows of the store are retired; returns those of
        our rows that were theirs.
        """
        for row in rows.tolist():
            self.ids[row] = None
        own = np.flatnonzero(np.isin(self._rows, rows))
        self._rows[own] = UNKNOWN
        return own

    def assign(self, own: Sequence[int], rows: Sequence[int]) -> None:
        """Note that the server has assigned these rows to ours."""
        self._grow(len(self.own_ids))
        self._rows[own] = rows
        self._unconfirmed += own

    def forget_unconfirmed(self) -> None:
        """Forget the rows that have not come back in a pull."""
        self._rows[self._unconfirmed] = UNKNOWN
        self._unconfirmed = []

    def rows_of(self, own: Rows) -> Rows:
        """The store's row of each of ours; -1 where it is not known yet."""
        self._grow(len(self.own_ids))
        rows: Rows = self._rows[own]
        return rows

    def mapped(self) -> Rows:
        """Our rows whose row of the store is known."""
        return np.flatnonzero(self._rows != UNKNOWN)

    def _grow(self, size: int) -> None:
        missing = size - len(self._rows)
        if missing > 0:
            self._rows = np.concatenate(
                [self._rows, np.full(max(missing, len(self._rows)), UNKNOWN, np.int64)]
            )
