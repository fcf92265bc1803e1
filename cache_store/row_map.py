"""Which row of the store each of a trainer's items has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamer.cache_store.codec import fingerprint
from streamer.cache_store.contribution import Rows

UNKNOWN = -1


class RowMap:
    """The store's item ids by row, and the store's row of each of the trainer's own rows.

    A row that the server has assigned counts as unconfirmed until its id comes back in a pull: a server that loses data
    in between may assign the row to another item. Not for several threads at once.

    Examples:
        >>> row_map = RowMap()
        >>> row_map.own_ids = ["tea", "cup"]
        >>> row_map.assign([1], [0])
        >>> row_map.rows_of(np.array([1, 0]))
        array([ 0, -1])
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        """By the store's rows, as far as they have been pulled."""
        self.fingerprint = ""
        """Of those ids."""
        self.own_ids: Sequence[str] = ()
        """By the trainer's rows; grows while it trains."""
        self.version = 0
        """Rises when items may have other rows of the store than before."""
        self._rows = np.full(0, UNKNOWN, np.int64)  # the store's row of each of ours
        self._unconfirmed: list[int] = []  # our rows

    def restore(self, own_ids: Sequence[str], own: Rows) -> None:
        """Continue from a checkpoint in which `own` were our rows of the store's."""
        self.own_ids = own_ids
        self.reset([own_ids[row] for row in own.tolist()])
        self.map(self.version, 0, own)

    def reset(self, ids: list[str]) -> None:
        """Take over the ids of a server, and forget all rows."""
        self.ids, self.fingerprint = ids, fingerprint(ids)
        self._rows, self._unconfirmed = np.full(0, UNKNOWN, np.int64), []
        self.version += 1

    def extend(self, ids: list[str], new_fingerprint: str) -> None:
        """Append ids that were pulled. Rows that they do not confirm are still unconfirmed, or forgotten."""
        self.ids += ids
        self.fingerprint = new_fingerprint
        doubtful, self._unconfirmed = self._unconfirmed, []
        for own in doubtful:
            row = self._rows[own]
            if row >= len(self.ids):
                self._unconfirmed.append(own)
            elif self.ids[row] != self.own_ids[own]:
                self._rows[own] = UNKNOWN

    def map(self, version: int, first: int, own: Rows) -> None:
        """Note that our rows `own` are the store's from `first` on; nothing happens if the version is outdated."""
        if version == self.version:
            self._grow(int(own.max(initial=-1)) + 1)
            self._rows[own] = np.arange(first, first + len(own))

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

    def _grow(self, size: int) -> None:
        missing = size - len(self._rows)
        if missing > 0:
            self._rows = np.concatenate([self._rows, np.full(max(missing, len(self._rows)), UNKNOWN, np.int64)])
