"""Which row of the store each of a trainer's items has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamer.cache_store.base import Rows
from streamer.cache_store.codec import fingerprint

_NONE = -1
_STRETCH = 4096


class Naming:
    """The store's items, by their rows there and by ours.

    Rows belong to the exchange alone. What the training thread tells (`own_ids`, `tell`) waits for `take_in_told`;
    these and what changes `ids` or `turn` need the view's lock.

    Examples:
        >>> naming = Naming()
        >>> naming.own_ids = ["tea", "cup"]
        >>> naming.take_in_told()
        >>> naming.rows_of(np.array([1, 0]))
        array([-1, -1])
        >>> naming.give([1], [0])
        >>> naming.rows_of(np.array([1, 0]))
        array([ 0, -1])
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        """By the store's rows, as far as they have been pulled."""
        self.fingerprint = ""
        """Of those."""
        self.own_ids: Sequence[str] = ()
        """By the trainer's rows; grows while it trains."""
        self.turn = 0
        """Grows when the store's rows of items may be others than before."""
        self._rows = np.full(0, _NONE, np.int64)  # the store's row of each of ours
        self._agreed = 0  # below it our rows are the store's
        self._told: list[tuple[int, Rows]] = []  # a row of the store, and which of ours are that one and the next

    def restore(self, own_ids: Sequence[str], own: Rows) -> None:
        """As it was when `own` were our rows of the store's."""
        self.own_ids = own_ids
        self.ids = [own_ids[row] for row in own.tolist()]
        self.fingerprint = fingerprint(self.ids)
        self._rows = np.full(len(own_ids), _NONE, np.int64)
        self._rows[own] = np.arange(len(own))
        self._agreed = agreed(self._rows)

    def begin_anew(self, ids: list[str]) -> None:
        """The store has these; what it had before does not count."""
        self.ids, self.fingerprint = ids, fingerprint(ids)
        self._rows, self._agreed = np.full(0, _NONE, np.int64), 0
        self._told = []
        self.turn += 1

    def extend(self, ids: list[str], names: str) -> None:
        """The store has named these, too; `names` is the fingerprint of all."""
        self.ids += ids
        self.fingerprint = names

    def tell(self, turn: int, first: int, own: Rows) -> None:
        """Which rows of ours are those of the store from `first` on; nothing happens if the turn is over."""
        if turn == self.turn:
            self._told.append((first, own))

    def take_in_told(self) -> None:
        """Make use of what `tell` was told, and have a place for all of our items."""
        missing = len(self.own_ids) - len(self._rows)
        if missing > 0:
            self._rows = np.concatenate([self._rows, np.full(max(missing, len(self._rows)), _NONE, np.int64)])
        told, self._told = self._told, []
        for first, own in told:
            self._rows[own] = np.arange(first, first + len(own))
        self._agreed = agreed(self._rows, self._agreed)

    def rows_of(self, own: Rows) -> Rows:
        """The store's rows of ours, to be read only; -1 where there is none yet."""
        if int(own.max(initial=-1)) < self._agreed:
            return own
        rows: Rows = self._rows[own]
        return rows

    def give(self, own: Sequence[int], rows: Sequence[int]) -> None:
        """The store has given these rows to ours."""
        self._rows[own] = rows
        self._agreed = agreed(self._rows, self._agreed)

    def forget_unsure(self) -> None:
        """Rows that were given and have not come back in a pull may be lost by the next time."""
        self._rows[self._rows >= len(self.ids)] = _NONE
        self._agreed = min(self._agreed, len(self.ids))

    def forget_others(self) -> None:
        """Rows that the server has given since are not in a seed, and it may give them to others."""
        given = np.flatnonzero(self._rows >= 0)
        pairs = zip(given.tolist(), self._rows[given].tolist(), strict=True)
        lost = [own for own, row in pairs if row >= len(self.ids) or self.ids[row] != self.own_ids[own]]
        self._rows[lost] = _NONE
        self._agreed = min([self._agreed, *lost])


def agreed(rows: Rows, known: int = 0) -> int:
    """Up to where rows[k] is k, if it is so up to `known`; found stretch by stretch.

    A trainer that is alone or joins late has all items in the rows of the store: then nothing need be translated.

    Examples:
        >>> agreed(np.array([0, 1, 2, 7, 4]))
        3
    """
    while known < len(rows):
        stretch = rows[known : known + _STRETCH]
        others = np.flatnonzero(stretch != np.arange(known, known + len(stretch)))
        if len(others):
            return known + int(others[0])
        known += len(stretch)
    return known
