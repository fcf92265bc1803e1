"""Over which events a figure is: all, those new to their user, and both by what is
known of their user and item.

all, new                            every event; events whose item its user never had, known items left out
new-users, returning-users          the user's first event; later ones
new-items, returning-items          the item's first event, which only a catalogue can predict; later ones
head, torso, tail                   events of returning items, by the item's popularity before the batch
new/new-users ... new/tail          the same of `new`
second-half/<slice>                 each of them over the second half of the stream
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.model.batch import Rows
from streamer.model.rows.by_rows import take_or_fill
from streamer.model.rows.growing import grown

BANDS = ("head", "torso", "tail")
SPLITS = ("new-users", "returning-users", "new-items", "returning-items", *BANDS)
WHOLE = ("all", "new", *SPLITS, *(f"new/{split}" for split in SPLITS))
SECOND_HALF = "second-half/"
SLICES = (*WHOLE, *(SECOND_HALF + name for name in WHOLE))


AMONG_NEW = tuple(name for name in SLICES if "new" in name.split("/"))
"""Slices of events new to their user, ranked in lists without what the user had."""


class Traits(NamedTuple):
    """What is known of n events before they come.

    Args:
        new_user: [n] the user was never seen.
        new_item: [n] the item was never seen.
        band: [n] popularity band of the item: a place in `BANDS`.
        fresh: [n] the user never had the item.
        late: [n] the event is of the second half of the stream.
    """

    new_user: NDArray[np.bool_]
    new_item: NDArray[np.bool_]
    band: Rows
    fresh: NDArray[np.bool_]
    late: NDArray[np.bool_]

    def members(self) -> NDArray[np.bool_]:
        """[n, SLICES] which slices each event belongs to."""
        every = np.ones(len(self.fresh), np.bool_)
        bands = [~self.new_item & (self.band == b) for b in range(len(BANDS))]
        splits = [self.new_user, ~self.new_user, self.new_item, ~self.new_item, *bands]
        whole = [every, self.fresh, *splits, *(self.fresh & split for split in splits)]
        return np.stack([*whole, *(self.late & part for part in whole)], axis=1)


class FirstEvents:
    """Finds the first events of rows.

    Examples:
        >>> seen = FirstEvents()
        >>> seen.know(np.array([0]))
        >>> seen.first(np.array([0, 1, 1, 2])).tolist()
        [False, True, False, True]
    """

    def __init__(self) -> None:
        self._seen = np.zeros(0, np.bool_)

    def forget(self, rows: Rows) -> None:
        """These rows are given to other users or items."""
        self._seen[rows[rows < len(self._seen)]] = False

    def know(self, rows: Rows) -> None:
        """These rows had events already."""
        self._seen = grown(self._seen, int(rows.max(initial=-1)) + 1)
        self._seen[rows] = True

    def first(self, rows: Rows) -> NDArray[np.bool_]:
        """[n] whether each event is the first of its row; takes the events in."""
        distinct, at = np.unique(rows, return_index=True)
        found = np.zeros(len(rows), np.bool_)
        found[at] = ~take_or_fill(self._seen, distinct)
        self.know(distinct)
        return found
